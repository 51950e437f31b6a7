"""Statistics over seeds: interquartile means (Agarwal et al., 2021) and shares of failed seeds.

Algorithms to be compared are given as the values of their seeds, a sequence for each task. The
bootstrap is plain for one task and stratified for several: the seeds of each task are resampled
separately, and every task has the same weight. Random numbers are seeded, so that equal values give
equal figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

NORMAL_95 = 1.959963984540054  # the normal distribution's 97.5 % quantile
RESAMPLES = 10_000
SIGNIFICANCE, POWER = 0.05, 0.8
"""Level and power of the test that tells two algorithms apart."""
FEWEST_SEEDS, MAX_SEEDS_ADVISED = 4, 1_000
"""With three seeds each no test tells two algorithms apart at that level."""

Tasks = Sequence[Sequence[float] | np.ndarray]


class Estimate(NamedTuple):
    """A figure and the ends of its 95 % interval."""

    value: float
    low: float
    high: float


def interquartile_mean(values: Sequence[float] | np.ndarray) -> float:
    """Mean of the middle half: a quarter of the values, rounded down, is cut from each end."""
    return float(interquartile_means(np.asarray(values, float)[None])[0])


def bootstrap_interval(
    values: Sequence[float], *, confidence: float = 0.95, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """Percentile bootstrap interval of the interquartile mean; always the same for one input."""
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


def stratified_interquartile_mean(scores: Tasks) -> Estimate:
    """Interquartile mean over the seeds of all tasks together, which must be on one scale.

    As Agarwal et al. define it, for the same number of seeds in every task.
    """
    draws = np.concatenate(_resampled(scores, np.random.default_rng(0)), axis=1)
    return _estimate(interquartile_mean(np.concatenate(scores)), interquartile_means(draws))


def difference_of_interquartile_means(first: Tasks, second: Tasks) -> Estimate:
    """How much higher the first is; the seeds of both are resampled independently.

    Over several tasks it is that of `stratified_interquartile_mean`.
    """
    rng = np.random.default_rng(0)
    drawn = [np.concatenate(_resampled(scores, rng), axis=1) for scores in (first, second)]
    value = interquartile_mean(np.concatenate(first)) - interquartile_mean(np.concatenate(second))
    return _estimate(value, interquartile_means(drawn[0]) - interquartile_means(drawn[1]))


def probability_of_improvement(first: Tasks, second: Tasks) -> Estimate:
    """How often a seed of the first is better than one of the second, equals counted half.

    It is Mann and Whitney's U divided by the number of pairs; over tasks, the mean.
    """
    rng = np.random.default_rng(0)
    values, draws = [], []
    for a, b in zip(first, second, strict=True):
        wins = _wins(np.asarray(a, float), np.asarray(b, float))
        values.append(wins.mean())
        # A resample is given by how often each seed was drawn.
        drawn = [rng.multinomial(n, np.full(n, 1 / n), RESAMPLES) for n in wins.shape]
        draws.append(((drawn[0] @ wins) * drawn[1]).sum(axis=1) / wins.size)
    return _estimate(float(np.mean(values)), np.mean(draws, axis=0))


def mann_whitney_p(first: Tasks, second: Tasks) -> float:
    """The two-sided p-value of Mann and Whitney's test that neither is better than the other.

    By the normal approximation with corrections for ties and continuity; over tasks, of the mean
    of their statistics. The approximation is of use from 4 seeds each.
    """
    excess, correction, variance = 0.0, 0.0, 0.0
    for a, b in zip(first, second, strict=True):
        wins = _wins(np.asarray(a, float), np.asarray(b, float))
        n, m = wins.shape
        ties = np.unique(np.concatenate([a, b]), return_counts=True)[1]
        excess += wins.mean() - 0.5
        correction += 0.5 / (n * m)
        variance += float(_variance_of_share(n, m, ties[None])[0])
    if variance <= 0:  # all values are the same
        return 1.0
    z = max(0.0, abs(excess) - correction) / math.sqrt(variance)
    return 2 * NormalDist().cdf(-z)


def seeds_to_tell_apart(
    first: Tasks, second: Tasks, *, more_than: int = 0, experiments: int = 1_000
) -> int | None:
    """How many seeds each algorithm would need for a Mann-Whitney test to tell the two apart.

    For a number of seeds, `experiments` draw that many from the observed values of each task and
    algorithm; it is enough if 80 % of them come to a p-value below 0.05, with the sign observed.
    That takes the observed values as typical, so it is an estimate of the order of magnitude. It
    is more than `more_than`; None if more than 1,000 would be needed, or no number would do.
    """
    pairs = [
        (np.asarray(a, float), np.asarray(b, float)) for a, b in zip(first, second, strict=True)
    ]
    excess = sum(float(_wins(a, b).mean()) - 0.5 for a, b in pairs)
    if excess == 0:
        return None
    if excess < 0:
        pairs = [(b, a) for a, b in pairs]

    def enough(seeds: int) -> bool:
        return _power(pairs, seeds, experiments) >= POWER

    low = max(FEWEST_SEEDS - 1, more_than)
    high = low + 1
    while not enough(high):
        if high >= MAX_SEEDS_ADVISED:
            return None
        low, high = high, min(2 * high, MAX_SEEDS_ADVISED)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _power(pairs: Sequence[tuple[np.ndarray, np.ndarray]], seeds: int, experiments: int) -> float:
    """The share of simulated experiments in which the first of each pair proves better."""
    rng = np.random.default_rng(0)
    excess, variance = np.zeros(experiments), np.zeros(experiments)
    for a, b in pairs:
        drawn = [rng.multinomial(seeds, np.full(n, 1 / n), experiments) for n in (len(a), len(b))]
        excess += ((drawn[0] @ _wins(a, b)) * drawn[1]).sum(axis=1) / seeds**2 - 0.5
        # Equal values are ties wherever they came from, and so is a value drawn twice.
        values = np.concatenate([a, b])
        starts = np.unique(np.sort(values), return_index=True)[1]
        counts = np.concatenate(drawn, axis=1)[:, np.argsort(values, kind="stable")]
        variance += _variance_of_share(seeds, seeds, np.add.reduceat(counts, starts, axis=1))
    critical = NormalDist().inv_cdf(1 - SIGNIFICANCE / 2)
    correction = len(pairs) * 0.5 / seeds**2
    return float(np.mean(excess - correction > critical * np.sqrt(np.maximum(variance, 0))))


def performance_profile(scores: Tasks, thresholds: Sequence[float] | np.ndarray) -> np.ndarray:
    """The share of seeds with a score above each threshold; over tasks, the mean of their shares.

    `[3, thresholds]`: the shares, and the low and high ends of their 95 % intervals.
    """
    levels = np.asarray(thresholds, float)
    rng = np.random.default_rng(0)
    shares, draws = [], []
    for task in scores:
        above = np.asarray(task, float)[:, None] > levels
        n = len(above)
        shares.append(above.mean(axis=0))
        draws.append(rng.multinomial(n, np.full(n, 1 / n), 2_000) @ above / n)
    low, high = np.percentile(np.mean(draws, axis=0), [2.5, 97.5], axis=0)
    return np.stack([np.mean(shares, axis=0), low, high])


def steps_to_threshold(
    steps: Sequence[int], values: Sequence[float], threshold: float
) -> int | None:
    """The first step at which the value was at least the threshold; None if it never was.

    It may have been reached any time since the previous measurement.
    """
    return next((at for at, value in zip(steps, values, strict=True) if value >= threshold), None)


def median_steps(reached: Iterable[int | None]) -> Estimate:
    """The median over seeds; those that never reached the threshold count as infinitely late.

    It is infinite if half of the seeds never did, and an end of its interval if half of a resample
    never did: they would take longer than their budget.
    """
    at = np.array([math.inf if step is None else step for step in reached])
    draws = np.sort(at[np.random.default_rng(0).integers(0, len(at), (RESAMPLES, len(at)))])
    middle = draws[:, [(len(at) - 1) // 2, len(at) // 2]].mean(axis=1)
    # Without interpolation, which between a number and infinity is neither.
    low, high = np.percentile(middle, [2.5, 97.5], method="inverted_cdf")
    return Estimate(float(np.median(at)), float(low), float(high))


def _wins(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """For each pair 1 if the first is better, 0.5 if both are equal, else 0."""
    wins: np.ndarray = (first[:, None] > second) + 0.5 * (first[:, None] == second)
    return wins


def _variance_of_share(n: int, m: int, counts: np.ndarray) -> np.ndarray:
    """The variance of U / (n m) if both are equal, given how often each value occurs `[..., V]`."""
    total = n + m
    times = counts.astype(float)
    ties = (times**3 - times).sum(axis=-1)
    variance: np.ndarray = (total + 1 - ties / (total * (total - 1))) / (12 * n * m)
    return variance


def _resampled(tasks: Tasks, rng: np.random.Generator) -> list[np.ndarray]:
    """Resamples `[resamples, seeds]` of each task."""
    arrays = [np.asarray(task, float) for task in tasks]
    return [data[rng.integers(0, len(data), (RESAMPLES, len(data)))] for data in arrays]


def _estimate(value: float, draws: np.ndarray) -> Estimate:
    low, high = np.percentile(draws, [2.5, 97.5])
    return Estimate(value, float(low), float(high))
