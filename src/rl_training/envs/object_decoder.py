"""Writes the nodes of `object_encoder` back into live objects, in place where one fits."""

from __future__ import annotations

import sys
import types
from collections import defaultdict, deque
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space

from rl_training.envs import object_values as values
from rl_training.envs.object_encoder import Node
from rl_training.errors import CheckpointError

MISSING: Any = object()
"""Stands for a value that is not there."""
_MAX_CONSTANTS = 50_000
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)


class Decoder:
    """Restores one state into `layers`, the objects that the encoder was given.

    An object of the live graph is written to at most once, so that two saved objects never end
    in one. Objects that are constants of a module are replaced instead of written to.
    """

    def __init__(self, layers: Sequence[object], shared: dict[str, Node]) -> None:
        self._layers = layers
        self._shared = shared
        self._restored: dict[str, Any] = {}
        self._taken = {id(layer) for layer in layers} | _module_constants(layers)
        self._alive: list[object] = []  # an id is a name only while its object lives
        self._direct: dict[str, Callable[[dict[str, Node], Any, str], Any]] = {
            "ref": self._ref,
            "const": self._const,
            "space": self._space,
            "named": self._named,
            "layer": lambda node, _, __: self._layers[node["v"]],
            "enum": lambda node, _, __: values.find_member(node["class"], node["v"]),
            "scalar": lambda node, _, __: values.decode_scalar(node),
            "complex": lambda node, _, __: complex(*node["v"]),
            "range": lambda node, _, __: range(*node["v"]),
            "frozenset": lambda node, _, path: frozenset(self._items(node["v"], (), path)),
        }
        # A mutable value is made first and filled second, so that a cycle finds it.
        self._make: dict[str, Callable[[dict[str, Node], Any], Any]] = {
            "list": lambda _, old: old if type(old) is list else [],
            "set": lambda _, old: old if type(old) is set else set(),
            "deque": _make_deque,
            **dict.fromkeys([*values.DICTS, "defaultdict"], _make_dict),
            "array": _make_array,
            "generator": values.decode_generator,
            "random_state": values.decode_random_state,
            "random": values.decode_python_random,
            "namespace": _make_namespace,
            "object": _make_object,
        }
        self._fill: dict[str, Callable[[Any, dict[str, Node], str], None]] = {
            "list": self._fill_list,
            "set": self._fill_set,
            "deque": self._fill_deque,
            **dict.fromkeys([*values.DICTS, "defaultdict"], self._fill_dict),
            "namespace": lambda target, node, path: self.attributes(target, node["v"], path),
            "object": lambda target, node, path: self.attributes(target, node["v"], path),
        }

    def decode(self, node: Node, old: Any, path: str) -> Any:
        """The value of the node, using the live object `old` (or MISSING) where it fits.

        MISSING comes back for a constant that the live object does not have.
        """
        if isinstance(node, list):
            return tuple(self._items(node, old if isinstance(old, tuple) else (), path))
        if not isinstance(node, dict):
            return node
        direct = self._direct.get(node["$"])
        return direct(node, old, path) if direct else self._mutable(node, old, path)

    def attributes(
        self, owner: object, nodes: dict[str, Node], path: str, skipped: Container[str] = ()
    ) -> None:
        """Give the owner exactly these attributes; `skipped` ones stay as they are."""
        slots = values.slots_of(type(owner))
        own: dict[str, Any] = getattr(owner, "__dict__", {})
        for name, node in nodes.items():
            in_slot = name in slots
            old = getattr(owner, name, MISSING) if in_slot else own.get(name, MISSING)
            value = self.decode(node, old, f"{path}.{name}")
            if value is MISSING:
                continue
            if in_slot:
                slots[name].__set__(owner, value)
            else:
                own[name] = value
        for name in [name for name in own if name not in nodes and name not in skipped]:
            del own[name]
        for name in slots:
            if name not in nodes and hasattr(owner, name):
                slots[name].__delete__(owner)

    def _mutable(
        self, node: dict[str, Node], old: Any, path: str, number: str | None = None
    ) -> Any:
        target = self._make[node["$"]](node, MISSING if id(old) in self._taken else old)
        self._taken.add(id(target))
        self._alive.append(target)
        if number is not None:
            self._restored[number] = target
        fill = self._fill.get(node["$"])
        if fill is not None:
            fill(target, node, path)
        return target

    def _ref(self, node: dict[str, Node], old: Any, path: str) -> Any:
        number = node["v"]
        if number not in self._restored:
            return self._mutable(self._shared[number], old, path, number)
        return self._restored[number]

    def _const(self, node: dict[str, Node], old: Any, path: str) -> Any:
        if old is MISSING:
            return MISSING
        found = values.constant_name(old) if values.is_constant(old) else ""
        if node["v"] != found:
            now = found or repr(old)
            raise CheckpointError(f"{path} was {node['v']} when saved and is {now} now")
        return old

    def _space(self, node: dict[str, Node], old: Any, path: str) -> Any:
        if old is MISSING:
            return MISSING
        spaces = values.sub_spaces(old) if isinstance(old, Space) else []
        if len(spaces) != len(node["v"]):
            raise CheckpointError(f"{path} was another space when saved than {old!r:.80}")
        for space, generator in zip(spaces, node["v"], strict=True):
            space._np_random = self.decode(generator, space._np_random, path)
        return old

    def _named(self, node: dict[str, Node], old: Any, path: str) -> Any:
        cls = values.find_class(node["class"])
        if not (issubclass(cls, tuple) and hasattr(cls, "_fields")):
            raise CheckpointError(f"{path}: {node['class']!r} is not a named tuple")
        items = self._items(node["v"], old if isinstance(old, tuple) else (), path)
        return tuple.__new__(cls, items)

    def _items(self, nodes: list[Node], old: Iterable[Any], path: str) -> list[Any]:
        before = list(old)[: len(nodes)]
        before += [MISSING] * (len(nodes) - len(before))
        pairs = enumerate(zip(nodes, before, strict=True))
        return [self._item(node, was, f"{path}[{index}]") for index, (node, was) in pairs]

    def _item(self, node: Node, old: Any, path: str) -> Any:
        value = self.decode(node, old, path)
        if value is MISSING:
            raise CheckpointError(f"{path} held code or a space that the environment lacks now")
        return value

    def _fill_list(self, target: list[Any], node: dict[str, Node], path: str) -> None:
        target[:] = self._items(node["v"], target, path)

    def _fill_set(self, target: set[Any], node: dict[str, Node], path: str) -> None:
        # The order of iteration depends on a set's history and cannot be restored in general. So
        # that the replay probe finds out whether an environment minds, it is changed on purpose:
        # other elements widen the table for a moment, which sends most to other places in it.
        items = self._items(node["v"], (), path)
        padding = [object() for _ in range(4 * len(items) + 8)]
        target.clear()
        target.update(padding, reversed(items))
        target.difference_update(padding)

    def _fill_deque(self, target: deque[Any], node: dict[str, Node], path: str) -> None:
        items = self._items(node["v"], target, path)
        target.clear()
        target.extend(items)

    def _fill_dict(self, target: dict[Any, Any], node: dict[str, Node], path: str) -> None:
        pairs = []
        for key_node, item_node in node["v"]:
            key = self._item(key_node, MISSING, f"{path} key")
            was = target.get(key, MISSING)
            pairs.append((key, self._item(item_node, was, f"{path}[{key!r:.40}]")))
        target.clear()
        for key, item in pairs:  # not update, with which a Counter would add up
            target[key] = item


