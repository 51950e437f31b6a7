"""Results of runs, experiments and evidence cards, read into one form: a curve for each seed.

Of several rows with the same step, such as an evaluation at an interval and the final one, the last
counts. A resumed run has no row twice, as the rows after its checkpoint were cut off.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rl_training.config.strict_yaml import parse_yaml
from rl_training.errors import ConfigError, RunError, UsageError, did_you_mean
from rl_training.experiment.result import MAX_SEEDS
from rl_training.storage.files import read_json_object, read_ordinary
from rl_training.storage.metrics_log import METRICS_NAME, read_metrics
from rl_training.storage.runs import (
    CONFIG_NAME,
    MAX_NUMBER,
    SUMMARY_NAME,
    RunInfo,
    finite_number,
    list_runs,
    printable,
)
from rl_training.tools.evidence.card import Card, card_files, find_card, read_card

RETURN = "eval/return_mean"
EXPERIMENT_NAME = "experiment.json"

_NOT_METRICS = ("global_step", "wall_time_s")
_NOT_SETTINGS = ("seed", "output_dir", "run_name")
_MAX_LISTED = 20


@dataclass(frozen=True)
class SeedCurve:
    """The metric of one seed, by environment transitions.

    `seconds` are the wall-clock times of the steps; empty where they are not known, as on a card.
    `final` is the return of the final policy, or the last value of any other metric; None if the
    run did not finish.
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

    `name` is unique within the task, `label` among all results read together. `task` is the
    environment with the names of its wrappers and arguments, `setting` has these in full. `planned`
    are the seeds that were requested, `seeds` those that have begun. A seed with a return below
    `failure_below`, which only cards define, counts as failed.
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
        """The seeds without a final value and the reason: `seed 3 interrupted`."""
        status = {seed.seed: seed.status for seed in self.seeds if seed.final is None}
        known = {seed.seed for seed in self.seeds}
        status |= {seed: "missing" for seed in self.planned if seed not in known}
        return tuple(
            f"seed {seed} {'without a value' if word == 'finished' else word}"
            for seed, word in sorted(status.items())
        )

    @property
    def failed(self) -> int | None:
        """The number of failed seeds; None if failure is not defined."""
        if self.failure_below is None or self.metric != RETURN:
            return None
        return sum(value < self.failure_below for value in self.finals)


def read_results(paths: Sequence[Path | str], metric: str = RETURN) -> tuple[Results, ...]:
    """The results in run directories, experiments, directories of them, and cards, as ordered.

    Runs that differ in nothing but the seed are one result, wherever they are. A card is given by
    its name in `evidence list` or its file; a directory of the same name takes precedence.
    """
    if not paths:
        raise UsageError("expected runs, experiments or cards, found none")
    results: list[tuple[int, Results]] = []
    runs: dict[Path, tuple[int, RunInfo]] = {}
    experiments: list[Path] = []
    cards: set[Path] = set()
    for position, path in enumerate(map(Path, paths)):
        if path.is_dir():
            infos = _runs_in(path)
            for info in infos:
                runs.setdefault(info.path.resolve(), (position, info))
            experiments += [path] if path not in [info.path for info in infos] else []
            continue
        file = _card_file(path)
        if file.resolve() not in cards:
            results.append((position, results_of_card(file, read_card(file), metric)))
            cards.add(file.resolve())
    results += _groups(runs.values(), experiments, metric)
    groups = [group for _, group in sorted(results, key=lambda pair: pair[0])]
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
            f"{printable(path)} is neither a directory nor a card (`rl-training runs` and "
            f"`rl-training evidence list` list them){did_you_mean(path.as_posix(), card_files())}"
        )
    return file


def _groups(
    runs: Iterable[tuple[int, RunInfo]], experiments: Sequence[Path], metric: str
) -> Iterator[tuple[int, Results]]:
    """The runs by configuration, each with the position at which its first run was given."""
    groups: dict[tuple[str, str, str], list[tuple[int, RunInfo, dict[str, Any]]]] = {}
    for position, info in runs:
        config = _configuration(info)
        key = (info.algo, info.env_id, settings_key(config))
        groups.setdefault(key, []).append((position, info, config))
    for members in groups.values():
        infos = sorted((info for _, info, _ in members), key=lambda info: info.seed or 0)
        folder = infos[0].path.parent
        whole = len(infos) > 1 or any(folder.samefile(path) for path in experiments)
        together = whole and all(info.path.parent == folder for info in infos)
        path = folder if together else infos[0].path
        yield members[0][0], _of_runs(infos, members[0][2], path, metric)


