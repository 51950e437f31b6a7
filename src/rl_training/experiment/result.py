"""What an experiment over many seeds gives back, and the figures over seeds.

These are the interquartile mean and its bootstrap interval (Agarwal et al., 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class SeedResult:
    """One seed's outcome; `summary` is its summary.json, empty if there is none.

    `status` is finished, interrupted (it can be resumed), failed, running (in the hands of another
    process) or missing (nothing of it can be used).
    """

    seed: int
    status: str
    run_dir: Path | None
    summary: dict[str, Any]

    @property
    def eval_return_mean(self) -> float | None:
        """Mean evaluation return of the final policy."""
        return self.summary.get("eval_return_mean")


@dataclass(frozen=True)
class ExperimentResult:
    """All seeds of an experiment; the figures are over the per-seed means."""

    directory: Path
    seeds: tuple[SeedResult, ...]

    @property
    def returns(self) -> list[float]:
        """The mean evaluation return of each finished seed."""
        means = (seed.eval_return_mean for seed in self.seeds if seed.status == "finished")
        return [mean for mean in means if mean is not None]

    def figures(self) -> dict[str, Any]:
        """Mean, interquartile mean and its 95 % interval; empty if no seed has a result."""
        if not self.returns:
            return {}
        return {
            "mean": float(np.mean(self.returns)),
            "interquartile_mean": interquartile_mean(self.returns),
            "interval_95": list(bootstrap_interval(self.returns)),
        }


class ExperimentInterrupted(KeyboardInterrupt):
    """A signal stopped the experiment after its seeds were saved."""

    def __init__(self, result: ExperimentResult, signal_number: int) -> None:
        super().__init__(f"interrupted by signal {signal_number}")
        self.result = result
        self.signal_number = signal_number


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
