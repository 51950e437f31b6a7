"""Object graphs in the codec of `storage.tree`: what hangs on some given objects, and back.

Sharing and cycles are kept. To the kinds of the codec come

    {"ref": "3"}                                  an object in the table of those met twice
    {"layer": 0}                                  one of the given objects themselves
    {"object": "module:Class", "attributes": {...}}  {"namespace": {...}}
    {"enum": "module:Class", "member": ...}       {"named": "module:Class", "items": [...]}
    {"const": "module:name"}                      code: it must be the same when restored
    {"function": "module:name", "cells": [...], "state": [...]}   {"cell": [...]}, a variable of one
    {"method": "module:name", "self": ...}        {"partial": ..., "arguments": [...]}
    {"space": [...]}                              the generators of a Gymnasium space
    {"view": key, "offset": 8, "shape": [...], "strides": [...], ...}   in a buffer
    {"array": key, "strides": [...], ...}         a column of a large table, without the table

A set keeps its elements but not the order in which it is iterated, which depends on its history.
"""

from __future__ import annotations

import functools
import sys
import types
from collections import deque
from collections.abc import Callable, Container, Sequence
from enum import Enum, Flag
from typing import Any, NoReturn

import numpy as np
from gymnasium import Space

from rl_training.envs.snapshots import classes, shared_memory
from rl_training.envs.snapshots.classes import SnapshotUnavailable
from rl_training.envs.snapshots.shared_memory import Claims, Layout, Memory, Tables
from rl_training.errors import CheckpointError
from rl_training.storage.tree import MISSING, Decoder, Encoded, Encoder, Leaf, Node

MAX_VALUES = 1_000_000  # more would make every checkpoint slow; such an env needs get_state
TABLE_DEPTH = 8  # deeper objects go to the table, as the codec limits nesting
MAX_TUPLES = 20  # inside each other
_MAX_CONSTANTS = 50_000
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_CODE = (types.FunctionType, classmethod, staticmethod, types.MethodDescriptorType)


