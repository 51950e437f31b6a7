"""Callbacks: a small interface to watch a run, add to its log, or stop it.

    class StopWhenSolved(Callback):
        def on_evaluation(self, run, evaluation):
            if evaluation.mean >= 475:
                run.stop("solved")

Every method may be left out. `run` offers `config`, `env_steps`, `updates`, `log(name, value)`,
`stop(reason)`, `save()`, `evaluate(episodes)` and `best_return`. A callback with state of its own
gives it in `state_dict` (numbers, strings, lists, arrays, tensors), and gets it back on resume.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.runtime.evaluator import Evaluation
from rl_training.runtime.result import TrainResult

if TYPE_CHECKING:
    from rl_training.runtime.training_run import TrainingRun


class Callback:
    """Does nothing at each point of a run; override what you need."""

    def on_start(self, run: TrainingRun) -> None:
        """Before the first step, or the first after a resume."""

    def on_step(self, run: TrainingRun) -> None:
        """After each vector step and the updates it owed."""

    def on_log(self, run: TrainingRun, values: dict[str, float]) -> None:
        """At each log interval; values added here are written with the row."""

    def on_evaluation(self, run: TrainingRun, evaluation: Evaluation) -> None:
        """After each evaluation."""

    def on_checkpoint(self, run: TrainingRun, path: Path) -> None:
        """After a checkpoint was written."""

    def on_end(self, run: TrainingRun, result: TrainResult) -> None:
        """After the final evaluation, or when a signal or callback stopped the run."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must know."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""


class StopOnReturn(Callback):
    """Ends the run when the mean evaluation return reaches `threshold`."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def on_evaluation(self, run: TrainingRun, evaluation: Evaluation) -> None:
        """Stop if good enough."""
        if evaluation.mean >= self.threshold:
            run.stop(f"evaluation return {evaluation.mean:.1f} reached {self.threshold:.1f}")
