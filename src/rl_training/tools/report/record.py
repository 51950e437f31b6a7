"""A run as its directory describes it, read without trusting it.

Files that are missing or links are skipped, and so are damaged ones, which a note names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rl_training.config.strict_yaml import parse_yaml
from rl_training.config.train_config import TrainConfig
from rl_training.errors import ConfigError, RLTrainingError, RunError
from rl_training.runtime.spec_table import packaged_specs
from rl_training.storage.files import parse_json, read_ordinary
from rl_training.storage.metrics_log import METRICS_NAME, read_metrics
from rl_training.storage.runs import (
    CONFIG_NAME,
    DIVERGENCE_DIR_NAME,
    MAX_NUMBER,
    METADATA_NAME,
    SUMMARY_NAME,
    RunInfo,
    finite_number,
    printable,
    run_info,
)

VIDEOS = {"mp4": "video/mp4", "webp": "image/webp", "gif": "image/gif"}
MAX_VIDEO_BYTES = 2_000_000
"""A larger video is linked, so that the page can be sent by mail."""
MAX_SERIES = 200
"""Distinct metrics; a run of this package logs about twenty."""

_NAMING = frozenset({"algo", "env_id", "seed", "output_dir", "run_name"})


@dataclass(frozen=True)
class Series:
    """A metric over environment transitions, with the seconds since the run began."""

    steps: tuple[float, ...]
    values: tuple[float, ...]
    seconds: tuple[float, ...]

    @property
    def constant(self) -> bool:
        """Whether the metric has never changed."""
        return len(set(self.values)) == 1


@dataclass(frozen=True)
class Setting:
    """A value of the configuration other than the default, which is None if it is not known."""

    name: str
    value: str
    default: str | None


@dataclass(frozen=True)
class Record:
    """What is known of a run; `notes` name the files that could not be read."""

    info: RunInfo
    summary: Mapping[str, Any]
    metadata: Mapping[str, Any]
    config: Mapping[str, Any]
    series: Mapping[str, Series]
    divergences: tuple[Mapping[str, Any], ...] = ()
    video: Path | None = None
    notes: tuple[str, ...] = ()
    returns: tuple[float, ...] = ()

    def number(self, name: str) -> float | None:
        """A number of the summary; None if it is missing or something else."""
        return finite_number(self.summary.get(name))


def read_record(path: Path) -> Record:
    """The run in a directory; RunError if there is none."""
    if not any((path / name).is_file() for name in (METADATA_NAME, CONFIG_NAME, SUMMARY_NAME)):
        raise RunError(
            f"expected a run directory or an experiment, found no {METADATA_NAME} in {path}; "
            "`rl-training runs` lists runs"
        )
    notes: list[str] = []
    summary = _json(path / SUMMARY_NAME, notes)
    config, info = _config(path / CONFIG_NAME, notes), run_info(path)
    if not info.algo:  # its metadata cannot be read
        algo, env_id = (printable(config.get(key, "")) for key in ("algo", "env_id"))
        info = replace(info, algo=algo, env_id=env_id)
    return Record(
        info=info,
        summary=summary,
        metadata=_json(path / METADATA_NAME, notes),
        config=config,
        series=_series(path, notes),
        divergences=tuple(_divergences(path / DIVERGENCE_DIR_NAME, notes)),
        video=_video(path),
        notes=tuple(notes),
        returns=tuple(_numbers(summary.get("eval_returns"))),
    )


def _json(path: Path, notes: list[str]) -> dict[str, Any]:
    if not path.is_symlink() and not path.exists():
        return {}
    try:
        value = parse_json(read_ordinary(path))
    except (OSError, ValueError) as error:
        notes.append(f"{path.name} cannot be read: {_reason(error)}")
        return {}
    if isinstance(value, dict):
        return value
    notes.append(f"{path.name} holds no JSON object")
    return {}


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _config(path: Path, notes: list[str]) -> dict[str, Any]:
    try:
        return parse_yaml(read_ordinary(path).decode(), CONFIG_NAME)[0]
    except (OSError, ValueError, RLTrainingError) as error:
        notes.append(f"{CONFIG_NAME} cannot be read: {_reason(error)}")
        return {}


def _numbers(values: object) -> Iterator[float]:
    for value in values if isinstance(values, list) else ():
        if (known := finite_number(value)) is not None:
            yield known


def _series(path: Path, notes: list[str]) -> dict[str, Series]:
    """The metrics by name, each at the transitions at which it was logged."""
    if not (path / METRICS_NAME).exists() and not (path / METRICS_NAME).is_symlink():
        return {}
    try:
        rows = read_metrics(path)
    except (OSError, RLTrainingError) as error:
        reason = _reason(error).replace(str(path / METRICS_NAME), METRICS_NAME)
        notes.append(f"there are no curves: {reason}")
        return {}
    found: dict[str, tuple[list[float], list[float], list[float]]] = {}
    for row in rows:
        step = finite_number(row.pop("global_step", None))
        seconds = finite_number(row.pop("wall_time_s", None))
        if step is None:
            continue
        for name, value in row.items():
            if (known := finite_number(value)) is None:
                continue
            if name not in found and len(found) < MAX_SERIES:
                found[name] = ([], [], [])
            if name in found:
                steps, values, times = found[name]
                steps.append(step)
                values.append(known)
                times.append(seconds or 0.0)
    return {name: Series(*map(tuple, columns)) for name, columns in found.items()}


def _divergences(folder: Path, notes: list[str]) -> Iterator[dict[str, Any]]:
    """The reports of values that were not finite."""
    if folder.is_symlink() or not folder.is_dir():
        return
    names = (path for path in folder.iterdir() if re.fullmatch(r"step_\d{12}\.json", path.name))
    for path in sorted(names)[:20]:
        if report := _json(path, notes):
            yield report


def _video(path: Path) -> Path | None:
    """The video of the run, or the latest that the callback `Video` wrote."""
    pattern = re.compile(r"step-(\d{1,18})\.(\w+)")
    recorded = map(pattern.fullmatch, _names_in(path / "videos"))
    latest = sorted((m for m in recorded if m and m[2] in VIDEOS), key=lambda m: -int(m[1]))
    names = [f"video.{suffix}" for suffix in VIDEOS] + [f"videos/{match[0]}" for match in latest]
    for video in (path / name for name in names):
        if video.is_file() and not video.is_symlink():
            return video
    return None


def _names_in(folder: Path) -> list[str]:
    if folder.is_symlink():
        return []
    try:
        return os.listdir(folder)
    except OSError:
        return []


def all_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """Every setting as text, but for those that name the run."""
    given = {key: value for key, value in config.items() if key not in _NAMING}
    return {name.removeprefix("algo_kwargs."): _text(v) for name, v in _leaves(given)}


def settings(config: Mapping[str, Any]) -> list[Setting]:
    """The settings that differ from the defaults of the algorithm.

    The defaults of a custom algorithm are not known: its code is not imported, as its name comes
    from the run's files.
    """
    algo = config.get("algo")
    spec = packaged_specs().get(algo) if isinstance(algo, str) else None
    try:
        defaults: dict[str, Any] = TrainConfig(algo="dqn", env_id="CartPole-v1").to_plain()
        if spec is not None:
            defaults["algo_kwargs"] = spec.hyper().model_dump(mode="json")
    except ConfigError:
        defaults = {}
    known = all_settings(defaults)
    return [
        Setting(name, value, known.get(name))
        for name, value in all_settings(config).items()
        if known.get(name) != value
    ]


def _leaves(mapping: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Every value by its dotted path, down to the second level: a schedule is one value."""
    for key, value in mapping.items():
        name = f"{above}{key}"
        if not above and isinstance(value, dict) and value:
            yield from _leaves(value, f"{name}.")
        else:
            yield name, value


def _text(value: object) -> str:
    """A setting as text: a schedule is `1 to 0.04 over 16 %`."""
    if isinstance(value, dict) and value.keys() == {"initial", "final", "kind", "fraction"}:
        initial, final, share = (finite_number(value[k]) for k in ("initial", "final", "fraction"))
        if initial is not None and final is not None and share is not None:
            if initial == final:
                return f"{initial:g}"
            kind = "" if value["kind"] == "linear" else f", {value['kind']}"
            over = "" if share == 1 else f" over {100 * share:g} %"
            return f"{initial:g} to {final:g}{over}{kind}"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, int | float):
        form = "," if isinstance(value, int) else "g"
        return f"{value:{form}}" if abs(value) < MAX_NUMBER else str(value)[:40]
    if isinstance(value, list):
        return ", ".join(map(_text, value[:50])) or "none"
    return str(value)[:400]