class ObjectEncoder(Encoder):
    """Encodes what hangs on `layers`; the nodes belong together with the `shared` table."""

    def __init__(self, layers: Sequence[object], *, limit: int | None = None) -> None:
        super().__init__()
        self._limit = MAX_VALUES if limit is None else limit
        self._layers = {id(layer): index for index, layer in enumerate(layers)}
        self._packages = classes.allowed_packages(layers) | classes.LIBRARIES
        self.met_arrays: list[np.ndarray] = []
        self._paths: list[str] = []  # of those arrays
        self._nodes: dict[int, dict[str, Node]] = {}
        self._table: dict[int, str] = {}
        self._alive: list[object] = []  # an id is a name only while its object lives
        self._open: set[int] = set()  # the tuples and frozensets being encoded
        self._values = 0
        self._level = 0
        self.mutable[types.SimpleNamespace] = self._namespace
        self.mutable[types.CellType] = self._cell
        self.mutable[np.ndarray] = self._placeholder
        self._special: list[tuple[Callable[[Any], bool], Callable[[Any, str], Node]]] = [
            (lambda v: id(v) in self._layers, lambda v, _: {"layer": self._layers[id(v)]}),
            (classes.is_constant, lambda v, _: {"const": classes.constant_name(v)}),
            (classes.is_bound, self._method),
            (lambda v: type(v) is functools.partial, self._partial),
            (lambda v: isinstance(v, Space), self._space),
            (lambda v: isinstance(v, Enum), self._enum),
            (lambda v: isinstance(v, np.generic), self.scalar),
            (lambda v: isinstance(v, tuple) and hasattr(v, "_fields"), self._named),
        ]

    def encode(self, value: object, path: str = "") -> Node:
        """The value as a node; an object that was met before is a reference to it."""
        self._values += 1
        if self._values > self._limit:
            raise SnapshotUnavailable(f"{path} is beyond the first {self._limit:,} values")
        kind = type(value)
        if kind in (tuple, frozenset):
            return self._unlooped(value, path)
        if kind in self.immutable:
            return self.immutable[kind](value, path)
        if kind not in self.mutable:
            for matches, encode in self._special:
                if matches(value):
                    return encode(value, path)
        return self._once(value, path)

    def attributes(self, owner: object, path: str, skipped: Container[str] = ()) -> dict[str, Node]:
        """The owner's attributes and slots by name."""
        found = dict(getattr(owner, "__dict__", {}))
        for name, member in classes.slots_of(type(owner)).items():
            try:
                found[name] = member.__get__(owner)
            except AttributeError:  # an empty slot
                continue
        return {
            name: self.encode(value, f"{path}.{name}")
            for name, value in found.items()
            if name not in skipped
        }

    def takes(self, value: object) -> bool:
        """Whether the value can be encoded; nothing is kept of it."""
        attempt = ObjectEncoder((), limit=_MAX_CONSTANTS)
        attempt._layers, attempt._packages = self._layers, self._packages
        try:
            attempt.encode(value)
        except Exception:  # an object may not stand being looked at
            return False
        return True

    def finish(self, **nodes: Node) -> Encoded:
        """The nodes with the table of the objects that `ref` nodes point to; to be taken once."""
        for group in shared_memory.overlapping(self.met_arrays):
            self._place(group)
        table = {}
        for key, number in self._table.items():
            node = self._nodes[key]
            table[number] = dict(node)
            node.clear()
            node["ref"] = number
        return Encoded(nodes | {"shared": table}, {k: np.array(v) for k, v in self.arrays.items()})

    def inner(self, path: str, key: object) -> str:
        """The path of an item, as in Python."""
        return f"{path}[{key!r:.40}]"

    def put(self, path: str, leaf: Leaf) -> str:  # noqa: ARG002 - the path may not be unique
        """Keep an array by its number."""
        return super().put(str(len(self.arrays)), leaf)

    def refuse(self, path: str, found: str) -> NoReturn:
        """Raise the error for a value that cannot be encoded."""
        raise SnapshotUnavailable(f"{path} is {found}, which cannot be written as data")

    def _placeholder(self, value: np.ndarray, path: str) -> dict[str, Node]:
        """For an array, until all are known with which it may share memory."""
        self.check_dtype(value, path)
        if shared_memory.writes_to_file(value):
            self.refuse(path, "an array in a mapped file")
        self.met_arrays.append(value)
        self._paths.append(path)
        return {"array": "", "dtype": value.dtype.str, "shape": list(value.shape)}

    def _place(self, group: list[int]) -> None:
        """Give arrays that overlap in memory their nodes."""
        arrays = [self.met_arrays[index] for index in group]
        alone, first = len(group) == 1, arrays[0]
        if alone and shared_memory.has_plain_layout(first):
            nodes = [self._array(first, "")]
        elif not shared_memory.is_sparse(arrays):
            buffer, layouts = shared_memory.pack(arrays)
            key = self.put("", buffer)
            nodes = [layout.node(key) for layout in layouts]
        elif alone or not shared_memory.share_elements(arrays):
            # Columns of a large table, say: their numbers, and how far apart they are.
            nodes = [self._array(a, "") | {"strides": list(a.strides)} for a in arrays]
        else:
            self.refuse(self._paths[group[0]], "one of several small views of a large array")
        for array, node in zip(arrays, nodes, strict=True):
            self._nodes[id(array)].clear()
            self._nodes[id(array)].update(node)

    def _once(self, value: object, path: str) -> dict[str, Node]:
        key = id(value)
        if key in self._nodes:
            return {"ref": self._table.setdefault(key, str(len(self._table)))}
        node: dict[str, Node] = {}
        self._nodes[key] = node
        self._alive.append(value)
        self._level += 1
        if self._level > TABLE_DEPTH:
            self._table[key] = str(len(self._table))
        node.update(self.mutable.get(type(value), self._object)(value, path))
        self._level -= 1
        return node

    def _unlooped(self, value: object, path: str) -> Node:
        if id(value) in self._open or len(self._open) > MAX_TUPLES:
            raise SnapshotUnavailable(f"{path} is a tuple that contains itself, or nested too deep")
        self._open.add(id(value))
        node = self.immutable[type(value)](value, path)
        self._open.remove(id(value))
        return node

    def _function(self, value: types.FunctionType, path: str) -> dict[str, Node]:
        names, cells = value.__code__.co_freevars, value.__closure__ or ()
        variables = zip(names, cells, strict=True)
        state = value.__defaults__, value.__kwdefaults__, value.__dict__
        return {
            "function": classes.constant_name(value),
            "cells": [self.encode(cell, f"{path}'s variable {name}") for name, cell in variables],
            "state": self.items(state, f"{path}'s defaults and attributes"),
        }

    def _cell(self, value: types.CellType, path: str) -> dict[str, Node]:
        try:
            contents: tuple[object, ...] = (value.cell_contents,)
        except ValueError:  # a variable that was not assigned yet
            contents = ()
        return {"cell": [self.encode(content, path) for content in contents]}

    def _method(self, value: classes.BoundMethod, path: str) -> dict[str, Node]:
        function = getattr(value, "__func__", None)
        if isinstance(function, types.FunctionType):
            ways = (vars(base).get(function.__name__) for base in type(value.__self__).__mro__)
            if not classes.is_constant(function) and function not in ways:
                self.refuse(path, f"a method made at run time, {function.__qualname__}")
        inner = self.encode(value.__self__, f"{path}.__self__")
        return {"method": classes.constant_name(value), "self": inner}

    def _partial(self, value: functools.partial[Any], path: str) -> dict[str, Node]:
        inner = self.encode(value.func, f"{path}.func")
        arguments = self.items((value.args, value.keywords), f"{path}'s arguments")
        return {"partial": inner, "arguments": arguments}

    def _namespace(self, value: types.SimpleNamespace, path: str) -> dict[str, Node]:
        return {"namespace": self.attributes(value, path)}

    def _enum(self, value: Enum, path: str) -> dict[str, Node]:
        # A combination of flags has no name.
        member = value.value if isinstance(value, Flag) else value.name
        return {"enum": self._class(type(value), path), "member": member}

    def _named(self, value: tuple[object, ...], path: str) -> dict[str, Node]:
        return {"named": self._class(type(value), path), "items": self.encode(tuple(value), path)}

    def _space(self, space: Space[Any], path: str) -> dict[str, Node]:
        generators = [inner._np_random for inner in classes.sub_spaces(space)]
        return {"space": self.items(generators, path)}

    def _object(self, value: object, path: str) -> dict[str, Node]:
        cls = type(value)
        if isinstance(value, types.FunctionType):
            return self._function(value, path)
        if not classes.is_plain_class(cls):
            self.refuse(path, f"a {classes.type_name(cls)}")
        attributes = self.attributes(value, path)  # first: it may name what no package could mend
        return {"object": self._class(cls, path), "attributes": attributes}

    def _class(self, cls: type, path: str) -> str:
        name = classes.class_name(cls)
        if name is None:
            raise SnapshotUnavailable(
                f"{path} is a {classes.type_name(cls)}; only classes outside the standard library "
                "that have a global name and no __del__ can be made again from a file"
            )
        if name.partition(":")[0].partition(".")[0] not in self._packages:
            raise SnapshotUnavailable(
                f"{path} is a {classes.type_name(cls)}; only classes of a package that the "
                "environment's modules belong to or import can be made again from a file"
            )
        return name


