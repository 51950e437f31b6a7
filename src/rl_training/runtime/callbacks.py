"""Callbacks: a small interface to watch a run, add to its log, or stop it.

    class StopWhenSolved(Callback):
        def on_evaluation(self, run, evaluation):
            if evaluation.mean >= 475:
                run.stop("solved")

Every method may be left out. `run` offers `config`, `env_steps`, `updates`, `log(name, value)`,
`stop(reason)`, `save()`, `evaluate(episodes)` and `best_return`. A callback with state names
its attributes in `state_fields`, or gives the state in `state_dict` and takes it back, on resume,
in `load_state_dict`: numbers, text, arrays, tensors, and containers of them.

The interface comes first, then the callbacks that a configuration can name, then those that every
run has: logging, evaluation and checkpoints at their intervals.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from rl_training.config.imports import import_factory
from rl_training.envs.contract import leaf_problems
from rl_training.errors import ConfigError, RLTrainingError, UsageError, did_you_mean
from rl_training.runtime.episodes import ENDLESS
from rl_training.runtime.evaluator import Evaluation
from rl_training.runtime.progress import Every
from rl_training.runtime.result import TrainResult
from rl_training.storage.state import Stateful

if TYPE_CHECKING:
    from rl_training.runtime.training_run import TrainingRun

logger = logging.getLogger("rl_training")


class Callback(Stateful):
    """Does nothing at each point of a run; override what you need."""

    def on_start(self, run: TrainingRun) -> None:
        """Before the first step, or the first after a resume."""

    def on_step(self, run: TrainingRun) -> None:
        """After each vector step and the updates it owed."""

    def on_log(self, run: TrainingRun, values: dict[str, float]) -> None:
        """At each log interval; values added here are written with the row."""

    def on_evaluation_start(self, run: TrainingRun) -> None:
        """Before each evaluation."""

    def on_evaluation(self, run: TrainingRun, evaluation: Evaluation) -> None:
        """After each evaluation, the first before training; not after an interrupted one."""

    def on_checkpoint(self, run: TrainingRun, path: Path) -> None:
        """When a checkpoint is there: one of an interval some steps after those it holds."""

    def on_end(self, run: TrainingRun, result: TrainResult) -> None:
        """After the final evaluation, or when a signal or callback stopped the run."""


class StopOnReturn(Callback):
    """Ends the run when the mean evaluation return reaches `threshold`."""

    def __init__(self, threshold: float) -> None:
        if isinstance(threshold, bool) or not isinstance(threshold, int | float):
            raise ValueError(f"threshold: expected a number, found {threshold!r}")
        self.threshold = threshold

    def on_evaluation(self, run: TrainingRun, evaluation: Evaluation) -> None:
        """Compare the mean with the threshold."""
        if evaluation.mean >= self.threshold:
            run.stop(f"evaluation return {evaluation.mean:.1f} reached {self.threshold:.1f}")


# By import path: QBias and Video know algorithms, which nothing here may import.
PACKAGED = {
    "QBias": "rl_training.tools.q_bias:QBias",
    "StopOnReturn": "rl_training.runtime.callbacks:StopOnReturn",
    "Video": "rl_training.tools.video:Video",
}


def configured_callbacks(
    entries: Sequence[str | Mapping[str, Mapping[str, Any]]],
) -> list[Callback]:
    """The callbacks of a configuration's key `callbacks`: a name each, or {name: arguments}."""
    return [
        _build(entry, {}) if isinstance(entry, str) else _build(*next(iter(entry.items())))
        for entry in entries
    ]


def checked_callbacks(callbacks: object) -> Sequence[Callback]:
    """The callbacks, if they are a list of such objects."""
    if isinstance(callbacks, Sequence) and all(isinstance(c, Callback) for c in callbacks):
        return callbacks
    raise UsageError(
        f"callbacks: expected a list of Callback objects such as [MyCallback()], found {callbacks}"
    )


def _build(name: str, arguments: Mapping[str, Any]) -> Callback:
    if name not in PACKAGED and ":" not in name:
        raise ConfigError(
            f"callbacks: expected {', '.join(PACKAGED)} or package.module:Class, found {name!r}"
            f"{did_you_mean(name, PACKAGED)}"
        )
    make = import_factory("callbacks", PACKAGED.get(name, name), Callback)
    try:
        callback = make(**arguments)
    except RLTrainingError:
        raise
    except Exception as error:
        raise ConfigError(
            f"callbacks: {name} with arguments {dict(arguments)} cannot be made: {error}"
        ) from error
    if not isinstance(callback, Callback):
        raise ConfigError(
            f"callbacks: {name} made a {type(callback).__name__}, not an rl_training.Callback"
        )
    return callback


