"""State trees: nested dicts, lists and tuples of plain values, split into JSON and tensors.

In the structure None, booleans, strings, lists, finite floats and integers up to 2**53 stand for
themselves. Everything else is an object whose first key is its tag:

    {"dict": {...}}  {"tuple": [...]}  {"int": "-0x1f"}  {"float": "7ff8000000000000"}
    {"tensor": key}  {"array": key}  {"bytes": key}  {"scalar": "<f4", "hex": "0000c03f"}

where `key` names a tensor by its path in the tree. Tensors and arrays of a dtype that a tensor
file lacks are stored as their bytes, with `dtype` and `shape` in the structure.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias

import numpy as np
import torch
from torch import Tensor

from rl_training.errors import CheckpointError, UsageError
from rl_training.experiment.tensor_file import (
    CHUNK_BYTES,
    STORABLE,
    byte_view,
    checked_shape,
    tensor_bytes,
)

StateTree: TypeAlias = Any
"""A nesting of dict, list and tuple over tensors, arrays, numbers, strings, bytes and None."""

MAX_DEPTH = 64
_MAX_PLAIN_INT = 2**53
_NATIVE_ARRAYS = frozenset(map(np.dtype, ("?", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8")))
_ARRAY_DTYPE = re.compile(r"[<>|][biufcmMSU][0-9]{1,9}(\[[0-9]{0,9}[A-Za-z]{1,7}\])?")
_RAW_TENSOR_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.complex128)
}


def split(tree: StateTree) -> tuple[Any, dict[str, Tensor]]:
    """The tree as JSON-able structure plus its tensors, detached, contiguous and on the CPU.

    Contiguous CPU data is not copied: use the tensors before the tree changes. Dicts of any
    kind come back as `dict`; a leaf or container of another type raises UsageError.
    """
    tensors: dict[str, Tensor] = {}
    return _encode(tree, (), tensors), tensors


def join(structure: Any, tensors: Mapping[str, Tensor]) -> StateTree:
    """The tree that `split` took apart; it may share memory with `tensors`.

    Raises CheckpointError for anything `split` cannot have produced.
    """
    joiner = _Joiner(tensors)
    try:
        tree = joiner.decode(structure, 0)
    except (ValueError, TypeError, OverflowError, struct.error) as error:
        raise CheckpointError(f"malformed state: {error}") from error
    if len(joiner.used) != len(tensors):
        raise CheckpointError("malformed state: it holds tensors that the structure does not name")
    return tree


def tree_hash(tree: StateTree) -> str:
    """SHA-256 of everything in the tree, to the bit; the order of dict keys does not count."""
    structure, tensors = split(tree)
    digest = hashlib.sha256(json.dumps(structure, sort_keys=True, allow_nan=False).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        data = tensor_bytes(tensor)
        for begin in range(0, len(data), CHUNK_BYTES):
            digest.update(data[begin : begin + CHUNK_BYTES])
    return digest.hexdigest()


_Path = tuple[str, ...]


def _key(path: _Path) -> str:
    # As in JSON pointers, so that {"a/b": x} and {"a": {"b": x}} have different keys.
    return "/" + "/".join(part.replace("~", "~0").replace("/", "~1") for part in path)


def _refuse(path: _Path, found: str) -> NoReturn:
    raise UsageError(
        f"the state at {_key(path)} cannot be saved: expected dicts with text keys, lists, "
        f"tuples, tensors, arrays, numbers, text, bytes or None, found {found}. Convert it in "
        "the state_dict or get_state that returned it."
    )


def _encode(node: Any, path: _Path, tensors: dict[str, Tensor]) -> Any:
    if len(path) > MAX_DEPTH:
        _refuse(path[:3], f"more than {MAX_DEPTH} levels of nesting below it")
    if isinstance(node, dict):
        return {"dict": _encode_items(node, path, tensors)}
    if type(node) in (list, tuple):
        items = [_encode(item, (*path, str(i)), tensors) for i, item in enumerate(node)]
        return items if type(node) is list else {"tuple": items}
    if isinstance(node, Tensor):
        return _encode_tensor(node, path, tensors)
    if type(node) in (np.ndarray, np.memmap):
        return _encode_array(node, path, tensors)
    if type(node) is bytes:
        tensors[_key(path)] = torch.from_numpy(np.frombuffer(bytearray(node), np.uint8))
        return {"bytes": _key(path)}
    return _encode_scalar(node, path)


def _encode_items(node: dict[Any, Any], path: _Path, tensors: dict[str, Tensor]) -> dict[str, Any]:
    for key in node:
        if type(key) is not str:
            _refuse(path, f"the dict key {key!r} of type {type(key).__name__}")
        _check_text(key, path)
    return {key: _encode(item, (*path, key), tensors) for key, item in node.items()}


def _encode_scalar(node: Any, path: _Path) -> Any:
    if isinstance(node, np.generic):
        return _encode_numpy_scalar(node, path)
    if node is None or type(node) is bool:
        return node
    if type(node) is int:
        return node if abs(node) <= _MAX_PLAIN_INT else {"int": hex(node)}
    if type(node) is float:
        return node if math.isfinite(node) else {"float": struct.pack(">d", node).hex()}
    if type(node) is str:
        return _check_text(node, path)
    return _refuse(path, f"{type(node).__module__}.{type(node).__qualname__}")


def _check_text(text: str, path: _Path) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        _refuse(path, f"text that is not valid Unicode ({text[:20]!r})")
    return text


def _encode_numpy_scalar(node: np.generic, path: _Path) -> Any:
    if isinstance(node, np.str_):
        return {"scalar": "U", "hex": _check_text(str(node), path).encode().hex()}
    if isinstance(node, np.bytes_):
        return {"scalar": "S", "hex": bytes(node).hex()}
    if not _ARRAY_DTYPE.fullmatch(node.dtype.str):
        _refuse(path, f"a NumPy scalar of dtype {node.dtype}")
    return {"scalar": node.dtype.str, "hex": node.tobytes().hex()}


def _encode_tensor(node: Tensor, path: _Path, tensors: dict[str, Tensor]) -> Any:
    raw = str(node.dtype).removeprefix("torch.")
    if node.layout != torch.strided or node.is_meta:
        _refuse(path, f"a tensor with layout {node.layout} on {node.device}")
    if node.dtype not in STORABLE and raw not in _RAW_TENSOR_DTYPES:
        _refuse(path, f"a tensor of dtype {node.dtype}")
    plain = node.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if node.dtype in STORABLE:
        tensors[_key(path)] = plain
        return {"tensor": _key(path)}
    tensors[_key(path)] = byte_view(plain)
    return {"tensor": _key(path), "dtype": raw, "shape": list(node.shape)}


def _encode_array(node: np.ndarray, path: _Path, tensors: dict[str, Tensor]) -> Any:
    dtype = node.dtype
    if not _ARRAY_DTYPE.fullmatch(dtype.str) or dtype.itemsize == 0:
        _refuse(path, f"an array of dtype {dtype}")
    flags = node.flags
    # torch warns about read-only memory and cannot take unaligned memory.
    shareable = flags.c_contiguous and flags.aligned and flags.writeable
    plain = np.asarray(node) if shareable else np.array(node, order="C", copy=True)
    if dtype in _NATIVE_ARRAYS:
        tensors[_key(path)] = torch.from_numpy(plain)
        return {"array": _key(path)}
    tensors[_key(path)] = torch.from_numpy(plain.reshape(-1).view(np.uint8))
    return {"array": _key(path), "dtype": dtype.str, "shape": list(node.shape)}


class _Joiner:
    """Decodes one structure; each tensor may be named once."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.used: set[str] = set()
        self._tensors = tensors
        self._decoders = {
            ("dict",): self._dict,
            ("tuple",): self._tuple,
            ("int",): lambda node, _: int(_text(node["int"]), 16),
            ("float",): lambda node, _: struct.unpack(">d", _unhex(node["float"]))[0],
            ("bytes",): lambda node, _: _raw(self._take(node["bytes"])).tobytes(),
            ("scalar", "hex"): lambda node, _: _scalar(_text(node["scalar"]), _unhex(node["hex"])),
            ("tensor",): lambda node, _: self._take(node["tensor"]),
            ("tensor", "dtype", "shape"): self._raw_tensor,
            ("array",): self._array,
            ("array", "dtype", "shape"): self._raw_array,
        }

    def decode(self, node: Any, depth: int) -> StateTree:
        if depth > MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} levels of nesting")
        if isinstance(node, list):
            return [self.decode(item, depth + 1) for item in node]
        if not isinstance(node, dict):
            return node
        decoder = self._decoders.get(tuple(node))
        if decoder is None:
            raise ValueError(f"unknown node with the keys {list(node)[:3]}")
        return decoder(node, depth)

    def _take(self, key: Any) -> Tensor:
        if _text(key) in self.used or key not in self._tensors:
            raise ValueError(f"tensor {key!r} is missing or named twice")
        self.used.add(key)
        return self._tensors[key]

    def _dict(self, node: dict[str, Any], depth: int) -> dict[str, StateTree]:
        if not isinstance(node["dict"], dict):
            raise ValueError("a dict node without a dict")
        return {key: self.decode(item, depth + 1) for key, item in node["dict"].items()}

    def _tuple(self, node: dict[str, Any], depth: int) -> tuple[StateTree, ...]:
        if not isinstance(node["tuple"], list):
            raise ValueError("a tuple node without a list")
        return tuple(self.decode(item, depth + 1) for item in node["tuple"])

    def _array(self, node: dict[str, Any], _: int) -> np.ndarray:
        return self._take(node["array"]).numpy()

    def _raw_array(self, node: dict[str, Any], _: int) -> np.ndarray:
        dtype = _array_dtype(_text(node["dtype"]))
        shape = checked_shape(node["shape"])
        data = _raw(self._take(node["array"]))
        if math.prod(shape) * dtype.itemsize != data.nbytes:
            raise ValueError("the shape of an array does not match its number of bytes")
        array: np.ndarray = np.ndarray(tuple(shape), dtype, data)
        return array

    def _raw_tensor(self, node: dict[str, Any], _: int) -> Tensor:
        dtype = _RAW_TENSOR_DTYPES.get(_text(node["dtype"]))
        shape = checked_shape(node["shape"])
        data = torch.from_numpy(_raw(self._take(node["tensor"])))
        if dtype is None or math.prod(shape) * dtype.itemsize != data.nbytes:
            raise ValueError("the dtype or shape of a tensor does not match its bytes")
        return data.view(dtype).reshape(shape)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, found {type(value).__name__}")
    return value


def _unhex(value: Any) -> bytes:
    return bytes.fromhex(_text(value))


def _raw(tensor: Tensor) -> np.ndarray:
    if tensor.dtype != torch.uint8 or tensor.dim() != 1:
        raise ValueError("expected a row of bytes")
    return tensor.numpy()


def _array_dtype(name: str) -> np.dtype[Any]:
    dtype = np.dtype(name) if _ARRAY_DTYPE.fullmatch(name) else None
    if dtype is None or dtype.itemsize == 0:
        raise ValueError(f"unknown array dtype {name[:20]!r}")
    return dtype


def _scalar(dtype: str, data: bytes) -> np.generic:
    scalar: np.generic
    if dtype == "U":
        scalar = np.str_(data.decode())
    elif dtype == "S":
        scalar = np.bytes_(data)
    else:
        (scalar,) = np.frombuffer(data, _array_dtype(dtype))
    return scalar
