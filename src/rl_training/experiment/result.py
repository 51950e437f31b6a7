"""What an experiment over many seeds gives back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rl_training.experiment.statistics import bootstrap_interval, interquartile_mean
from rl_training.storage.runs import MAX_NUMBER

MAX_SEEDS = 10_000


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
        return self.number("eval_return_mean")

    def number(self, name: str) -> float | None:
        """A number of the summary; None if it is missing or something else."""
        value = self.summary.get(name)
        finite = isinstance(value, int | float) and abs(value) < MAX_NUMBER
        return value if finite and not isinstance(value, bool) else None


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

    @property
    def left_out(self) -> tuple[SeedResult, ...]:
        """The seeds without a final evaluation, which no figure can cover."""
        return tuple(
            seed
            for seed in self.seeds
            if seed.status != "finished" or seed.eval_return_mean is None
        )

    @property
    def coverage(self) -> str:
        """Which seeds the figures are over: `over 5 seeds`, or of how many, and why not all."""
        if not self.left_out:
            return f"over {len(self.seeds)} seeds"
        missing = ", ".join(
            f"seed {seed.seed} {'without evaluation' if seed.status == 'finished' else seed.status}"
            for seed in self.left_out
        )
        return f"over {len(self.returns)} of {len(self.seeds)} seeds ({missing})"

    def figures(self) -> dict[str, Any]:
        """Mean, interquartile mean and its 95 % interval; empty if no seed has a result.

        `seeds_counted` of `seeds_planned` seeds are in them.
        """
        if not self.returns:
            return {}
        return {
            "mean": float(np.mean(self.returns)),
            "interquartile_mean": interquartile_mean(self.returns),
            "interval_95": list(bootstrap_interval(self.returns)),
            "seeds_counted": len(self.returns),
            "seeds_planned": len(self.seeds),
        }


class SeedProgress(NamedTuple):
    """How far a seed has come; `train_return` is the mean of its last 100 episodes."""

    seed: int
    status: str
    env_steps: int = 0
    train_return: float | None = None
    eval_return: float | None = None


class ExperimentInterrupted(KeyboardInterrupt):
    """A signal stopped the experiment after its seeds were saved."""

    def __init__(self, result: ExperimentResult, signal_number: int) -> None:
        super().__init__(f"interrupted by signal {signal_number}")
        self.result = result
        self.signal_number = signal_number
