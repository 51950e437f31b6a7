"""The words of a refused configuration: what a key expects, what was found, what was meant."""

from __future__ import annotations

import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from rl_training.errors import ConfigError, alternatives, nearest

KeyPath = tuple[str | int, ...]
"""Where a value stands in a configuration: keys, and positions inside lists."""

MAX_LISTED = 50
"""Mistakes printed one by one; a file that is not a configuration at all would give thousands."""

_MAX_SHOWN = 80
_SIMPLE_TYPES: dict[Any, str] = {
    str: "text",
    bool: "true or false",
    dict: "a mapping",
    type(None): "null",
}


class Expectation(ABC):
    """A marker for `Annotated` whose words replace those derived from the type."""

    @abstractmethod
    def at(self, rest: KeyPath) -> str | None:
        """The words for the field or, with `rest`, a value below it; None leaves it to the type."""


@dataclass(frozen=True)
class Expects(Expectation):
    """Fixed words for a field."""

    text: str

    def at(self, rest: KeyPath) -> str | None:
        """The fixed words, for the field itself."""
        return None if rest else self.text


def show_path(path: KeyPath) -> str:
    """The path as a user writes it: `algo_kwargs.hidden_sizes[1]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            key = part if part.isprintable() and len(part) <= _MAX_SHOWN else show_value(part)
            text += f".{key}" if text else key
    return text


def show_value(value: object) -> str:
    """The value as an error message shows it: short, on one line, never raising."""
    try:
        text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    except Exception:  # a foreign __repr__, or an integer too long to print
        text = f"a value of type {type(value).__name__}"
    text = " ".join(text.split())
    text = text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."
    return f"the text {text}" if isinstance(value, str) else text


# What a field expects, read from its type and bounds


def describe_field(model: type[BaseModel], path: KeyPath) -> str:
    """What the model expects at the path: `an integer from 1 to 4096`."""
    field = model.model_fields.get(str(path[0])) if path else None
    if field is None:
        return "a mapping with text keys"
    rest = path[1:]
    for marker in field.metadata:
        if isinstance(marker, Expectation) and (words := marker.at(rest)) is not None:
            return words
    nested = _nested_model(field.annotation)
    if nested is not None and rest and rest[0] in nested.model_fields:
        return describe_field(nested, rest)
    if rest and isinstance(rest[0], int) and get_origin(field.annotation) is tuple:
        return _describe_type(get_args(field.annotation)[0])
    return _describe_type(field.annotation, field.metadata)


def legal_paths(model: type[BaseModel], prefix: KeyPath = ()) -> list[KeyPath]:
    """Every key path the model knows, nested models included."""
    paths: list[KeyPath] = []
    for name, field in model.model_fields.items():
        paths.append((*prefix, name))
        if (nested := _nested_model(field.annotation)) is not None:
            paths += legal_paths(nested, (*prefix, name))
    return paths


def _describe_type(annotation: object, metadata: Iterable[Any] = ()) -> str:
    marks = tuple(_flatten(metadata))
    for marker in marks:
        if isinstance(marker, Expectation) and (words := marker.at(())) is not None:
            return words
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _describe_type(arguments[0], (*arguments[1:], *marks))
    if origin in (Union, types.UnionType):
        return " or ".join(_describe_type(arm, marks) for arm in arguments)
    if origin is Literal:
        return alternatives(map(repr, arguments))
    if annotation in (int, float):
        return _describe_range("an integer" if annotation is int else "a number", marks)
    return _describe_container(annotation, marks)


def _describe_container(annotation: object, marks: Iterable[Any]) -> str:
    if (model := _nested_model(annotation)) is not None:
        return f"a mapping with the keys {', '.join(model.model_fields)}"
    origin = get_origin(annotation)
    if origin in (tuple, list):
        lengths = [mark.max_length for mark in marks if hasattr(mark, "max_length")]
        size = f"a list of at most {lengths[0]} items" if lengths else "a list"
        return f"{size}, each {_describe_type(get_args(annotation)[0])}"
    return _SIMPLE_TYPES.get(origin or annotation, "another kind of value")


def _describe_range(noun: str, marks: Iterable[Any]) -> str:
    bounds: dict[str, Any] = {}
    for mark in marks:
        for name in ("ge", "gt", "le", "lt"):
            if getattr(mark, name, None) is not None:
                bounds[name] = getattr(mark, name)
    if set(bounds) == {"ge", "le"}:
        return f"{noun} from {_show_bound(bounds['ge'])} to {_show_bound(bounds['le'])}"
    words = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
    parts = [f"{words[name]} {_show_bound(bounds[name])}" for name in words if name in bounds]
    return " ".join([noun, " and ".join(parts)]).strip()


def _show_bound(bound: float) -> str:
    return str(int(bound)) if float(bound).is_integer() and abs(bound) < 1e15 else f"{bound:g}"


def _nested_model(annotation: object) -> type[BaseModel] | None:
    """The model a value of this type may be, looking through unions and `Annotated`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType, Annotated):
        for arm in get_args(annotation):
            if (model := _nested_model(arm)) is not None:
                return model
    return None


