"""The report of several runs: experiments, cards, or runs side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.data.memory import format_duration
from rl_training.errors import UsageError
from rl_training.experiment.statistics import (
    bootstrap_interval,
    interquartile_mean,
    interquartile_means,
)
from rl_training.storage.runs import list_runs
from rl_training.tools.charts import Chart, Curve
from rl_training.tools.curves import MIN_SEEDS_OF_BAND, chart_of, shared_points
from rl_training.tools.markup import Markup, element
from rl_training.tools.report.comparison_section import results_section
from rl_training.tools.report.page import (
    SMALL,
    SMALL_POINTS,
    Cell,
    figure,
    format_number,
    format_return,
    grid,
    key_figure,
    note,
    number_cell,
    render,
    section,
    small_figure,
    table,
)
from rl_training.tools.report.record import Record, all_settings, read_record, settings
from rl_training.tools.report.run_page import (
    EVAL,
    MAX_CHARTS,
    SCHEDULES,
    TARGETS,
    TRAINING,
    algorithm,
    history_section,
    metric_order,
    readable,
    settings_section,
)
from rl_training.tools.results import Results, SeedCurve, read_results, settings_key, shortened
from rl_training.tools.svg import downsample, draw_chart

POINTS = 120
"""Points of a curve in a chart across the page."""
MAX_ROWS = 20
"""Rows up to which the table of seeds is shown expanded."""


@dataclass(frozen=True)
class Group:
    """The seeds of one configuration, and the records of their runs; a card has none."""

    results: Results
    records: tuple[Record, ...]

    @property
    def finals(self) -> tuple[float, ...]:
        """The evaluation return of each finished seed."""
        if not self.records:
            return self.results.finals
        found = (r.number("eval_return_mean") for r in self.records if r.info.status == "finished")
        return tuple(value for value in found if value is not None)

    def with_metric(self, metric: str, max_points: int) -> Results | None:
        """The same seeds with another metric, at `max_points` steps; None if no seed has it."""
        if not self.records:
            return self.results if metric == self.results.metric else None
        points: dict[int, dict[int, float]] = {}
        for record in self.records:
            if (series := record.series.get(metric)) is not None:
                # Of several rows with the same step the last counts, that of the final policy.
                known = dict(zip(map(int, series.steps), series.values, strict=True))
                points[record.info.seed or 0] = known
        shared = _shared_steps(list(points.values()), max_points)
        seeds = []
        for seed, known in points.items():
            steps = shared or _downsampled(sorted(known), known, max_points)
            seeds.append(SeedCurve(seed, steps, tuple(known[step] for step in steps)))
        return replace(self.results, metric=metric, seeds=tuple(seeds)) if seeds else None


def _shared_steps(curves: Sequence[Mapping[int, float]], max_points: int) -> tuple[int, ...]:
    """Steps common to long curves at which their mean keeps its shape; none for short ones."""
    shared = sorted(set(curves[0]).intersection(*curves[1:])) if curves else []
    if len(shared) <= max_points:
        return ()
    means = {step: sum(curve[step] for curve in curves) / len(curves) for step in shared}
    return _downsampled(shared, means, max_points)


def _downsampled(
    steps: Sequence[int], values: Mapping[int, float], max_points: int
) -> tuple[int, ...]:
    return tuple(steps[i] for i in downsample(steps, [values[step] for step in steps], max_points))


def read_groups(paths: Sequence[Path]) -> list[Group]:
    """The runs under some paths by configuration."""
    try:
        results = read_results(paths, EVAL)
    except UsageError:  # no evaluation yet, or none at all
        results = read_results(paths, TRAINING)
    folders = [path for path in paths if path.is_dir()]
    found = {info.path.resolve(): info.path for folder in folders for info in list_runs(folder)}
    records = [read_record(path) for path in found.values()]
    return [Group(one, tuple(_records_of(one, records))) for one in results]


def _records_of(results: Results, records: Iterable[Record]) -> Iterator[Record]:
    """The runs of a group: those in its directory and others with the same configuration."""
    if results.path.is_file():
        return
    alike = [r for r in records if (r.info.algo, r.info.env_id) == (results.algo, results.env_id)]
    inside = [r for r in alike if results.path in (r.info.path, r.info.path.parent)]
    configurations = {settings_key(record.config) for record in inside[:1]}
    for record in sorted(alike, key=lambda r: r.info.seed or 0):
        if settings_key(record.config) in configurations:
            yield record


def overview_page(groups: Sequence[Group]) -> str:
    """The page of one or several groups."""
    tasks = list(dict.fromkeys(group.results.task for group in groups))
    several = len(groups) > 1
    body = [
        *_remarks(groups),
        Markup() if several else element("dl", *_figures(groups[0]), class_="figures"),
        _results(groups) if several else Markup(),
        *_curves(groups, tasks),
        section("Other metrics", grid(_metrics(groups, tasks))),
        section("Seeds", _seeds_table(groups)),
    ]
    if not several and groups[0].records:
        body += [settings_section(groups[0].records[0]), history_section(groups[0].records[0])]
    elif several:
        body += [section("Settings that differ", _settings_table(groups))]
        body += [section("Versions", _versions_table(groups))]
    seeds = sum(len(group.results.seeds) for group in groups)
    counted = f"{len(groups)} configurations \u00b7 " if several else ""
    heading = f"{counted}{seeds} seed{'s' if seeds != 1 else ''}"
    if not several:
        heading += f" \u00b7 {groups[0].results.path.resolve().name}"
    return render(_title(groups, tasks), [element("p", heading)], body)


def _title(groups: Sequence[Group], tasks: Sequence[str]) -> str:
    names = list(dict.fromkeys(algorithm(group.results.algo) for group in groups))
    where = tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks"
    if len(groups) > 1:
        names = list(dict.fromkeys(group.results.name for group in groups))
    if len(names) > 3:
        return f"{len(names)} configurations on {where}"
    *others, last = names
    return f"{', '.join(others)} and {last} on {where}" if others else f"{last} on {where}"


def _remarks(groups: Sequence[Group]) -> Iterator[Markup]:
    for group in groups:
        if left_out := group.results.left_out:
            name = f"{group.results.label}: " if len(groups) > 1 else ""
            yield note(f"{name}not counted: {shortened(left_out)}")
        for record in group.records:
            run = record.info.path.name
            if error := record.summary.get("error") if record.info.status == "failed" else None:
                yield note(f"{run} failed: {str(error)[:500]}", "failed")
            if record.divergences:
                yield note(f"{run} diverged.", "failed")
            yield from (note(f"{run}: {text}") for text in record.notes)


def _figures(group: Group) -> Iterator[Markup]:
    finals, records = group.finals, group.records
    if finals:
        over = f"over {len(finals)} seed{'s' if len(finals) > 1 else ''}"
        name = f"evaluation return, interquartile mean {over}"
        small: str = ""
        if len(finals) >= MIN_SEEDS_OF_BAND:
            low, high = bootstrap_interval(finals)
            name += ", 95 % interval"
            small = element("small", f" {format_return(low)} to {format_return(high)}")
        yield key_figure(name, format_return(interquartile_mean(finals)), small, main=True)
        if len(finals) > 1:
            yield key_figure("lowest seed", format_return(min(finals)))
            yield key_figure("highest seed", format_return(max(finals)))
    yield key_figure("environment steps of a seed", format_number(float(group.results.budget)))
    if times := [t for r in records if (t := r.number("wall_time_s")) is not None]:
        yield key_figure("wall-clock time of a seed", format_duration(sum(times) / len(times)))
    if speeds := [v for r in records if (v := r.number("steps_per_second")) is not None]:
        yield key_figure("steps per second", format_number(sum(speeds) / len(speeds)))


def _results(groups: Sequence[Group]) -> Markup:
    return results_section([group.results for group in groups], _results_table(groups))


def _results_table(groups: Sequence[Group]) -> Markup:
    head = ["configuration", "task", "seeds", "interquartile mean", "95 % interval", "lowest"]
    head += ["highest", "steps", "time of a seed"]
    rows: list[list[Cell | str]] = []
    for group in groups:
        finals, results = group.finals, group.results
        mean = interquartile_mean(finals) if finals else None
        interval = "\u2013"
        if len(finals) >= MIN_SEEDS_OF_BAND:
            interval = " to ".join(map(format_return, bootstrap_interval(finals)))
        times = [t for r in group.records if (t := r.number("wall_time_s")) is not None]
        seconds = sum(times) / len(times) if times else None
        rows.append(
            [
                results.name,
                results.task,
                number_cell(float(len(finals)), 0),
                number_cell(mean),
                Cell(interval, mean),
                number_cell(min(finals, default=None)),
                number_cell(max(finals, default=None)),
                number_cell(float(results.budget), 0),
                Cell("\u2013" if seconds is None else format_duration(seconds), seconds),
            ]
        )
    return table(head, rows, numeric=2)


def _curves(groups: Sequence[Group], tasks: Sequence[str]) -> Iterator[Markup]:
    """A section with the learning curves in each task."""
    for task in tasks:
        found = [(m, _chart(groups, task, m)) for m in (EVAL, TRAINING)]
        drawn = [figure(chart, caption=readable(m)) for m, chart in found if chart]
        name = "Learning curves" if len(tasks) == 1 else f"Learning curves on {task}"
        yield section(name, *drawn)


def _chart(groups: Sequence[Group], task: str, metric: str) -> Chart | None:
    """The curves of a metric with bands over seeds, in one task."""
    drawn = [(g, g.with_metric(metric, POINTS)) for g in groups if g.results.task == task]
    # By their names: the task is what they share here.
    found = [replace(one, label=one.name) for _, one in drawn if one is not None]
    if not found:
        return None
    chart = chart_of(found, title=readable(metric))
    curves = iter(chart.curves)
    whole = tuple(next(curves) if one is not None else _empty_curve(g) for g, one in drawn)
    return replace(chart, curves=whole, y_label="")


def _small_chart(groups: Sequence[Group], metric: str) -> Chart:
    """A small chart: interquartile means, and the single seeds if there is only one group."""
    curves = []
    for group in groups:
        if (results := group.with_metric(metric, SMALL_POINTS)) is None:
            curves.append(_empty_curve(group))
            continue
        lines = [(np.asarray(s.steps, float), np.asarray(s.values)) for s in results.seeds]
        x, rows = shared_points(lines)
        alone = len(groups) == 1 and len(lines) > 1
        curves.append(
            Curve(
                label=group.results.name,
                x=tuple(x.tolist()),
                y=tuple(interquartile_means(rows).tolist()) if len(x) else (),
                single=tuple((s.steps, s.values) for s in results.seeds) if alone else (),
            )
        )
    return Chart(title=readable(metric), x_label="", y_label="", curves=tuple(curves))


def _empty_curve(group: Group) -> Curve:
    """Takes the place of a group without the metric, so that the others keep their colours."""
    return Curve(label=group.results.name, x=(), y=())


def _metrics(groups: Sequence[Group], tasks: Sequence[str]) -> Iterator[Markup]:
    """Small charts of all other metrics, one for each task."""
    names = dict.fromkeys(name for g in groups for r in g.records for name in r.series)
    left = [name for name in names if name not in (EVAL, TRAINING, "eval/return_std")]
    left.sort(key=lambda name: (name.startswith("train/"), *metric_order(name), name))
    shown = [
        (name, task)
        for task in tasks
        for name in left
        if _comparable(name, [group for group in groups if group.results.task == task])
    ]
    width, height = SMALL
    for name, task in shown[:MAX_CHARTS]:
        here = [group for group in groups if group.results.task == task]
        drawing = draw_chart(
            _small_chart(here, name), width=width, height=height, max_points=SMALL_POINTS
        )
        caption = readable(name) + (f", {task}" if len(tasks) > 1 else "")
        yield small_figure(caption, drawing)


def _comparable(name: str, groups: Sequence[Group]) -> bool:
    """Whether a metric changes and, of several groups, at least two have it."""
    if len(groups) > 1 and (name in TARGETS or any(word in name for word in SCHEDULES)):
        return False  # schedules follow from the settings; targets are drawn beside the Q-values
    have = [group for group in groups if any(name in r.series for r in group.records)]
    changed = any(not r.series[name].constant for g in have for r in g.records if name in r.series)
    return changed and len(have) >= min(2, len(groups))


def _seeds_table(groups: Sequence[Group]) -> Markup:
    several = len(groups) > 1
    head = [*(["configuration"] if several else []), "status", "run", "seed", "return"]
    head += ["\u00b1 over episodes", "steps", "time"]
    rows: list[list[Cell | str]] = []
    for group in groups:
        name: list[Cell | str] = [group.results.label] if several else []
        for record in group.records:
            info, seconds = record.info, record.number("wall_time_s")
            rows.append(
                [
                    *name,
                    info.status,
                    info.path.name,
                    number_cell(None if info.seed is None else float(info.seed), 0),
                    number_cell(record.number("eval_return_mean")),
                    number_cell(record.number("eval_return_std")),
                    number_cell(float(info.env_steps), 0),
                    Cell("\u2013" if seconds is None else format_duration(seconds), seconds),
                ]
            )
        if not group.records:
            rows += [[*name, *_row_of_card(seed)] for seed in group.results.seeds]
    shown = table(head, rows, numeric=len(head) - 5)
    if len(rows) <= MAX_ROWS:
        return shown
    return element("details", element("summary", f"all {len(rows)} seeds"), shown)


def _row_of_card(seed: SeedCurve) -> list[Cell | str]:
    steps = float(max(seed.steps, default=0))
    return [
        seed.status,
        "card",
        number_cell(float(seed.seed), 0),
        number_cell(seed.final),
        number_cell(None),
        number_cell(steps, 0),
        number_cell(None),
    ]


def _settings_table(groups: Sequence[Group]) -> Markup:
    """Settings that differ between the configurations, and from a default in at least one."""
    known = [group for group in groups if group.records]
    configs = [group.records[0].config for group in known]
    names = dict.fromkeys(setting.name for config in configs for setting in settings(config))
    values = [all_settings(config) for config in configs]
    rows = [
        [name, *(found.get(name, "\u2013") for found in values)]
        for name in names
        if len({found.get(name) for found in values}) > 1
    ]
    return table(["setting", *(group.results.label for group in known)], rows)


def _versions_table(groups: Sequence[Group]) -> Markup:
    rows = []
    for group in groups:
        for record in group.records[:1]:
            data = record.metadata
            packages = data.get("packages")
            versions = packages.items() if isinstance(packages, dict) else ()
            rows.append(
                [
                    group.results.label,
                    ", ".join(f"{str(k)[:50]} {str(v)[:50]}" for k, v in versions)[:1000],
                    _text(data, "package_git_commit")[:12],
                    _text(data, "device"),
                    _text(data, "resume_level"),
                ]
            )
    return table(["configuration", "packages", "commit", "device", "resume"], rows)


def _text(data: Mapping[str, Any], key: str) -> str:
    return str(data.get(key) or "\u2013")[:200]