def settings_key(config: Mapping[str, Any]) -> str:
    """Equal for configurations that differ in nothing but the seed and where the run is kept."""
    settings = {key: value for key, value in config.items() if key not in _NOT_SETTINGS}
    return json.dumps(settings, sort_keys=True, default=str)


def _configuration(info: RunInfo) -> dict[str, Any]:
    """The configuration of a run as plain values; nothing in it is imported or called."""
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
    budget = finite_number(config.get("total_timesteps")) or max(info.env_steps for info in infos)
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
    """The rows of a run; none before its first log row."""
    return read_metrics(info.path) if (info.path / METRICS_NAME).exists() else []


def shortened(texts: Sequence[str]) -> str:
    """A list in a sentence, cut after the first twenty."""
    rest = len(texts) - _MAX_LISTED
    return ", ".join(texts[:_MAX_LISTED]) + (f" and {rest:,} more" if rest > 0 else "")


def _planned(path: Path) -> list[int]:
    """The seeds requested from an experiment, if the directory is one."""
    rows = read_json_object(path / EXPERIMENT_NAME).get("seeds")
    rows = rows if isinstance(rows, list) else []
    seeds = [row.get("seed") for row in rows if isinstance(row, dict)]
    if len(seeds) > MAX_SEEDS:
        raise RunError(
            f"{printable(path / EXPERIMENT_NAME)} names {len(seeds):,} seeds, expected at most "
            f"{MAX_SEEDS:,}: it was not written by rl-training"
        )
    return [seed for seed in seeds if type(seed) is int and 0 <= seed < MAX_NUMBER]


def _seed_curve(info: RunInfo, rows: Iterable[Mapping[str, Any]], metric: str) -> SeedCurve:
    points: dict[int, tuple[float, float]] = {}
    for row in rows:
        step, value = row.get("global_step"), finite_number(row.get(metric))
        if isinstance(step, int) and 0 <= step < MAX_NUMBER and value is not None:
            seconds = finite_number(row.get("wall_time_s"))
            points[step] = (value, math.nan if seconds is None else seconds)
    steps = tuple(sorted(points))
    values = tuple(points[step][0] for step in steps)
    seconds_of = tuple(points[step][1] for step in steps)
    final = values[-1] if values else None
    if metric == RETURN:
        final = finite_number(read_json_object(info.path / SUMMARY_NAME).get("eval_return_mean"))
    return SeedCurve(
        seed=info.seed or 0,
        steps=steps,
        values=values,
        seconds=() if any(map(math.isnan, seconds_of)) else seconds_of,
        final=final if info.status == "finished" else None,
        status=info.status,
    )


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
        algo=printable(card.config.partition("/")[0]),  # Rainbow is C51 with all options
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
    """Arguments and wrappers of the environment as JSON, but for its render mode."""
    kwargs = config.get("env_kwargs") or {}
    if isinstance(kwargs, dict):
        kwargs = {key: value for key, value in kwargs.items() if key != "render_mode"}
    found = {"env_kwargs": kwargs, "wrappers": config.get("wrappers")}
    given = {key: value for key, value in found.items() if value}
    return printable(json.dumps(given, sort_keys=True, default=str), longest=1_000) if given else ""


def _task(env_id: str, config: Mapping[str, Any]) -> str:
    """The environment with its wrappers and arguments: `CartPole-v1 with MaskVelocity`."""
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
    """A typo must not result in an empty figure."""
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
    """The groups with names unique within their task, and labels unique among all.

    A name is the algorithm, the card or directory, or the path: the first of these that is unique.
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
    """The groups, with the full setting added to a task whose short name is ambiguous."""
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
    """The first list of names without duplicates; if all have some, the last one, numbered."""
    for names in choices:
        if len(set(names)) == len(names) and all(names):
            return names
    return [f"{name} ({number})" for number, name in enumerate(choices[-1], start=1)]