class ObjectDecoder(Decoder):
    """Restores one state into `layers`, the objects that the encoder was given.

    An object of the live graph is written to at most once, so that two saved objects never end
    in one. Objects that are constants of a module are replaced instead of written to.
    """

    def __init__(self, layers: Sequence[object], state: Encoded) -> None:
        super().__init__(state.arrays)
        self._layers = layers
        self._packages = classes.allowed_packages(layers)
        self._shared: dict[str, Node] = state.node["shared"]
        self._restored: dict[str, Any] = {}
        constants = _module_constants(layers)
        self._taken = {id(layer) for layer in layers} | constants.keys()
        self._claims = Claims(value for value in constants.values() if type(value) is np.ndarray)
        self._tables = Tables()
        self._memories: dict[str, Memory] = {}
        self._alive: list[object] = []  # an id is a name only while its object lives
        self._number: str | None = None  # of the table's entry that is made next
        self.direct |= {
            "ref": self._ref,
            "const": self._const,
            "method": self._method,
            "partial": self._partial,
            "space": self._space,
            "named": self._named,
            "layer": lambda node, *_: self._layers[node["layer"]],
            "enum": self._enum,
        }
        self.make |= {
            "namespace": _make_namespace,
            "object": self._make_object,
            "view": self._make_view,
            "function": _same_function,
            "cell": lambda _, old: old if type(old) is types.CellType else types.CellType(),
        }
        fill: dict[str, Callable[[Any, dict[str, Node], str], None]] = {
            "namespace": lambda new, node, path: self.attributes(new, node["namespace"], path),
            "object": lambda new, node, path: self.attributes(new, node["attributes"], path),
            "function": self._fill_function,
            "cell": self._fill_cell,
        }
        self.fill |= fill
        self.optional |= {"object": {"attributes"}, "enum": {"member"}, "named": {"items"}}
        self.optional |= {"function": {"cells", "state"}, "method": {"self"}}
        self.optional |= {"partial": {"arguments"}, "view": set(Layout._fields)}
        self.optional["array"] = self.optional["array"] | {"strides"}

    def attributes(
        self, owner: object, nodes: dict[str, Node], path: str, skipped: Container[str] = ()
    ) -> None:
        """Give the owner exactly these attributes; `skipped` ones stay unchanged."""
        slots = classes.slots_of(type(owner))
        values: dict[str, Any] = getattr(owner, "__dict__", {})
        for name, node in nodes.items():
            in_slot = name in slots
            old = getattr(owner, name, MISSING) if in_slot else values.get(name, MISSING)
            if name in skipped or (old is MISSING and hides_method(owner, name)):
                raise CheckpointError(f"{path}.{name} is no state, and cannot have been saved")
            if old is MISSING and _is_program(node):
                continue  # made when it is first needed, as a cached function is
            value = self.decode(node, old, f"{path}.{name}")
            if in_slot:
                slots[name].__set__(owner, value)
            else:
                values[name] = value
        for name in [name for name in values if name not in nodes and name not in skipped]:
            del values[name]
        for name in slots:
            if name not in nodes and hasattr(owner, name):
                slots[name].__delete__(owner)

    def take(self, key: object) -> Leaf:
        """A copy, so that the state can be restored into several objects."""
        return np.array(super().take(key))

    def build(self, kind: str, node: dict[str, Node], old: object, path: str) -> object:
        """A value in place of `old`, unless another one is there already."""
        number, self._number = self._number, None
        target = self.make[kind](node, MISSING if id(old) in self._taken else old)
        self._taken.add(id(target))
        self._alive.append(target)
        if number is not None:
            self._restored[number] = target
        if kind in self.fill:
            self.fill[kind](target, node, path)
        return target

    def fill_set(self, target: set[Any], node: dict[str, Node], path: str) -> None:
        """Give a set its elements in another order than they had.

        The order of iteration depends on a set's history and cannot be restored in general. So that
        the replay probe finds out whether an environment minds, it is changed on purpose: other
        elements widen the table for a clock, which sends most to other places in it.
        """
        items = self.items(node["set"], (), path)
        padding = [object() for _ in range(4 * len(items) + 8)]
        target.clear()
        target.update(padding, reversed(items))
        target.difference_update(padding)

    def _ref(self, node: dict[str, Node], old: object, path: str) -> object:
        number = node["ref"]
        if number not in self._restored:
            # An entry of the table begins a new nesting.
            depth, self._depth, self._number = self._depth, 0, number
            self.decode(self._shared[number], old, path)
            self._depth = depth
        return self._restored[number]

    def _const(self, node: dict[str, Node], old: object, path: str) -> object:
        _check_there(old, path)
        found = classes.constant_name(old) if classes.is_constant(old) else ""
        if node["const"] != found:
            now = found or repr(old)
            raise CheckpointError(f"{path} was {node['const']} when saved and is {now} now")
        return old

    def _method(self, node: dict[str, Node], old: object, path: str) -> object:
        _check_there(old, path)
        if not classes.is_bound(old) or classes.constant_name(old) != node["method"]:
            raise CheckpointError(f"{path} was the method {node['method']} and is {old!r:.80} now")
        target = self.decode(node["self"], old.__self__, f"{path}.__self__")
        if target is old.__self__:
            return old
        if type(target) is not type(old.__self__):
            raise CheckpointError(f"{path} was a method of another kind of object when saved")
        return getattr(target, old.__name__)

    def _partial(self, node: dict[str, Node], old: object, path: str) -> object:
        _check_there(old, path)
        if type(old) is not functools.partial:
            raise CheckpointError(f"{path} was a functools.partial and is {old!r:.80} now")
        function = self.decode(node["partial"], old.func, f"{path}.func")
        before = old.args, old.keywords
        arguments, keywords = self.items(node["arguments"], before, f"{path}'s arguments")
        return functools.partial(function, *arguments, **keywords)

    def _fill_function(self, target: types.FunctionType, node: dict[str, Node], path: str) -> None:
        cells = target.__closure__ or ()
        for cell, restored in zip(cells, self.items(node["cells"], cells, path), strict=True):
            if restored is not cell:
                raise CheckpointError(f"{path} shared its variables with other functions once")
        before = target.__defaults__, target.__kwdefaults__, target.__dict__
        defaults, keywords, attributes = self.items(node["state"], before, path)
        target.__defaults__, target.__kwdefaults__ = defaults, keywords
        if attributes is not target.__dict__:
            target.__dict__.update(attributes)

    def _fill_cell(self, target: types.CellType, node: dict[str, Node], path: str) -> None:
        try:
            before = [target.cell_contents]
        except ValueError:
            before = []
        contents = self.items(node["cell"], before, path)
        if contents:
            target.cell_contents = contents[0]

    def _space(self, node: dict[str, Node], old: object, path: str) -> object:
        _check_there(old, path)
        spaces = classes.sub_spaces(old) if isinstance(old, Space) else []
        if len(spaces) != len(node["space"]):
            raise CheckpointError(f"{path} was another space when saved than {old!r:.80}")
        for space, generator in zip(spaces, node["space"], strict=True):
            decoded: object = self.decode(generator, space._np_random, path)
            if not isinstance(decoded, np.random.Generator | None):
                raise CheckpointError(f"{path}: the generator of a space is something else")
            vars(space)["_np_random"] = decoded
        return old

    def _named(self, node: dict[str, Node], old: object, path: str) -> object:
        cls = self._class(node["named"], type(old))
        if not (issubclass(cls, tuple) and hasattr(cls, "_fields")):
            raise CheckpointError(f"{path}: {node['named']!r} is not a named tuple")
        items = self.items(node["items"], old if isinstance(old, tuple) else (), path)
        return tuple.__new__(cls, items)

    def _enum(self, node: dict[str, Node], old: object, _: str) -> object:
        cls = self._class(node["enum"], type(old))
        return classes.find_member(cls, node["member"])

    def _make_object(self, node: dict[str, Node], old: object) -> object:
        cls = self._class(node["object"], type(old))
        if not classes.is_plain_class(cls):
            raise CheckpointError(f"{node['object']!r:.80} is not a class with plain attributes")
        return old if type(old) is cls else object.__new__(cls)

    def _make_array(self, node: dict[str, Node], old: object) -> np.ndarray:
        # Along other strides, sums may round differently.
        kept = isinstance(old, np.ndarray) and _has_strides(old, node) and self._claims.free(old)
        array = super()._make_array(node, old if kept else MISSING)
        if array is old:
            self._claims.add(array)
        elif "strides" in node:
            return self._tables.column(array, node["strides"])
        return array

    def _make_view(self, node: dict[str, Node], old: object) -> np.ndarray:
        key = node["view"]
        if key not in self._memories:
            saved = self.take(key)
            if not isinstance(saved, np.ndarray) or saved.dtype != np.uint8 or saved.ndim != 1:
                raise ValueError("a view of something else than bytes")
            layout = Layout.read(node, saved.size)
            self._memories[key] = Memory(saved, layout, old, self._claims)
        memory = self._memories[key]
        return memory.view(Layout.read(node, memory.size), old)

    def _class(self, name: object, live: type) -> type:
        """The class of that name: the one of the live value, or one of the environment's."""
        if isinstance(name, str) and classes.class_name(live) == name:
            return live
        return classes.find_class(name, self._packages)


