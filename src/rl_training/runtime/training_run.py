"""A run in progress: its parts, its progress, and what callbacks may ask of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from gymnasium.vector import VectorEnv

from rl_training.algorithms.base import ActResult, Algorithm, UpdateResult
from rl_training.config.train_config import TrainConfig
from rl_training.data.metrics import RecentMetrics
from rl_training.data.types import Clock, PolicyState
from rl_training.envs.snapshots.classes import SnapshotUnavailable
from rl_training.envs.snapshots.vector import Level
from rl_training.errors import DivergenceError, NonFiniteError, SaveError
from rl_training.runtime.agent import Agent
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import Collector
from rl_training.runtime.divergence import batch_tensors, non_finite, write_dump
from rl_training.runtime.evaluator import Evaluation, EvaluationStopped, Evaluator
from rl_training.runtime.process import Interrupts
from rl_training.runtime.progress import Progress, Speed
from rl_training.runtime.resume import checkpoint_info, checkpoint_parts
from rl_training.runtime.seeding import (
    derive_seed,
    env_seeds,
    global_generator_state,
    global_generators_seeded,
    restore_global_generators,
)
from rl_training.runtime.transcript import Start
from rl_training.storage.checkpoint_writer import CheckpointContent, CheckpointWriter, Written
from rl_training.storage.checkpoints import prune, write_checkpoint
from rl_training.storage.checks import saved_number
from rl_training.storage.files import read_json_object, write_json
from rl_training.storage.metrics_log import MetricsLog
from rl_training.storage.runs import CHECKPOINTS_DIR_NAME
from rl_training.storage.state import Stateful

if TYPE_CHECKING:
    from rl_training.runtime.warm_start import WarmStart

logger = logging.getLogger("rl_training")


@dataclass(kw_only=True)
class TrainingRun(Stateful):
    """Everything one run consists of; the loops and callbacks see only this.

    Its state is where the loop stands; the agent, the replay memory, the environments and the
    callbacks are saved beside it (`runtime.resume`).
    """

    state_fields = (
        "progress",
        "collector",
        "extra_values",
        "recent_metrics",
        "best_return",
        "elapsed",
    )

    config: TrainConfig
    hyper: Any
    directory: Path
    agent: Agent
    collector: Collector
    buffer: Any
    progress: Progress
    evaluator: Evaluator | None
    metrics_log: MetricsLog
    callbacks: Sequence[Callback]
    level: Level
    level_reason: str
    interrupts: Interrupts
    make_envs: Callable[[], VectorEnv[Any, Any, Any]]
    reset_seeds: list[int]
    build_seed: int
    versions: Mapping[str, str] = field(default_factory=dict)
    exact_so_far: bool = True
    best_return: float | None = None
    last_evaluation: Evaluation | None = None
    last_evaluation_at: int | None = None
    stop_reason: str | None = None
    checkpoint_path: Path | None = None
    saved_at: int | None = None
    started_at: float = field(default_factory=time.monotonic)
    speed: Speed = field(default_factory=Speed)
    extra_values: dict[str, float] = field(default_factory=dict)
    recent_metrics: RecentMetrics = field(default_factory=RecentMetrics)
    batch: Any = None  # of the latest update
    diverged: bool = False
    learning_failed: bool = False
    start: WarmStart | None = None  # what the run began with, in the session that began it
    writer: CheckpointWriter = field(init=False)

    def __post_init__(self) -> None:
        folder = self.directory / CHECKPOINTS_DIR_NAME
        self.writer = CheckpointWriter(folder, keep=self.config.keep_checkpoints)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over where the loop of a run stood."""
        super().load_state_dict(state)
        for name in self.extra_values:
            saved_number(self.extra_values, name)
        if self.best_return is not None:
            self.best_return = saved_number(state, "best_return")
        saved_number(state, "elapsed")

    # What callbacks use.

    @property
    def env_steps(self) -> int:
        """Environment transitions, those of earlier sessions included."""
        return self.progress.env_steps

    @property
    def updates(self) -> int:
        """Updates, those of earlier sessions included; gradient steps if on-policy."""
        return self.progress.updates

    @property
    def elapsed(self) -> float:
        """Seconds of wall-clock time spent on this run, earlier sessions included."""
        return time.monotonic() - self.started_at

    @elapsed.setter
    def elapsed(self, seconds: float) -> None:
        self.started_at = time.monotonic() - seconds

    @property
    def steps_per_second(self) -> float:
        """Environment transitions per second over the last few seconds."""
        return self.speed.measure(self.env_steps)

    def log(self, name: str, value: float) -> None:
        """Add a value to the next log row."""
        self.extra_values[name] = float(value)

    def log_evaluation(self, values: Mapping[str, float]) -> None:
        """Log values that belong to this evaluation, as `eval/...`; evidence cards keep them."""
        self.write_row({f"eval/{name}": float(value) for name, value in values.items()})

    def stop(self, reason: str) -> None:
        """End the run after the current step; it counts as finished."""
        if not self.progress.complete:
            self.stop_reason = reason

    def evaluate(
        self, episodes: int | None = None, *, keep_best: bool = True, final: bool = False
    ) -> Evaluation | None:
        """Evaluate the current policy, and keep it if it is the best; None if a signal came.

        However many episodes are played, the curve and the best policy go by the first
        `eval_episodes` of them, which are the same in every evaluation. What a `final` evaluation
        measured over all of its episodes is logged as `eval/final_...`.
        """
        if self.evaluator is None:
            return None
        self.agent.clock = self.progress.clock
        for callback in self.callbacks:
            callback.on_evaluation_start(self)
        generators = global_generator_state()
        try:
            evaluation = self.evaluator.evaluate(
                self.agent.greedy,
                self.algorithm.initial_state,
                episodes=episodes or self.config.eval_episodes,
                seed=evaluation_seed(self.config.seed),
                stopped=lambda: self.interrupts.received is not None,
            )
        except EvaluationStopped:
            return None
        finally:
            # An environment that draws from the global generators must not disturb training.
            restore_global_generators(generators)
        self.last_evaluation, self.last_evaluation_at = evaluation, self.env_steps
        point = evaluation.first(self.config.eval_episodes)
        if keep_best and (self.best_return is None or point.mean > self.best_return):
            self.best_return = point.mean
            self.finish_saving()  # one writer at a time; its error is not that of an optional copy
            with self.save_errors("the best policy", optional=True):
                self._save_best(point)
        self.write_row(_returns("eval/", point) | _returns("eval/final_", evaluation, only=final))
        for callback in self.callbacks:
            callback.on_evaluation(self, evaluation)
        return evaluation

    def save(self, *, episodes_cut: bool = False) -> Path:
        """Write a checkpoint from which the run can be resumed; it is there when this returns.

        At level `boundary` that is exact only where episodes were cut for it.
        """
        self.finish_saving()
        return self._saved(self.writer.write(self._checkpoint(episodes_cut=episodes_cut)))

    def save_after_failure(self) -> Path | None:
        """Save what was learned when something else failed, without the environments' state.

        None if learning itself failed: earlier checkpoints are worth more than one at that point.
        """
        self.finish_saving()
        if self.saved_at == self.env_steps:
            return self.checkpoint_path
        if self.learning_failed or self.owes_updates:
            return None
        try:
            return self._saved(self.writer.write(self._checkpoint(with_envs=False)))
        except NonFiniteError:
            return None

    def _checkpoint(
        self, *, with_envs: bool = True, episodes_cut: bool = False
    ) -> CheckpointContent:
        """What the writer needs of this moment."""
        parts = checkpoint_parts(self, with_envs=with_envs)  # may lower the level
        exact = self.level == "exact" or (self.level == "boundary" and episodes_cut)
        self.check_finite()
        info = checkpoint_info(self, exact=exact and with_envs and self.exact_so_far)
        return CheckpointContent(self.env_steps, parts, info)

    def _saved(self, written: Written) -> Path:
        self.checkpoint_path, self.saved_at = written
        for callback in self.callbacks:
            callback.on_checkpoint(self, written.path)
        return written.path

    # What the loops use.

    @property
    def algorithm(self) -> Algorithm:
        """What is being trained."""
        return self.agent.algorithm

    @property
    def active(self) -> bool:
        """Whether the loop continues: steps left to do, no stop, no signal."""
        return not (self.progress.finished or self.stop_reason or self.interrupts.received)

    @property
    def paused(self) -> bool:
        """Whether the session has ended before the run: the next one goes on."""
        progress = self.progress
        return progress.finished and not (progress.complete or self.stop_reason)

    @property
    def owes_updates(self) -> bool:
        """Whether updates of the present step are missing, as between steps none are."""
        by_ratio = self.agent.spec.loop.replay_ratio(self.hyper)
        return bool(by_ratio and self.progress.updates_owed())

    def explore(
        self,
        obs: np.ndarray,
        state: PolicyState,
        first: np.ndarray,
        legal: np.ndarray | None = None,
    ) -> ActResult:
        """Actions for collecting experience."""
        self.agent.clock = self.progress.clock
        return self.agent.act(obs, state, first, legal, explore=True)

    def update(self, batch: Any, clock: Clock) -> UpdateResult:
        """One update of the algorithm; raises DivergenceError at the first value not finite."""
        self.batch = batch
        try:
            result = self.algorithm.update(batch, clock)
        except DivergenceError as error:
            self._raise_divergence(str(error))
        except Exception:  # half an update may have been made
            self.learning_failed = True
            raise
        self.progress.updates += result.gradient_steps
        if not self.recent_metrics.add(result.metrics):
            self.check_finite()
        return result

    def after_step(self) -> None:
        """Call `on_step` of every callback."""
        if self.writer.finished:
            self.finish_saving()
        for callback in self.callbacks:
            callback.on_step(self)

    # What the built-in callbacks and `train` use.

    def begin_saving(self, *, episodes_cut: bool = False) -> None:
        """Save as `save` does, but written in the background while the run goes on."""
        self.finish_saving()
        with self.save_errors("the checkpoint"):
            self.writer.begin(self._checkpoint(episodes_cut=episodes_cut))

    @property
    def saving(self) -> bool:
        """Whether a checkpoint is being written in the background."""
        return self.writer.busy

    def finish_saving(self) -> None:
        """Wait for the checkpoint in progress, if any.

        What kept it from being written is raised, or warned of with `on_save_error: warn`.
        """
        with self.save_errors("the checkpoint"):
            written = self.writer.wait()
            if written is not None:
                self._saved(written)

    def check_finite(self) -> dict[str, float]:
        """Mean metrics of the recent updates; raises if one, or a weight, is not finite."""
        values = self.recent_metrics.means()
        for name, value in values.items():
            if not np.isfinite(value):
                self._raise_divergence(f"training metric {name!r}")
        for part, network in self.algorithm.networks().items():
            if (weight := non_finite(dict(network.named_parameters()))) is not None:
                self._raise_divergence(f"weight {part}.{weight}")
        return {f"train/{name}": value for name, value in values.items()}

    def write_row(self, values: Mapping[str, Any]) -> None:
        """Write a row of the log."""
        with self.save_errors("a row of the log"):
            self.metrics_log.write(self.env_steps, values)

    @contextmanager
    def save_errors(self, what: str, *, optional: bool = False) -> Iterator[None]:
        """Turns a SaveError into a warning if `on_save_error` or being optional allows it."""
        try:
            yield
        except SaveError as error:
            if self.config.on_save_error == "stop" and not optional:
                raise
            logger.warning("step %d: %s was not saved: %s", self.env_steps, what, error)

    def lower_level(self, reason: str) -> None:
        """The environments can no longer be resumed exactly: say so, also in the run's record."""
        logger.warning("resume level: now statistical, it was %s (%s)", self.level, reason)
        self.level, self.level_reason = "statistical", reason
        self.collector.transcript.begin(None)
        path = self.directory / "metadata.json"
        with self.save_errors("the resume level"):
            record = read_json_object(path)
            write_json(path, record | {"resume_level": self.level, "resume_level_reason": reason})

    def cut_episodes(self) -> None:
        """Begin new episodes everywhere, with seeds that depend on the step alone.

        At level `boundary` that is in new environments: what is left of earlier episodes after a
        reset, such as the order of a simulator's contacts, would be missing in a resumed run.
        """
        self.collector.finished_transcript()  # the next checkpoint holds what led up to it
        num_envs = self.collector.num_envs
        self.reset_seeds = env_seeds(self.config.seed, num_envs, "cut", self.env_steps)
        if self.level == "boundary":
            self.build_seed = derive_seed(self.config.seed, "build", self.env_steps)
        with global_generators_seeded(self.build_seed):
            if self.level == "boundary":
                self.collector.replace_envs(self.make_envs)
            self.collector.reset(self.reset_seeds, self.algorithm.initial_state(num_envs))
        if self.level == "boundary" and (reason := self.collector.global_state_change()):
            self.lower_level(reason)
        self.begin_transcript()

    def begin_transcript(self, envs: Any = None) -> None:
        """Begin to keep what is done and answered, from the state `envs` or as it is now."""
        if self.level == "statistical":
            return
        if self.level == "exact" and envs is None:
            try:
                envs = self.collector.save_envs()
            except SnapshotUnavailable as error:
                self.lower_level(str(error))
                return
        obs, resetting = self.collector.position()
        start = Start(
            env_steps=self.env_steps,
            build_seed=self.build_seed,
            seeds=self.reset_seeds,
            envs=envs,
            obs=obs,
            resetting=resetting,
            generators=global_generator_state(),
        )
        self.collector.transcript.begin(start)

    def _save_best(self, evaluation: Evaluation) -> None:
        self.check_finite()
        write_checkpoint(
            self.directory / CHECKPOINTS_DIR_NAME,
            kind="best",
            env_steps=self.env_steps,
            parts=self.agent.parts(),
            info=checkpoint_info(self, exact=False) | {"eval_return_mean": evaluation.mean},
        )
        prune(self.directory / CHECKPOINTS_DIR_NAME, keep=self.config.keep_checkpoints)

    def _raise_divergence(self, what: str) -> NoReturn:
        self.diverged = self.learning_failed = True
        if (name := non_finite(batch_tensors(self.batch))) is not None:
            what = f"{name} of the batch"  # it came first
        report = {
            "origin": what,
            "env_steps": self.env_steps,
            "updates": self.updates,
            # To read a number after each update, a GPU would have to wait.
            "checked": "each update" if self.algorithm.device.type == "cpu" else "log intervals",
            "metrics": self.recent_metrics.means(),
        }
        try:
            dump = f"The batch is in {write_dump(self.directory, self.batch, report)}. "
        except SaveError as error:
            dump = f"The batch could not be saved ({error}) "
        raise DivergenceError(
            f"the {what} is not finite at step {self.env_steps} (after {self.updates} updates). "
            f"Training stopped and nothing non-finite was saved. {dump}A smaller learning rate, "
            "gradient clipping (max_grad_norm) or smaller rewards usually help."
        )


def _returns(prefix: str, evaluation: Evaluation, *, only: bool = True) -> dict[str, float]:
    values = {"return_mean": evaluation.mean, "return_std": evaluation.std}
    return {f"{prefix}{name}": value for name, value in values.items() if only}


def evaluation_seed(seed: int) -> int:
    """The seed of a run's evaluation episodes."""
    return derive_seed(seed, "evaluation")
