"""Builds the parts of a run from its configuration, cheapest checks first."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from rl_training.config.hyper_parameters import HyperParameters, OffPolicyHyperParameters
from rl_training.config.train_config import TrainConfig
from rl_training.data.memory import format_bytes
from rl_training.envs import masks
from rl_training.envs.async_vector_env import QuickAsyncVectorEnv
from rl_training.envs.factory import make_env, make_single_env, make_vector_env
from rl_training.envs.pixels import stacked_frames
from rl_training.envs.snapshots import probe
from rl_training.envs.snapshots.vector import ResumeLevel, packages_of, resume_level
from rl_training.envs.spaces import SpaceAdapter, action_kind
from rl_training.envs.vector_envs import QuickSyncVectorEnv
from rl_training.errors import ConfigError, EnvError
from rl_training.runtime.agent import Agent, build_agent
from rl_training.runtime.callbacks import Callback, Evaluate, LogMetrics, SaveCheckpoint
from rl_training.runtime.collector import Collector
from rl_training.runtime.compatibility import check_spaces
from rl_training.runtime.divergence import WatchLearning
from rl_training.runtime.evaluator import Evaluator
from rl_training.runtime.loss_check import check_losses
from rl_training.runtime.process import EnvCalls, Interrupts
from rl_training.runtime.progress import Progress
from rl_training.runtime.saved_info import saved_info
from rl_training.runtime.seeding import derive_seed, env_seeds, seed_global_generators
from rl_training.runtime.spec import AlgorithmSpec
from rl_training.runtime.training_run import TrainingRun
from rl_training.storage.checkpoints import Checkpoint
from rl_training.storage.metrics_log import MetricsLog
from rl_training.storage.runs import relevant_versions

logger = logging.getLogger("rl_training")

_PACKAGED = (QuickSyncVectorEnv, QuickAsyncVectorEnv)


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A run's validated inputs."""

    spec: AlgorithmSpec
    config: TrainConfig
    hyper: HyperParameters
    callbacks: Sequence[Callback]
    checkpoint: Checkpoint | None = None
    stop_at: int | None = None


