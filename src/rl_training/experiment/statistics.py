"""Statistics over seeds: interquartile means (Agarwal et al., 2021) and shares of failed seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

NORMAL_95 = 1.959963984540054  # the normal distribution's 97.5 % quantile


def interquartile_mean(values: Sequence[float] | np.ndarray) -> float:
    """Mean of the middle half: a quarter of the values, rounded down, is cut from each end."""
    return float(_interquartile_means(np.asarray(values, float)[None])[0])


def bootstrap_interval(
    values: Sequence[float], *, confidence: float = 0.95, resamples: int = 10_000
) -> tuple[float, float]:
    """Percentile bootstrap interval of the interquartile mean; always the same for one input.

    The stratified bootstrap of Agarwal et al. draws the runs of each environment anew. The values
    here are the runs of one environment, so there is one stratum.
    """
    data = np.asarray(values, float)
    rng = np.random.default_rng(0)
    draws = data[rng.integers(0, len(data), (resamples, len(data)))]
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(_interquartile_means(draws), [tail, 100 - tail])
    return float(low), float(high)


def _interquartile_means(rows: np.ndarray) -> np.ndarray:
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
