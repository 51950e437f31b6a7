"""The managed algorithm: one object that learns, evaluates, predicts, saves and resumes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
from gymnasium.vector import VectorEnv
from typing_extensions import Self

from rl_training.config.base import untrusted_name
from rl_training.config.train_config import TrainConfig, check_hyper_parameters
from rl_training.data.types import PolicyState
from rl_training.envs.pixels import stacked_frames
from rl_training.envs.spaces import SpaceAdapter
from rl_training.errors import ConfigError, SaveError, UsageError
from rl_training.experiment.registry import (
    get_spec,
    load_agent,
    open_checkpoint,
    resolve_config,
    train_config,
)
from rl_training.runtime.agent import Agent, build_agent, resolve_device
from rl_training.runtime.assembly import Environments
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.compatibility import check_spaces
from rl_training.runtime.evaluator import Evaluation, Evaluator
from rl_training.runtime.execution import threads
from rl_training.runtime.result import TrainingInterrupted, TrainResult
from rl_training.runtime.resume import ENVIRONMENT_KEYS, refuse_unserialized, report_skipped
from rl_training.runtime.spec import AlgorithmSpec
from rl_training.runtime.spec_table import register, saved_algorithm
from rl_training.runtime.training_run import evaluation_seed
from rl_training.runtime.trust import trusted
from rl_training.storage.checkpoints import retry_if_pruned, write_checkpoint
from rl_training.storage.files import save_error, with_retries
from rl_training.tools.explain import check_path, explain, write_picture


class ManagedAlgorithm:
    """An algorithm with its configuration, its trained agent and its run directory.

        agent = DQN("CartPole-v1", seed=1, total_timesteps=50_000)
        result = agent.learn()
        action, state = agent.predict(observation)

    The first argument is a TrainConfig, an environment id, `package.module:Class`, a callable that
    builds an environment, or a built environment; keywords are the configuration's keys.

    A subclass says which algorithm it manages: `algo_name`, a name or `package.module:SPEC`, or
    `spec`, an AlgorithmSpec, which is registered.
    """

    algo_name: ClassVar[str]
    spec: ClassVar[AlgorithmSpec]

    def __init_subclass__(cls, **arguments: object) -> None:
        super().__init_subclass__(**arguments)
        if "spec" in vars(cls):
            register(cls.spec)
            cls.algo_name = cls.spec.name

    def __init__(self, config_or_env: object, /, **keys: object) -> None:
        name = self._spec().name
        if isinstance(config_or_env, TrainConfig):
            source = config_or_env
            if get_spec(source.algo).name != name:
                raise ConfigError(f"algo: expected {name} for this class, found {source.algo!r}")
            loaded = resolve_config(source, arguments=keys)
        else:
            source_keys = {"algo": self.algo_name, "env_id": config_or_env}
            loaded = resolve_config(None, arguments={**source_keys, **keys})
        self.config = loaded.config
        self.run_dir: Path | None = None
        self._checkpoint: Path | None = None  # of the agent
        self._resume_from: Path | None = None  # a run directory stands for its newest checkpoint
        self._agent: Agent | None = None

    @classmethod
    def from_config(cls, name_or_path: str | Path, **keys: object) -> Self:
        """From a packaged configuration such as `dqn/cartpole`, or a YAML file."""
        return cls(resolve_config(name_or_path, arguments=keys).config)

    @classmethod
    def load(
        cls,
        path: str | Path,
        env: object = None,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        wrappers: Sequence[Any] | None = None,
        network: Callable[..., Any] | None = None,
        device: str | None = None,
        best: bool = False,
        trust: bool = False,
    ) -> Self:
        """From a run directory or checkpoint.

        An environment, arguments of it, wrappers or a network that were given as objects no import
        path leads to are passed again; `env_kwargs` need hold only those. So are those that the run
        names and that are not this package's, unless you `trust` whoever wrote it. A policy
        predicts without its environment, and on the CPU if its device is missing and no `device` is
        given. The run may still be going on.
        """
        given = {"env_id": env, "wrappers": wrappers, "device": device}
        changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        return retry_if_pruned(
            lambda: cls._load(Path(path), best, trust, changes, env_kwargs, network)
        )

    @classmethod
    def _load(
        cls,
        path: Path,
        best: bool,
        trust: bool,
        given: Mapping[str, Any],
        env_kwargs: Mapping[str, Any] | None,
        network: Callable[..., Any] | None,
    ) -> Self:
        checkpoint, config = open_checkpoint(path, best=best, algo=cls._spec(), trust=trust)
        report_skipped(checkpoint)
        changes = dict(given)
        env = changes.get("env_id")
        if env is not None and not isinstance(env, str):  # what is said of an id does not fit it
            changes |= {"eval_env_kwargs": {}}
            if config.vectorization == "native":
                changes["vectorization"] = "sync"
        if env_kwargs is not None:
            changes["env_kwargs"] = {**config.env_kwargs, **env_kwargs}
            own = changes.get("eval_env_kwargs", config.eval_env_kwargs)
            changes["eval_env_kwargs"] = {key: own[key] for key in own.keys() - env_kwargs.keys()}
        if network is not None:
            changes["algo_kwargs"] = {**config.algo_kwargs, "network": network}
        managed = cls(config.with_changes(**changes))
        if "device" in changes:
            resolve_device(changes["device"])
        managed._agent = load_agent(checkpoint, managed.config)
        managed._checkpoint = checkpoint.path
        managed._resume_from = checkpoint.path if best else path
        if changes.keys() & set(ENVIRONMENT_KEYS):
            managed._check_env()
        return managed

    def learn(
        self,
        *,
        callbacks: Sequence[Callback] = (),
        progress: bool = False,
        auto_resume: bool = False,
    ) -> TrainResult:
        """Train from the beginning to the end of the budget; `progress` shows a bar.

        With `auto_resume` the same call in another process goes on where this one was stopped, in
        the directory `run_name`, by default named after algorithm, environment and seed.
        """
        return self._train(self.config, callbacks, progress, auto_resume=auto_resume)

    def resume(
        self,
        total_timesteps: int | None = None,
        *,
        callbacks: Sequence[Callback] = (),
        progress: bool = False,
        trust: bool = False,
    ) -> TrainResult:
        """Continue the run this object was loaded from, or has trained.

        `total_timesteps` sets a new absolute budget, which is an extension: schedules are
        functions of the budget, so the result is not that of an uninterrupted run. Callbacks that
        the run names and that are not this package's are passed here, or `trust` is.
        """
        if self._resume_from is None:
            raise UsageError("nothing to resume: call learn(), or load() a run, first")
        config = trusted(self.config) if trust else _without_passed(self.config, callbacks)
        if total_timesteps is not None:
            config = config.with_changes(total_timesteps=total_timesteps)
        return self._train(config, callbacks, progress, resume=self._resume_from)

    def evaluate(self, episodes: int = 100, *, seed: int | None = None) -> Evaluation:
        """Play episodes with the policy as it is, acting greedily.

        Without a seed the episodes are those of the run's own final evaluation.
        """
        if not isinstance(episodes, int) or episodes < 1:
            raise UsageError(f"episodes: expected a whole number from 1 on, found {episodes!r}")
        with threads(self.config):
            agent = self._current_agent()
            make_env, most = self._environments().evaluation, self.config.max_eval_steps
            evaluator = Evaluator(make_env, agent.adapter, max_steps=most)
            try:
                return evaluator.evaluate(
                    agent.greedy,
                    agent.algorithm.initial_state,
                    episodes=episodes,
                    seed=evaluation_seed(self.config.seed) if seed is None else seed,
                )
            finally:
                evaluator.close()

    def predict(
        self,
        obs: object,
        state: PolicyState | None = None,
        episode_start: object = None,
        deterministic: bool = True,
        action_mask: object = None,
    ) -> tuple[Any, PolicyState]:
        """Action and new policy state for one observation, or for a batch of them.

        With `action_mask`, such as the environment's `info["action_mask"]`, a legal one.
        """
        if getattr(obs, "shape", ())[:1] == (0,):
            raise UsageError("observation: expected at least one row in a batch, found none")
        agent = self._current_agent()
        return agent.predict(obs, state, episode_start, deterministic, action_mask)

    def explain(self, obs: object, path: str | Path, action_mask: object = None) -> Path:
        """Draw what the agent expects of each action at one observation, where values are learned.

        The suffix of the path names the format. Needs matplotlib, the `report` extra. Actions that
        are not legal by `action_mask` are left out.
        """
        check_path(Path(path))
        write_picture(explain(self._current_agent(), obs, action_mask), Path(path))
        return Path(path)

    def save(self, path: str | Path) -> Path:
        """Write the agent to a directory that must not exist yet.

        After training this is the run's last checkpoint, from which it can be resumed; before
        training it holds the policy alone.
        """
        target = Path(path)
        if target.exists():
            raise SaveError(f"{target} exists already; save never overwrites, choose another path")

        def write() -> None:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".saving-") as folder:
                if self._checkpoint is not None:
                    source = Path(folder) / self._checkpoint.name
                    shutil.copytree(self._checkpoint, source)
                else:
                    source = self._write_policy(Path(folder))
                source.rename(target)

        try:
            with_retries(write)
        except OSError as error:
            raise save_error(target, error) from error
        return target

    def _train(
        self,
        config: TrainConfig,
        callbacks: Sequence[Callback],
        progress: bool,
        *,
        resume: Path | None = None,
        auto_resume: bool = False,
    ) -> TrainResult:
        self._environments(config)
        try:
            with _console(callbacks, progress) as watched:
                result = train_config(
                    config, callbacks=watched, resume=resume, auto_resume=auto_resume
                )
        except TrainingInterrupted as interrupt:
            self._take_over(config, interrupt.result.run_dir)
            raise
        self._take_over(config, result.run_dir)
        return result

    def _take_over(self, config: TrainConfig, run_dir: Path) -> None:
        """Stand where a run has left off."""
        checkpoint, _ = open_checkpoint(run_dir, algo=self._spec())
        self.config, self.run_dir = config, run_dir
        self._checkpoint, self._resume_from = checkpoint.path, run_dir
        self._agent = load_agent(checkpoint, config)

    @classmethod
    def _spec(cls) -> AlgorithmSpec:
        if not hasattr(cls, "algo_name"):
            raise UsageError(
                f"{cls.__name__}: expected algo_name, a name or package.module:SPEC, or spec, an "
                "AlgorithmSpec, found neither; give the class one of them"
            )
        return get_spec(cls.algo_name)

    def _environments(self, config: TrainConfig | None = None) -> Environments:
        config = config or self.config
        refuse_unserialized(config, *ENVIRONMENT_KEYS)
        return Environments(config)

    def _current_agent(self) -> Agent:
        if self._agent is None:
            spec = self._spec()
            hyper = check_hyper_parameters(spec.hyper, self.config.algo_kwargs)
            self._agent = build_agent(spec, self.config, hyper, self._adapter())
        return self._agent

    def _adapter(self) -> SpaceAdapter:
        environments = self._environments()
        with ExitStack() as stack:
            env = environments.source
            if not environments.prebuilt:
                env = environments.evaluation()
                stack.callback(env.close)
            spaces, frames = _spaces(env), stacked_frames(env)
        check_spaces(self._spec(), environments.name, *spaces)
        return SpaceAdapter(environments.name, *spaces, frames=frames)

    def _check_env(self) -> None:
        """Refuse an environment whose spaces are not the loaded agent's."""
        agent, adapter = self._current_agent(), self._adapter()
        agent.check_spaces(adapter.observation, adapter.action)

    def _write_policy(self, folder: Path) -> Path:
        agent = self._current_agent()
        info: Mapping[str, Any] = {
            **saved_algorithm(self._spec()),
            "env_id": agent.adapter.spec.env_id,
            "updates": 0,
            "resume_level": "none",
            "exact": False,
            "config": self.config.to_plain(),
        }
        return write_checkpoint(folder, kind="best", env_steps=0, parts=agent.parts(), info=info)