class Environments:
    """The environments of one configuration: for training, for evaluation, and their state.

    Building and trying them counts as a call of them.
    """

    def __init__(self, config: TrainConfig, calls: EnvCalls | None = None) -> None:
        self.config = config
        self.calls = calls or EnvCalls()
        self.source = config.env_id
        self.prebuilt = isinstance(self.source, (gym.Env, VectorEnv))
        if self.prebuilt and config.eval_env_kwargs and config.eval_env is None:
            raise ConfigError(
                f"eval_env_kwargs: {self.name} is already built, so {config.eval_env_kwargs} would "
                "have no effect; pass an id or a callable"
            )

    @property
    def name(self) -> str:
        """The environment's id as a person would write it."""
        return str(self.config.to_plain()["env_id"])

    def training(self) -> VectorEnv[Any, Any, Any]:
        """The vector environment to train in."""
        with self.calls.inside():
            return make_vector_env(
                self.source,
                num_envs=self.config.num_envs,
                vectorization=self.config.vectorization,
                env_kwargs=self.config.env_kwargs,
                wrappers=self.config.wrappers,
                env_timeout=self.config.env_timeout,
            )

    def evaluation(self) -> gym.Env[Any, Any]:
        """A dedicated evaluation environment."""
        with self.calls.inside():
            return self._evaluation()

    def _evaluation(self) -> gym.Env[Any, Any]:
        eval_kwargs = self.config.eval_env_kwargs
        if self.config.eval_env is not None:
            return make_single_env(
                self.config.eval_env, env_kwargs=eval_kwargs, wrappers=self.config.wrappers
            )
        if not self.prebuilt:
            try:
                return self._single(self.config.env_kwargs | eval_kwargs)
            except ConfigError as error:
                if eval_kwargs and str(error).startswith("env_kwargs:"):
                    raise ConfigError(f"env_kwargs with eval_{error}") from error
                raise
        source, why = self.source, "it is not registered"
        if isinstance(source, VectorEnv) and source is not source.unwrapped:
            why = "its vector wrappers cannot be put around a single environment"
        elif source.spec is not None:
            try:
                return _from_spec(source)
            except Exception as error:
                why = f"making it from its spec raised {type(error).__name__}: {error}"
        raise ConfigError(
            f"env_id: {self.name} is already built, and no second one can be made for evaluation: "
            f"{why}. Give eval_env, an id or a callable that builds one, or pass such a callable "
            "in its place, or set eval_interval=0 and final_eval_episodes=0."
        )

    def _single(self, env_kwargs: Mapping[str, Any]) -> gym.Env[Any, Any]:
        return make_env(
            self.source,
            env_kwargs=env_kwargs,
            wrappers=self.config.wrappers,
            vectorization=self.config.vectorization,
        )

    def gives_masks(self, envs: VectorEnv[Any, Any, Any]) -> bool:
        """Whether the environments say which actions are legal, as their first reset shows.

        It is that of another one, closed afterwards, where one can be built: `envs` are left alone.
        """
        if action_kind(envs.single_action_space) not in ("discrete", "multi_discrete"):
            return False
        if not isinstance(envs.unwrapped, _PACKAGED) and masks.method_out_of_reach(envs):
            raise EnvError(
                f"{self.name}: its environments have a method {masks.METHOD}, which cannot be "
                "called from a vector environment that is already built; expected info["
                f"'{masks.KEY}']: put the wrapper ActionMaskInfo around each of them"
            )
        packaged = isinstance(envs.unwrapped, _PACKAGED) or self.config.vectorization == "native"
        with probe.undisturbed(), ExitStack() as opened:
            env: Any = envs
            try:
                if packaged and not self.prebuilt:
                    env = self._single(self.config.env_kwargs)
                    opened.callback(probe.close, env)
                return masks.KEY in env.reset(seed=derive_seed(self.config.seed, "probe"))[1]
            except KeyboardInterrupt:
                raise
            except BaseException:  # it will show again, and be reported in full
                return False

    def resume_level(self) -> ResumeLevel:
        """How exactly a run in these environments can be resumed."""
        make = None if self.prebuilt else self.training
        with self.calls.inside():
            return resume_level(make, seed=derive_seed(self.config.seed, "probe"))

    def close(self, envs: VectorEnv[Any, Any, Any]) -> None:
        """Close environments from `training`, not the caller's own."""
        if not self.prebuilt:
            with self.calls.inside():
                envs.close()


@dataclass(frozen=True, kw_only=True)
class Components:
    """The parts of a run that need no run directory; whatever can be refused is refused here."""

    environments: Environments
    collector: Collector
    agent: Agent
    buffer: Any
    evaluator: Evaluator | None
    level: ResumeLevel

    def close(self) -> None:
        """Close every environment that is not the caller's own."""
        if not self.environments.prebuilt:
            self.collector.close()
        if self.evaluator is not None:
            self.evaluator.close()


def build(plan: RunPlan, calls: EnvCalls | None = None) -> Components:
    """The parts of a run, checked; on an error nothing stays open."""
    seed_global_generators(plan.config.seed)  # first: an environment may draw when it is built
    environments = Environments(plan.config, calls)
    envs = environments.training()
    with ExitStack() as on_error:
        on_error.callback(environments.close, envs)
        spaces = envs.single_observation_space, envs.single_action_space
        check_spaces(plan.spec, environments.name, *spaces)
        adapter = SpaceAdapter(
            environments.name,
            *spaces,
            frames=stacked_frames(envs),
            masked=environments.gives_masks(envs),
        )
        _announce_observation(adapter)
        agent = build_agent(plan.spec, plan.config, plan.hyper, adapter, plan.checkpoint)
        buffer = plan.spec.component("buffer").build(
            adapter.spec,
            _buffer_hyper(plan),
            num_envs=envs.num_envs,
            seed=derive_seed(plan.config.seed, "replay"),
            device=agent.algorithm.device,
            **_buffer_options(plan),
        )
        # A custom buffer need not say that it needs priorities.
        check_losses(agent.algorithm, priorities=getattr(buffer, "needs_priorities", False))
        collector = Collector(envs, adapter, environments.calls)
        components = Components(
            environments=environments,
            collector=collector,
            agent=agent,
            buffer=buffer,
            evaluator=_evaluator(environments, adapter),
            level=environments.resume_level(),
        )
        on_error.pop_all()
    return components


