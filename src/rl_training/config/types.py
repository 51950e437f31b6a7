"""The types of single configuration values, each with what it expects in words."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from rl_training.config.base import check, is_placeholder
from rl_training.config.messages import Expects, show_value
from rl_training.errors import ConfigError

MAX_STEPS = 10**12

_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_ENV_SOURCES = "an environment's id, package.module:Class, a callable or an environment"
_EVAL_ENV_SOURCES = "an environment's id, package.module:Class or a callable"
_MEMORY = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([KMGT]?)(I?)B", re.IGNORECASE | re.ASCII)


def parse_memory(text: str) -> int:
    """The bytes in a size such as `2GiB` (powers of 1024) or `500MB` (powers of 1000)."""
    match = _MEMORY.fullmatch(text.strip())
    size = 0
    if match is not None and (match[2] or not match[3]):
        power = " KMGT".index(match[2].upper() or " ")
        size = int(Decimal(match[1]) * (1024 if match[3] else 1000) ** power)
    if not 1 <= size <= 2**60:
        raise ConfigError(f"expected a size such as 2GiB or 500MB, found {show_value(text)}")
    return size


def _check_memory(text: str | None) -> str | None:
    try:
        if text is not None:
            parse_memory(text)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return text


def _check_import_path(value: object) -> object:
    # A saved run may hold a placeholder for a callable; building the network then refuses it.
    if isinstance(value, str) and not is_placeholder(value):
        check(
            _IMPORT_PATH.fullmatch(value) is not None,
            f"expected package.module:function or a callable, found {show_value(value)}",
        )
    return value


def _check_env_source(value: object) -> object:
    if isinstance(value, str):
        valid = value.isprintable() and value == value.strip() and 0 < len(value) <= 500
    else:
        valid = callable(value) or (hasattr(value, "step") and hasattr(value, "reset"))
    check(valid, f"expected {_ENV_SOURCES}, found {show_value(value)}")
    return value


def _check_eval_env(value: object) -> object:
    built = hasattr(value, "step") and not isinstance(value, type)
    check(
        not built,
        f"expected {_EVAL_ENV_SOURCES}, found a built environment: evaluations play several "
        "episodes side by side, so pass what builds one",
    )
    return value if value is None else _check_env_source(value)


def _check_named(value: str | dict[str, dict[str, Any]]) -> str | dict[str, dict[str, Any]]:
    check(
        isinstance(value, str) or len(value) == 1, f"expected one name per item, found {len(value)}"
    )
    name = value if isinstance(value, str) else next(iter(value))
    check(bool(name.strip()), "expected a name, found nothing")
    return value


def _check_printable(value: str) -> str:
    check(value.isprintable() and value == value.strip(), "expected printable characters")
    return value


def _path_text(value: object) -> object:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


Network = Annotated[
    str | Callable[..., Any] | None,
    AfterValidator(_check_import_path),
    Expects("package.module:function, a callable (env_spec, hyper_parameters) -> Module, or null"),
]
EnvSource = Annotated[Any, AfterValidator(_check_env_source), Expects(_ENV_SOURCES)]
EvalEnvSource = Annotated[
    str | Callable[..., Any] | None,
    BeforeValidator(_check_eval_env),
    Expects(f"{_EVAL_ENV_SOURCES}, or null"),
]
Named = Annotated[str | dict[str, dict[str, Any]], AfterValidator(_check_named)]
Wrapper = Annotated[
    Named, Expects("a wrapper's name, or one name with its arguments such as {Name: {key: value}}")
]
CallbackName = Annotated[
    Named, Expects("a callback's name, or one name with its arguments such as {Name: {key: value}}")
]
ActionName = Annotated[
    str,
    Field(min_length=1, max_length=40),
    AfterValidator(_check_printable),
    Expects("a name of 1 to 40 printable characters"),
]
HiddenSizes = Annotated[tuple[Annotated[int, Field(ge=1, le=65_536)], ...], Field(max_length=16)]
Steps = Annotated[int, Field(ge=1, le=MAX_STEPS)]
Interval = Annotated[int, Field(ge=0, le=MAX_STEPS)]
Episodes = Annotated[int, Field(ge=1, le=1_000_000)]
Memory = Annotated[
    str | None, AfterValidator(_check_memory), Expects("a size such as 2GiB or 500MB, or null")
]
CheckpointPath = Annotated[
    str | None,
    BeforeValidator(_path_text),
    Expects("the path of a run, a checkpoint or a saved agent, or null"),
]
Directory = Annotated[str, BeforeValidator(_path_text), Expects("the path of a directory")]
