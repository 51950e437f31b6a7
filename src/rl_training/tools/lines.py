"""Lines of several seeds brought to common positions, and smoothed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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


def mean_of_latest(values: Sequence[float], count: int) -> np.ndarray:
    """Each value replaced by the mean of the latest `count`, at the start of as many as exist."""
    sums = np.concatenate([[0.0], np.cumsum(np.asarray(values, float))])
    ends = np.arange(1, len(sums))
    starts = np.maximum(ends - count, 0)
    means: np.ndarray = (sums[ends] - sums[starts]) / (ends - starts)
    return means