def with_action_names(config: TrainConfig, components: Components) -> TrainConfig:
    """The configuration with the names that the environment gives its actions, if it has none."""
    collector, evaluator = components.collector, components.evaluator
    envs = getattr(collector.envs.unwrapped, "envs", ())[:1] or (evaluator and [evaluator.env])
    if config.action_names or not envs:
        return config
    try:
        names = envs[0].get_wrapper_attr("action_names")
    except Exception:  # as a rule it has none
        return config
    expected = components.agent.adapter.spec.named_actions
    try:
        if len(names) != expected:
            raise ValueError(f"found {len(names)}")
        return config.with_changes(action_names=[str(name) for name in names])
    except Exception as error:
        logger.warning(
            "%s: its action_names are left out: expected %d texts, one for each action (%s)",
            components.environments.name,
            expected,
            str(error)[:200],
        )
        return config


def assemble(
    plan: RunPlan,
    components: Components,
    directory: Path,
    log: MetricsLog,
    interrupts: Interrupts,
) -> TrainingRun:
    """The run at step 0."""
    config, hyper, algorithm = plan.config, plan.hyper, components.agent.algorithm
    _warn_of_normalizing_wrappers(config)
    _announce(components.buffer, components.level)
    num_envs = components.collector.num_envs
    run = TrainingRun(
        config=config,
        hyper=hyper,
        directory=directory,
        agent=components.agent,
        collector=components.collector,
        buffer=components.buffer,
        progress=Progress(
            config.total_timesteps,
            learning_starts=plan.spec.loop.learning_starts(hyper),
            replay_ratio=plan.spec.loop.replay_ratio(hyper),
            stop_at=plan.stop_at,
            random_play=config.init_from is None or "weights" not in config.init_parts,
        ),
        evaluator=components.evaluator,
        metrics_log=log,
        callbacks=(
            *plan.callbacks,
            WatchLearning(),
            LogMetrics(config.log_interval),
            Evaluate(config.effective_eval_interval),
            SaveCheckpoint(config.checkpoint_interval, config.checkpoint_minutes),
        ),
        level=components.level.level,
        level_reason=components.level.reason,
        interrupts=interrupts,
        make_envs=components.environments.training,
        reset_seeds=env_seeds(config.seed, num_envs),
        build_seed=config.seed,
        versions=relevant_versions(packages_of(components.collector.envs)),
    )
    run.collector.reset(run.reset_seeds, algorithm.initial_state(num_envs))
    _announce_masks(run.collector)
    return run


def _buffer_hyper(plan: RunPlan) -> Any:
    """The hyper-parameters; a resumed run keeps its replay capacity, whatever memory allows now."""
    hyper, checkpoint = plan.hyper, plan.checkpoint
    if checkpoint is None or not isinstance(hyper, OffPolicyHyperParameters):
        return hyper
    chosen = hyper.buffer_size is not None or hyper.replay_memory is not None
    return (
        hyper
        if chosen
        else hyper.model_copy(update={"buffer_size": saved_info(checkpoint).replay_capacity})
    )


def _buffer_options(plan: RunPlan) -> dict[str, Any]:
    if not plan.config.normalize_rewards:
        return {}
    if not plan.spec.normalizes_rewards:
        raise ConfigError(
            f"normalize_rewards: {plan.spec.name} stores raw rewards and cannot normalise them; "
            "leave the key out"
        )
    return {"normalize_rewards": True}


