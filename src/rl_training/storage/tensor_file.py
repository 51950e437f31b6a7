"""The safetensors file format, streamed: written in chunks, read into place, bounds checked.

The files are ordinary safetensors files. They are written here because the library hides the
errors of the disk and needs shared memory copied first, and read here because every bound is
checked before anything is allocated and nothing stays mapped to a file that may be deleted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from io import BufferedReader
from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor

from rl_training.storage.files import Bytes, parse_json

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
STORABLE = frozenset(DTYPES.values())
CHUNK_BYTES = 8 << 20
MAX_HEADER_BYTES = 64 << 20

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LENGTH_BYTES = 8
_MAX_ELEMENTS = 1 << 48


class _Entry(NamedTuple):
    name: str
    dtype: torch.dtype
    shape: list[int]
    begin: int
    end: int


def file_chunks(tensors: Mapping[str, Tensor]) -> Iterator[Bytes]:
    """The file's bytes, in order; tensors are contiguous, on the CPU and of a storable dtype."""
    # Wide dtypes first, as the library does, so that every tensor is aligned in the file.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, object] = {}
    offset = 0
    for name in names:
        tensor = tensors[name]
        end = offset + tensor.nbytes
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    yield len(text).to_bytes(_LENGTH_BYTES, "little") + text
    for name in names:
        data = tensor_bytes(tensors[name])
        for begin in range(0, len(data), CHUNK_BYTES):
            yield data[begin : begin + CHUNK_BYTES]


def byte_view(tensor: Tensor) -> Tensor:
    """The memory of a contiguous tensor as a row of bytes, not a copy."""
    # Not reshape(-1): a tensor of 0 or 1 elements may have any stride and be contiguous.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor, not a copy."""
    return byte_view(tensor).numpy().data


def read_tensors(file: BufferedReader, size: int) -> dict[str, Tensor]:
    """The tensors in an open file of `size` bytes; ValueError with the reason if malformed."""
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if length > min(MAX_HEADER_BYTES, size - _LENGTH_BYTES):
        raise ValueError(f"the header claims {length} bytes, the file has {size}")
    header = parse_json(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("the header is not a JSON object")
    entries = sorted((_entry(*item) for item in header.items()), key=lambda e: (e.begin, e.end))
    position = 0
    for entry in entries:
        if entry.begin != position:
            raise ValueError(f"tensor {entry.name!r} overlaps another one or leaves a gap")
        position = entry.end
    if position != size - _LENGTH_BYTES - length:
        raise ValueError("the tensors do not fill the file exactly")
    return {entry.name: _read(file, entry) for entry in entries}


def _entry(name: str, fields: object) -> _Entry:
    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"tensor {name!r} needs exactly dtype, shape and data_offsets")
    dtype = DTYPES.get(fields["dtype"]) if isinstance(fields["dtype"], str) else None
    if dtype is None:
        raise ValueError(f"tensor {name!r} has the unknown dtype {str(fields['dtype'])[:20]!r}")
    shape = checked_shape(fields["shape"])
    offsets = fields["data_offsets"]
    if not _natural_numbers(offsets) or len(offsets) != 2:
        raise ValueError(f"tensor {name!r} has malformed data_offsets")
    begin, end = offsets
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"the shape of tensor {name!r} does not match its number of bytes")
    return _Entry(name, dtype, shape, begin, end)


def checked_shape(value: object) -> list[int]:
    """`value` if it is a shape that can exist, else ValueError."""
    if not _natural_numbers(value) or len(value) > 32:
        raise ValueError("a shape is not a list of at most 32 natural numbers")
    # A zero hides huge neighbours from the product, and strides are computed from those.
    if math.prod(max(size, 1) for size in value) > _MAX_ELEMENTS:
        raise ValueError("a shape is too large")
    return list(value)


def _natural_numbers(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _read(file: BufferedReader, entry: _Entry) -> Tensor:
    try:
        tensor = torch.empty(entry.shape, dtype=entry.dtype)
    except RuntimeError:
        size = entry.end - entry.begin
        raise ValueError(f"no memory for tensor {entry.name!r} of {size} bytes") from None
    data = tensor_bytes(tensor)
    filled = 0
    while filled < len(data):
        count = file.readinto(data[filled:])
        if not count:
            raise ValueError(f"the file ends inside tensor {entry.name!r}")
        filled += count
    if entry.dtype == torch.bool and bool((byte_view(tensor) > 1).any()):
        raise ValueError(f"tensor {entry.name!r} holds a boolean that is neither 0 nor 1")
    return tensor
