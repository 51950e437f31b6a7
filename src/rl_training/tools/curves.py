"""Results of any kind, read one way: runs, experiments and evidence cards, as curves by seed.

What a metric was at a step is read once: of several rows with one step, such as the evaluation at
an interval and the final one, the last row counts. A resumed run has no row twice, as the rows
after its checkpoint were cut off.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rl_training.config.strict_yaml import parse_yaml
from rl_training.errors import ConfigError, RunError, UsageError, did_you_mean
from rl_training.experiment.statistics import bootstrap_intervals, interquartile_means
from rl_training.storage.files import read_json_object, read_ordinary
from rl_training.storage.metrics_log import METRICS_NAME, read_metrics
from rl_training.storage.runs import (
    CONFIG_NAME,
    MAX_NUMBER,
    SUMMARY_NAME,
    RunInfo,
    list_runs,
    printable,
)
from rl_training.tools.charts import Chart, Curve
from rl_training.tools.evidence.card import Card, card_files, find_card, read_card

RETURN = "eval/return_mean"
EXPERIMENT_NAME = "experiment.json"
MIN_SEEDS_OF_BAND = 4
"""An interval over fewer seeds would be their range, drawn as if it were more."""

Axis = Literal["steps", "time"]

_NOT_METRICS = ("global_step", "wall_time_s")
_NOT_SETTINGS = ("seed", "output_dir", "run_name")
_TASK_KEYS = ("env_kwargs", "wrappers")
_POINTS_OF_TIME = 200


@dataclass(frozen=True)
class SeedCurve:
    """What one seed's metric was, by environment transitions.

    `seconds` of wall-clock time belong to the steps, or are empty where they are not known, as on
    a card. `final` is the value at the end: of the return that of the final policy, of any other
    metric the last; None if the run did not finish.
    """

    seed: int
    steps: tuple[int, ...]
    values: tuple[float, ...]
    seconds: tuple[float, ...] = ()
    final: float | None = None
    status: str = "finished"


@dataclass(frozen=True)
class Results:
    """The seeds of one configuration.

    `name` tells them apart from the others in their task, `label` from all that were read with
    them. `task` is the environment, with its settings where they differ from the default's.
    `planned` seeds were asked for, of which `seeds` have anything to show. A seed with a return
    below `failure_below`, which only cards say, counts as failed.
    """

    name: str
    label: str
    path: Path
    algo: str
    env_id: str
    task: str
    budget: int
    metric: str
    metrics: tuple[str, ...]
    seeds: tuple[SeedCurve, ...]
    planned: tuple[int, ...]
    failure_below: float | None = None

    @property
    def finals(self) -> tuple[float, ...]:
        """The final value of each seed that finished."""
        return tuple(seed.final for seed in self.seeds if seed.final is not None)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The seeds without a final value, and why: `seed 3 interrupted`."""
        status = {seed.seed: seed.status for seed in self.seeds if seed.final is None}
        known = {seed.seed for seed in self.seeds}
        status |= {seed: "missing" for seed in self.planned if seed not in known}
        return tuple(
            f"seed {seed} {'without a value' if word == 'finished' else word}"
            for seed, word in sorted(status.items())
        )

    @property
    def failed(self) -> int | None:
        """How many seeds failed; None if nothing says what a failure is."""
        if self.failure_below is None or self.metric != RETURN:
            return None
        return sum(value < self.failure_below for value in self.finals)


def read_results(paths: Sequence[Path | str], metric: str = RETURN) -> tuple[Results, ...]:
    """The results in run directories, experiments, directories of them, and cards.

    Runs that differ in nothing but the seed are one group, wherever they lie. A card is named as
    in `evidence list` or by its file; a directory of the same name comes first.
    """
    if not paths:
        raise UsageError("expected runs, experiments or cards, found none")
    cards: dict[Path, Results] = {}
    runs: dict[Path, RunInfo] = {}
    experiments: list[Path] = []
    for path in dict.fromkeys(map(Path, paths)):
        if path.is_dir():
            found = _runs_in(path)
            runs |= {info.path.resolve(): info for info in found}
            experiments += [path] if path not in [info.path for info in found] else []
        else:
            file = _card_file(path)
            cards[file.resolve()] = _of_card(file, read_card(file), metric)
    groups = [*_groups(runs.values(), experiments, metric), *cards.values()]
    _refuse_unknown_metric(groups, metric)
    return _labelled(groups)


