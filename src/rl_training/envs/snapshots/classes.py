"""Which classes of an environment's objects can be saved, by which name, and which are program."""

from __future__ import annotations

import logging
import re
import sys
import types
from abc import ABCMeta
from collections.abc import Container, Sequence
from enum import Enum
from pathlib import PurePath
from typing import Any, Generic, TypeAlias, TypeGuard

import numpy as np
from gymnasium import Space
from gymnasium.envs.registration import EnvSpec

from rl_training.errors import CheckpointError

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made at run time, as `class` statements do
_CONSTANTS = (
    types.ModuleType,
    type,
    np.dtype,
    np.ufunc,
    re.Pattern,
    PurePath,
    logging.Logger,
    EnvSpec,
)

BoundMethod: TypeAlias = types.MethodType | types.BuiltinFunctionType | types.MethodWrapperType


class SnapshotUnavailable(Exception):
    """An environment's state cannot be written as data; the message names what is in the way."""


def is_constant(value: object) -> bool:
    """Whether the value belongs to the program rather than to the state: code, types, loggers.

    A function that a module holds is program, whatever hangs on it (`global_state` watches over
    that); one made at run time is state if something does.
    """
    if isinstance(value, types.FunctionType):
        parts = value.__closure__, value.__defaults__, value.__kwdefaults__, value.__dict__
        return not any(parts) or is_global(value)
    if is_bound(value):
        return isinstance(value.__self__, (type, types.ModuleType))
    return isinstance(value, (*_CONSTANTS, types.BuiltinFunctionType))


def is_global(function: types.FunctionType) -> bool:
    """Whether a module, or a class in one, holds the function."""
    return _lookup(constant_name(function)) is function


def is_bound(value: object) -> TypeGuard[BoundMethod]:
    """Whether the value is a method together with the object it is called on."""
    return isinstance(value, BoundMethod) and value.__self__ is not None


def constant_name(value: object) -> str:
    """What must be the same when a constant is met again; empty if nothing can be compared."""
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


def sub_spaces(space: Space[Any]) -> list[Space[Any]]:
    """The space and all spaces inside it, each of which has a generator."""
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
    # their pointers behind them, or have another metaclass.
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


# Whatever their classes do when an environment uses them, it is not an environment's business:
# their instances are written to where a live one stands, and never made. What these packages keep
# in globals is no state of an environment either.
LIBRARIES = frozenset({"gymnasium", "numpy", "rl_training", "torch"})


def allowed_packages(layers: Sequence[object]) -> frozenset[str]:
    """The top-level packages whose classes a state of these layers may ask for.

    They are the environment's own and those that the modules of its classes import. An instance of
    any other class, made from a file, could act: import a module that it names, or open a file.
    """
    names = {base.__module__ for layer in layers for base in type(layer).__mro__}
    found = {name.partition(".")[0] for name in names}
    for name in names:
        library = name.partition(".")[0] in LIBRARIES
        for value in () if library else list(vars(sys.modules.get(name, types)).values()):
            if isinstance(value, types.ModuleType):
                found.add(value.__name__.partition(".")[0])
            elif isinstance(value, type | types.FunctionType):
                found.add(str(value.__module__).partition(".")[0])
    return frozenset(found - LIBRARIES - sys.stdlib_module_names)


def find_class(name: object, packages: Container[str]) -> type:
    """The class that `class_name` named; it must be imported already, nothing is imported here.

    It must belong to one of the packages, too.
    """
    found = _lookup(name) if isinstance(name, str) else None
    if isinstance(name, str) and name.partition(":")[0].partition(".")[0] not in packages:
        raise CheckpointError(
            f"the class {name!r:.80} is none of the environment's: expected one of a package that "
            "the environment's modules belong to or import"
        )
    if not isinstance(found, type) or class_name(found) != name:
        raise CheckpointError(
            f"the class {name!r:.80} is not there: expected it in an imported module, as it was "
            "when the state was saved"
        )
    return found


def find_member(cls: type, member: str | int) -> Enum:
    """The member of an enumeration, by its name, or by its value for combined flags."""
    if not issubclass(cls, Enum):
        raise CheckpointError(f"{type_name(cls)} is not an enumeration")
    return cls(member) if isinstance(member, int) else cls[member]


def _lookup(name: str) -> object:
    module, _, qualname = name.partition(":")
    found: object = sys.modules.get(module)
    for part in qualname.split("."):
        # Not getattr: a module's __getattr__ may import, and the name comes from a file.
        found = vars(found).get(part) if isinstance(found, (types.ModuleType, type)) else None
    return found
