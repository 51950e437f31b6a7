"""Python objects that a saved configuration could only name, and that have to be passed again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, is_placeholder

ENVIRONMENT_KEYS = ("env_id", "env_kwargs", "eval_env_kwargs", "wrappers")

# Other keys bear the argument's name.
_PASSED_BY = {"env_id": "env", "eval_env_kwargs": "env_kwargs", "algo_kwargs": "network"}


def lost_objects(values: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """The dotted key and the text of every marker, such as `<callable f>`, in a configuration."""
    if is_placeholder(values):
        yield key, values
    elif isinstance(values, dict | list | tuple):
        items = values.items() if isinstance(values, dict) else enumerate(values)
        for name, inner in items:
            yield from lost_objects(inner, f"{key}.{name}" if key else str(name))


def refuse_lost_objects(config: TrainConfig, *keys: str) -> None:
    """Raise ConfigError if one of these keys (all, if none is named) holds a marker."""
    values = {key: getattr(config, key) for key in keys or type(config).model_fields}
    lost = [
        f"{key}: this run was given an object here ({text}), which no file can hold; in Python, "
        f"pass it again: load(path, {_PASSED_BY.get(top := key.split('.')[0], top)}=...)"
        for key, text in lost_objects(values)
    ]
    if lost:
        raise ConfigError("\n".join(lost))
