"""Single values of an environment's state as plain data: arrays, scalars, generators, classes."""

from __future__ import annotations

import functools
import logging
import random
import re
import sys
import types
from abc import ABCMeta
from collections import Counter, OrderedDict
from enum import Enum
from pathlib import PurePath
from typing import Any, Generic

import numpy as np
from gymnasium import Space
from gymnasium.envs.registration import EnvSpec

from rl_training.errors import CheckpointError

ARRAY_KINDS = "biufcmMSU"
DICTS: dict[str, type[dict[Any, Any]]] = {"dict": dict, "ordered": OrderedDict, "counter": Counter}
FACTORIES: dict[str, Any] = {f.__name__: f for f in (int, float, bool, str, list, dict, set)}
BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made at run time, as `class` statements do
_CONSTANTS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    functools.partial,
    type,
    np.dtype,
    np.ufunc,
    re.Pattern,
    PurePath,
    logging.Logger,
    EnvSpec,
)


class SnapshotUnavailable(Exception):
    """An environment's state cannot be written as data; the message names what is in the way."""


def is_constant(value: object) -> bool:
    """Whether the value belongs to the program rather than to the state: code, types, loggers."""
    return isinstance(value, _CONSTANTS)


def constant_name(value: object) -> str:
    """What must be the same when a constant is met again; empty if nothing can be compared."""
    if isinstance(value, functools.partial):
        return constant_name(value.func)
    if isinstance(value, (EnvSpec, PurePath)):
        return ""
    if isinstance(value, (np.dtype, re.Pattern)):
        return repr(value)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", "")
    return f"{getattr(value, '__module__', None) or ''}:{name}"


def type_name(cls: type) -> str:
    """The class with its module, if it has one; some made in C have none."""
    module = getattr(cls, "__module__", None)
    return f"{module}.{cls.__qualname__}" if module else cls.__qualname__


def encode_scalar(value: np.generic) -> dict[str, Any]:
    """A NumPy scalar by its dtype and bytes."""
    return {"$": "scalar", "dtype": value.dtype.str, "hex": value.tobytes().hex()}


def decode_scalar(node: dict[str, Any]) -> Any:
    """The NumPy scalar of `encode_scalar`."""
    dtype = np.dtype(node["dtype"])
    if dtype.kind not in ARRAY_KINDS:
        raise CheckpointError(f"a NumPy scalar of dtype {dtype} cannot come from a snapshot")
    if dtype.itemsize == 0:  # an empty text
        return np.zeros((), dtype)[()]
    return np.frombuffer(bytes.fromhex(node["hex"]), dtype)[0]


def encode_generator(value: np.random.Generator) -> dict[str, Any]:
    """A NumPy generator, with its seed sequence if that has counted spawned children."""
    bits = value.bit_generator
    node: dict[str, Any] = {"$": "generator", "v": _plain(bits.state)}
    sequence = getattr(bits, "seed_seq", None)
    if isinstance(sequence, np.random.SeedSequence) and sequence.n_children_spawned:
        node["seed"] = _plain(sequence.state)
    return node


def decode_generator(node: dict[str, Any], existing: object) -> np.random.Generator:
    """The generator of `encode_generator`, in place if `existing` is of the same kind."""
    state = node["v"]
    name = state["bit_generator"]
    if name not in BIT_GENERATORS:
        raise CheckpointError(f"there is no bit generator {name!r}; expected one of NumPy's")
    if "seed" in node or not _has_bits(existing, name):
        sequence = np.random.SeedSequence(**node["seed"]) if "seed" in node else None
        existing = np.random.Generator(getattr(np.random, name)(sequence))
    assert isinstance(existing, np.random.Generator)
    existing.bit_generator.state = state
    return existing


def encode_random_state(value: np.random.RandomState) -> dict[str, Any]:
    """NumPy's legacy generator."""
    return {"$": "random_state", "v": _plain(value.get_state(legacy=False))}


