"""Statistics over seeds: interquartile means (Agarwal et al., 2021) and shares of failed seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

NORMAL_95 = 1.959963984540054  # the normal distribution's 97.5 % quantile


def interquartile_mean(values: Sequence[float] | np.ndarray) -> float:
    """Mean of the middle half: a quarter of the values, rounded down, is cut from each end."""
    return float(interquartile_means(np.asarray(values, float)[None])[0])


def bootstrap_interval(
    values: Sequence[float], *, confidence: float = 0.95, resamples: int = 10_000
) -> tuple[float, float]:
    """Percentile bootstrap interval of the interquartile mean; always the same for one input.

    The stratified bootstrap of Agarwal et al. draws the runs of each environment anew. The values
    here are the runs of one environment, so there is one stratum.
    """
    data = np.asarray(values, float)[None]
    low, high = bootstrap_intervals(data, confidence=confidence, resamples=resamples)
    return float(low[0]), float(high[0])


def bootstrap_intervals(
    rows: np.ndarray, *, confidence: float = 0.95, resamples: int = 2_000
) -> tuple[np.ndarray, np.ndarray]:
    """`bootstrap_interval` of each row `[rows, seeds]`, with the same resamples for all of them."""
    seeds = rows.shape[1]
    chosen = np.random.default_rng(0).integers(0, seeds, (resamples, seeds))
    tail = 100 * (1 - confidence) / 2
    ends = np.empty((2, len(rows)))
    for at, row in enumerate(rows):  # all at once would take gigabytes for long curves
        ends[:, at] = np.percentile(interquartile_means(row[chosen]), [tail, 100 - tail])
    return ends[0], ends[1]


def interquartile_means(rows: np.ndarray) -> np.ndarray:
    """`interquartile_mean` of each row."""
    cut = rows.shape[1] // 4
    means: np.ndarray = np.sort(rows, axis=1)[:, cut : rows.shape[1] - cut].mean(axis=1)
    return means


def share_interval(count: int, total: int) -> tuple[float, float]:
    """The 95 % interval for a share observed as `count` of `total` (Wilson, 1927).

    Unlike the usual mean plus or minus two deviations it has a width at 0 and at `total` too.
    """
    share, spread = count / total, NORMAL_95**2 / total
    middle = share + spread / 2
    half = math.sqrt(spread * (share * (1 - share) + spread / 4))
    return max(0.0, (middle - half) / (1 + spread)), min(1.0, (middle + half) / (1 + spread))


def more_failures_by_chance(failed: int, total: int, *, before: int, of: int) -> float:
    """How likely `failed` of `total` or more are by chance if both groups fail equally often.

    Fisher's exact test, one-sided: of all ways to share out the failures among the seeds of both
    groups, those that give the first group at least `failed`.
    """
    failures, seeds = failed + before, total + of
    ways = sum(
        math.comb(total, count) * math.comb(of, failures - count)
        for count in range(failed, min(total, failures) + 1)
    )
    return ways / math.comb(seeds, failures)
