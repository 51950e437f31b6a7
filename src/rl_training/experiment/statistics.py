"""Figures over seeds: the interquartile mean and its bootstrap interval (Agarwal et al., 2021)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


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
