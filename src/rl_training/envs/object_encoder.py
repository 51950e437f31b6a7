"""Object graphs as plain data: what hangs on some given objects, with sharing and cycles kept.

None, booleans, numbers, text and bytes stand for themselves and a list stands for a tuple.
Everything else is a dict whose key `$` names its kind. An object that is met twice moves to the
table `shared`, and `{"$": "ref"}` points there; the given objects themselves are `layer` nodes.
A set keeps its elements but not the order in which it is iterated, which depends on its history.
"""

from __future__ import annotations

import random
import types
from collections import defaultdict, deque
from collections.abc import Callable, Container, Iterable, Sequence
from enum import Enum, Flag
from typing import Any

import numpy as np
from gymnasium import Space

from rl_training.envs import object_values as values
from rl_training.envs.object_values import SnapshotUnavailable

Node = Any
MAX_VALUES = 1_000_000  # more would make every checkpoint slow; such an env needs get_state
TABLE_DEPTH = 8  # deeper objects go to the table, as checkpoints limit nesting
MAX_TUPLES = 20  # inside each other
_DICT_KINDS = {cls: kind for kind, cls in values.DICTS.items()}
_ATOMS = (type(None), bool, int, float, bytes)


class Encoder:
    """Turns values into nodes; the nodes of one encoder belong together with its `shared` table."""

    def __init__(self, layers: Sequence[object]) -> None:
        self._layers = {id(layer): index for index, layer in enumerate(layers)}
        self._nodes: dict[int, dict[str, Node]] = {}
        self._table: dict[int, str] = {}
        self._alive: list[object] = []  # an id is a name only while its object lives
        self._tuples: set[int] = set()
        self._values = 0
        self._depth = 0
        self._exact: dict[type, Callable[[Any, str], Node]] = {
            str: self._text,
            tuple: self._tuple,
            complex: lambda v, _: {"$": "complex", "v": [v.real, v.imag]},
            range: lambda v, _: {"$": "range", "v": [v.start, v.stop, v.step]},
            frozenset: lambda v, path: {"$": "frozenset", "v": self._items(v, path)},
        }
        self._mutable: dict[type, Callable[[Any, str], dict[str, Node]]] = {
            list: lambda v, path: {"$": "list", "v": self._items(v, path)},
            set: lambda v, path: {"$": "set", "v": self._items(v, path)},
            deque: self._deque,
            **dict.fromkeys([*_DICT_KINDS, defaultdict], self._dict),
            np.ndarray: self._array,
            np.random.Generator: lambda v, _: values.encode_generator(v),
            np.random.RandomState: lambda v, _: values.encode_random_state(v),
            random.Random: lambda v, _: values.encode_python_random(v),
            types.SimpleNamespace: self._namespace,
        }
        self._derived: list[tuple[Callable[[Any], bool], Callable[[Any, str], Node]]] = [
            (lambda v: id(v) in self._layers, self._layer),
            (values.is_constant, lambda v, _: {"$": "const", "v": values.constant_name(v)}),
            (lambda v: isinstance(v, Space), self._space),
            (lambda v: isinstance(v, Enum), self._enum),
            (lambda v: isinstance(v, np.generic), self._scalar),
            (lambda v: isinstance(v, tuple) and hasattr(v, "_fields"), self._named),
        ]

    def encode(self, value: Any, path: str) -> Node:
        """The value as a node; `path` names it in errors."""
        self._values += 1
        if self._values > MAX_VALUES:
            raise SnapshotUnavailable(f"{path} is beyond the first {MAX_VALUES:,} values")
        kind = type(value)
        if kind in _ATOMS:
            return value
        if kind in self._exact:
            return self._exact[kind](value, path)
        if kind not in self._mutable:
            for matches, encode in self._derived:
                if matches(value):
                    return encode(value, path)
        return self._once(value, path)

    def attributes(self, owner: object, path: str, skipped: Container[str] = ()) -> dict[str, Node]:
        """The owner's attributes and slots by name."""
        found = dict(getattr(owner, "__dict__", {}))
        for name, member in values.slots_of(type(owner)).items():
            try:
                found[name] = member.__get__(owner)
            except AttributeError:  # an empty slot
                continue
        return {
            name: self.encode(value, f"{path}.{name}")
            for name, value in found.items()
            if name not in skipped
        }

    def shared(self) -> dict[str, Node]:
        """The table of the objects that `ref` nodes point to; to be taken once, at the end."""
        table = {}
        for key, number in self._table.items():
            node = self._nodes[key]
            table[number] = dict(node)
            node.clear()
            node.update({"$": "ref", "v": number})
        return table

    def _once(self, value: Any, path: str) -> dict[str, Node]:
        key = id(value)
        if key in self._nodes:
            return {"$": "ref", "v": self._table.setdefault(key, str(len(self._table)))}
        node: dict[str, Node] = {}
        self._nodes[key] = node
        self._alive.append(value)
        self._depth += 1
        if self._depth > TABLE_DEPTH:
            self._table[key] = str(len(self._table))
        node.update(self._mutable.get(type(value), self._object)(value, path))
        self._depth -= 1
        return node

    def _layer(self, value: Any, _: str) -> dict[str, Node]:
        return {"$": "layer", "v": self._layers[id(value)]}

    def _enum(self, value: Enum, path: str) -> dict[str, Node]:
        # A combination of flags has no name of its own.
        member = value.value if isinstance(value, Flag) else value.name
        return {"$": "enum", "class": self._class(type(value), path), "v": member}

    def _scalar(self, value: np.generic, path: str) -> dict[str, Node]:
        if value.dtype.kind not in values.ARRAY_KINDS:
            raise _unavailable(value, path)
        return values.encode_scalar(value)

    def _named(self, value: Any, path: str) -> dict[str, Node]:
        cls = self._class(type(value), path)
        return {"$": "named", "class": cls, "v": self._tuple(value, path)}

    def _text(self, value: str, path: str) -> str:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise SnapshotUnavailable(f"{path} is text that is not valid Unicode") from None
        return value

    def _tuple(self, value: tuple[Any, ...], path: str) -> list[Node]:
        if id(value) in self._tuples or len(self._tuples) > MAX_TUPLES:
            raise SnapshotUnavailable(f"{path} is a tuple that contains itself, or nested too deep")
        self._tuples.add(id(value))
        items = self._items(value, path)
        self._tuples.remove(id(value))
        return items

    def _items(self, items: Iterable[Any], path: str) -> list[Node]:
        return [self.encode(item, f"{path}[{index}]") for index, item in enumerate(items)]

    def _deque(self, value: deque[Any], path: str) -> dict[str, Node]:
        return {"$": "deque", "maxlen": value.maxlen, "v": self._items(value, path)}

    def _namespace(self, value: types.SimpleNamespace, path: str) -> dict[str, Node]:
        return {"$": "namespace", "v": self.attributes(value, path)}

    def _dict(self, value: dict[Any, Any], path: str) -> dict[str, Node]:
        pairs = [
            [self.encode(key, f"{path} key"), self.encode(item, f"{path}[{key!r:.40}]")]
            for key, item in value.items()
        ]
        if not isinstance(value, defaultdict):
            return {"$": _DICT_KINDS[type(value)], "v": pairs}
        factory = value.default_factory
        name = None if factory is None else getattr(factory, "__name__", "")
        if name is not None and values.FACTORIES.get(name) is not factory:
            raise SnapshotUnavailable(f"{path} is a defaultdict with a factory of its own")
        return {"$": "defaultdict", "factory": name, "v": pairs}

    def _array(self, value: np.ndarray, path: str) -> dict[str, Node]:
        if value.dtype.kind not in values.ARRAY_KINDS or value.dtype.itemsize == 0:
            raise SnapshotUnavailable(f"{path} is an array of dtype {value.dtype}")
        node: dict[str, Node] = {"$": "array", "v": np.array(value, order="C", copy=True)}
        # Some reductions round differently along the other memory order.
        if value.flags.f_contiguous and not value.flags.c_contiguous:
            node["order"] = "F"
        return node

    def _space(self, space: Space[Any], path: str) -> dict[str, Node]:
        generators = [inner._np_random for inner in values.sub_spaces(space)]
        return {"$": "space", "v": self._items(generators, path)}

    def _object(self, value: object, path: str) -> dict[str, Node]:
        if not values.is_plain_class(type(value)):
            raise _unavailable(value, path)
        name = self._class(type(value), path)
        return {"$": "object", "class": name, "v": self.attributes(value, path)}

    def _class(self, cls: type, path: str) -> str:
        name = values.class_name(cls)
        if name is None:
            raise SnapshotUnavailable(
                f"{path} is a {values.type_name(cls)}; only classes of your own code "
                "that have a global name and no __del__ can be made again from a file"
            )
        return name


def _unavailable(value: object, path: str) -> SnapshotUnavailable:
    found = values.type_name(type(value))
    return SnapshotUnavailable(f"{path} is a {found}, which cannot be written as data")
