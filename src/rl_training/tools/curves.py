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
from rl_training.tools.lines import interpolated, mean_of_latest, shared_points

RETURN = "eval/return_mean"
EXPERIMENT_NAME = "experiment.json"
MIN_SEEDS_OF_BAND = 4
"""An interval over fewer seeds would be their range, drawn as if it were more."""
MAX_SEEDS_BESIDE_OTHERS = 10
"""With more, the single seeds of one result would cover those of another."""

Axis = Literal["steps", "time"]

_NOT_METRICS = ("global_step", "wall_time_s")
_NOT_SETTINGS = ("seed", "output_dir", "run_name")
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
    them. `task` is the environment with what changes it, and `setting` all of that in full.
    `planned` seeds were asked for, of which `seeds` have anything to show. A seed with a return
    below `failure_below`, which only cards say, counts as failed.
    """

    name: str
    label: str
    path: Path
    algo: str
    env_id: str
    task: str
    setting: str
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
    """The results in run directories, experiments, directories of them, and cards, as given.

    Runs that differ in nothing but the seed are one group, wherever they lie. A card is named as
    in `evidence list` or by its file; a directory of the same name comes first.
    """
    if not paths:
        raise UsageError("expected runs, experiments or cards, found none")
    found: list[tuple[int, Results]] = []
    given: dict[Path, tuple[int, RunInfo]] = {}
    experiments: list[Path] = []
    cards: set[Path] = set()
    for position, path in enumerate(map(Path, paths)):
        if path.is_dir():
            runs = _runs_in(path)
            for info in runs:
                given.setdefault(info.path.resolve(), (position, info))
            experiments += [path] if path not in [info.path for info in runs] else []
            continue
        file = _card_file(path)
        if file.resolve() not in cards:
            found.append((position, results_of_card(file, read_card(file), metric)))
            cards.add(file.resolve())
    found += _groups(given.values(), experiments, metric)
    found.sort(key=lambda pair: pair[0])
    groups = [group for _, group in found]
    _refuse_unknown_metric(groups, metric)
    return labelled(groups)


def _runs_in(path: Path) -> list[RunInfo]:
    try:
        runs = list_runs(path)
    except OSError as error:
        raise RunError(
            f"{printable(path)} cannot be searched for runs ({error.strerror}): give the directory "
            "of the runs"
        ) from error
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
            f"{printable(path)} is no directory and no card (`rl-training runs` and `rl-training "
            f"evidence list` show what there is){did_you_mean(path.as_posix(), card_files())}"
        )
    return file


def _groups(
    runs: Iterable[tuple[int, RunInfo]], experiments: Sequence[Path], metric: str
) -> Iterator[tuple[int, Results]]:
    """The runs by configuration: where the first was given, and all with their directory."""
    groups: dict[tuple[str, str, str], list[tuple[int, RunInfo, dict[str, Any]]]] = {}
    for position, info in runs:
        config = _configuration(info)
        settings = {k: v for k, v in config.items() if k not in _NOT_SETTINGS}
        key = (info.algo, info.env_id, json.dumps(settings, sort_keys=True, default=str))
        groups.setdefault(key, []).append((position, info, config))
    for members in groups.values():
        infos = sorted((info for _, info, _ in members), key=lambda info: info.seed or 0)
        folder = infos[0].path.parent
        whole = len(infos) > 1 or any(folder.samefile(path) for path in experiments)
        together = whole and all(info.path.parent == folder for info in infos)
        path = folder if together else infos[0].path
        yield members[0][0], _of_runs(infos, members[0][2], path, metric)


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
        reason = error.strerror if isinstance(error, OSError) else error
        raise RunError(
            f"{printable(path)} cannot be read ({reason}): restore it, or leave this run out"
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
        setting=_setting(config),
        budget=max(1, int(budget)),
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
    rows = rows if isinstance(rows, list) else []
    seeds = [row.get("seed") for row in rows if isinstance(row, dict)]
    return [seed for seed in seeds if type(seed) is int and 0 <= seed < MAX_NUMBER]


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


def results_of_card(file: Path, card: Card, metric: str = RETURN) -> Results:
    """The seeds of a card, named as the card is."""
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
        label=printable(card.config),
        path=file,
        algo=printable(config.get("algo", "")),
        env_id=env_id,
        task=_task(env_id, config),
        setting=_setting(config),
        budget=card.budget,
        metric=metric,
        metrics=tuple(sorted({printable(name) for curve in curves for name in curve})),
        seeds=tuple(sorted(seeds, key=lambda seed: seed.seed)),
        planned=card.seed_numbers,
        failure_below=card.failure_below,
    )


def _setting(config: Mapping[str, Any]) -> str:
    """How the environment is set up where that is not the default; not how it is rendered."""
    kwargs = config.get("env_kwargs") or {}
    if isinstance(kwargs, dict):
        kwargs = {key: value for key, value in kwargs.items() if key != "render_mode"}
    found = {"env_kwargs": kwargs, "wrappers": config.get("wrappers")}
    given = {key: value for key, value in found.items() if value}
    return printable(json.dumps(given, sort_keys=True, default=str), longest=1_000) if given else ""


def _task(env_id: str, config: Mapping[str, Any]) -> str:
    """Such as `CartPole-v1 with MaskVelocity`: the environment and the names of what changes it."""
    wrappers = config.get("wrappers")
    found: list[object] = []
    for wrapper in wrappers if isinstance(wrappers, list) else []:
        found += wrapper if isinstance(wrapper, dict) else [wrapper]
    names = [str(name).rpartition(":")[2] for name in found]
    kwargs = config.get("env_kwargs")
    if isinstance(kwargs, dict):
        names += [f"{key}={value}" for key, value in kwargs.items() if key != "render_mode"]
    return printable(f"{env_id} with {', '.join(names)}" if names else env_id)


def _refuse_unknown_metric(groups: Sequence[Results], metric: str) -> None:
    """A typo must not give an empty picture."""
    for group in groups:
        if any(seed.steps for seed in group.seeds):
            continue
        if not group.metrics:
            raise RunError(f"{printable(group.path)} holds no metrics yet: wait for its first row")
        raise UsageError(
            f"{printable(group.path)} has no metric {metric!r:.80}, but "
            f"{', '.join(group.metrics)}{did_you_mean(metric, group.metrics)}"
        )


def labelled(groups: Sequence[Results]) -> tuple[Results, ...]:
    """The groups with names that differ within a task, and labels that differ among all.

    The first that tells them apart: the algorithm, the card or directory, the path.
    """
    groups = _with_distinct_tasks(groups)
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


def _with_distinct_tasks(groups: Sequence[Results]) -> list[Results]:
    """The groups with the whole setting in the task where its short name stands for several."""
    settings: dict[str, set[str]] = {}
    for group in groups:
        settings.setdefault(group.task, set()).add(group.setting)
    return [
        replace(group, task=f"{group.task} {group.setting}".strip())
        if len(settings[group.task]) > 1
        else group
        for group in groups
    ]


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
    counts = [len(_drawn(group)) for group in results]
    bands = max(counts) >= MIN_SEEDS_OF_BAND
    several = max(counts) > 1
    most = max(counts) if len(results) == 1 else MAX_SEEDS_BESIDE_OTHERS
    single = "thin: single seeds" if any(1 < count <= most for count in counts) else ""
    parts = [
        "line: interquartile mean over seeds" if several else "",
        "band: 95 % bootstrap interval" if bands else "",
        single,
    ]
    return Chart(
        title=title or ", ".join(tasks[:3]) + (", ..." if len(tasks) > 3 else ""),
        x_label="environment steps" if x == "steps" else "seconds of wall-clock time",
        y_label=("mean evaluation return" if metric == RETURN else metric) + smoothed,
        curves=tuple(
            curve
            if len(results) == 1 or len(curve.single) <= MAX_SEEDS_BESIDE_OTHERS
            else replace(curve, single=())
            for curve in (
                _curve_of(group, x, smooth or 1, one_task=len(tasks) == 1) for group in results
            )
        ),
        note="; ".join(filter(None, parts)),
    )


def _drawn(group: Results) -> list[SeedCurve]:
    return [seed for seed in group.seeds if seed.steps]


def _curve_of(group: Results, x: Axis, smooth: int, *, one_task: bool) -> Curve:
    seeds = _drawn(group)
    if x == "time" and not all(seed.seconds for seed in seeds):
        raise UsageError(
            f"{group.label} does not say how long each step took, as cards do not: draw it by steps"
        )
    lines = [
        (
            np.asarray(seed.steps if x == "steps" else seed.seconds, float),
            mean_of_latest(seed.values, smooth),
        )
        for seed in seeds
    ]
    at, rows = shared_points(lines) if x == "steps" else interpolated(lines, _POINTS_OF_TIME)
    low = high = np.empty(0)
    if len(seeds) >= MIN_SEEDS_OF_BAND:
        low, high = bootstrap_intervals(rows)
    count = f" ({len(seeds)} seed{'s' if len(seeds) > 1 else ''})"
    return Curve(
        label=(group.name if one_task else group.label) + count,
        x=tuple(at.tolist()),
        y=tuple(interquartile_means(rows).tolist()),
        low=tuple(low.tolist()),
        high=tuple(high.tolist()),
        single=tuple((tuple(a.tolist()), tuple(b.tolist())) for a, b in lines)
        if len(seeds) > 1
        else (),
    )
