"""What each algorithm makes of an environment: whether it takes it, and what it would need.

How long the algorithm itself takes per transition is measured, on observations made up for it.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.config.train_config import TrainConfig
from rl_training.data.memory import available_memory, format_bytes, format_duration
from rl_training.envs.spaces import SpaceAdapter, observation_kind
from rl_training.errors import IncompatibleEnv
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.compatibility import check_spaces
from rl_training.runtime.spec import AlgorithmSpec
from rl_training.runtime.spec_table import all_specs
from rl_training.runtime.train import train
from rl_training.runtime.training_run import TrainingRun
from rl_training.tools.doctor.report import Finding

PLANNED_STEPS = (50_000, 100_000)


@dataclass(frozen=True, kw_only=True)
class AlgorithmFit:
    """Whether an algorithm takes an environment, and what training would need.

    `refusal` says why the spaces do not fit, and `failure` what a short run of the algorithm
    raised. `memory_bytes` is what its `memory` (replay or rollout) takes with default settings.
    `env_seconds` is the time the environment alone takes for that many steps, empty if its speed
    is not known; `own_seconds` is what the algorithm takes per step with default settings.
    """

    name: str
    refusal: str = ""
    failure: str = ""
    memory: str = ""
    memory_bytes: int = 0
    env_seconds: dict[int, float]
    own_seconds: float = 0.0


def algorithm_fits(
    observation: spaces.Space[Any],
    action: spaces.Space[Any],
    *,
    steps_per_second: float,
    frames: int = 1,
    masked: bool = False,
) -> list[AlgorithmFit]:
    """What every known algorithm makes of these spaces."""
    seconds = {steps: steps / steps_per_second for steps in PLANNED_STEPS if steps_per_second}
    fits = []
    for name, spec in all_specs().items():
        try:
            needs = _needs(spec, observation, action, frames, masked)
        except IncompatibleEnv as error:
            needs = {"refusal": str(error)}
        except Exception as error:  # in somebody's algorithm; the table still has the others
            needs = {"failure": f"{type(error).__name__}: {error}"}
        fits.append(AlgorithmFit(name=name, env_seconds=seconds, **needs))
    return fits


def _needs(
    spec: AlgorithmSpec,
    observation: spaces.Space[Any],
    action: spaces.Space[Any],
    frames: int,
    masked: bool,
) -> dict[str, Any]:
    check_spaces(spec, "the environment", observation, action)
    spec.check_components()
    spaces_of = (observation, action)
    env_spec = SpaceAdapter("the environment", *spaces_of, frames=frames, masked=masked).spec
    buffer = spec.component("buffer")
    return {
        "memory": buffer.memory_name,
        "memory_bytes": int(buffer.needed_bytes(env_spec, spec.hyper(), 1)),
        "own_seconds": seconds_per_step(spec, observation, action),
    }


def fit_findings(fits: Sequence[AlgorithmFit]) -> list[Finding]:
    """A line per algorithm that takes the environment, and one for the others."""
    refused = [fit for fit in fits if fit.refusal]
    if len(refused) == len(fits):
        return [Finding("error", "algorithms", refused[0].refusal)]
    available = available_memory()
    findings = []
    for fit in fits:
        if fit.refusal:
            continue
        if fit.failure:
            text = f"{fit.name}: a short run of it raised {fit.failure}"
            findings.append(Finding("warning", "algorithms", text))
            continue
        too_large = fit.memory_bytes > (available or np.inf)
        memory = f"{format_bytes(fit.memory_bytes)} of {fit.memory} with default settings"
        text = f"{fit.name}: {memory}; predicted training time {_time(fit)}"
        findings.append(Finding("warning" if too_large else "ok", "algorithms", text))
    if refused:
        names = ", ".join(fit.name for fit in refused)
        findings.append(Finding("note", "algorithms", f"not for these spaces: {names}"))
    return findings


def _time(fit: AlgorithmFit) -> str:
    if not fit.env_seconds:
        return "unknown"
    totals = {steps: env + steps * fit.own_seconds for steps, env in fit.env_seconds.items()}
    words = ", ".join(
        f"{format_duration(seconds)} for {steps:,} steps" for steps, seconds in totals.items()
    )
    share = sum(fit.env_seconds.values()) / sum(totals.values())
    return f"{words}, {share:.0%} of it the environment's"


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
    if isinstance(space, spaces.Tuple):
        return tuple(_plain_observation(part) for part in space.spaces)
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
    images = observation_kind(observation) in ("image", "parts")
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
            checkpoint_minutes=0,
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