def decode_random_state(node: dict[str, Any], existing: object) -> np.random.RandomState:
    """The generator of `encode_random_state`."""
    target = existing if isinstance(existing, np.random.RandomState) else np.random.RandomState(0)
    target.set_state(node["v"])
    return target


def encode_python_random(value: random.Random) -> dict[str, Any]:
    """Python's own generator."""
    version, words, gauss = value.getstate()
    return {"$": "random", "v": version, "words": np.array(words, np.int64), "gauss": gauss}


def decode_python_random(node: dict[str, Any], existing: object) -> random.Random:
    """The generator of `encode_python_random`."""
    target = existing if type(existing) is random.Random else random.Random(0)
    target.setstate((node["v"], tuple(node["words"].tolist()), node["gauss"]))
    return target


def sub_spaces(space: Space[Any]) -> list[Space[Any]]:
    """The space and all spaces inside it, each of which has a generator of its own."""
    found = [space]
    for value in vars(space).values():
        if isinstance(value, dict):
            value = tuple(value.values())
        for inner in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(inner, Space):
                found += sub_spaces(inner)
    return found


def slots_of(cls: type) -> dict[str, types.MemberDescriptorType]:
    """The `__slots__` of the class and its bases, with their descriptors."""
    return {
        name: member
        for base in reversed(cls.__mro__)
        if "__slots__" in vars(base)
        for name, member in vars(base).items()
        if isinstance(member, types.MemberDescriptorType)
    }


def is_plain_class(cls: type) -> bool:
    """Whether all state of an instance is in Python attributes, with nothing hidden in C."""
    for base in cls.__mro__:
        if base in (object, Generic):  # which newer Pythons write in C, without any state
            continue
        hidden = not base.__flags__ & _HEAP_TYPE or base.__itemsize__
        if hidden or not (base.__dictoffset__ or "__slots__" in vars(base)):
            return False
    # The two words are the attribute dict and the weak references; bindings such as pybind11 keep
    # their pointers behind them, or have a metaclass of their own.
    room = object.__basicsize__ + 8 * (2 + len(slots_of(cls)))
    return cls.__basicsize__ <= room and (type(cls) is type or issubclass(type(cls), ABCMeta))


def class_name(cls: type) -> str | None:
    """`module:Name` if a checkpoint may ask for an instance of the class, otherwise None.

    Refused are classes without a global name, which could not be found again, and those from
    which a forged checkpoint could make an object that acts: with `__del__`, or of the standard
    library (file removers, process handles).
    """
    module = getattr(cls, "__module__", "")  # classes made in C may lack one
    name = f"{module}:{cls.__qualname__}"
    acting = module.partition(".")[0] in sys.stdlib_module_names or hasattr(cls, "__del__")
    return None if acting or _lookup(name) is not cls else name


def find_class(name: str) -> type:
    """The class that `class_name` named; it must be imported already, nothing is imported here."""
    found = _lookup(name)
    if not isinstance(found, type) or class_name(found) != name:
        raise CheckpointError(
            f"the class {name!r} is not there: expected it in an imported module, as it was when "
            "the state was saved"
        )
    return found


def find_member(name: str, member: str | int) -> Enum:
    """The member of an enumeration, by its name, or by its value for combined flags."""
    cls = find_class(name)
    if not issubclass(cls, Enum):
        raise CheckpointError(f"{name!r} is not an enumeration")
    return cls(member) if isinstance(member, int) else cls[member]


def _lookup(name: str) -> object:
    module, _, qualname = name.partition(":")
    found: object = sys.modules.get(module)
    for part in qualname.split("."):
        # Not getattr: a module's __getattr__ may import, and the name comes from a file.
        found = vars(found).get(part) if isinstance(found, (types.ModuleType, type)) else None
    return found


def _has_bits(existing: object, name: str) -> bool:
    if type(existing) is not np.random.Generator:
        return False
    return type(existing.bit_generator).__name__ == name


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    return value.copy() if isinstance(value, np.ndarray) else value