class Periodic(Callback):
    """Acts when the environment transitions pass a multiple of an interval."""

    def __init__(self, interval: int) -> None:
        self._every = Every(interval)

    def on_start(self, run: TrainingRun) -> None:
        """Count from the run's step, so that a resumed run keeps its rhythm."""
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

    def __init__(self, interval: int) -> None:
        super().__init__(interval)
        self._warned = self._warned_of_bounds = False

    def act(self, run: TrainingRun) -> None:
        """Collect the values, let callbacks add theirs, write them."""
        self._warn_of_endless(run)
        self._warn_of_bounds(run)
        values = run.check_finite()
        for name, value in run.algorithm.schedules(run.progress.clock).items():
            values[f"train/{name}"] = value
        if episodes := run.collector.episodes:
            values["rollout/episode_return"] = float(np.mean([e.episode_return for e in episodes]))
            values["rollout/episode_length"] = float(np.mean([e.length for e in episodes]))
        values["time/steps_per_second"] = run.steps_per_second
        values |= run.extra_values
        run.extra_values.clear()
        for callback in run.callbacks:
            callback.on_log(run, values)
        run.write_row(values)

    def _warn_of_endless(self, run: TrainingRun) -> None:
        # Here, as it would cost something at each step.
        length = run.collector.longest_episode
        if length > run.config.max_eval_steps and not self._warned:
            self._warned = True
            name = run.agent.adapter.spec.env_id
            logger.warning(
                "%s: a training episode has not ended after %d steps; %s", name, length, ENDLESS
            )

    def _warn_of_bounds(self, run: TrainingRun) -> None:
        # Here for the same reason: of what is at hand, the latest batch and observations.
        if not self._warned_of_bounds and (problem := out_of_bounds(run)):
            self._warned_of_bounds = True
            name = run.agent.adapter.spec.env_id
            logger.warning("%s: %s; correct the space, or the environment", name, problem)


def out_of_bounds(run: TrainingRun) -> str:
    """An observation of the latest batch or step that its space excludes, in words; or empty."""
    space = run.agent.adapter.observation
    rows = [run.collector.position()[0]]
    batch = getattr(run.batch, "obs", None)
    if batch is not None and not run.config.normalize_observations:
        rows.append(np.asarray(batch.cpu()))
    for obs in rows:
        if not isinstance(space, spaces.Box) or obs.dtype.kind != "f":
            continue
        if obs.size % max(1, space.low.size):
            continue  # encoded in another form
        flat, bounds = obs.reshape(-1, space.low.size), (space.low.ravel(), space.high.ravel())
        outside = ((flat < bounds[0]) | (flat > bounds[1])).any(1)
        for row in flat[outside][:1]:
            for problem in leaf_problems(space, row.reshape(space.shape).astype(space.dtype)):
                if problem.topic == "ranges":
                    return f"observation{problem.text}"
    return ""


class Evaluate(Periodic):
    """Evaluates before the first step and at each interval; the final evaluation is `train`'s.

    An evaluation that a signal interrupted is repeated when the run is resumed.
    """

    state_fields = ("_missed",)

    def __init__(self, interval: int) -> None:
        super().__init__(interval)
        self._missed = interval > 0  # that of the policy the run begins with

    def on_start(self, run: TrainingRun) -> None:
        """Evaluate what the run begins with, or make up for a missed evaluation."""
        super().on_start(run)
        if self._missed:
            self.act(run)

    def act(self, run: TrainingRun) -> None:
        """Evaluate unless the run is over."""
        if not run.progress.complete:
            self._missed = False  # also in a checkpoint that a callback saves meanwhile
            try:
                self._missed = run.evaluate() is None
            except BaseException:
                self._missed = True  # for the checkpoint that is saved after a failure
                raise


class SaveCheckpoint(Periodic):
    """Saves in the background at each interval, and when some minutes passed without a checkpoint.

    The final checkpoint is `train`'s. When one is due by steps while another is being written, the
    run waits for that; by time, it is saved after it.
    """

    def __init__(self, interval: int, minutes: float = 0.0) -> None:
        super().__init__(interval)
        self._seconds = 60 * minutes or math.inf
        self._due_at = math.inf

    def on_start(self, run: TrainingRun) -> None:
        """Begin to count."""
        super().on_start(run)
        self._due_at = time.monotonic() + self._seconds

    def on_checkpoint(self, run: TrainingRun, path: Path) -> None:  # noqa: ARG002
        """Count again from any checkpoint."""
        self._due_at = time.monotonic() + self._seconds

    def on_step(self, run: TrainingRun) -> None:
        """Act if an interval has passed, or save if enough time has."""
        super().on_step(run)
        if time.monotonic() >= self._due_at and not (run.progress.finished or run.saving):
            self._due_at = time.monotonic() + self._seconds  # also if it fails
            # Episodes are not cut here: what is learned would depend on the clock.
            run.begin_saving()

    def act(self, run: TrainingRun) -> None:
        """Save unless the run is over; where environments cannot be saved, cut their episodes."""
        if run.progress.complete:
            return
        if run.level == "boundary":
            run.cut_episodes()
        run.begin_saving(episodes_cut=run.level == "boundary")
