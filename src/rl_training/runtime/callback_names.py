"""The callbacks that a configuration names under `callbacks`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl_training.envs.imports import import_object, nearest
from rl_training.errors import ConfigError, RLTrainingError
from rl_training.runtime.callbacks import Callback

OWN = {
    "QBias": "rl_training.runtime.q_bias:QBias",
    "StopOnReturn": "rl_training.runtime.callbacks:StopOnReturn",
}


def named_callbacks(named: Sequence[str | Mapping[str, Mapping[str, Any]]]) -> list[Callback]:
    """A callback for each name, or for each name with its arguments."""
    return [
        _made(item, {}) if isinstance(item, str) else _made(*next(iter(item.items())))
        for item in named
    ]


def _made(name: str, arguments: Mapping[str, Any]) -> Callback:
    if name not in OWN and ":" not in name:
        close = nearest(name, list(OWN))
        hint = f" (did you mean {close!r}?)" if close else ""
        raise ConfigError(
            f"callbacks: expected {', '.join(OWN)} or package.module:Class, found {name!r}{hint}"
        )
    try:
        made = import_object(OWN.get(name, name))(**arguments)
    except RLTrainingError:
        raise
    except Exception as error:
        raise ConfigError(
            f"callbacks: {name} with arguments {dict(arguments)} cannot be made: {error}"
        ) from error
    if not isinstance(made, Callback):
        raise ConfigError(
            f"callbacks: {name} made a {type(made).__name__}, not an rl_training.Callback"
        )
    return made
