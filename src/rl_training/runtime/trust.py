"""What a file may name that comes from somebody else: a checkpoint, or an evidence card.

A configuration that a user writes is the user's word and may name any code. Of one that was saved
with a run only this is used unless the user trusts the run:

- environments: ids registered with Gymnasium by installed packages, and this package's classes;
- wrappers: this package's, and those of Gymnasium's that only compute (`SAFE_WRAPPERS`);
- callbacks and networks: this package's;
- arguments of environments: numbers, booleans and null, in lists and mappings, and the text in
  `TEXT_OPTIONS`. Any other text could be a path, an address or the name of a module.

Everything else is replaced by a placeholder, `<untrusted NAME>`, which is refused where it is
needed: a policy predicts whatever its environment was. docs/decisions/0014-trust.md has the
reasons.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import gymnasium as gym
from torch import nn

from rl_training.config.base import is_placeholder, untrusted, untrusted_name
from rl_training.config.imports import import_object
from rl_training.config.train_config import TrainConfig
from rl_training.envs import wrappers as own_wrappers
from rl_training.envs.factory import is_registered_id
from rl_training.errors import ConfigError, TrustError
from rl_training.runtime.callbacks import PACKAGED

# Those that write files, open windows, take functions or import other packages are not among them.
SAFE_WRAPPERS = frozenset(
    {
        *own_wrappers.__all__,
        "AddRenderObservation",
        "AtariPreprocessing",
        "ClipAction",
        "ClipReward",
        "DelayObservation",
        "DiscretizeAction",
        "DiscretizeObservation",
        "DtypeObservation",
        "FilterObservation",
        "FlattenObservation",
        "FrameStackObservation",
        "GrayscaleObservation",
        "MaxAndSkipObservation",
        "NormalizeObservation",
        "NormalizeReward",
        "OrderEnforcing",
        "RecordEpisodeStatistics",
        "RepeatAction",
        "RescaleAction",
        "RescaleObservation",
        "ReshapeObservation",
        "ResizeObservation",
        "StickyAction",
        "TimeAwareObservation",
        "TimeLimit",
    }
)

TEXT_OPTIONS = {
    "map_name": ("4x4", "8x8"),
    "obs_type": ("grayscale", "ram", "rgb"),
    "render_mode": ("rgb_array",),
}
"""Arguments of environments that are text, with the values known to be harmless."""

_OWN_CLASS = re.compile(r"rl_training(\.[a-z]\w*)+:[A-Za-z]\w*")

# By which argument of `load` an object is passed again; other keys bear the argument's name.
_PASSED_BY = {"env_id": "env", "eval_env_kwargs": "env_kwargs", "algo_kwargs": "network"}

T = TypeVar("T")


def without_untrusted(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """A saved configuration with placeholders instead of what its file may not name.

    What is not of the kind it should be is left for the configuration's own checks.
    """
    return {key: _GUARDS.get(key, _unchanged)(value) for key, value in configuration.items()}


def without_beginning(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """A saved configuration for going on with its run, which `init_from` has no part in."""
    return {k: v for k, v in configuration.items() if k not in ("init_from", "init_parts")}


def trusted(config: TrainConfig) -> TrainConfig:
    """The configuration with what its untrusted placeholders stand for."""
    values = {name: getattr(config, name) for name in config.model_fields_set}
    return TrainConfig(**{name: _restored(value) for name, value in values.items()})


def needs_trust(config: TrainConfig) -> bool:
    """Whether a run of this configuration can be loaded whole only by those who trust it."""
    values = without_untrusted(without_beginning(config.to_plain()))
    return any(untrusted_name(text) for _, text in placeholders(values))


def trust_option(config: TrainConfig) -> list[str]:
    """The option that commands on a run of this configuration need, if they need one."""
    return ["--trust"] if needs_trust(config) else []


def placeholders(values: object, key: str = "") -> Iterator[tuple[str, str]]:
    """The dotted key and the text of every placeholder, such as `<callable f>`, in a configuration.

    One stands for a Python object that a file could not hold, or for what it may not name.
    """
    if is_placeholder(values):
        yield key, values
    elif isinstance(values, dict | list | tuple):
        items = values.items() if isinstance(values, dict) else enumerate(values)
        for name, inner in items:
            if is_placeholder(name):
                yield key, name
            name = untrusted_name(name) or name
            yield from placeholders(inner, f"{key}.{name}" if key else str(name))


def passed_by(key: str) -> str:
    """The argument of `load` by which the object at a dotted key is passed."""
    top = key.split(".")[0]
    return _PASSED_BY.get(top, top)


def refuse_untrusted(values: Mapping[str, Any], source: str = "the run's own files name") -> None:
    """Raise TrustError if a part of a configuration holds what its file may not name."""
    found = [(key, untrusted_name(text)) for key, text in placeholders(values)]
    named = {key: name for key, name in found if name is not None}
    if not named:
        return
    listed = "; ".join(f"{key} asks for {name[:80]!r}" for key, name in list(named.items())[:5])
    more = f"; and {len(named) - 5} more" if len(named) > 5 else ""
    ways = dict.fromkeys(_way_to_pass(key) for key in named)
    raise TrustError(
        f"{source} what is neither part of rl_training nor an environment registered by an "
        f"installed package: {listed}{more}. Nothing of it was imported, called or opened. In "
        f"Python, pass it yourself: {', '.join(ways)}. If you trust whoever wrote it, add --trust, "
        "or trust=True in Python"
    )


def _way_to_pass(key: str) -> str:
    name = passed_by(key)
    ways = {
        "algo": "rl_training.algorithm_class(SPEC).load(path)",
        "callbacks": "resume(callbacks=[...])",
    }
    return ways.get(name, f"load(path, {name}=...)")


def _unchanged(value: T) -> T:
    return value


def _algo(value: object) -> object:
    return untrusted(value) if isinstance(value, str) and ":" in value else value


def _path(value: object) -> object:
    return untrusted(value) if isinstance(value, str) and not is_placeholder(value) else value


def _env_id(value: object) -> object:
    if not isinstance(value, str) or ":" not in value or is_placeholder(value):
        return value
    known = is_registered_id(*value.split(":", 1)) or _is_own(value, "envs", gym.Env)
    return value if known else untrusted(value)


def _env_arguments(value: object, name: str = "") -> object:
    if isinstance(value, dict):
        return {key: _env_arguments(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [_env_arguments(inner) for inner in value]
    if not isinstance(value, str) or value in TEXT_OPTIONS.get(name, ()) or is_placeholder(value):
        return value
    return untrusted(value)


def _is_safe_wrapper(name: str) -> bool:
    return name in SAFE_WRAPPERS or _is_own(name, "envs", gym.Wrapper)


def _is_own_callback(name: str) -> bool:
    return name in PACKAGED or name in PACKAGED.values()


def _named(known: Callable[[str], bool]) -> Callable[[object], object]:
    """The guard of a list of names, or of names with arguments."""

    def guard_name(name: object) -> object:
        if not isinstance(name, str) or is_placeholder(name) or known(name):
            return name
        return untrusted(name)

    def guard(entries: object) -> object:
        if not isinstance(entries, list | tuple):
            return entries
        return [
            {guard_name(name): inner for name, inner in entry.items()}
            if isinstance(entry, dict)
            else guard_name(entry)
            for entry in entries
        ]

    return guard


def _algo_kwargs(value: object) -> object:
    if not isinstance(value, dict) or not isinstance(network := value.get("network"), str):
        return value
    known = is_placeholder(network) or _is_own(network, "models", nn.Module)
    return value if known else {**value, "network": untrusted(network)}


_GUARDS: dict[str, Callable[[Any], Any]] = {
    "algo": _algo,
    "env_id": _env_id,
    "env_kwargs": _env_arguments,
    "eval_env": _env_id,
    "eval_env_kwargs": _env_arguments,
    "wrappers": _named(_is_safe_wrapper),
    "callbacks": _named(_is_own_callback),
    "algo_kwargs": _algo_kwargs,
    "init_from": _path,
}


def _is_own(path: str, room: str, kind: type) -> bool:
    """Whether the path leads to a class of that kind in a room of this package."""
    starts = f"rl_training.{room}.", f"rl_training.{room}:"
    if not path.startswith(starts) or not _OWN_CLASS.fullmatch(path):
        return False
    try:
        found = import_object(path)
    except ConfigError:
        return False
    is_kind = isinstance(found, type) and issubclass(found, kind)
    return is_kind and found.__module__.startswith(f"rl_training.{room}")


def _restored(value: object) -> Any:
    if isinstance(value, dict):
        return {_restored(key): _restored(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_restored, value))
    name = untrusted_name(value)
    return value if name is None else name
