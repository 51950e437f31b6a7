"""Shape checks: a silent broadcast is the most expensive bug in this field."""

from __future__ import annotations

from torch import Tensor


def expect_shapes(pattern: str, *tensors: Tensor) -> None:
    """Check ranks and that equal letters mean equal sizes, e.g. `expect_shapes("B A, B", q, r)`."""
    sizes: dict[str, int] = {}
    for position, (names, tensor) in enumerate(zip(pattern.split(","), tensors, strict=True)):
        letters = names.split()
        shape = tuple(tensor.shape)
        if len(letters) != len(shape):
            raise ValueError(f"argument {position}: expected [{names.strip()}], found {shape}")
        for letter, size in zip(letters, shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise ValueError(
                    f"argument {position}: expected [{names.strip()}] with {letter} = "
                    f"{sizes[letter]}, found {shape}"
                )
