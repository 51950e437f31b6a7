"""Builds the parts of a run from its configuration, cheapest checks first."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from rl_training.data.memory import format_bytes
from rl_training.envs.factory import make_env, make_vector_env
from rl_training.envs.snapshots import ResumeLevel, resume_level
from rl_training.envs.spaces import SpaceAdapter
from rl_training.errors import ConfigError
from rl_training.experiment.config import HyperParameters, TrainConfig
from rl_training.experiment.logging import MetricsLog
from rl_training.runtime.agent import build_agent
from rl_training.runtime.builtin_callbacks import Evaluate, LogMetrics, SaveCheckpoint
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import Collector
from rl_training.runtime.compatibility import check_spaces
from rl_training.runtime.evaluator import Evaluator
from rl_training.runtime.interrupts import Interrupts
from rl_training.runtime.progress import Progress
from rl_training.runtime.seeding import derive_seed, env_seeds, seed_global_generators
from rl_training.runtime.spec import AlgorithmSpec
from rl_training.runtime.training_run import TrainingRun

logger = logging.getLogger("rl_training")


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What is decided before a run is built."""

    spec: AlgorithmSpec
    config: TrainConfig
    hyper: HyperParameters
    callbacks: Sequence[Callback]


class Environments:
    """The environments of one configuration: for training, for evaluation, and their state."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.source: Any = config.env_id
        self.prebuilt = isinstance(self.source, (gym.Env, VectorEnv))

    @property
    def name(self) -> str:
        """The environment's id as a person would write it."""
        return str(self.config.to_plain()["env_id"])

    def training(self) -> VectorEnv[Any, Any, Any]:
        """The vector environment to train in."""
        return make_vector_env(
            self.source,
            num_envs=self.config.num_envs,
            vectorization=self.config.vectorization,
            env_kwargs=self.config.env_kwargs,
            wrappers=self.config.wrappers,
        )

    def single(self) -> gym.Env[Any, Any]:
        """One environment of its own, for evaluation."""
        if not self.prebuilt:
            return make_env(
                self.source, env_kwargs=self.config.env_kwargs, wrappers=self.config.wrappers
            )
        if self.source.spec is None:
            raise ConfigError(
                f"env_id: {self.name} is already built and not registered, so no second one can be "
                "made for evaluation; pass a callable that builds it, or set eval_interval=0 and "
                "final_eval_episodes=0"
            )
        if isinstance(self.source, gym.Env):
            return gym.make(self.source.spec)
        vector_only = {"num_envs", "vectorization_mode", "vector_kwargs"}
        kwargs = {k: v for k, v in self.source.spec.kwargs.items() if k not in vector_only}
        return gym.make(self.source.spec.id, **kwargs)

    def resume_level(self) -> ResumeLevel:
        """How exactly a run in these environments can be resumed."""
        make = None if self.prebuilt else self.training
        return resume_level(make, seed=derive_seed(self.config.seed, "probe"))


def assemble(
    plan: RunPlan, directory: Path, log: MetricsLog, interrupts: Interrupts
) -> TrainingRun:
    """All parts of a run, at step 0."""
    config, hyper = plan.config, plan.hyper
    environments = Environments(config)
    envs = environments.training()
    check_spaces(
        plan.spec, environments.name, envs.single_observation_space, envs.single_action_space
    )
    adapter = SpaceAdapter(
        environments.name, envs.single_observation_space, envs.single_action_space
    )
    seed_global_generators(config.seed)
    agent = build_agent(plan.spec, config, hyper, adapter)
    buffer = plan.spec.buffer(
        adapter.spec,
        hyper,
        num_envs=envs.num_envs,
        seed=derive_seed(config.seed, "replay"),
        device=agent.algorithm.device,
    )
    level = environments.resume_level()
    announce(buffer, level)
    run = TrainingRun(
        config=config,
        hyper=hyper,
        directory=directory,
        agent=agent,
        collector=Collector(envs, adapter),
        buffer=buffer,
        progress=Progress(
            config.total_timesteps,
            learning_starts=getattr(hyper, "learning_starts", 0),
            replay_ratio=getattr(hyper, "replay_ratio", 0),
        ),
        evaluator=_evaluator(environments, adapter),
        metrics_log=log,
        callbacks=(
            LogMetrics(config.log_interval),
            Evaluate(config.eval_interval),
            *plan.callbacks,
            SaveCheckpoint(config.checkpoint_interval),
        ),
        level=level.level,
        level_reason=level.reason,
        owns_envs=not environments.prebuilt,
        interrupts=interrupts,
    )
    seeds = env_seeds(config.seed, envs.num_envs)
    run.collector.reset(seeds, agent.algorithm.initial_state(envs.num_envs))
    return run


def announce(buffer: Any, level: ResumeLevel) -> None:
    """Say what the run takes and what a resume of it will be worth."""
    logger.info("replay memory: %s", format_bytes(buffer.nbytes))
    if level.level == "exact":
        logger.info("resume level: exact")
    else:
        logger.warning("resume level: %s (%s)", level.level, level.reason)


def _evaluator(environments: Environments, adapter: SpaceAdapter) -> Evaluator | None:
    config = environments.config
    if not config.eval_interval and not config.final_eval_episodes:
        return None
    if environments.prebuilt:
        environments.single().close()  # refuse now rather than after an hour of training
    return Evaluator(environments.single, adapter)
