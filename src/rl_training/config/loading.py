"""Configurations from file, arguments and command line, checked; each value knows its origin."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from rl_training.config.base import ConfigModel, copy_input
from rl_training.config.hyper_parameters import (
    HyperParameters,
    OffPolicyHyperParameters,
    OnPolicyHyperParameters,
)
from rl_training.config.messages import (
    ConfigMistakes,
    KeyPath,
    Mistake,
    list_mistakes,
    show_path,
    show_value,
)
from rl_training.config.strict_yaml import (
    MAX_BYTES,
    dump_flow,
    dump_yaml,
    parse_scalar,
    parse_yaml,
)
from rl_training.config.train_config import (
    GIVEN_TWICE,
    LIFTED_KEYS,
    TrainConfig,
    check_hyper_parameters,
    config_paths,
    lift_keys,
)
from rl_training.errors import ConfigError, did_you_mean

__all__ = [
    "LoadedConfig",
    "describe_config",
    "dump_yaml",
    "find_config",
    "given_values",
    "load_config",
    "packaged_configs",
]

Source = str | Path | Mapping[str, Any] | TrainConfig | None

logger = logging.getLogger("rl_training")

_MERGED = ("env_kwargs", "algo_kwargs")
"""Mappings that merge key by key; anything deeper is replaced as a whole."""


@dataclass(frozen=True)
class LoadedConfig:
    """A checked configuration; `config.algo_kwargs` holds every hyper-parameter.

    `origins` maps the dotted path of each value to `default`, `FILE:LINE`, `argument` or
    `command line`.
    """

    config: TrainConfig
    hyper: HyperParameters
    origins: dict[str, str]


def packaged_configs() -> list[str]:
    """The names of the configurations that come with the package, such as `dqn/cartpole`."""
    return list(_packaged_files())


def find_config(name_or_path: str | Path) -> Path:
    """The file of a packaged configuration, by name, or any other file, by path."""
    name, packaged = str(name_or_path), _packaged_files()
    if name in packaged:
        return packaged[name]
    path = Path(name_or_path)
    try:
        if path.is_file():
            return path
    except (OSError, ValueError):  # a name too long, or with a NUL in it, is no file either
        pass
    hint = did_you_mean(name, packaged, count=3) or f"; packaged are: {', '.join(packaged)}"
    raise ConfigError(
        f"expected a file or the name of a packaged configuration, found {show_value(name)}{hint}"
    )


def load_config(
    source: Source,
    *,
    overrides: Sequence[str] = (),
    arguments: Mapping[str, Any] | None = None,
    hyper_model: Callable[[str], type[HyperParameters]],
) -> LoadedConfig:
    """The configuration of source, then arguments, then `key=value` overrides, each over the last.

    `env_kwargs` and `algo_kwargs` merge key by key; `hyper_model` gives an algorithm's model or
    raises `ConfigError`. Every mistake is in the one `ConfigError` raised.
    """
    layers, source_name = _Layers(), ""
    if isinstance(source, str | Path):
        path = find_config(source)
        source_name = path.name if path.name.isprintable() else ascii(path.name)
        layers.add(*_read_file(path, source_name))
    elif isinstance(source, TrainConfig):
        given = {name: getattr(source, name) for name in source.model_fields_set}
        layers.add_python(given, "argument")
    elif source is not None:
        layers.add_python(source, "argument")
    layers.add_python(arguments or {}, "argument")
    settings, complaints = _parse_overrides(overrides)
    layers.complaints += complaints
    algo = next((value for path, value in reversed(settings) if path == ("algo",)), None)
    model = _find_model(layers.values.get("algo") if algo is None else algo, hyper_model, layers)
    changed = algo not in (None, layers.values.get("algo"))
    if changed and (dropped := _drop_unfit(layers, model)):
        logger.warning(
            "algo=%s does not take these keys of %s, which are left out: %s",
            algo,
            source_name or "the configuration",
            ", ".join(dropped),
        )
    for where, value in settings:
        layers.set(where, value, "command line", model or HyperParameters)
    return _check_layers(layers, model, source_name)


def given_values(loaded: LoadedConfig) -> dict[str, Any]:
    """The values that are not defaults, as a configuration that resolves to the same one."""

    def given(mapping: dict[str, Any], above: KeyPath) -> dict[str, Any]:
        kept = {}
        for key, value in mapping.items():
            path = (*above, key)
            if isinstance(value, dict) and value:
                if inner := given(value, path):
                    kept[key] = inner
            elif loaded.origins[show_path(path)] != "default":
                kept[key] = value
        return kept

    return given(loaded.config.to_plain(), ())


def describe_config(loaded: LoadedConfig) -> str:
    """The configuration as YAML, with the origin of each value in a comment."""
    rows = []
    for path, value, leaf in _entries(loaded.config.to_plain()):
        text = f"{'  ' * (len(path) - 1)}{dump_flow(path[-1])}:"
        origin = loaded.origins[show_path(path)] if leaf else ""
        rows.append((f"{text} {dump_flow(value)}" if leaf else text, origin))
    width = min(60, max(len(text) for text, origin in rows if origin))
    lines = (f"{text:<{width}}  # {origin}" if origin else text for text, origin in rows)
    return "\n".join(lines) + "\n"


@dataclass
class _Layers:
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
        known = {**inside, **origins}
        for key, value in lifted.items():
            self._put((key,), value, known)

    def add_python(self, values: Mapping[Any, Any], origin: str) -> None:
        """Put values from Python on top: copied, every one of the same origin."""
        copies: dict[str, Any] = {}
        for key, value in values.items():
            try:
                copies |= copy_input({key: value})
            except ValueError as error:
                name = show_path((key,)) if isinstance(key, str) else show_value(key)
                self.complaints.append(f"{origin}: {name}: {error}")
        self.add(copies, dict.fromkeys(_paths(copies, ()), origin))

    def set(self, path: KeyPath, value: object, origin: str, model: type[HyperParameters]) -> None:
        """Put a single value on top, however deep it is."""
        here: dict[Any, Any] = self.values
        for depth, key in enumerate(path[:-1], start=1):
            if key not in here:
                here[key] = _default_mapping(model, path[:depth])
                self.origins[path[:depth]] = origin
            inner = here[key]
            if not isinstance(inner, dict):
                holder = f"{show_path(path[:depth])} is {show_value(inner)}"
                self.origins[path] = origin
                self.mistakes.append(Mistake(path, f"cannot be set: {holder}, not a mapping"))
                return
            here = inner
        self._put(path, value, dict.fromkeys(_paths(value, path), origin))

    def drop(self, *path: str) -> None:
        """Forget a value and its origins."""
        here: dict[Any, Any] = self.values
        for key in path[:-1]:
            here = here[key]
        for known in _paths(here.pop(path[-1]), path):
            self.origins.pop(known, None)

    def origin_of(self, path: KeyPath) -> str:
        """Where the value at the path, or else what holds it, came from; empty if unknown."""
        for depth in range(len(path), 0, -1):
            if path[:depth] in self.origins:
                return self.origins[path[:depth]]
        return ""

    def _put(self, path: KeyPath, value: object, origins: Mapping[KeyPath, str]) -> None:
        here: dict[Any, Any] = self.values
        for key in path[:-1]:
            here = here[key]
        if path in origins:
            self.origins[path] = origins[path]
        merges = len(path) == 1 and path[0] in _MERGED
        if merges and isinstance(value, dict) and isinstance(here.get(path[0]), dict):
            for key, inner in value.items():
                self._put((*path, key), inner, origins)
            return
        for replaced in _paths(here.get(path[-1]), path):
            self.origins.pop(replaced, None)
        here[path[-1]] = value
        self.origins |= {known: origins[known] for known in _paths(value, path) if known in origins}


def _read_file(path: Path, name: str) -> tuple[dict[str, Any], dict[KeyPath, str]]:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read: {error.strerror or error}") from None
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{name}: larger than {MAX_BYTES} bytes; this is no configuration")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{name}:{line}: expected UTF-8 text, found other bytes") from None
    values, lines = parse_yaml(text, name)
    # A block whose lines are all commented out reads as null; it sets nothing.
    values = {k: v for k, v in values.items() if v is not None or k not in (*_MERGED, "wrappers")}
    return values, {where: f"{name}:{line}" for where, line in lines.items()}


def _parse_overrides(overrides: Sequence[str]) -> tuple[list[tuple[KeyPath, object]], list[str]]:
    """The paths and values of `key=value` texts, and complaints about those that are not."""
    parsed: list[tuple[KeyPath, object]] = []
    complaints = []
    names = [text.partition("=")[0].strip() for text in overrides]
    for name, text in zip(names, overrides, strict=True):
        path: KeyPath = tuple(name.split("."))
        if "=" not in text or not all(path):
            complaints.append(f"expected KEY=VALUE such as seed=1, found {show_value(text)}")
            continue
        if name in LIFTED_KEYS:
            path = ("algo_kwargs", name)
            if show_path(path) in names:
                complaints.append(f"{name}: {GIVEN_TWICE}")
        try:
            parsed.append((path, parse_scalar(text.partition("=")[2])))
        except ConfigError as error:
            complaints.append(f"{show_path(path)}: {error}")
    return parsed, [f"command line: {complaint}" for complaint in complaints]


def _find_model(
    algo: object, hyper_model: Callable[[str], type[HyperParameters]], layers: _Layers
) -> type[HyperParameters] | None:
    if not isinstance(algo, str):
        return None
    try:
        return hyper_model(algo)
    except ConfigError as error:
        layers.mistakes.append(Mistake(("algo",), str(error).removeprefix("algo: ")))
        return None


def _drop_unfit(layers: _Layers, model: type[HyperParameters] | None) -> list[str]:
    """Drop what was given for another algorithm and does not fit this one; gives the keys."""
    kwargs = layers.values.get("algo_kwargs")
    if model is None or not isinstance(kwargs, dict):
        return []
    unfit = [key for key in kwargs if key not in model.model_fields]
    fitting = {key: value for key, value in kwargs.items() if key not in unfit}
    try:
        check_hyper_parameters(model, fitting)
    except ConfigMistakes as error:
        named = [str(mistake.path[1]) for mistake in error.mistakes if len(mistake.path) > 1]
        # A rule between several keys names none of them, and any might be the other algorithm's.
        unfit += named if len(named) == len(error.mistakes) else fitting
    dropped: list[tuple[str, ...]] = [("algo_kwargs", key) for key in dict.fromkeys(unfit)]
    if not issubclass(model, OnPolicyHyperParameters) and layers.values.get("normalize_rewards"):
        dropped.append(("normalize_rewards",))
    for path in dropped:
        layers.drop(*path)
    return [".".join(path) for path in dropped]


def _check_layers(
    layers: _Layers, model: type[HyperParameters] | None, source_name: str
) -> LoadedConfig:
    mistakes = list(layers.mistakes)
    hyper = None
    try:
        config = TrainConfig(**layers.values)
    except ConfigMistakes as error:
        mistakes += error.mistakes
    kwargs = layers.values.get("algo_kwargs", {})
    if model is not None and isinstance(kwargs, dict):
        try:
            hyper = check_hyper_parameters(model, kwargs)
        except ConfigMistakes as error:
            mistakes += error.mistakes
    if mistakes or layers.complaints or hyper is None:
        mistakes.sort(key=lambda mistake: _line_of(layers.origin_of(mistake.path)))
        legal = config_paths(model or OffPolicyHyperParameters)
        listed = list_mistakes(mistakes, legal, lambda path: layers.origin_of(path) or source_name)
        raise ConfigMistakes("\n".join(filter(None, [str(listed), *layers.complaints])), mistakes)
    config = config.with_changes(algo_kwargs=hyper.model_dump())
    leaves = (path for path, _, leaf in _entries(config.to_plain()) if leaf)
    origins = {show_path(path): layers.origins.get(path, "default") for path in leaves}
    return LoadedConfig(config, hyper, origins)


def _line_of(origin: str) -> float:
    """The line of a file that an origin names; what comes from elsewhere is listed after it."""
    number = origin.rpartition(":")[2]
    return int(number) if number.isdecimal() else math.inf


def _entries(
    mapping: dict[str, Any], above: KeyPath = ()
) -> Iterator[tuple[KeyPath, object, bool]]:
    """Every path of the mapping with its value, and whether that is a leaf: no further keys."""
    for key, value in mapping.items():
        path = (*above, key)
        leaf = not (isinstance(value, dict) and value)
        yield path, value, leaf
        if not leaf:
            yield from _entries(value, path)


def _paths(value: object, path: KeyPath) -> Iterator[KeyPath]:
    """The path of a value, then those of all that is in it."""
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


@cache
def _packaged_files() -> dict[str, Path]:
    folder = Path(str(resources.files("rl_training.assets") / "configs"))
    files = {
        path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob("*.yaml")
    }
    return dict(sorted(files.items()))