def _runs_in(path: Path) -> list[RunInfo]:
    runs = list_runs(path)
    if not runs:
        raise RunError(
            f"{printable(path)} holds no run: expected a run directory, an experiment, or a "
            "directory of them; `rl-training runs DIRECTORY` lists what is there"
        )
    return runs


def _card_file(path: Path) -> Path:
    file = find_card(path)
    if file == path and path.suffix != ".json":
        raise UsageError(
            f"{printable(path)}: expected a run directory, an experiment, or a card, found no such "
            f"thing{did_you_mean(path.as_posix(), card_files())}; `rl-training runs` and "
            "`rl-training evidence list` show what there is"
        )
    return file


def _groups(runs: Iterable[RunInfo], experiments: Sequence[Path], metric: str) -> Iterator[Results]:
    """The runs by configuration, each with the directory that holds all of its seeds."""
    groups: dict[tuple[str, str, str], list[tuple[RunInfo, dict[str, Any]]]] = {}
    for info in runs:
        config = _configuration(info)
        settings = {k: v for k, v in config.items() if k not in _NOT_SETTINGS}
        key = (info.algo, info.env_id, json.dumps(settings, sort_keys=True, default=str))
        groups.setdefault(key, []).append((info, config))
    for members in groups.values():
        infos = sorted((info for info, _ in members), key=lambda info: info.seed or 0)
        folder = infos[0].path.parent
        whole = len(infos) > 1 or any(folder.samefile(path) for path in experiments)
        together = whole and all(info.path.parent == folder for info in infos)
        yield _of_runs(infos, members[0][1], folder if together else infos[0].path, metric)


def _configuration(info: RunInfo) -> dict[str, Any]:
    """What the run was configured with, as plain values; nothing in it is looked up or called."""
    path = info.path / CONFIG_NAME
    if info.status == "unreadable" or info.seed is None:
        raise RunError(
            f"{printable(info.path)}: the files that describe this run cannot be read, or do not "
            "say its seed; restore them, or leave this run out"
        )
    try:
        return parse_yaml(read_ordinary(path).decode(), CONFIG_NAME)[0]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, ConfigError) as error:
        raise RunError(
            f"{printable(path)} cannot be read ({error}): restore it, or leave this run out"
        ) from error


def _of_runs(
    infos: Sequence[RunInfo], config: Mapping[str, Any], path: Path, metric: str
) -> Results:
    by_seed: dict[int, RunInfo] = {}
    for info in infos:
        seed = info.seed or 0
        if seed in by_seed:
            raise UsageError(
                f"{printable(by_seed[seed].path)} and {printable(info.path)} are the same "
                f"configuration with the same seed, {seed}, which counts once: leave one out"
            )
        by_seed[seed] = info
    tables = {seed: _rows(info) for seed, info in by_seed.items()}
    seeds = [_seed_curve(by_seed[seed], rows, metric) for seed, rows in tables.items()]
    names = {name for rows in tables.values() for row in rows for name in row}
    budget = _number(config.get("total_timesteps")) or max(info.env_steps for info in infos)
    return Results(
        name="",
        label="",
        path=path,
        algo=infos[0].algo,
        env_id=infos[0].env_id,
        task=_task(infos[0].env_id, config),
        budget=int(budget),
        metric=metric,
        metrics=tuple(sorted(printable(name) for name in names.difference(_NOT_METRICS))),
        seeds=tuple(seeds),
        planned=tuple(sorted({*by_seed, *_planned(path)})),
    )


def _rows(info: RunInfo) -> list[dict[str, Any]]:
    """The rows of a run; none if it has not written any yet."""
    return read_metrics(info.path) if (info.path / METRICS_NAME).exists() else []


def _planned(path: Path) -> list[int]:
    """The seeds an experiment was asked for, where the directory is one's."""
    rows = read_json_object(path / EXPERIMENT_NAME).get("seeds")
    found = [row.get("seed") for row in rows if isinstance(row, dict)] if rows else []
    return [seed for seed in found if isinstance(seed, int) and 0 <= seed < MAX_NUMBER]