def hides_method(owner: object, name: str) -> bool:
    """Whether an attribute of that name would take the place of the owner's own code."""
    for base in type(owner).__mro__:
        if name in vars(base):
            return isinstance(vars(base)[name], _CODE)
    return False


def _is_program(node: Node) -> bool:
    return isinstance(node, dict) and ("const" in node or "space" in node)


def _check_there(old: object, path: str) -> None:
    if old is MISSING:
        raise CheckpointError(f"{path} held code or a space that the environment lacks now")


def _has_strides(array: np.ndarray, node: dict[str, Node]) -> bool:
    if "strides" in node:
        return bool(list(array.strides) == node["strides"])
    flags = array.flags
    return flags.f_contiguous if node.get("order") == "F" else flags.c_contiguous


def _make_namespace(_: dict[str, Node], old: object) -> types.SimpleNamespace:
    return old if type(old) is types.SimpleNamespace else types.SimpleNamespace()


def _same_function(node: dict[str, Node], old: object) -> types.FunctionType:
    if not isinstance(old, types.FunctionType) or classes.constant_name(old) != node["function"]:
        now = "missing" if old is MISSING else f"{old!r:.80}"
        raise CheckpointError(f"the function {node['function']} of the saved state is {now} now")
    if classes.is_global(old):
        raise CheckpointError(f"{node['function']} is program, and holds no state")
    return old


def _module_constants(layers: Sequence[object]) -> dict[int, object]:
    """The values, by id, at module or class level in the packages of the layers' classes.

    An env may hold one of them (`self.piece = SHAPES[2]`); writing to it would change the constant.
    """
    bases = {base for layer in layers for base in type(layer).__mro__}
    ours = {base.__module__.partition(".")[0] for base in bases} - set(sys.stdlib_module_names)
    names = {base.__module__ for base in bases if base.__module__.partition(".")[0] in ours}
    names |= {name for name in list(sys.modules) if name.partition(".")[0] in ours - {"gymnasium"}}
    pending: list[Any] = [vars(sys.modules[name]) for name in names if sys.modules.get(name)]
    pending += [dict(vars(base)) for base in bases]
    found: dict[int, object] = {}
    while pending and len(found) < _MAX_CONSTANTS:
        inside = pending.pop()
        for value in list(inside.values() if isinstance(inside, dict) else inside):
            if id(value) in found or not _may_hold_state(value):
                continue
            found[id(value)] = value
            if isinstance(value, _CONTAINERS):
                pending.append(value)
    return found


def _may_hold_state(value: object) -> bool:
    return isinstance(value, (*_CONTAINERS, np.ndarray)) or classes.is_plain_class(type(value))
