"""The codec of everything that is saved: values as JSON-able nodes, with their arrays apart.

None, booleans, text, finite floats and integers up to 2**53 stand for themselves, and a list stands
for a tuple. Everything else is an object whose first key is its kind:

    {"list": [...]}  {"set": [...]}  {"frozenset": [...]}  {"deque": [...], "maxlen": 100}
    {"dict": {...}}  {"map": [[key, value], ...]}, if not all keys are text; with "class" if derived
    {"int": "-0x1f"}  {"float": "7ff8000000000000"}  {"complex": [0.0, 1.0]}  {"range": [0, 9, 3]}
    {"tensor": key}  {"array": key}  {"bytes": key}  {"scalar": "<f4", "hex": "0000c03f"}
    {"generator": {...}}  {"random_state": {...}}  {"random": {...}}
    {"encoded": node, "arrays": {...}}
    {"rows": key, "segments": [...], "kept": 100, "fading": {...}}, in a checkpoint alone

where `key` names an array by its path in the tree. Tensors and arrays of a dtype that a tensor file
lacks are stored as their bytes, with `dtype` and `shape` in the node. What is encoded is data: to
decode it runs no code but the constructors of these kinds. Snapshots of environments add the kinds
that need live objects (`rl_training.envs.snapshots.objects`).
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
import torch
from torch import Tensor

from rl_training.errors import CheckpointError, UsageError
from rl_training.storage.generators import AnyGenerator, generator_state, set_generator_state
from rl_training.storage.rows import RowSource
from rl_training.storage.tensor_file import (
    CHUNK_BYTES,
    STORABLE,
    byte_view,
    checked_shape,
    tensor_bytes,
)

StateTree: TypeAlias = Any
"""A nesting of dicts, lists, tuples and sets over tensors, arrays, numbers, text and generators."""

Node: TypeAlias = Any
Leaf: TypeAlias = np.ndarray | Tensor

MISSING = object()
"""Stands for a value that is not there."""

MAX_DEPTH = 64
_MAX_PLAIN_INT = 2**53
_MAX_SEED_POOL = 1 << 10
_NATIVE_ARRAYS = frozenset(map(np.dtype, ("?", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8")))
_ARRAY_DTYPE = re.compile(r"[<>|][biufcmMSU][0-9]{1,9}(\[[0-9]{0,9}[A-Za-z]{1,7}\])?")
_RAW_TENSOR_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.complex128)
}
_BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
_DICTS = {cls.__name__: cls for cls in (OrderedDict, Counter, defaultdict)}
_FACTORIES: dict[str, Any] = {f.__name__: f for f in (int, float, bool, str, list, dict, set)}


class Encoded(NamedTuple):
    """A value that stays encoded in a tree, for a decoder that needs live objects."""

    node: Node
    arrays: dict[str, np.ndarray]


def split(tree: StateTree, *, encoder: Encoder | None = None) -> tuple[Node, dict[str, Tensor]]:
    """The tree as JSON-able structure plus its tensors, detached, contiguous and on the CPU.

    Contiguous CPU data is not copied: use the tensors before the tree changes. A value of any other
    kind raises UsageError.
    """
    encoder = encoder or Encoder()
    structure = encoder.encode(tree)
    leaves = encoder.arrays.items()
    return structure, {
        key: leaf if isinstance(leaf, Tensor) else torch.from_numpy(leaf) for key, leaf in leaves
    }


def join(
    structure: Node, tensors: Mapping[str, Tensor], *, decoder: Decoder | None = None
) -> StateTree:
    """The tree that `split` took apart; it may share memory with `tensors`.

    Raises CheckpointError for anything `split` cannot have produced.
    """
    decoder = decoder or Decoder(tensors)
    try:
        tree = decoder.decode(structure)
    except Exception as error:  # a forged structure may fail in any way
        raise CheckpointError(f"malformed state: {error!r}") from error
    if len(decoder.used) != len(tensors):
        raise CheckpointError("malformed state: it holds tensors that the structure does not name")
    return tree


def tree_hash(tree: StateTree) -> str:
    """SHA-256 of everything in the tree, to the bit; the order of text keys does not count."""
    structure, tensors = split(tree)
    digest = hashlib.sha256(json.dumps(structure, sort_keys=True, allow_nan=False).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        data = tensor_bytes(tensor)
        for begin in range(0, len(data), CHUNK_BYTES):
            digest.update(data[begin : begin + CHUNK_BYTES])
    return digest.hexdigest()


class Encoder:
    """Turns values into nodes and collects their arrays; `path` names a value in errors."""

    def __init__(self) -> None:
        self.arrays: dict[str, Leaf] = {}
        self._depth = 0
        self.immutable: dict[type, Callable[[Any, str], Node]] = {
            type(None): lambda v, _: v,
            bool: lambda v, _: v,
            int: lambda v, _: v if abs(v) <= _MAX_PLAIN_INT else {"int": hex(v)},
            float: lambda v, _: v if math.isfinite(v) else {"float": struct.pack(">d", v).hex()},
            complex: lambda v, path: {"complex": self.items((v.real, v.imag), path)},
            range: lambda v, path: {"range": self.items((v.start, v.stop, v.step), path)},
            str: self._text,
            bytes: self._bytes,
            tuple: self.items,
            # Sorted, as the order of iteration changes from process to process.
            frozenset: lambda v, path: {"frozenset": self.items(sorted(v, key=repr), path)},
        }
        self.mutable: dict[type, Callable[[Any, str], dict[str, Node]]] = {
            list: lambda v, path: {"list": self.items(v, path)},
            set: lambda v, path: {"set": self.items(sorted(v, key=repr), path)},
            deque: lambda v, path: {"deque": self.items(v, path), "maxlen": v.maxlen},
            **dict.fromkeys([dict, *_DICTS.values()], self._dict),
            np.ndarray: self._array,
            np.random.Generator: self._generator,
            np.random.RandomState: lambda v, path: {"random_state": self._state(v, path)},
            random.Random: lambda v, path: {"random": self._state(v, path)},
        }

    def encode(self, value: object, path: str = "") -> Node:
        """The value as a node."""
        self._depth += 1
        if self._depth > MAX_DEPTH + 1:
            above = "/".join(path.split("/")[:4])
            self.refuse(above, f"more than {MAX_DEPTH} levels of nesting below it")
        encode = self.immutable.get(type(value)) or self.mutable.get(type(value)) or self._derived
        node = encode(value, path)
        self._depth -= 1
        return node

    def items(self, values: Iterable[object], path: str) -> list[Node]:
        """The nodes of the values, one after the other."""
        return [self.encode(value, self.inner(path, i)) for i, value in enumerate(values)]

    def inner(self, path: str, key: object) -> str:
        """The path of an item, as in JSON pointers: {"a/b": x} and {"a": {"b": x}} differ."""
        return f"{path}/{str(key).replace('~', '~0').replace('/', '~1')}"

    def put(self, path: str, leaf: Leaf) -> str:
        """Keep an array or tensor; the key by which a node names it."""
        key = path or "/"
        while key in self.arrays:  # such as two keys of a dict that begin alike
            key += "~"
        self.arrays[key] = leaf
        return key

    def refuse(self, path: str, found: str) -> NoReturn:
        """Raise the error for a value that cannot be encoded."""
        raise UsageError(
            f"the state at {path or '/'} cannot be saved: expected dicts, lists, tuples, sets, "
            f"tensors, arrays, numbers, text, bytes, random generators or None, found {found}. "
            "Convert it in the state_dict or get_state that returned it."
        )

    def _derived(self, value: object, path: str) -> Node:
        """A value of a class that is not exactly one of the known ones."""
        if isinstance(value, Encoded):
            return {"encoded": value.node, "arrays": self.encode(value.arrays, path)}
        others: tuple[tuple[type, Callable[[Any, str], Node]], ...] = (
            (RowSource, self.rows),
            (np.generic, self.scalar),
            (Tensor, self._tensor),
            (np.memmap, self._array),
        )
        for kind, encode in others:
            if isinstance(value, kind):
                return encode(value, path)
        if isinstance(value, dict):
            return self._dict(dict(value), path)
        return self.refuse(path, f"a {type(value).__module__}.{type(value).__qualname__}")

    def rows(self, value: RowSource, path: str) -> Node:
        """Rows as a dict of arrays; a checkpoint has files for them instead."""
        return self.encode(value.whole(), path)

    def _text(self, value: str, path: str) -> str:
        try:
            value.encode()
        except UnicodeEncodeError:
            self.refuse(path, f"text that is not valid Unicode ({value[:20]!r})")
        return value

    def _bytes(self, value: bytes, path: str) -> Node:
        return {"bytes": self.put(path, np.frombuffer(bytearray(value), np.uint8))}

    def _dict(self, value: dict[Any, Any], path: str) -> dict[str, Node]:
        if all(type(key) is str for key in value):
            items = value.items()
            node: dict[str, Node] = {
                "dict": {self._text(k, path): self.encode(v, self.inner(path, k)) for k, v in items}
            }
        else:
            node = {"map": [self._pair(path, *item) for item in value.items()]}
        if type(value) is not dict:
            node["class"] = type(value).__name__
        if isinstance(value, defaultdict):
            node["factory"] = self._factory(value.default_factory, path)
        return node

    def _pair(self, path: str, key: object, value: object) -> list[Node]:
        inner = self.inner(path, repr(key)[:40])
        return [self.encode(key, f"{inner} as key"), self.encode(value, inner)]

    def _factory(self, factory: object, path: str) -> str | None:
        name = None if factory is None else getattr(factory, "__name__", "")
        if name is not None and _FACTORIES.get(name) is not factory:
            self.refuse(path, f"a defaultdict with the factory {factory!r}")
        return name

    def scalar(self, value: np.generic, path: str) -> Node:
        """A NumPy scalar by its dtype and bytes."""
        if isinstance(value, np.str_):
            return {"scalar": "U", "hex": self._text(str(value), path).encode().hex()}
        if isinstance(value, np.bytes_):
            return {"scalar": "S", "hex": bytes(value).hex()}
        if not _ARRAY_DTYPE.fullmatch(value.dtype.str):
            self.refuse(path, f"a NumPy scalar of dtype {value.dtype}")
        return {"scalar": value.dtype.str, "hex": value.tobytes().hex()}

    def check_dtype(self, value: np.ndarray, path: str) -> None:
        """Refuse arrays of objects, of records and of nothing."""
        if not _ARRAY_DTYPE.fullmatch(value.dtype.str) or value.dtype.itemsize == 0:
            self.refuse(path, f"an array of dtype {value.dtype}")

    def _array(self, value: np.ndarray, path: str) -> dict[str, Node]:
        self.check_dtype(value, path)
        dtype, flags = value.dtype, value.flags
        if flags.f_contiguous and not flags.c_contiguous:
            # Some reductions round differently along the other memory order.
            return self._array(value.T, path) | {"order": "F"}
        # torch warns about read-only memory and cannot take unaligned memory.
        shareable = flags.c_contiguous and flags.aligned and flags.writeable
        plain = np.asarray(value) if shareable else np.array(value, order="C", copy=True)
        if dtype in _NATIVE_ARRAYS:
            return {"array": self.put(path, plain)}
        key = self.put(path, plain.reshape(-1).view(np.uint8))
        return {"array": key, "dtype": dtype.str, "shape": list(value.shape)}

    def _tensor(self, value: Tensor, path: str) -> dict[str, Node]:
        raw = str(value.dtype).removeprefix("torch.")
        if value.layout != torch.strided or value.is_meta:
            self.refuse(path, f"a tensor with layout {value.layout} on {value.device}")
        if value.dtype not in STORABLE and raw not in _RAW_TENSOR_DTYPES:
            self.refuse(path, f"a tensor of dtype {value.dtype}")
        plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        if value.dtype in STORABLE:
            return {"tensor": self.put(path, plain)}
        key = self.put(path, byte_view(plain))
        return {"tensor": key, "dtype": raw, "shape": list(value.shape)}

    def _generator(self, value: np.random.Generator, path: str) -> dict[str, Node]:
        node = {"generator": self._state(value, path)}
        sequence = getattr(value.bit_generator, "seed_seq", None)
        if isinstance(sequence, np.random.SeedSequence) and sequence.n_children_spawned:
            node["seed"] = self.encode(dict(sequence.state), self.inner(path, "seed"))
        return node

    def _state(self, generator: AnyGenerator, path: str) -> Node:
        return self.encode(generator_state(generator), path)


class Decoder:
    """Makes values of nodes, in place of live ones where they fit; each array is named once.

    A mutable value is made first and filled second, so that a subclass can resolve cycles.
    """

    def __init__(self, arrays: Mapping[str, Leaf]) -> None:
        self.used: set[str] = set()
        self._arrays = arrays
        self._depth = 0
        self.direct: dict[str, Callable[[dict[str, Node], Any, str], Any]] = {
            "int": lambda node, *_: int(_text(node["int"]), 16),
            "float": lambda node, *_: struct.unpack(">d", _unhex(node["float"]))[0],
            "complex": lambda node, _, path: complex(*self.items(node["complex"], (), path)),
            "range": lambda node, _, path: range(*self.items(node["range"], (), path)),
            "bytes": lambda node, *_: _raw(self.take(node["bytes"])).tobytes(),
            "scalar": lambda node, *_: _scalar(_text(node["scalar"]), _unhex(node["hex"])),
            "tensor": lambda node, *_: self._tensor(node),
            "frozenset": lambda node, _, path: frozenset(self.items(node["frozenset"], (), path)),
            "encoded": self._encoded,
        }
        self.make: dict[str, Callable[[dict[str, Node], Any], Any]] = {
            "list": lambda _, old: old if type(old) is list else [],
            "set": lambda _, old: old if type(old) is set else set(),
            "deque": _make_deque,
            "dict": _make_dict,
            "map": _make_dict,
            "array": self._make_array,
            "generator": self._make_generator,
            "random_state": self._make_random_state,
            "random": self._make_random,
        }
        self.fill: dict[str, Callable[[Any, dict[str, Node], str], None]] = {
            "list": self._fill_list,
            "set": self.fill_set,
            "deque": self._fill_deque,
            "dict": self._fill_dict,
            "map": self._fill_dict,
        }
        self.optional = {
            "deque": {"maxlen"},
            "dict": {"class", "factory"},
            "map": {"class", "factory"},
            "scalar": {"hex"},
            "tensor": {"dtype", "shape"},
            "array": {"dtype", "shape", "order"},
            "generator": {"seed"},
            "encoded": {"arrays"},
        }

    def decode(self, node: Node, old: object = MISSING, path: str = "") -> Any:
        """The value of the node, using the live object `old` where it fits."""
        self._depth += 1
        if self._depth > MAX_DEPTH + 1:
            raise ValueError(f"more than {MAX_DEPTH} levels of nesting")
        if isinstance(node, list):
            value: object = tuple(self.items(node, old if isinstance(old, tuple) else (), path))
        elif isinstance(node, dict):
            value = self._tagged(node, old, path)
        else:
            value = node
        self._depth -= 1
        return value

    def items(self, nodes: Node, old: Iterable[object], path: str) -> list[Any]:
        """The values of the nodes in a list, in place of those in `old` as far as there are any."""
        before = list(old)[: len(_list(nodes))]
        before += [MISSING] * (len(nodes) - len(before))
        pairs = enumerate(zip(nodes, before, strict=True))
        return [self.decode(node, was, f"{path}[{index}]") for index, (node, was) in pairs]

    def take(self, key: object) -> Leaf:
        """The array or tensor of that name."""
        name = _text(key)
        if name in self.used or name not in self._arrays:
            raise ValueError(f"array {name!r} is missing or named twice")
        self.used.add(name)
        return self._arrays[name]

    def _tagged(self, node: dict[str, Node], old: object, path: str) -> object:
        kind = next(iter(node), "")
        surplus = set(node) - {kind} - self.optional.get(kind, set())
        if surplus or (kind not in self.direct and kind not in self.make):
            raise ValueError(f"unknown node with the keys {list(node)[:3]}")
        if kind in self.direct:
            return self.direct[kind](node, old, path)
        return self.build(kind, node, old, path)

    def build(self, kind: str, node: dict[str, Node], old: object, path: str) -> object:
        """A value that is made first, or is `old`, and filled second."""
        target = self.make[kind](node, old)
        if kind in self.fill:
            self.fill[kind](target, node, path)
        return target

    def fill_set(self, target: set[Any], node: dict[str, Node], path: str) -> None:
        """Give a set its elements."""
        items = self.items(node["set"], (), path)
        target.clear()
        target.update(items)

    def _fill_list(self, target: list[Any], node: dict[str, Node], path: str) -> None:
        target[:] = self.items(node["list"], target, path)

    def _fill_deque(self, target: deque[Any], node: dict[str, Node], path: str) -> None:
        items = self.items(node["deque"], target, path)
        target.clear()
        target.extend(items)

    def _fill_dict(self, target: dict[Any, Any], node: dict[str, Node], path: str) -> None:
        pairs = []
        for key_node, item_node in _pairs(node):
            key = self.decode(key_node, MISSING, f"{path} key")
            was = target.get(key, MISSING)
            pairs.append((key, self.decode(item_node, was, f"{path}[{key!r:.40}]")))
        target.clear()
        for key, item in pairs:  # not update, with which a Counter would add up
            target[key] = item

    def _make_array(self, node: dict[str, Node], old: object) -> np.ndarray:
        saved = self._array(node)
        if node.get("order", "C") not in ("C", "F"):
            raise ValueError("an array has an unknown memory order")
        if node.get("order") == "F":
            saved = saved.T
        if type(old) is not np.ndarray or not old.flags.writeable:
            return saved
        if old.shape != saved.shape or old.dtype != saved.dtype:
            return saved
        old[...] = saved
        return old

    def _array(self, node: dict[str, Node]) -> np.ndarray:
        leaf = self.take(node["array"])
        if "dtype" not in node and "shape" not in node:
            return leaf.numpy() if isinstance(leaf, Tensor) else leaf
        dtype, shape = array_dtype(node["dtype"]), checked_shape(node["shape"])
        data = _raw(leaf)
        if math.prod(shape) * dtype.itemsize != data.nbytes:
            raise ValueError("the shape of an array does not match its number of bytes")
        array: np.ndarray = np.ndarray(tuple(shape), dtype, data)
        return array

    def _tensor(self, node: dict[str, Node]) -> Tensor:
        leaf = torch.as_tensor(self.take(node["tensor"]))
        if "dtype" not in node and "shape" not in node:
            return leaf
        dtype, shape = _RAW_TENSOR_DTYPES.get(_text(node["dtype"])), checked_shape(node["shape"])
        data = torch.from_numpy(_raw(leaf))
        if dtype is None or math.prod(shape) * dtype.itemsize != data.nbytes:
            raise ValueError("the dtype or shape of a tensor does not match its bytes")
        return data.view(dtype).reshape(shape)

    def _encoded(self, node: dict[str, Node], _: object, path: str) -> Encoded:
        arrays = self.decode(node["arrays"], MISSING, path)
        named = isinstance(arrays, dict) and all(type(key) is str for key in arrays)
        if not named or not all(isinstance(array, np.ndarray) for array in arrays.values()):
            raise ValueError("an encoded value without its arrays")
        return Encoded(node["encoded"], arrays)

    def _make_generator(self, node: dict[str, Node], old: object) -> np.random.Generator:
        state = self.decode(node["generator"])
        name = state["bit_generator"] if isinstance(state, dict) else None
        if name not in _BIT_GENERATORS:
            raise ValueError(f"there is no bit generator {str(name)[:20]!r}")
        target = old if type(old) is np.random.Generator and "seed" not in node else None
        if target is None or type(target.bit_generator).__name__ != name:
            seed = _seed_sequence(self.decode(node["seed"])) if "seed" in node else 0
            target = np.random.Generator(getattr(np.random, name)(seed))
        set_generator_state(target, state)
        return target

    def _make_random_state(self, node: dict[str, Node], old: object) -> np.random.RandomState:
        target = old if isinstance(old, np.random.RandomState) else np.random.RandomState(0)
        set_generator_state(target, self.decode(node["random_state"]))
        return target

    def _make_random(self, node: dict[str, Node], old: object) -> random.Random:
        target = old if type(old) is random.Random else random.Random(0)
        set_generator_state(target, self.decode(node["random"]))
        return target


def _make_deque(node: dict[str, Node], old: object) -> deque[Any]:
    if type(old) is deque and old.maxlen == node["maxlen"]:
        return old
    return deque(maxlen=node["maxlen"])


def _make_dict(node: dict[str, Node], old: object) -> dict[Any, Any]:
    name = node.get("class")
    if name == "defaultdict":
        factory = None if node["factory"] is None else _FACTORIES[node["factory"]]
        if type(old) is defaultdict and old.default_factory is factory:
            return old
        return defaultdict(factory)
    empty: dict[Any, Any] = {} if name is None else _DICTS[name]()
    return old if type(old) is type(empty) else empty


def _pairs(node: dict[str, Node]) -> Iterable[tuple[Node, Node]]:
    if "dict" not in node:
        return ((key, item) for key, item in _list(node["map"]))
    if not isinstance(node["dict"], dict):
        raise ValueError("a dict node without a dict")
    return node["dict"].items()


def _seed_sequence(state: dict[str, Any]) -> np.random.SeedSequence:
    if not 0 < state["pool_size"] <= _MAX_SEED_POOL:
        raise ValueError("a seed sequence with a pool of that size cannot have been saved")
    return np.random.SeedSequence(**state)


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"expected a list, found {type(value).__name__}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, found {type(value).__name__}")
    return value


def _unhex(value: object) -> bytes:
    return bytes.fromhex(_text(value))


def _raw(leaf: Leaf) -> np.ndarray:
    data = leaf.numpy() if isinstance(leaf, Tensor) else leaf
    if data.dtype != np.uint8 or data.ndim != 1:
        raise ValueError("expected a row of bytes")
    return data


def array_dtype(name: object) -> np.dtype[Any]:
    """The dtype of that name; ValueError unless an array of it can have been saved."""
    text = _text(name)
    dtype = np.dtype(text) if _ARRAY_DTYPE.fullmatch(text) else None
    if dtype is None or dtype.itemsize == 0:
        raise ValueError(f"unknown array dtype {text[:20]!r}")
    return dtype


def _scalar(dtype: str, data: bytes) -> np.generic:
    scalar: np.generic
    if dtype == "U":
        scalar = np.str_(data.decode())
    elif dtype == "S":
        scalar = np.bytes_(data)
    else:
        (scalar,) = np.frombuffer(data, array_dtype(dtype))
    return scalar
