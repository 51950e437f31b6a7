"""What a checkpoint holds of an object, derived from the attributes its class declares.

    class RunningMean(Stateful):
        state_fields = ("mean", "count", "_rng")

        def __init__(self, size: int, seed: int) -> None:
            self.mean = np.zeros(size)
            self.count = 0
            self._rng = np.random.default_rng(seed)

`state_dict()` gives `{"mean": array, "count": 0, "rng": {...}}`, keys without leading underscores;
`load_state_dict(state)` writes such a state into an object that was built in the same way. A
subclass declares only what it adds. A field is an attribute, or a property with a setter, and holds

- a number, text, bytes or None: loaded by replacing it with one of the same kind, or with or
  from None;
- an array or a tensor: saved as itself, not as a copy; loaded in place, and shape and dtype must
  agree;
- a NumPy generator: saved as a copy of its state, loaded in place;
- a part: a `Stateful`, an `nn.Module`, whatever has `state_dict` and `load_state_dict`;
- a dict, list, deque, tuple or NamedTuple of these: loaded item by item, and keys or length must
  agree. One that holds only numbers and text takes over any number of others instead.

`state_counts` names those of the fields that count something: they are natural numbers, never None.
Subclasses add to it as well.

What does not fit, is missing or is not declared raises a CheckpointError that names the field, as
in `critic.optimizer.mean: expected ...`; the object is then of no more use. After loading, nothing
is shared with the state that was loaded. A class that keeps values computed from its fields
overrides `load_state_dict`, calls `super()` first and computes them again. One whose state is not
a set of attributes writes both methods itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from functools import singledispatch
from typing import Any, ClassVar, NoReturn, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.errors import CheckpointError, UsageError
from rl_training.storage.generators import generator_state, set_generator_state

State: TypeAlias = dict[str, Any]


@runtime_checkable
class Part(Protocol):
    """Anything whose state goes into a checkpoint by its two methods."""

    def state_dict(self) -> Mapping[str, Any]:
        """The state as nested dicts of tensors, arrays and plain values."""

    def load_state_dict(self, state_dict: State, /) -> Any:
        """Take over a saved state."""


class Stateful:
    """Base of classes whose state is the attributes named in `state_fields`."""

    state_fields: ClassVar[tuple[str, ...]] = ()
    state_counts: ClassVar[tuple[str, ...]] = ()
    acts: ClassVar[bool] = True
    """False for a part of an algorithm that only learning needs, such as an optimiser."""
    _state_attributes: ClassVar[dict[str, str]] = {}  # by key, the fields of the bases first
    _counts: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        declared = [vars(base).get("state_fields", ()) for base in reversed(cls.__mro__)]
        if not all(isinstance(fields, tuple) for fields in declared):
            raise TypeError(f"{cls.__qualname__}.state_fields: expected a tuple of names")
        names = [name for fields in declared for name in fields]
        cls._state_attributes = {name.lstrip("_"): name for name in names}
        if len(cls._state_attributes) != len(names):
            raise TypeError(f"{cls.__qualname__}: a state field is declared twice in {names}")
        counts = (vars(base).get("state_counts", ()) for base in cls.__mro__)
        cls._counts = frozenset(name for fields in counts for name in fields)

    def state_parts(self) -> dict[str, object]:
        """The declared fields themselves, by the keys they have in `state_dict`."""
        return {key: getattr(self, name) for key, name in self._state_attributes.items()}

    def state_dict(self) -> State:
        """The declared fields; arrays and tensors are not copied."""
        fields = self._state_attributes.items()
        return {key: _save(getattr(self, name), _path(self, name)) for key, name in fields}

    def load_state_dict(self, state: State) -> None:
        """Write a saved state into the declared fields."""
        _with_keys(self._state_attributes, state, "")
        for key, name in self._state_attributes.items():
            before = getattr(self, name)
            if name in self._counts and not _is_count(state[key]):
                _refuse(key, "a natural number", state[key])
            value = _load(before, state[key], key)
            if value is not before:
                setattr(self, name, value)


def load_into(live: object, saved: object, path: str) -> None:
    """Write a saved value into a part, an array or a tensor; `path` names it in errors."""
    _load(live, saved, path)


class _Mismatch(CheckpointError):
    """A state that does not fit; the path grows on the way out of nested parts."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path, self.message = path, message


