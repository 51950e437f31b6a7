"""Shape checks: a silent broadcast is the most expensive bug in this field."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


def expect_shapes(pattern: str, *tensors: Tensor) -> None:
    """Check ranks and that equal letters mean equal sizes, e.g. `expect_shapes("B A, B", q, r)`.

    A number stands for itself.
    """
    if not torch.compiler.is_compiling():
        _check(pattern, tuple([tensor.shape for tensor in tensors]))


@lru_cache(maxsize=1024)  # the same few shapes come back at every update
def _check(pattern: str, shapes: tuple[torch.Size, ...]) -> None:
    sizes: dict[str, int] = {}
    for position, (names, shape) in enumerate(zip(pattern.split(","), shapes, strict=True)):
        letters = names.split()
        if len(letters) != len(shape):
            raise ValueError(f"argument {position}: expected [{names.strip()}], found {(*shape,)}")
        for letter, size in zip(letters, shape, strict=True):
            if sizes.setdefault(letter, int(letter) if letter.isdigit() else size) != size:
                known = "" if letter.isdigit() else f" with {letter} = {sizes[letter]}"
                raise ValueError(
                    f"argument {position}: expected [{names.strip()}]{known}, found {(*shape,)}"
                )
