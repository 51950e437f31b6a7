"""Global state that an environment's code keeps in modules, classes and functions.

No walk over an environment's attributes finds it, and a new process begins with it anew. So it must
not have changed when a checkpoint claims to be exact. What counts is what the environment's code
can reach by name: globals of modules, attributes of classes, and what functions carry.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import json
import multiprocessing
import sys
import types
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, wrappers

from rl_training.envs.snapshots import classes
from rl_training.envs.snapshots.layers import SKIPPED, SPACES
from rl_training.envs.snapshots.objects import ObjectEncoder

_WATCHING = (wrappers.OrderEnforcing, wrappers.PassiveEnvChecker, wrappers.RecordEpisodeStatistics)
_MAX_VISITED = 20_000
_MAX_VALUES = 20_000  # in one datum; of a larger one only that it is the same object
_MAX_ARRAY_BYTES = 1 << 24
_CONTAINERS = (list, tuple, set, frozenset, dict)


def global_state_digests(layers: Iterable[object]) -> dict[str, int]:
    """A digest of each global value that these objects' code can reach, by `module:name`."""
    return _reached(layers).digests()


def attribute_data(layers: Sequence[object]) -> dict[str, int]:
    """A digest of each attribute that can be written as data, of layers that have an influence."""
    data = {}
    for layer in layers:
        if isinstance(layer, _WATCHING):
            continue
        for name, value in getattr(layer, "__dict__", {}).items():
            drawn_from = isinstance(value, (Space, np.random.Generator))
            digest = None if name in SKIPPED or drawn_from else _plain_digest(value, layers)
            if digest is not None:
                data[f"{type(layer).__qualname__}.{name}"] = digest
    return data


def clear_caches(layers: Iterable[object]) -> None:
    """Empty the `lru_cache`s that the code of these objects can reach, as a new process would.

    Whoever keeps there what cannot be computed again goes another way afterwards.
    """
    for cache in _reached(layers).caches:
        cache.cache_clear()


