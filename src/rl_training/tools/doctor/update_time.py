"""How long an algorithm itself takes per transition, measured on observations made up for it."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.config.train_config import TrainConfig
from rl_training.envs.spaces import observation_kind
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.spec import AlgorithmSpec
from rl_training.runtime.train import train
from rl_training.runtime.training_run import TrainingRun


class SampledEnv(gym.Env[Any, Any]):
    """Gives one observation of its space for ever, at no cost; episodes of 50 steps."""

    def __init__(self, observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observation, action
        self._obs = _plain_observation(observation)
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The observation."""
        super().reset(seed=seed, options=options)
        self._step = 0
        return self._obs, {}

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        """The observation again, and a reward of 1."""
        self._step += 1
        return self._obs, 1.0, False, self._step >= 50, {}


def _plain_observation(space: spaces.Space[Any]) -> Any:
    """An observation with no large numbers in it, as far as the space allows."""
    if isinstance(space, spaces.Box):
        return np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
    if isinstance(space, spaces.Dict):
        return {key: _plain_observation(part) for key, part in space.items()}
    return space.sample()


class _SecondHalf(Callback):
    """Times the second half of a run; the first one warms up."""

    def on_start(self, run: TrainingRun) -> None:
        """Know where the middle is."""
        self.middle = run.progress.horizon // 2

    def on_step(self, run: TrainingRun) -> None:
        """Note the time in the middle and at the end."""
        if run.env_steps == self.middle:
            self.started = time.perf_counter()
        self.ended = time.perf_counter()


def seconds_per_step(
    spec: AlgorithmSpec, observation: spaces.Space[Any], action: spaces.Space[Any]
) -> float:
    """Acting, storing and updating with default settings, per environment transition."""
    images = observation_kind(observation) == "image"
    steps, hyper = spec.loop.short_run(spec.hyper(), images)
    watch = _SecondHalf()
    with tempfile.TemporaryDirectory() as folder, _quiet():
        config = TrainConfig(
            algo=spec.name,
            env_id=partial(SampledEnv, observation, action),
            output_dir=folder,
            total_timesteps=steps,
            eval_interval=0,
            final_eval_episodes=0,
            checkpoint_interval=0,
            algo_kwargs=hyper,
        )
        train(spec, config, callbacks=[watch])
    return (watch.ended - watch.started) / (steps - watch.middle)


@contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("rl_training")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