def _path(owner: object, name: str) -> str:
    return f"{type(owner).__qualname__}.{name}"


@singledispatch
def _save(value: object, path: str) -> object:
    if isinstance(value, Part):
        return dict(value.state_dict())
    if value is None or _kind(value) is not None:
        return value
    raise UsageError(
        f"{path} cannot be saved: expected numbers, text, arrays, tensors, generators, objects "
        f"with state_dict and load_state_dict, or dicts, lists and tuples of them, found "
        f"{type(value).__module__}.{type(value).__qualname__}"
    )


@_save.register
def _(value: np.ndarray, path: str) -> object:  # noqa: ARG001 - one signature for all kinds
    return value


@_save.register
def _(value: Tensor, path: str) -> object:  # noqa: ARG001
    return value.detach()


@_save.register
def _(value: np.random.Generator, path: str) -> object:  # noqa: ARG001
    return generator_state(value)


@_save.register(dict)
def _(value: dict[str, Any], path: str) -> object:
    return {key: _save(item, f"{path}[{key!r}]") for key, item in value.items()}


@_save.register(list)
@_save.register(deque)
def _(value: Iterable[Any], path: str) -> object:
    return [_save(item, f"{path}[{index}]") for index, item in enumerate(value)]


@_save.register(tuple)
def _(value: tuple[Any, ...], path: str) -> object:
    if hasattr(value, "_asdict"):
        return _save(value._asdict(), path)
    return tuple(_save(item, f"{path}[{index}]") for index, item in enumerate(value))


@singledispatch
def _load(live: object, saved: object, path: str) -> object:
    """The value that the field gets: `live` itself, written to, wherever it can be."""
    if isinstance(live, Part):
        _load_part(live, saved, path)
        return live
    before, now = _kind(live), _kind(saved)
    if saved is None or (now is not None and (live is None or now == before)):
        return saved
    if (
        before == "float" and now == "int" and isinstance(saved, int)
    ):  # such as a sum of rewards that are whole numbers
        return float(saved)
    return _refuse(path, str(before), saved)


@_load.register
def _(live: np.ndarray, saved: object, path: str) -> np.ndarray:
    kind = live.dtype, live.shape
    if not isinstance(saved, np.ndarray) or (saved.dtype, saved.shape) != kind:
        _refuse(path, _describe(live), saved)
    if not live.flags.writeable:
        return np.array(saved)
    live[...] = saved
    return live


@_load.register
def _(live: Tensor, saved: object, path: str) -> Tensor:
    kind = live.dtype, live.shape
    if not isinstance(saved, Tensor) or (saved.dtype, saved.shape) != kind:
        _refuse(path, _describe(live), saved)
    with torch.no_grad():
        return live.copy_(saved)


@_load.register
def _(live: np.random.Generator, saved: object, path: str) -> np.random.Generator:
    try:
        set_generator_state(live, saved)
    except CheckpointError as error:
        raise _Mismatch(path, str(error)) from error
    return live


@_load.register(dict)
def _(live: dict[str, Any], saved: object, path: str) -> object:
    if not isinstance(saved, dict):
        _refuse(path, "a dict", saved)
    if _is_plain(live):
        items = _plain_copy(saved, path)
        live.clear()
        live.update(items)
        return live
    _with_keys(live, saved, path)
    for key, item in live.items():
        live[key] = _load(item, saved[key], f"{path}.{key}")
    return live


@_load.register(list)
def _(live: list[Any], saved: object, path: str) -> object:
    live[:] = _items(live, saved, path)
    return live


@_load.register(deque)
def _(live: deque[Any], saved: object, path: str) -> object:
    items = _items(live, saved, path)
    if live.maxlen is not None and len(items) > live.maxlen:
        _refuse(path, f"at most {live.maxlen} items", saved)
    live.clear()
    live.extend(items)
    return live


