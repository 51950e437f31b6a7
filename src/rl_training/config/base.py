"""The base of every configuration model, and plain data out of Python values and back."""

from __future__ import annotations

import numbers
import re
import sys
from collections.abc import Iterator
from typing import Any, TypeGuard

from pydantic import (
    BaseModel,
    ConfigDict,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

_MAX_DEPTH = 40
_PLACEHOLDER = re.compile(r"<(callable|Env instance|object|untrusted) .*>", re.DOTALL)
_UNTRUSTED = re.compile(r"<untrusted (.*)>", re.DOTALL)


class ConfigModel(BaseModel):
    """A frozen model that forbids unknown keys and takes no value for another.

    Neither text nor a bool is a number, a number is no bool, and NaN and infinity are refused; an
    integral float such as 1e6 is an integer. Containers are copied in.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=(), defer_build=True
    )

    @field_validator("*", mode="wrap")
    @classmethod
    def _refuse_coercion(cls, value: object, handler: ValidatorFunctionWrapHandler) -> object:
        given = copy_input(value)
        taken = handler(given)
        wrong = [
            InitErrorDetails(
                type=PydanticCustomError("wrong_kind", "a value of another kind"),
                loc=loc,
                input=given,
            )
            for loc in _coerced(given, taken)
        ]
        if wrong:
            raise ValidationError.from_exception_data(cls.__name__, wrong)
        return taken

    def to_plain(self) -> dict[str, Any]:
        """The values as JSON or YAML data; Python objects become import paths or placeholders."""
        return {name: plain(getattr(self, name)) for name in type(self).model_fields}


def check(condition: bool, message: str) -> None:
    """Refuse a configuration from inside a model's validator."""
    if not condition:
        raise ValueError(message)


def copy_input(value: object, depth: int = 0) -> Any:
    """The value as YAML would have given it: new dicts and lists, plain Python numbers."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, ConfigModel):
        value = value.model_dump()
    if isinstance(value, dict):
        other = [key for key in value if not isinstance(key, str)]
        if other:
            raise ValueError(f"keys must be text, found one of type {type(other[0]).__name__}")
        return {key: copy_input(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [copy_input(inner, depth + 1) for inner in value]
    return _plain_number(value)


def plain(value: object) -> object:
    """The value as data: what cannot be data becomes its import path or a placeholder."""
    if isinstance(value, ConfigModel):
        return value.to_plain()
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    value = _plain_number(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return _object_text(value)


def is_placeholder(text: object) -> TypeGuard[str]:
    """Whether the text stands for something a file may not, or could not, give."""
    return isinstance(text, str) and _PLACEHOLDER.fullmatch(text) is not None


def untrusted(text: str) -> str:
    """The placeholder for a name out of a file that is not trusted (`runtime.trust`)."""
    return f"<untrusted {text}>"


def untrusted_name(text: object) -> str | None:
    """What such a placeholder stands for; None if the text is no such placeholder."""
    match = _UNTRUSTED.fullmatch(text) if isinstance(text, str) else None
    return match[1] if match else None


def _object_text(value: object) -> object:
    if (path := _import_path(value)) is not None:
        return path
    name = getattr(value, "__qualname__", type(value).__qualname__)
    if hasattr(value, "step") and hasattr(value, "reset") and not isinstance(value, type):
        return f"<Env instance {name}>"
    if callable(value):
        return f"<callable {name}>"
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return f"<object {name}>"


def _import_path(value: object) -> str | None:
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return None
    target: object = sys.modules.get(module)
    for part in name.split("."):
        target = getattr(target, part, None)
    return f"{module}:{name}" if target is value else None


def _plain_number(value: object) -> object:
    # NumPy's scalars, whatever their width, become Python's; YAML cannot write them otherwise.
    if isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Rational):
        return float(value)
    return value


def _coerced(given: object, taken: object, loc: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Where pydantic turned a bool into a number, text into either, or a number into a bool."""
    if isinstance(taken, tuple) and isinstance(given, list):
        for index, pair in enumerate(zip(given, taken, strict=True)):
            yield from _coerced(*pair, (*loc, index))
    elif isinstance(taken, bool):
        if not isinstance(given, bool):
            yield loc
    elif isinstance(taken, int | float) and (
        isinstance(given, bool) or not isinstance(given, int | float)
    ):
        yield loc
