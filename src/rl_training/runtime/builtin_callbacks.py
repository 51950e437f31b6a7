"""The callbacks every run has: logging, evaluation and checkpoints at their intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rl_training.runtime.callbacks import Callback
from rl_training.runtime.progress import Every

if TYPE_CHECKING:
    from rl_training.runtime.training_run import TrainingRun


class Periodic(Callback):
    """Acts when the environment transitions pass a multiple of an interval."""

    def __init__(self, interval: int) -> None:
        self._every = Every(interval)

    def on_start(self, run: TrainingRun) -> None:
        """Count from where the run stands, so a resumed run keeps its rhythm."""
        if self._every.interval:
            self._every.passed = run.env_steps // self._every.interval

    def on_step(self, run: TrainingRun) -> None:
        """Act if an interval has passed."""
        if self._every.due(run.env_steps):
            self.act(run)

    def act(self, run: TrainingRun) -> None:
        """What is done at each interval."""


class LogMetrics(Periodic):
    """Writes a log row: the one place where training waits for the device."""

    def act(self, run: TrainingRun) -> None:
        """Collect the values, let callbacks add theirs, write them."""
        values = run.check_finite()
        for name, value in run.algorithm.schedules(run.progress.moment).items():
            values[f"train/{name}"] = value
        if episodes := run.collector.episodes:
            values["rollout/episode_return"] = float(np.mean([e.episode_return for e in episodes]))
            values["rollout/episode_length"] = float(np.mean([e.length for e in episodes]))
        values["time/steps_per_second"] = run.steps_per_second
        values |= run.extra_values
        run.extra_values.clear()
        for callback in run.callbacks:
            callback.on_log(run, values)
        run.metrics_log.write(run.env_steps, values)


class Evaluate(Periodic):
    """Evaluates the policy; the end of the run has an evaluation of its own.

    An evaluation that a signal broke off is made up for when the run is resumed.
    """

    def __init__(self, interval: int) -> None:
        super().__init__(interval)
        self._missed = False

    def on_start(self, run: TrainingRun) -> None:
        """Make up for a missed evaluation."""
        super().on_start(run)
        if self._missed:
            self.act(run)

    def act(self, run: TrainingRun) -> None:
        """Evaluate unless the run is over."""
        if not run.progress.finished:
            self._missed = run.evaluate() is None

    def state_dict(self) -> dict[str, Any]:
        """Whether an evaluation is owed."""
        return {"missed": True} if self._missed else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the debt."""
        self._missed = state["missed"]


class SaveCheckpoint(Periodic):
    """Saves the run; the end of the run has a checkpoint of its own."""

    def act(self, run: TrainingRun) -> None:
        """Save unless the run is over; where environments cannot be saved, cut their episodes."""
        if run.progress.finished:
            return
        if run.level == "boundary":
            run.cut_episodes()
        run.save(episodes_cut=run.level == "boundary")