def changed_data(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """The names of the data that differ."""
    names = sorted(before.keys() | after.keys())
    return [name for name in names if before.get(name) != after.get(name)]


def _reached(layers: Iterable[object]) -> _Reached:
    reached = _Reached()
    for layer in layers:
        reached.enter(layer)
    reached.follow()
    return reached


class _Reached:
    """The code that some objects can reach, and the data that this code can name."""

    def __init__(self) -> None:
        self.caches: list[Any] = []
        self._data: dict[str, object] = {}
        self._seen: set[object] = set()
        self._packages: set[str] = set()
        # By name; what an environment itself holds has none, as its state is not global.
        self._pending: list[tuple[str, object]] = []

    def enter(self, layer: object) -> None:
        """Start from an object: its classes, and the code among its attributes."""
        for base in type(layer).__mro__:
            self._packages.add(base.__module__.partition(".")[0])
        self._pending.append((type(layer).__qualname__, type(layer)))
        held: list[tuple[object, int]] = [(getattr(layer, "__dict__", {}), 0)]
        while held and len(self._seen) < _MAX_VISITED:
            value, depth = held.pop()
            if id(value) in self._seen:
                continue
            if isinstance(value, _CONTAINERS):
                self._seen.add(id(value))
                items = list(value.values() if isinstance(value, dict) else value)
                held += [(item, depth + 1) for item in items[:100] if depth < 4]
            else:
                self._reach("", _code_of(value))
                if classes.is_plain_class(type(value)) and depth < 4:
                    held.append((getattr(value, "__dict__", {}), depth + 1))

    def follow(self) -> None:
        """Visit all code that can be reached."""
        while self._pending and len(self._seen) < _MAX_VISITED:
            self._visit(*self._pending.pop())

    def digests(self) -> dict[str, int]:
        """The digest of every datum."""
        return {name: _digest(value) for name, value in self._data.items()}

    def _visit(self, name: str, value: object) -> None:
        if not _is_code(value):
            if name:
                self._data[name] = value
            for item in _values(value) if isinstance(value, _CONTAINERS) else (value,):
                self._reach(name, _code_of(item))
        elif (id(value), bool(name)) not in self._seen:
            self._seen.add((id(value), bool(name)))
            if isinstance(value, type):
                self._pending += self._class_data(value)
            elif isinstance(value, types.FunctionType):
                self._pending += self._held_by(value, bool(name))
                for code in _codes(value.__code__) if self._is_own(value.__module__) else ():
                    self._pending += self._named(code.co_names, value.__globals__, value.__module__)
            else:  # a property or a decorated function
                if isinstance(value, functools._lru_cache_wrapper) and self._is_own(
                    value.__module__
                ):
                    self.caches.append(value)
                parts = ("fget", "fset", "fdel", "__func__", "__wrapped__", "func")
                self._reach(name, (getattr(value, part, None) for part in parts))

    def _reach(self, name: str, several: Iterable[object]) -> None:
        self._pending += [(name, code) for code in several if _is_code(code)]

    def _class_data(self, cls: type) -> Iterator[tuple[str, object]]:
        for base in cls.__mro__:
            if self._is_own(base.__module__):
                for name, value in list(vars(base).items()):
                    special = name.startswith("__") and name.endswith("__")
                    if not (special or name in SKIPPED or name in SPACES):
                        yield f"{base.__module__}:{base.__qualname__}.{name}", value

    def _held_by(self, function: types.FunctionType, watched: bool) -> Iterator[tuple[str, object]]:
        """What hangs on a function: its variables outside, its defaults, its attributes."""
        module = function.__module__ or ""
        if not self._is_own(module):
            return
        label = f"{module}:{function.__qualname__}"
        for held in (function.__defaults__, function.__kwdefaults__, function.__dict__):
            if held:
                yield f"{label}'s defaults and attributes" if watched else "", held
        cells = function.__closure__ or ()
        for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
            try:
                yield f"{label}'s variable {name}" if watched else "", cell.cell_contents
            except ValueError:  # not assigned yet
                continue

    def _named(
        self, names: tuple[str, ...], scope: dict[str, Any], module: str
    ) -> Iterator[tuple[str, object]]:
        """What the names of some code stand for: in its module, and in modules named beside it."""
        scopes, met = [(module, scope)], set()
        while scopes:
            where, inside = scopes.pop()
            for name in names:
                if name not in inside or (inside is scope and hasattr(builtins, name)):
                    continue
                value = inside[name]
                if not isinstance(value, types.ModuleType):
                    yield f"{where}:{name}", value
                elif self._is_own(value.__name__) and value.__name__ not in met:
                    met.add(value.__name__)
                    scopes.append((value.__name__, vars(value)))

    def _is_own(self, module: str) -> bool:
        """Whether a module is the environment's own code: of its package, or not installed."""
        package = module.partition(".")[0]
        if package in sys.stdlib_module_names or package in classes.LIBRARIES:
            return package == "__main__"
        if package in self._packages:
            return True
        file = getattr(sys.modules.get(module), "__file__", None) or ""
        return "site-packages" not in file and "dist-packages" not in file


def _is_code(value: object) -> bool:
    kinds = (type, types.FunctionType, staticmethod, classmethod, property)
    return isinstance(value, (*kinds, functools.cached_property, functools._lru_cache_wrapper))


def _code_of(value: object) -> Iterator[object]:
    """The code a value brings along: itself, that of a method or a partial, its class."""
    if _is_code(value):
        yield value
    elif isinstance(value, functools.partial):
        yield from _code_of(value.func)
    elif classes.is_bound(value):
        yield from filter(_is_code, (getattr(value, "__func__", None), type(value.__self__)))
    elif classes.is_plain_class(type(value)):
        yield type(value)


def _values(held: Iterable[object]) -> list[object]:
    return list(held.values() if isinstance(held, dict) else held)[:_MAX_VALUES]


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _digest(value: object, depth: int = 0) -> int:
    """A number that changes with the value, as far as it can be looked into."""
    plain = _plain_digest(value, ())
    if plain is not None:
        return plain
    # Piece by piece, or which object it is.
    inner = value if isinstance(value, _CONTAINERS) else getattr(value, "__dict__", ())
    pieces = [_digest(piece, depth + 1) for piece in _values(inner)] if depth < 4 else []
    # Workers are compared with their successors, in which every address is another.
    address = id(value) if multiprocessing.parent_process() is None else 0
    facts = address, classes.type_name(type(value)), _position(value), pieces
    return zlib.crc32(repr(facts).encode())


def _plain_digest(value: object, layers: Sequence[object]) -> int | None:
    """The digest of a value that can be written as data; None for any other."""
    encoder = ObjectEncoder(layers, limit=_MAX_VALUES)
    try:
        text = json.dumps(encoder.encode(value))
    except Exception:  # an object may not stand being looked at
        return None
    digest = zlib.crc32(text.encode())
    for array in (*encoder.met_arrays, *map(np.asarray, encoder.arrays.values())):
        flat = array.reshape(-1)
        step = max(1, flat.nbytes // _MAX_ARRAY_BYTES)
        digest = zlib.crc32(flat[::step].tobytes(), digest)
    return digest


def _position(value: object) -> str:
    """Where an iterator or a generator of torch's stands, if it tells."""
    if isinstance(value, (itertools.count, itertools.repeat)):
        return repr(value)
    if isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        return "ended" if frame is None else f"{frame.f_lasti} {sorted(frame.f_locals.items())!r}"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, (torch.Generator, torch.Tensor)):
        state = value.get_state() if isinstance(value, torch.Generator) else value.detach().cpu()
        return str(zlib.crc32(repr(state.reshape(-1)[:_MAX_VALUES].tolist()).encode()))
    try:
        return repr(value.__reduce__()) if hasattr(value, "__next__") else ""
    except Exception:  # keeps it to itself
        return ""
