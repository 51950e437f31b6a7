"""Observations with several parts: where each lies in an encoded row, and how to read it there.

`docs/decisions/0020-observations-with-parts.md` says why an observation is one row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

IMAGE_RANK = 3
FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of an observation: `shape` numbers of `dtype` in `slice` of an encoded row.

    Parts inside others have names such as `arm/joints`; those of a Tuple are numbered. An image is
    (channels, height, width), and `frames` counts the images of several steps that are stacked in
    its channels.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    frames: int = 1
    start: int = 0
    stop: int = 0

    @property
    def slice(self) -> slice:
        """Where it lies in a row."""
        return slice(self.start, self.stop)

    @property
    def is_image(self) -> bool:
        """Whether it is an image, not a vector."""
        return len(self.shape) == IMAGE_RANK

    @property
    def nbytes(self) -> int:
        """Memory of it."""
        return math.prod(self.shape) * (FLOAT_BYTES if self.dtype == "float32" else 1)


def laid_out(parts: Sequence[Part]) -> tuple[tuple[Part, ...], int, str]:
    """The parts in the order of a row, each with its place; the row's length and type.

    Vectors come first, then float images, then bytes. Beside bytes, floats take four places each,
    and the row is filled up to a multiple of four, so that floats in it can be read by a view.
    """
    ordered = sorted(parts, key=lambda part: (part.dtype == "uint8", part.is_image))  # stable
    packed = any(part.dtype == "uint8" for part in parts)
    placed, stop = [], 0
    for part in ordered:
        start, stop = stop, stop + (part.nbytes if packed else math.prod(part.shape))
        placed.append(replace(part, start=start, stop=stop))
    if packed:
        stop += -stop % FLOAT_BYTES
    return tuple(placed), stop, "uint8" if packed else "float32"


def part_array(rows: np.ndarray, part: Part) -> np.ndarray:
    """A part of encoded rows [..., row] in host memory, as a view."""
    columns = rows[..., part.slice]
    if part.dtype != columns.dtype:
        columns = columns.view(np.float32)
    return columns.reshape(*rows.shape[:-1], *part.shape)


def part_tensor(rows: Tensor, part: Part) -> Tensor:
    """A part of encoded rows [..., row], as a view."""
    columns: Tensor = without_names(rows)[..., part.slice]
    if part.dtype == "float32" and columns.dtype is torch.uint8:
        columns = columns.view(torch.float32)
    return columns.reshape(*columns.shape[:-1], *part.shape) if part.is_image else columns


class NamedParts(Tensor):
    """Encoded observations [..., row], whose parts go by their names: `obs["camera"]`.

    Rows can be indexed, joined and reshaped as those of any tensor, and keep the names; what is
    computed from them is a plain tensor.
    """

    parts: tuple[Part, ...]

    def __getitem__(self, key: Any) -> Tensor:
        if not isinstance(key, str):
            return super().__getitem__(key)
        for part in self.parts:
            if part.name == key:
                return part_tensor(self, part)
        raise KeyError(f"{key}: expected one of {', '.join(part.name for part in self.parts)}")

    def keys(self) -> list[str]:
        """The names of the parts."""
        return [part.name for part in self.parts]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # torch's own signature
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        if func not in _ROW_OPERATIONS:
            return result
        rows: Any = args[0] if isinstance(args[0], Tensor) else args[0][0]
        if isinstance(result, Tensor):
            return named(result, rows.parts)
        return type(result)(named(piece, rows.parts) for piece in result)


_ROW_OPERATIONS = {
    Tensor.__getitem__,
    Tensor.clone,
    Tensor.contiguous,
    Tensor.cpu,
    Tensor.detach,
    Tensor.flatten,
    Tensor.pin_memory,
    Tensor.repeat,
    Tensor.split,
    Tensor.to,
    Tensor.transpose,
    Tensor.unflatten,
    Tensor.unsqueeze,
    torch.cat,
    torch.split,
}
"""Those that leave the last axis, and so the parts, as they are."""


def without_names(data: Any) -> Any:
    """A tensor, or the tensors of a named tuple, as plain ones, which `torch.compile` needs."""
    if isinstance(data, NamedParts):
        return data.as_subclass(Tensor)
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*map(without_names, data))
    return data


def named(rows: Tensor, parts: tuple[Part, ...]) -> Tensor:
    """The rows with names for their parts; unchanged without any."""
    if not parts:
        return rows
    view = rows.as_subclass(NamedParts)
    view.parts = parts
    return view
