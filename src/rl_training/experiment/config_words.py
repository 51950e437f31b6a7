"""What a configuration field expects, in words, read from its type and bounds."""

from __future__ import annotations

import types
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

KeyPath = tuple[str | int, ...]
"""Where a value stands in a configuration: keys, and positions inside lists."""

_SIMPLE: dict[Any, str] = {
    str: "text",
    bool: "true or false",
    dict: "a mapping",
    type(None): "null",
}
_LONGEST_SHOWN = 80


class Worded(ABC):
    """A marker for `Annotated` whose words replace those derived from the type."""

    @abstractmethod
    def at(self, rest: KeyPath) -> str | None:
        """The words for the field or, with `rest`, a value below it; None leaves it to the type."""


@dataclass(frozen=True)
class Expects(Worded):
    """Fixed words for a field."""

    text: str

    def at(self, rest: KeyPath) -> str | None:
        """The fixed words, for the field itself."""
        return None if rest else self.text


def dotted(path: KeyPath) -> str:
    """The path as a user writes it: `algo_kwargs.hidden_sizes[1]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            key = part if part.isprintable() and len(part) <= _LONGEST_SHOWN else shown(part)
            text += f".{key}" if text else key
    return text


def shown(value: object) -> str:
    """The value as an error message shows it: short, on one line, never raising."""
    try:
        text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    except Exception:  # a foreign __repr__, or an integer too long to print
        text = f"a value of type {type(value).__name__}"
    text = " ".join(text.split())
    text = text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."
    return f"the text {text}" if isinstance(value, str) else text


def range_words(noun: str, *, metadata: Iterable[Any]) -> str:
    """`noun` with the bounds in the metadata: `an integer from 1 to 4096`."""
    bounds: dict[str, Any] = {}
    for item in metadata:
        for name in ("ge", "gt", "le", "lt"):
            if getattr(item, name, None) is not None:
                bounds[name] = getattr(item, name)
    if set(bounds) == {"ge", "le"}:
        return f"{noun} from {_number(bounds['ge'])} to {_number(bounds['le'])}"
    words = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
    parts = [f"{words[name]} {_number(bounds[name])}" for name in words if name in bounds]
    return " ".join([noun, " and ".join(parts)]).strip()


def expected_at(model: type[BaseModel], path: KeyPath) -> str:
    """What the model expects at the path, in words."""
    field = model.model_fields.get(str(path[0])) if path else None
    if field is None:
        return "a mapping with text keys"
    rest = path[1:]
    for marker in field.metadata:
        if isinstance(marker, Worded) and (words := marker.at(rest)) is not None:
            return words
    nested = model_inside(field.annotation)
    if nested is not None and rest and rest[0] in nested.model_fields:
        return expected_at(nested, rest)
    if rest and isinstance(rest[0], int) and get_origin(field.annotation) is tuple:
        return type_words(get_args(field.annotation)[0])
    return type_words(field.annotation, field.metadata)


def type_words(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """A type with its bounds, in words."""
    marks = tuple(_flat(metadata))
    for marker in marks:
        if isinstance(marker, Worded) and (words := marker.at(())) is not None:
            return words
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_words(arguments[0], (*arguments[1:], *marks))
    if origin in (Union, types.UnionType):
        return " or ".join(type_words(arm, marks) for arm in arguments)
    if origin is Literal:
        *others, last = (repr(choice) for choice in arguments)
        return " or ".join(filter(None, (", ".join(others), last)))
    if annotation in (int, float):
        return range_words("an integer" if annotation is int else "a number", metadata=marks)
    return _other_words(annotation, marks)


def model_inside(annotation: Any) -> type[BaseModel] | None:
    """The model a value of this type may be, looking through unions and `Annotated`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType, Annotated):
        for arm in get_args(annotation):
            if (found := model_inside(arm)) is not None:
                return found
    return None


def legal_paths(model: type[BaseModel], prefix: KeyPath = ()) -> list[KeyPath]:
    """Every key path the model knows, nested models included."""
    paths: list[KeyPath] = []
    for name, field in model.model_fields.items():
        paths.append((*prefix, name))
        if (nested := model_inside(field.annotation)) is not None:
            paths += legal_paths(nested, (*prefix, name))
    return paths


def _other_words(annotation: Any, metadata: tuple[Any, ...]) -> str:
    if (model := model_inside(annotation)) is not None:
        return f"a mapping with the keys {', '.join(model.model_fields)}"
    if get_origin(annotation) in (tuple, list):
        longest = [item.max_length for item in metadata if hasattr(item, "max_length")]
        size = f"a list of at most {longest[0]} items" if longest else "a list"
        return f"{size}, each {type_words(get_args(annotation)[0])}"
    return _SIMPLE.get(get_origin(annotation) or annotation, "another kind of value")


def _flat(metadata: Iterable[Any]) -> Iterator[Any]:
    for item in metadata:
        yield from item.metadata if isinstance(item, FieldInfo) else (item,)


def _number(bound: float) -> str:
    return str(int(bound)) if float(bound).is_integer() and abs(bound) < 1e15 else f"{bound:g}"