def _flatten(metadata: Iterable[Any]) -> Iterator[Any]:
    for item in metadata:
        yield from item.metadata if isinstance(item, FieldInfo) else (item,)


# Mistakes, each with its path, all of them in one error


@dataclass(frozen=True)
class Mistake:
    """One thing wrong with a configuration; without a text, the key itself is unknown."""

    path: KeyPath
    text: str | None = None


class ConfigMistakes(ConfigError):
    """A `ConfigError` that still knows its mistakes, so that a loader can add where they stand."""

    def __init__(self, message: str, mistakes: Sequence[Mistake] = ()) -> None:
        super().__init__(message)
        self.mistakes = tuple(mistakes)


def list_mistakes(
    mistakes: Sequence[Mistake],
    legal: Sequence[KeyPath],
    origin_of: Callable[[KeyPath], str] = lambda _: "",
) -> ConfigMistakes:
    """The error that lists the mistakes, one per line, each with its origin if known."""
    lines = []
    for mistake in mistakes[:MAX_LISTED]:
        origin = origin_of(mistake.path)
        if mistake.text is None:
            words = f"unknown key '{show_path(mistake.path)}'; {_suggest(mistake.path, legal)}"
        else:
            words = ": ".join(filter(None, (show_path(mistake.path), mistake.text)))
        lines.append(f"{origin}: {words}" if origin else words)
    if len(mistakes) > MAX_LISTED:
        lines.append(f"... and {len(mistakes) - MAX_LISTED} more mistakes")
    return ConfigMistakes("\n".join(lines), mistakes)


def read_mistakes(
    error: ValidationError, model: type[BaseModel], values: Mapping[str, Any], prefix: KeyPath = ()
) -> list[Mistake]:
    """The mistakes behind a pydantic error, one per path."""
    mistakes: dict[KeyPath, Mistake] = {}
    for detail in error.errors(include_url=False):
        path, value = _follow(detail["loc"], values)
        kind = detail["type"]
        whole = len(path) == len(detail["loc"])
        text: str | None
        if kind == "missing" and len(path) == len(detail["loc"]) - 1:
            path = (*path, detail["loc"][-1])
            text = f"missing; expected {describe_field(model, path)}"
        elif kind == "extra_forbidden" and whole:
            text = None
        elif kind in ("value_error", "assertion_error") and whole:
            text = str(detail["ctx"]["error"])
        else:
            text = f"expected {describe_field(model, path)}, found {show_value(value)}"
        mistakes.setdefault(path, Mistake((*prefix, *path), text))
    return list(mistakes.values())


def _suggest(path: KeyPath, legal: Sequence[KeyPath]) -> str:
    from rl_training.config.other_packages import KEY_ANSWERS  # only if something is wrong

    if path[-1] in KEY_ANSWERS:
        return KEY_ANSWERS[str(path[-1])]
    near = _nearest_path(path, legal)
    if near is None:
        here = [str(known[-1]) for known in legal if known[:-1] == path[:-1]]
        return f"the valid keys here are {', '.join(here)}" if here else "no key is valid here"
    if show_path(near) == show_path(path):
        return "dots are for --set: in a file or in Python, nest one mapping in the other"
    return f"did you mean '{show_path(near)}'?"


def _nearest_path(path: KeyPath, legal: Sequence[KeyPath]) -> KeyPath | None:
    """The legal path most like a wrong one; a right name in the wrong place counts as near."""
    from rl_training.config.other_packages import KEYS  # only if something is wrong

    leaf = str(path[-1])
    for name in KEYS.get(leaf, ()):
        ending = tuple(name.split("."))
        for candidate in legal:
            if candidate[-len(ending) :] == ending:
                return candidate
    names = nearest(leaf.rpartition(".")[2], {str(candidate[-1]) for candidate in legal})
    # In the same mapping if the name is there, else the shallowest: fewer keys to write.
    return min(
        (candidate for candidate in legal if candidate[-1] in names),
        key=lambda candidate: (candidate[:-1] != path[:-1], len(candidate)),
        default=None,
    )


def _follow(loc: tuple[int | str, ...], values: object) -> tuple[KeyPath, object]:
    """Walk down the given values as far as `loc` goes.

    Pydantic puts the names of union members into its locations; they are no part of what the user
    wrote, and the walk ends there.
    """
    path: list[int | str] = []
    for part in loc:
        inside: object = values.__dict__ if isinstance(values, BaseModel) else values
        if isinstance(inside, list | tuple):
            inside = dict(enumerate(inside))
        if not isinstance(inside, Mapping) or part not in inside:
            break
        values = inside[part]
        path.append(part)
    return tuple(path), values