def _make_deque(node: dict[str, Node], old: Any) -> deque[Any]:
    fits = type(old) is deque and old.maxlen == node["maxlen"]
    return old if fits else deque(maxlen=node["maxlen"])


def _make_dict(node: dict[str, Node], old: Any) -> dict[Any, Any]:
    if node["$"] == "defaultdict":
        factory = values.FACTORIES[node["factory"]] if node["factory"] else None
        fits = type(old) is defaultdict and old.default_factory is factory
        return old if fits else defaultdict(factory)
    empty = values.DICTS[node["$"]]()
    return old if type(old) is type(empty) else empty


def _make_array(node: dict[str, Node], old: Any) -> np.ndarray:
    saved: np.ndarray = node["v"]
    writeable = type(old) is np.ndarray and old.flags.writeable
    if writeable and old.shape == saved.shape and old.dtype == saved.dtype:
        old[...] = saved
        return old  # type: ignore[no-any-return]  # its type was just tested
    return np.array(saved, order=node.get("order", "C"), copy=True)


def _make_namespace(_: dict[str, Node], old: Any) -> types.SimpleNamespace:
    return old if type(old) is types.SimpleNamespace else types.SimpleNamespace()


def _make_object(node: dict[str, Node], old: Any) -> object:
    cls = values.find_class(node["class"])
    if not values.is_plain_class(cls):
        raise CheckpointError(f"{node['class']!r} is not a class with plain attributes")
    return old if type(old) is cls else object.__new__(cls)


def _module_constants(layers: Sequence[object]) -> set[int]:
    """The ids of values at module or class level in the packages of the layers' classes.

    An env may hold one of them (`self.piece = SHAPES[2]`); writing to it would change the constant.
    """
    bases = {base for layer in layers for base in type(layer).__mro__}
    ours = {base.__module__.partition(".")[0] for base in bases} - set(sys.stdlib_module_names)
    names = {base.__module__ for base in bases if base.__module__.partition(".")[0] in ours}
    names |= {name for name in list(sys.modules) if name.partition(".")[0] in ours - {"gymnasium"}}
    pending: list[Any] = [vars(sys.modules[name]) for name in names if sys.modules.get(name)]
    pending += [dict(vars(base)) for base in bases]
    found: set[int] = set()
    while pending and len(found) < _MAX_CONSTANTS:
        inside = pending.pop()
        for value in list(inside.values() if isinstance(inside, dict) else inside):
            if id(value) in found or not _may_hold_state(value):
                continue
            found.add(id(value))
            if isinstance(value, _CONTAINERS):
                pending.append(value)
    return found


def _may_hold_state(value: object) -> bool:
    return isinstance(value, (*_CONTAINERS, np.ndarray)) or values.is_plain_class(type(value))
