"""Configurations found, put together from file, arguments and command line, and checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError
from rl_training.experiment.config import (
    ConfigMistakes,
    HyperParameters,
    OffPolicyHyperParameters,
    TrainConfig,
    check_hyper_parameters,
    config_paths,
)
from rl_training.experiment.config_layers import MERGED, Layers, parse_overrides
from rl_training.experiment.config_mistakes import Mistake, listed
from rl_training.experiment.config_words import KeyPath, dotted, shown
from rl_training.experiment.yaml_strict import MOST_BYTES, dump_flow, dump_yaml, parse_yaml

__all__ = [
    "LoadedConfig",
    "describe_config",
    "dump_yaml",
    "find_config",
    "load_config",
    "packaged_configs",
]

Source = str | Path | Mapping[str, Any] | TrainConfig | None


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
    folder = _packaged_folder()
    names = (path.relative_to(folder).with_suffix("") for path in folder.rglob("*.yaml"))
    return sorted(name.as_posix() for name in names)


def find_config(name_or_path: str | Path) -> Path:
    """The file of a packaged configuration, by name, or any other file, by path."""
    names = packaged_configs()
    if str(name_or_path) in names:
        return _packaged_folder() / f"{name_or_path}.yaml"
    path = Path(name_or_path)
    try:
        if path.is_file():
            return path
    except (OSError, ValueError):  # a name too long, or with a NUL in it, is no file either
        pass
    near = get_close_matches(str(name_or_path)[:200], names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"packaged are: {', '.join(names)}"
    raise ConfigError(
        f"expected a file or the name of a packaged configuration, "
        f"found {shown(str(name_or_path))}; {hint}"
    )


def load_config(
    source: Source,
    *,
    overrides: Sequence[str] = (),
    arguments: Mapping[str, Any] | None = None,
    hyper_model: Callable[[str], type[HyperParameters]],
) -> LoadedConfig:
    """The configuration of source, then arguments, then `key=value` overrides, each over the last.

    `env_kwargs` and `algo_kwargs` merge key by key; `hyper_model` gives an algorithm's own model or
    raises `ConfigError`. Every mistake is in the one `ConfigError` raised.
    """
    layers, source_name = Layers(), ""
    if isinstance(source, str | Path):
        path = find_config(source)
        source_name = path.name if path.name.isprintable() else ascii(path.name)
        layers.add(*_file_layer(path, source_name))
    elif isinstance(source, TrainConfig):
        given = {name: getattr(source, name) for name in source.model_fields_set}
        layers.add_python(given, "argument")
    elif source is not None:
        layers.add_python(source, "argument")
    layers.add_python(arguments or {}, "argument")
    settings, complaints = parse_overrides(overrides)
    layers.complaints += complaints
    algo = next((value for path, value in reversed(settings) if path == ("algo",)), None)
    model = _model_of(layers.values.get("algo") if algo is None else algo, hyper_model, layers)
    for where, value in settings:
        layers.set(where, value, "command line", model or HyperParameters)
    return _checked(layers, model, source_name)


def describe_config(loaded: LoadedConfig) -> str:
    """The configuration as YAML, with the origin of each value in a comment."""
    rows = list(_rows(loaded.config.to_plain(), ()))
    width = min(60, max(len(text) for text, path in rows if path))
    lines = []
    for text, path in rows:
        origin = loaded.origins[dotted(path)] if path else ""
        lines.append(f"{text:<{width}}  # {origin}" if path else text)
    return "\n".join(lines) + "\n"


def _checked(layers: Layers, model: type[HyperParameters] | None, source_name: str) -> LoadedConfig:
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
        worded = listed(mistakes, legal, lambda path: layers.origin_of(path) or source_name)
        raise ConfigMistakes("\n".join(filter(None, [str(worded), *layers.complaints])), mistakes)
    config = config.with_changes(algo_kwargs=hyper.model_dump())
    leaves = (path for _, path in _rows(config.to_plain(), ()) if path)
    origins = {dotted(path): layers.origins.get(path, "default") for path in leaves}
    return LoadedConfig(config, hyper, origins)


def _line_of(origin: str) -> float:
    """The line of a file that an origin names; what comes from elsewhere is listed after it."""
    number = origin.rpartition(":")[2]
    return int(number) if number.isdecimal() else math.inf


def _model_of(
    algo: Any, hyper_model: Callable[[str], type[HyperParameters]], layers: Layers
) -> type[HyperParameters] | None:
    if not isinstance(algo, str):
        return None
    try:
        return hyper_model(algo)
    except ConfigError as error:
        layers.mistakes.append(Mistake(("algo",), str(error)))
        return None


def _file_layer(path: Path, name: str) -> tuple[dict[str, Any], dict[KeyPath, str]]:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read: {error.strerror or error}") from None
    if len(content) > MOST_BYTES:
        raise ConfigError(f"{name}: larger than {MOST_BYTES} bytes; this is no configuration")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{name}:{line}: expected UTF-8 text, found other bytes") from None
    values, lines = parse_yaml(text, name)
    # A block whose lines are all commented out reads as null; it sets nothing.
    values = {k: v for k, v in values.items() if v is not None or k not in (*MERGED, "wrappers")}
    return values, {where: f"{name}:{line}" for where, line in lines.items()}


def _rows(mapping: dict[str, Any], path: KeyPath) -> Iterator[tuple[str, KeyPath]]:
    """The lines of the mapping as YAML, each with the path of its value, or none for a heading."""
    indent = "  " * len(path)
    for key, value in mapping.items():
        if isinstance(value, dict) and value:
            yield f"{indent}{dump_flow(key)}:", ()
            yield from _rows(value, (*path, key))
        else:
            yield f"{indent}{dump_flow(key)}: {dump_flow(value)}", (*path, key)


def _packaged_folder() -> Path:
    return Path(str(resources.files("rl_training.assets") / "configs"))