@_load.register(tuple)
def _(live: tuple[Any, ...], saved: object, path: str) -> object:
    if not hasattr(live, "_asdict"):
        return tuple(_items(live, saved, path, kind=tuple))
    fields = live._asdict()
    new = _with_keys(fields, saved, path)
    items = {name: _load(item, new[name], f"{path}.{name}") for name, item in fields.items()}
    return type(live)(**items)


def _items(
    live: Iterable[Any], saved: object, path: str, kind: type[list[Any] | tuple[Any, ...]] = list
) -> list[Any]:
    before = list(live)
    if not isinstance(saved, kind):
        _refuse(path, f"a {kind.__name__}", saved)
    if _is_plain(before):
        return list(_plain_copy(saved, path))
    if len(saved) != len(before):
        _refuse(path, f"{len(before)} items", saved)
    pairs = enumerate(zip(before, saved, strict=True))
    return [_load(item, new, f"{path}[{index}]") for index, (item, new) in pairs]


def _load_part(part: Part, saved: object, path: str) -> None:
    if not isinstance(saved, dict):
        _refuse(path, "a dict", saved)
    if isinstance(part, nn.Module):
        _check_tensors(part, saved, path)  # load_state_dict would convert another dtype in silence
    try:
        part.load_state_dict(saved)
    except _Mismatch as error:
        inner = f"{path}.{error.path}" if error.path else path
        raise _Mismatch(inner, error.message) from error
    except Exception as error:  # of a network, an optimiser or a callback that is not ours
        message = str(error) if isinstance(error, CheckpointError) else repr(error)
        raise _Mismatch(path, message) from error


def _check_tensors(module: nn.Module, saved: State, path: str) -> None:
    current = module.state_dict()
    _with_keys(current, saved, path)
    for name, tensor in current.items():
        if isinstance(tensor, Tensor) and _describe(tensor) != _describe(saved[name]):
            _refuse(f"{path}.{name}", _describe(tensor), saved[name])


def _with_keys(expected: Iterable[str], saved: object, path: str) -> State:
    """`saved`, which must be a dict of exactly the expected keys."""
    names = list(expected)
    if not isinstance(saved, dict):
        _refuse(path, f"a dict of {', '.join(names)}", saved)
    missing = [name for name in names if name not in saved]
    unknown = [key for key in saved if key not in names]
    if missing or unknown:
        wrong = [f"{key} is missing" for key in missing] + [f"{key} is unknown" for key in unknown]
        raise _Mismatch(
            path,
            f"{', '.join(wrong[:5])}: the state was saved by another version or configuration",
        )
    return saved


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or _kind(value) is not None


def _plain_copy(saved: object, path: str) -> Any:
    if isinstance(saved, dict):
        return {key: _plain_copy(item, f"{path}.{key}") for key, item in saved.items()}
    if isinstance(saved, list | tuple):
        copies = (_plain_copy(item, f"{path}[{i}]") for i, item in enumerate(saved))
        return type(saved)(copies)
    if not _is_plain(saved):
        _refuse(path, "numbers and text", saved)
    return saved


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**62


def _kind(value: object) -> str | None:
    """The kind of a number or text, a NumPy scalar's too; None for anything else."""
    for name, types in _KINDS.items():
        if isinstance(value, types):
            return name
    return None


_KINDS = {  # bool before int, of which it is a subclass
    "bool": (bool, np.bool_),
    "int": (int, np.integer),
    "float": (float, np.floating),
    "text": (str,),
    "bytes": (bytes,),
}


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array {value.dtype}{list(value.shape)}"
    if isinstance(value, Tensor):
        return f"a tensor {value.dtype}{list(value.shape)}"
    if isinstance(value, dict | list | tuple):
        return f"a {type(value).__name__} of {len(value)} items"
    return f"{type(value).__name__} {str(value)[:40]!r}"


def _refuse(path: str, expected: str, found: object) -> NoReturn:
    raise _Mismatch(path, f"expected {expected}, found {_describe(found)}")