def _seed_curve(info: RunInfo, rows: Iterable[Mapping[str, Any]], metric: str) -> SeedCurve:
    points: dict[int, tuple[float, float]] = {}
    for row in rows:
        step, value = row.get("global_step"), _number(row.get(metric))
        if isinstance(step, int) and 0 <= step < MAX_NUMBER and value is not None:
            seconds = _number(row.get("wall_time_s"))
            points[step] = (value, math.nan if seconds is None else seconds)
    steps = tuple(sorted(points))
    values = tuple(points[step][0] for step in steps)
    seconds_of = tuple(points[step][1] for step in steps)
    final = values[-1] if values else None
    if metric == RETURN:
        final = _number(read_json_object(info.path / SUMMARY_NAME).get("eval_return_mean"))
    return SeedCurve(
        seed=info.seed or 0,
        steps=steps,
        values=values,
        seconds=() if any(map(math.isnan, seconds_of)) else seconds_of,
        final=final if info.status == "finished" else None,
        status=info.status,
    )


def _number(value: object) -> float | None:
    """A value of a metric; NaN and infinities are null in a log."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < MAX_NUMBER else None


def _of_card(file: Path, card: Card, metric: str) -> Results:
    curves = [
        {RETURN: (record.curve.steps, record.curve.returns)}
        | {f"eval/{k}": (m.steps, m.values) for k, m in record.measured.items()}
        for record in card.seeds
    ]
    seeds = []
    for record, curve in zip(card.seeds, curves, strict=True):
        points = dict(zip(*curve.get(metric, ((), ())), strict=True))
        final = record.return_mean if metric == RETURN else points.get(max(points, default=0))
        steps = tuple(sorted(points))
        seeds.append(
            SeedCurve(record.seed, steps, tuple(points[step] for step in steps), final=final)
        )
    config = card.configuration
    env_id = printable(config.get("env_id", ""))
    return Results(
        name=printable(card.config),
        label="",
        path=file,
        algo=printable(config.get("algo", "")),
        env_id=env_id,
        task=_task(env_id, config),
        budget=card.budget,
        metric=metric,
        metrics=tuple(sorted({printable(name) for curve in curves for name in curve})),
        seeds=tuple(sorted(seeds, key=lambda seed: seed.seed)),
        planned=card.seed_numbers,
        failure_below=card.failure_below,
    )


def _task(env_id: str, config: Mapping[str, Any]) -> str:
    """What was to be solved: two are the same only if their environments are set up the same."""
    settings = [
        f"{key}={json.dumps(config[key], default=str)}" for key in _TASK_KEYS if config.get(key)
    ]
    return printable(", ".join([env_id, *settings]), longest=300)


def _refuse_unknown_metric(groups: Sequence[Results], metric: str) -> None:
    """A typo must not give an empty picture."""
    for group in groups:
        if any(seed.steps for seed in group.seeds):
            continue
        if not group.metrics:
            raise RunError(f"{printable(group.path)} holds no metrics yet: wait for its first row")
        raise UsageError(
            f"{printable(group.path)} has no metric {metric!r:.80}"
            f"{did_you_mean(metric, group.metrics)}; it has {', '.join(group.metrics)}"
        )


def _labelled(groups: Sequence[Results]) -> tuple[Results, ...]:
    """The groups with names that differ within a task, and labels that differ among all.

    The first that tells them apart: the algorithm, the card or directory, the path.
    """
    tasks = list(dict.fromkeys(group.task for group in groups))
    named: dict[int, Results] = {}
    for task in tasks:
        members = [(at, group) for at, group in enumerate(groups) if group.task == task]
        names = _distinct(
            [group.algo for _, group in members],
            [group.name or printable(group.path.resolve().name) for _, group in members],
            [printable(group.path) for _, group in members],
        )
        for (at, group), name in zip(members, names, strict=True):
            label = name if len(tasks) == 1 or name == group.name else f"{name}, {task}"
            named[at] = replace(group, name=name, label=label)
    return tuple(named[at] for at in range(len(groups)))


def _distinct(*choices: Sequence[str]) -> Sequence[str]:
    """The first list of names without a name twice, or the last, numbered where it has."""
    for names in choices:
        if len(set(names)) == len(names) and all(names):
            return names
    return [f"{name} ({number})" for number, name in enumerate(choices[-1], start=1)]


def chart_of(
    results: Sequence[Results], x: Axis = "steps", smooth: int | None = None, title: str = ""
) -> Chart:
    """Interquartile means over seeds, with a band for 4 or more, and the seeds thin behind.

    With `smooth`, every seed's curve is first replaced by the mean of that many latest points.
    """
    metric = results[0].metric
    smoothed = "" if smooth is None or smooth < 2 else f", mean of the latest {smooth} points"
    tasks = list(dict.fromkeys(group.task for group in results))
    bands = any(len(_drawn(group)) >= MIN_SEEDS_OF_BAND for group in results)
    several = any(len(_drawn(group)) > 1 for group in results)
    parts = [
        "line: interquartile mean over seeds" if several else "",
        "band: 95 % bootstrap interval" if bands else "",
        "thin: single seeds" if several else "",
    ]
    return Chart(
        title=title or ", ".join(tasks[:3]) + (", ..." if len(tasks) > 3 else ""),
        x_label="environment steps" if x == "steps" else "seconds of wall-clock time",
        y_label=("mean evaluation return" if metric == RETURN else metric) + smoothed,
        curves=tuple(_curve_of(group, x, smooth or 1) for group in results),
        note="; ".join(filter(None, parts)),
    )


def _drawn(group: Results) -> list[SeedCurve]:
    return [seed for seed in group.seeds if seed.steps]


def _curve_of(group: Results, x: Axis, smooth: int) -> Curve:
    seeds = _drawn(group)
    if x == "time" and not all(seed.seconds for seed in seeds):
        raise UsageError(
            f"{group.label} does not say how long each step took, as cards do not: draw it by steps"
        )
    lines = [
        (
            np.asarray(seed.steps if x == "steps" else seed.seconds, float),
            _mean_of_latest(seed.values, smooth),
        )
        for seed in seeds
    ]
    at, rows = shared_points(lines) if x == "steps" else interpolated(lines, _POINTS_OF_TIME)
    low = high = np.empty(0)
    if len(seeds) >= MIN_SEEDS_OF_BAND:
        low, high = bootstrap_intervals(rows)
    count = f" ({len(seeds)} seed{'s' if len(seeds) > 1 else ''})"
    return Curve(
        label=group.label + count,
        x=tuple(at.tolist()),
        y=tuple(interquartile_means(rows).tolist()),
        low=tuple(low.tolist()),
        high=tuple(high.tolist()),
        single=tuple((tuple(a.tolist()), tuple(b.tolist())) for a, b in lines)
        if len(seeds) > 1
        else (),
    )


Line = tuple[np.ndarray, np.ndarray]


def shared_points(lines: Sequence[Line]) -> tuple[np.ndarray, np.ndarray]:
    """The positions that all curves have, and a row of their values for each.

    Curves that share fewer than two positions, though they have more, are interpolated at the
    positions of any of them, as far as all of them reach.
    """
    shared = lines[0][0]
    for at, _ in lines[1:]:
        shared = np.intersect1d(shared, at)
    if len(shared) < 2 and all(len(at) > 1 for at, _ in lines):
        return interpolated(lines)
    rows = [values[np.searchsorted(at, shared)] for at, values in lines]
    return shared, np.stack(rows, axis=1)


def interpolated(lines: Sequence[Line], points: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The curves at common positions from the latest beginning to the earliest end.

    The positions are those of all curves, or so many at equal distances; values between two points
    lie on the straight line that joins them.
    """
    start, end = max(at[0] for at, _ in lines), min(at[-1] for at, _ in lines)
    if len(lines) == 1:
        return lines[0][0], lines[0][1][:, None]
    if end < start:
        return np.empty(0), np.empty((0, len(lines)))
    if points is None:
        grid = np.unique(np.concatenate([at for at, _ in lines]))
        grid = grid[(grid >= start) & (grid <= end)]
    else:
        grid = np.unique(np.linspace(start, end, points))
    return grid, np.stack([np.interp(grid, at, values) for at, values in lines], axis=1)


def _mean_of_latest(values: Sequence[float], count: int) -> np.ndarray:
    """Each value replaced by the mean of the latest `count`, at the start of as many as exist."""
    sums = np.concatenate([[0.0], np.cumsum(np.asarray(values, float))])
    ends = np.arange(1, len(sums))
    starts = np.maximum(ends - count, 0)
    means: np.ndarray = (sums[ends] - sums[starts]) / (ends - starts)
    return means
