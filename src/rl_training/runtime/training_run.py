"""A run in progress: its parts, its progress, and what callbacks may ask of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training.algorithms.base import ActResult, Algorithm
from rl_training.config.train_config import TrainConfig
from rl_training.data.metrics import RecentMetrics
from rl_training.data.types import PolicyState
from rl_training.errors import NonFiniteError
from rl_training.runtime.agent import Agent
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import Collector
from rl_training.runtime.evaluator import Evaluation, EvaluationStopped, Evaluator
from rl_training.runtime.process import Interrupts
from rl_training.runtime.progress import Progress, Speed
from rl_training.runtime.resume import checkpoint_info, checkpoint_parts
from rl_training.runtime.seeding import (
    derive_seed,
    env_seeds,
    global_generator_state,
    restore_global_generators,
)
from rl_training.storage.checkpoints import prune, write_checkpoint
from rl_training.storage.checks import saved_number
from rl_training.storage.files import read_json_object, write_json
from rl_training.storage.metrics_log import MetricsLog
from rl_training.storage.state import Stateful

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
    level: str
    level_reason: str
    interrupts: Interrupts
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
        row = {f"eval/{name}": float(value) for name, value in values.items()}
        self.metrics_log.write(self.env_steps, row)

    def stop(self, reason: str) -> None:
        """End the run after the current step; it counts as finished."""
        if not self.progress.finished:
            self.stop_reason = reason

    def evaluate(self, episodes: int | None = None) -> Evaluation | None:
        """Evaluate the current policy; None if a signal interrupted it."""
        if self.evaluator is None:
            return None
        self.agent.clock = self.progress.clock
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
        if self.best_return is None or evaluation.mean > self.best_return:
            self.best_return = evaluation.mean
            self._save_best(evaluation)
        self.metrics_log.write(
            self.env_steps,
            {"eval/return_mean": evaluation.mean, "eval/return_std": evaluation.std},
        )
        for callback in self.callbacks:
            callback.on_evaluation(self, evaluation)
        return evaluation

    def save(self, *, episodes_cut: bool = False) -> Path:
        """Write a checkpoint from which the run can be resumed.

        At level `boundary` that is exact only where episodes were cut for it.
        """
        parts = checkpoint_parts(self)  # may find that the environments cannot be saved any more
        exact = self.level == "exact" or (self.level == "boundary" and episodes_cut)
        return self._write(parts, exact=exact)

    def save_after_failure(self) -> Path | None:
        """Save what was learned when an environment failed, without the environments' state.

        None if the weights are not finite.
        """
        if self.saved_at == self.env_steps:
            return self.checkpoint_path
        try:
            return self._write(checkpoint_parts(self, with_envs=False), exact=False)
        except NonFiniteError:
            return None

    def _write(self, parts: dict[str, Any], *, exact: bool) -> Path:
        self.check_finite()
        self.checkpoint_path = write_checkpoint(
            self.directory / "checkpoints",
            kind="step",
            env_steps=self.env_steps,
            parts=parts,
            info=checkpoint_info(self, exact=exact),
        )
        self.saved_at = self.env_steps
        prune(self.directory / "checkpoints", keep=self.config.keep_checkpoints)
        for callback in self.callbacks:
            callback.on_checkpoint(self, self.checkpoint_path)
        return self.checkpoint_path

    # What the loops use.

    @property
    def algorithm(self) -> Algorithm:
        """What is being trained."""
        return self.agent.algorithm

    @property
    def active(self) -> bool:
        """Whether the loop continues: no budget used up, no stop, no signal."""
        return not (self.progress.finished or self.stop_reason or self.interrupts.received)

    def explore(self, obs: np.ndarray, state: PolicyState, first: np.ndarray) -> ActResult:
        """Actions for collecting experience."""
        self.agent.clock = self.progress.clock
        return self.agent.act(obs, state, first, explore=True)

    def after_step(self) -> None:
        """Call `on_step` of every callback."""
        for callback in self.callbacks:
            callback.on_step(self)

    # What the built-in callbacks and `train` use.

    def check_finite(self) -> dict[str, float]:
        """Mean metrics of the recent updates; raises if one, or a weight, is not finite."""
        values = self.recent_metrics.means()
        for name, value in values.items():
            if not np.isfinite(value):
                self._refuse(f"training metric {name!r}")
        for part, network in self.algorithm.networks().items():
            for name, parameter in network.named_parameters():
                if not torch.isfinite(parameter).all():
                    self._refuse(f"weight {part}.{name}")
        return {f"train/{name}": value for name, value in values.items()}

    def lower_level(self, reason: str) -> None:
        """The environments can no longer be saved: say so, also in the run's record."""
        logger.warning("resume level: now statistical, it was %s (%s)", self.level, reason)
        self.level, self.level_reason = "statistical", reason
        path = self.directory / "metadata.json"
        record = read_json_object(path)
        write_json(path, record | {"resume_level": self.level, "resume_level_reason": reason})

    def cut_episodes(self) -> None:
        """Begin new episodes everywhere, with seeds that depend on the step alone."""
        seeds = env_seeds(self.config.seed, self.collector.num_envs, "cut", self.env_steps)
        self.collector.reset(seeds, self.algorithm.initial_state(self.collector.num_envs))

    def _save_best(self, evaluation: Evaluation) -> None:
        self.check_finite()
        write_checkpoint(
            self.directory / "checkpoints",
            kind="best",
            env_steps=self.env_steps,
            parts=self.agent.parts(),
            info=checkpoint_info(self, exact=False) | {"eval_return_mean": evaluation.mean},
        )
        prune(self.directory / "checkpoints", keep=self.config.keep_checkpoints)

    def _refuse(self, what: str) -> None:
        raise NonFiniteError(
            f"the {what} is not finite at step {self.env_steps} (update {self.updates}). Training "
            "stopped and nothing non-finite was saved. A smaller learning rate, gradient clipping "
            "(max_grad_norm) or smaller rewards usually help."
        )


def evaluation_seed(seed: int) -> int:
    """The seed of a run's evaluation episodes."""
    return derive_seed(seed, "evaluation")