def _warn_of_normalizing_wrappers(config: TrainConfig) -> None:
    """Statistics in a wrapper are not saved with the policy, and move on in evaluations."""
    for wrapper in config.wrappers:
        name = wrapper if isinstance(wrapper, str) else next(iter(wrapper))
        if name.rpartition(":")[2] in ("NormalizeObservation", "NormalizeReward"):
            logger.warning(
                "the wrapper %s keeps statistics that neither travel with the policy nor stand "
                "still in evaluations; use the keys normalize_observations and normalize_rewards",
                name,
            )


def _announce(buffer: Any, level: ResumeLevel) -> None:
    """Say what the run takes and what a resume of it will be worth."""
    logger.info("%s: %s", buffer.memory_name, format_bytes(buffer.nbytes))
    if level.level == "exact":
        logger.info("resume level: exact")
    else:
        logger.warning("resume level: %s (%s)", level.level, level.reason)


def _announce_observation(adapter: SpaceAdapter) -> None:
    """Say what is learned from, if the environment gives it in another form."""
    plain = adapter.observation.shape == adapter.spec.obs_shape or not adapter.spec.has_images
    if not plain:
        logger.info("observation: %s", adapter.described())


def _announce_masks(collector: Collector) -> None:
    """Say what becomes of action masks that the environment gives."""
    spec = collector.adapter.spec
    if spec.masked:
        logger.info("action masks: found, illegal actions are neither taken nor learned from")
    elif collector.gave_masks:
        logger.warning(
            "%s gives action masks, which are for Discrete and MultiDiscrete actions: ignored for "
            "its %s ones",
            spec.env_id,
            spec.action_kind,
        )


def _evaluator(environments: Environments, adapter: SpaceAdapter) -> Evaluator | None:
    config = environments.config
    if not config.eval_interval and not config.final_eval_episodes:
        return None
    make_env = partial(_evaluation_env, environments, adapter)
    most = config.max_eval_steps
    return Evaluator(make_env, adapter, max_steps=most, calls=environments.calls)


def _evaluation_env(environments: Environments, adapter: SpaceAdapter) -> gym.Env[Any, Any]:
    """An evaluation environment; its spaces must be those of training."""
    config, env = environments.config, environments.evaluation()
    for name, actual, expected in (
        ("observation", env.observation_space, adapter.observation),
        ("action", env.action_space, adapter.action),
    ):
        if not _same_space(actual, expected, bounds=name == "action" or config.eval_env is None):
            env.close()
            keys = ("eval_env", "eval_env_kwargs")
            key = next((key for key in keys if getattr(config, key)), "env_id")
            raise ConfigError(
                f"{key}: expected evaluations in the {name} space of training, {expected}, "
                f"found {actual}; what is built for evaluation must have the same spaces"
            )
    return env


def _same_space(actual: gym.Space[Any], expected: gym.Space[Any], *, bounds: bool) -> bool:
    """Whether the spaces are equal; without `bounds`, boxes may have others.

    Two packages give the same task other bounds, which a policy does not see.
    """
    if bounds or not (isinstance(actual, gym.spaces.Box) and isinstance(expected, gym.spaces.Box)):
        return bool(actual == expected)
    return (actual.shape, actual.dtype) == (expected.shape, expected.dtype)


def _from_spec(source: Any) -> gym.Env[Any, Any]:
    spec = source.spec
    if isinstance(source, gym.Env):
        return gym.make(spec)
    vector_only = {"num_envs", "vectorization_mode", "vector_kwargs"}
    kwargs = {key: value for key, value in spec.kwargs.items() if key not in vector_only}
    if spec.kwargs.get("vectorization_mode") == gym.VectorizeMode.VECTOR_ENTRY_POINT.value:
        return make_env(spec.id, env_kwargs=kwargs, vectorization="native")
    return gym.make(spec.id, **kwargs)