def _spaces(
    env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any],
) -> tuple[gym.Space[Any], gym.Space[Any]]:
    if isinstance(env, VectorEnv):
        return env.single_observation_space, env.single_action_space
    return env.observation_space, env.action_space


@contextmanager
def _console(callbacks: Sequence[Callback], progress: bool) -> Iterator[Sequence[Callback]]:
    """The callbacks, with a progress bar among them if wanted, which is closed in any case."""
    if not progress:
        yield callbacks
        return
    from rl_training.runtime.console import ConsoleProgress

    console = ConsoleProgress()
    try:
        yield [*callbacks, console]
    finally:
        console.close()


def algorithm_class(algo: AlgorithmSpec | str) -> type[ManagedAlgorithm]:
    """The managed class of an algorithm, given by its spec, its name or its import path."""
    spec = algo if isinstance(algo, AlgorithmSpec) else get_spec(algo)
    name = "".join(word.capitalize() for word in spec.name.split("_"))
    return type(name, (ManagedAlgorithm,), {"spec": spec, "__doc__": f"{spec.title}."})


def load_any(
    path: str | Path, *, device: str | None = None, best: bool = False, trust: bool = False
) -> ManagedAlgorithm:
    """The managed object of whatever algorithm a checkpoint was trained with."""
    _, config = open_checkpoint(path, best=best, trust=trust)
    return algorithm_class(config.algo).load(path, device=device, best=best, trust=trust)


def _without_passed(config: TrainConfig, callbacks: Sequence[Callback]) -> TrainConfig:
    """The configuration without the callbacks that its file may not name and the caller passes."""
    passed = {
        f"{type(callback).__module__}:{type(callback).__qualname__}" for callback in callbacks
    }
    names = [entry if isinstance(entry, str) else next(iter(entry)) for entry in config.callbacks]
    entries = zip(config.callbacks, names, strict=True)
    kept = [entry for entry, name in entries if untrusted_name(name) not in passed]
    return config.with_changes(callbacks=kept) if len(kept) < len(names) else config
