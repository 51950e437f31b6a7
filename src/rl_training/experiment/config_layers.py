"""Layers of configuration put on top of each other, each value remembering where it came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rl_training.errors import ConfigError
from rl_training.experiment.config import GIVEN_TWICE, LIFTED_KEYS, HyperParameters, lift_keys
from rl_training.experiment.config_base import ConfigModel, copied
from rl_training.experiment.config_mistakes import Mistake
from rl_training.experiment.config_words import KeyPath, dotted, shown
from rl_training.experiment.yaml_strict import parse_scalar

MERGED = ("env_kwargs", "algo_kwargs")
"""Mappings that merge key by key; anything deeper is replaced as a whole."""


@dataclass
class Layers:
    """The values put together so far, the origin of each, and what was wrong on the way."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, str] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def add(self, values: Mapping[Any, Any], origins: Mapping[KeyPath, str]) -> None:
        """Put one source on top; a key given twice in different places is a mistake."""
        lifted, mistakes = lift_keys(values)
        self.mistakes += mistakes
        inside: dict[KeyPath, str] = {
            ("algo_kwargs", key): origins[(key,)] for key in LIFTED_KEYS if (key,) in origins
        }
        # The top-level spelling keeps its origin too: a mistake may be reported under it.
        self.origins |= {(path[-1],): origin for path, origin in inside.items()}
        for key, value in lifted.items():
            self._put((key,), value, {**inside, **origins})

    def add_python(self, values: Mapping[Any, Any], origin: str) -> None:
        """Put values from Python on top: copied, every one of the same origin."""
        own: dict[str, Any] = {}
        for key, value in values.items():
            try:
                own |= copied({key: value})
            except ValueError as error:
                name = dotted((key,)) if isinstance(key, str) else shown(key)
                self.complaints.append(f"{origin}: {name}: {error}")
        self.add(own, all_origins(own, (), origin))

    def set(self, path: KeyPath, value: Any, origin: str, model: type[HyperParameters]) -> None:
        """Put a single value on top, however deep it is."""
        here: Any = self.values
        for depth, key in enumerate(path[:-1], start=1):
            if key not in here:
                here[key] = _default_mapping(model, path[:depth])
                self.origins[path[:depth]] = origin
            here = here[key]
            if not isinstance(here, dict):
                text = f"cannot be set: {dotted(path[:depth])} is {shown(here)}, not a mapping"
                self.origins[path] = origin
                self.mistakes.append(Mistake(path, text))
                return
        self._put(path, value, all_origins(value, path, origin))

    def origin_of(self, path: KeyPath) -> str:
        """Where the value at the path, or else what holds it, came from; empty if unknown."""
        for depth in range(len(path), 0, -1):
            if path[:depth] in self.origins:
                return self.origins[path[:depth]]
        return ""

    def _put(self, path: KeyPath, value: Any, origins: Mapping[KeyPath, str]) -> None:
        here: Any = self.values
        for key in path[:-1]:
            here = here[key]
        if path in origins:
            self.origins[path] = origins[path]
        merges = len(path) == 1 and path[0] in MERGED
        if merges and isinstance(value, dict) and isinstance(here.get(path[0]), dict):
            for key, inner in value.items():
                self._put((*path, key), inner, origins)
            return
        for gone in _paths(here.get(path[-1]), path):
            self.origins.pop(gone, None)
        here[path[-1]] = value
        self.origins |= {known: origins[known] for known in _paths(value, path) if known in origins}


def all_origins(value: Any, path: KeyPath, origin: str) -> dict[KeyPath, str]:
    """The same origin for a value and all that is in it."""
    return dict.fromkeys(_paths(value, path), origin)


def parse_overrides(overrides: Sequence[str]) -> tuple[list[tuple[KeyPath, Any]], list[str]]:
    """The paths and values of `key=value` texts, and complaints about those that are not."""
    parsed: list[tuple[KeyPath, Any]] = []
    complaints = []
    names = [text.partition("=")[0].strip() for text in overrides]
    for name, text in zip(names, overrides, strict=True):
        path: KeyPath = tuple(name.split("."))
        if "=" not in text or not all(path):
            complaints.append(f"expected KEY=VALUE such as seed=1, found {shown(text)}")
            continue
        if name in LIFTED_KEYS:
            path = ("algo_kwargs", name)
            if dotted(path) in names:
                complaints.append(f"{name}: {GIVEN_TWICE}")
        try:
            parsed.append((path, parse_scalar(text.partition("=")[2])))
        except ConfigError as error:
            complaints.append(f"{dotted(path)}: {error}")
    return parsed, [f"command line: {complaint}" for complaint in complaints]


def _paths(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    yield path
    inside = value.items() if isinstance(value, dict) else ()
    for key, inner in enumerate(value) if isinstance(value, list) else inside:
        yield from _paths(inner, (*path, key))


def _default_mapping(model: type[HyperParameters], path: KeyPath) -> dict[str, Any]:
    """What a key inside an absent mapping changes: the default schedule, if there is one."""
    if len(path) == 2 and path[0] == "algo_kwargs" and path[1] in model.model_fields:
        default = model.model_fields[str(path[1])].get_default(call_default_factory=True)
        if isinstance(default, ConfigModel):
            return default.to_plain()
    return {}
