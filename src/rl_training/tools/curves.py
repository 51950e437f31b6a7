"""Learning curves of results over seeds, as charts: interquartile means, bands, single seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from rl_training.errors import UsageError
from rl_training.experiment.statistics import bootstrap_intervals, interquartile_means
from rl_training.tools.charts import Chart, Curve
from rl_training.tools.results import RETURN, Results, SeedCurve

MIN_SEEDS_OF_BAND = 4
"""An interval over fewer seeds would be their range, drawn as if it were more."""
MAX_SEEDS_BESIDE_OTHERS = 10
"""With more, the single seeds of one result would cover those of another."""

Axis = Literal["steps", "time"]
Line = tuple[np.ndarray, np.ndarray]

_POINTS_OF_TIME = 200


def chart_of(
    results: Sequence[Results], x: Axis = "steps", smooth: int | None = None, title: str = ""
) -> Chart:
    """Interquartile means over seeds, with a band for 4 or more, and single seeds as thin lines.

    With `smooth`, the curve of every seed is first replaced by its moving average.
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
            moving_average(seed.values, smooth),
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


def shared_points(lines: Sequence[Line]) -> tuple[np.ndarray, np.ndarray]:
    """The positions common to all curves, and their values there `[positions, curves]`.

    Curves of several points that share fewer than two positions are interpolated, at every
    position of any of them within the range that all cover.
    """
    shared = lines[0][0]
    for at, _ in lines[1:]:
        shared = np.intersect1d(shared, at)
    if len(shared) < 2 and all(len(at) > 1 for at, _ in lines):
        return interpolated(lines)
    rows = [values[np.searchsorted(at, shared)] for at, values in lines]
    return shared, np.stack(rows, axis=1)


def interpolated(lines: Sequence[Line], points: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The curves interpolated linearly over the range that all of them cover.

    The positions are those of all curves, or `points` equally spaced ones.
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


def moving_average(values: Sequence[float], count: int) -> np.ndarray:
    """The mean of the latest `count` values, or of all so far where there are fewer."""
    sums = np.concatenate([[0.0], np.cumsum(np.asarray(values, float))])
    ends = np.arange(1, len(sums))
    starts = np.maximum(ends - count, 0)
    means: np.ndarray = (sums[ends] - sums[starts]) / (ends - starts)
    return means
