"""The managed algorithm: one object that learns, evaluates, predicts, saves and resumes."""

from __future__ import annotations

import inspect
import numbers
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium as gym
from gymnasium.vector import VectorEnv
from torch import nn
from typing_extensions import Self

from rl_training.algorithms.base import Algorithm
from rl_training.config.base import untrusted_name
from rl_training.config.train_config import GIVEN_TWICE, TrainConfig, check_hyper_parameters
from rl_training.config.types import MAX_STEPS
from rl_training.data.types import PolicyState
from rl_training.envs.pixels import stacked_frames
from rl_training.envs.spaces import SpaceAdapter
from rl_training.errors import CheckpointError, ConfigError, SaveError, UsageError, did_you_mean
from rl_training.experiment.registry import (
    get_spec,
    load_agent,
    open_checkpoint,
    resolve_config,
    train_config,
)
from rl_training.runtime.agent import Agent, build_agent, resolve_device
from rl_training.runtime.assembly import Environments
from rl_training.runtime.callbacks import Callback, checked_callbacks
from rl_training.runtime.compatibility import check_spaces
from rl_training.runtime.evaluator import Evaluation, Evaluator
from rl_training.runtime.execution import threads
from rl_training.runtime.result import TrainingInterrupted, TrainResult
from rl_training.runtime.resume import (
    ENVIRONMENT_KEYS,
    refuse_unserialized,
    report_skipped,
    run_directory_of,
)
from rl_training.runtime.saved_info import saved_info
from rl_training.runtime.spec import AlgorithmSpec
from rl_training.runtime.spec_table import register, saved_algorithm
from rl_training.runtime.training_run import evaluation_seed
from rl_training.runtime.trust import trusted
from rl_training.runtime.warm_start import WarmStart
from rl_training.runtime.zoo import find_agent
from rl_training.storage.checkpoints import Checkpoint, retry_if_pruned, write_checkpoint
from rl_training.storage.files import replace_directory
from rl_training.storage.manifest import MANIFEST_NAME
from rl_training.storage.runs import CHECKPOINTS_DIR_NAME
from rl_training.tools.explain import Explanation, check_path, explain, write_picture

if TYPE_CHECKING:
    from rl_training.tools.frames import Playback, Recorder
    from rl_training.tools.video import Recording


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

    def __init__(self, config_or_env: object = None, /, *others: object, **keys: object) -> None:
        name = self._spec().name
        if others:
            raise UsageError(_positional(type(self).__name__, config_or_env, others))
        if config_or_env is None:
            config_or_env = keys.pop("env", None)  # as `load` names it
        keys = self._nested(keys)
        if isinstance(config_or_env, TrainConfig):
            source = config_or_env
            if get_spec(source.algo).name != name:
                raise ConfigError(f"algo: expected {name} for this class, found {source.algo!r}")
            loaded = resolve_config(source, arguments=keys)
        else:
            given = {} if config_or_env is None else {"env_id": config_or_env}
            source_keys = {"algo": self.algo_name, **given}
            loaded = resolve_config(None, arguments={**source_keys, **keys})
        self.config = loaded.config
        self.run_dir: Path | None = None
        self._checkpoint: Path | None = None  # of the agent
        self._resume_from: Path | None = None  # a run directory stands for its newest checkpoint
        self._agent: Agent | None = None
        self._env_steps = 0
        self._requested_steps = 0  # by the calls of `learn` so far

    @property
    def env_steps(self) -> int:
        """Environment transitions the agent was trained for."""
        return self._env_steps

    @classmethod
    def from_config(cls, name_or_path: str | Path, **keys: object) -> Self:
        """From a packaged configuration such as `dqn/cartpole`, or a YAML file."""
        return cls(resolve_config(name_or_path, arguments=cls._nested(keys)).config)

    @classmethod
    def _nested(cls, keys: dict[str, Any]) -> dict[str, Any]:
        """The keywords as a configuration has them: hyper-parameters are in `algo_kwargs`."""
        if isinstance(agent := keys.get("init_from"), ManagedAlgorithm):
            if agent._checkpoint is None:
                raise UsageError(f"init_from: expected a trained agent, found {agent}; train it")
            keys = {**keys, "init_from": agent._checkpoint}
        hyper = cls._spec().hyper.model_fields.keys() - TrainConfig.model_fields.keys()
        lifted = {key: keys[key] for key in keys if key in hyper}
        inner = keys.get("algo_kwargs", {})
        if not lifted or not isinstance(inner, Mapping):
            return keys
        if twice := [f"{key}: {GIVEN_TWICE}" for key in lifted if key in inner]:
            raise ConfigError("\n".join(twice))
        top = {key: value for key, value in keys.items() if key not in lifted}
        return top | {"algo_kwargs": {**inner, **lifted}}

    if not TYPE_CHECKING:  # else a checker would take every name for an attribute

        def __getattr__(self, name: str) -> Any:
            from rl_training.config.other_packages import ATTRIBUTES  # only of an unknown name

            what = f"{type(self).__name__!r} object has no attribute {name!r}"
            known = name in ATTRIBUTES
            answer = f": {ATTRIBUTES[name]}" if known else did_you_mean(name, dir(self))
            raise AttributeError(what + answer, name=name, obj=self)

    def __repr__(self) -> str:
        facts = [str(self.config.to_plain()["env_id"]), f"{self.env_steps:,} steps trained"]
        if self._agent is not None:
            facts.append(f"{sum(p.numel() for p in self.model.parameters()):,} parameters")
        if self.run_dir is not None:
            facts.append(f"in {self.run_dir}")
        return f"<{type(self).__name__}: {self._spec().name} on {', '.join(facts)}>"

    @property
    def algorithm(self) -> Algorithm:
        """What acts and learns: networks, losses and the update; built if need be."""
        return self._current_agent().algorithm

    @property
    def model(self) -> nn.Module:
        """The trained network, a torch module."""
        return next(iter(self.algorithm.networks().values()))

    @classmethod
    def load(  # noqa: PLR0913 - one for each object that no file can hold
        cls,
        path: str | Path,
        env: object = None,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        eval_env: object = None,
        wrappers: Sequence[Any] | None = None,
        network: Callable[..., Any] | None = None,
        device: str | None = None,
        best: bool = False,
        trust: bool = False,
        **others: object,
    ) -> Self:
        """From a run directory or checkpoint, or by name: an agent that comes with the package.

        An environment, arguments of it, wrappers or a network that were given as objects no import
        path leads to are passed again; `env_kwargs` need hold only those. So are those that the run
        names and that are not this package's, unless you `trust` whoever wrote it. A policy
        predicts without its environment, and on the CPU if its device is missing and no `device` is
        given. The run may still be going on.
        """
        _refuse_unknown(cls.load, others)
        path = find_agent(path)
        _refuse_file(path)
        given = {"env_id": env, "eval_env": eval_env, "wrappers": wrappers, "device": device}
        changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        return retry_if_pruned(lambda: cls._load(path, best, trust, changes, env_kwargs, network))

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
            if config.eval_env is None:
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
        managed._stand_at(checkpoint, checkpoint.path if best else path)
        managed.run_dir = run_directory_of(checkpoint)
        if changes.keys() & set(ENVIRONMENT_KEYS):
            managed._check_env()
        return managed

    def learn(
        self,
        total_timesteps: int | None = None,
        *,
        horizon: int | None = None,
        callbacks: Sequence[Callback] = (),
        progress: bool = False,
        auto_resume: bool = False,
        **others: object,
    ) -> TrainResult:
        """Train that many further transitions, or what is left of the budget.

        Schedules are functions of the planned total: the `horizon` of the first call, else the
        configuration's `total_timesteps`, else what the first call trains. A call that goes beyond
        it extends it. All calls go on with one run, in one directory; `progress` shows a bar.

        With `auto_resume` the same call in another process goes on where this one was stopped, in
        the directory `run_name`, by default named after algorithm, environment and seed.
        """
        _refuse_unknown(type(self).learn, others)
        if auto_resume:
            if total_timesteps is not None or horizon is not None:
                raise UsageError(
                    "auto_resume: goes on to the end of the whole budget, so learn takes no number "
                    f"of steps with it; give the budget to {type(self).__name__}(env, "
                    "total_timesteps=...)"
                )
            return self._train(self.config, callbacks, progress, auto_resume=True)
        stop_at, planned = self._next_slice(total_timesteps, horizon)
        config = _without_passed(self.config, callbacks).with_changes(total_timesteps=planned)
        return self._train(config, callbacks, progress, resume=self._resume_from, stop_at=stop_at)

    def _next_slice(self, further: int | None, horizon: int | None) -> tuple[int, int]:
        """The step at which the next call of `learn` ends, and the planned total."""
        stated = "total_timesteps" in self.config.model_fields_set
        planned = self.config.total_timesteps
        if horizon is not None:
            planned = _checked_steps("horizon", horizon)
        if further is None:
            if self.env_steps >= planned:
                raise UsageError(
                    f"this agent has trained all of its {planned:,} planned steps: learn(10_000) "
                    f"trains 10,000 further ones, and a new {type(self).__name__}(...) begins anew"
                )
            return planned, planned
        stop_at = self._requested_steps + _checked_steps("total_timesteps", further)
        if horizon is not None and horizon < stop_at:
            raise UsageError(
                f"horizon: expected the planned total, at least the {stop_at:,} steps of this call "
                f"and those before it, found {horizon:,}"
            )
        if not stated and horizon is None:
            planned = stop_at
        return stop_at, max(planned, stop_at)

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
        """Draw what the agent makes of one observation.

        Of value-based algorithms these are the returns it expects of each action, of policies the
        probability of each action or the spread of each dimension, and the critics' values. The
        suffix of the path names the format. Needs matplotlib, the `report` extra. Actions that are
        not legal by `action_mask` are left out.
        """
        check_path(Path(path))
        write_picture(self.explanation(obs, action_mask), Path(path))
        return Path(path)

    def explanation(self, obs: object, action_mask: object = None) -> Explanation:
        """The numbers that `explain` draws; printed, they are a table."""
        return explain(self._current_agent(), obs, action_mask)

    def record(
        self,
        path: str | Path,
        *,
        episodes: int = 1,
        seed: int | None = None,
        max_steps: int = 3_000,
        overlay: bool = True,
    ) -> Recording:
        """Write a video of episodes: .mp4 with the `video` extra, .webp or .gif without.

        The agent acts greedily, in the first episodes of its run's evaluation unless a seed is
        given, for `max_steps` steps in all at most. The overlay has step, reward and return, and
        the values of the actions where they are learned.
        """
        for name, count in (("episodes", episodes), ("max_steps", max_steps)):
            if type(count) is not int or count < 1:
                raise UsageError(f"{name}: expected a whole number from 1 on, found {count!r}")
        from rl_training.tools.frames import Playback
        from rl_training.tools.video import record_video

        playback = Playback(episodes, seed, max_steps, overlay)
        refuse_unserialized(self.config, *ENVIRONMENT_KEYS)
        with threads(self.config):
            return record_video(self._current_agent(), self.config, Path(path), playback)

    def recorder(self, playback: Playback) -> Recorder:
        """What plays the agent's episodes and renders them, frame by frame."""
        from rl_training.tools.frames import Recorder

        refuse_unserialized(self.config, *ENVIRONMENT_KEYS)
        return Recorder(self._current_agent(), self.config, playback)

    def save(self, path: str | Path, *, overwrite: bool = False, **others: object) -> Path:
        """Write the agent to a directory; one that is there must be an agent to `overwrite`.

        After training this is the run's last checkpoint, from which it can be resumed; before
        training it holds the policy alone.
        """
        _refuse_unknown(type(self).save, others)
        target = Path(path)
        if target.exists():
            if not overwrite:
                raise SaveError(
                    f"{target} exists already, and save never overwrites by itself; choose another "
                    "path, or say overwrite=True"
                )
            _refuse_to_replace(target)

        def write(folder: Path) -> Path:
            if self._checkpoint is None:
                return self._write_policy(folder)
            copy = folder / self._checkpoint.name
            shutil.copytree(self._checkpoint, copy)
            return copy

        replace_directory(target, write)
        return target

    def _train(
        self,
        config: TrainConfig,
        callbacks: Sequence[Callback],
        progress: bool,
        *,
        resume: Path | None = None,
        auto_resume: bool = False,
        stop_at: int | None = None,
    ) -> TrainResult:
        self._environments(config)
        try:
            with _console(callbacks, progress) as watched:
                result = train_config(
                    config,
                    callbacks=watched,
                    resume=resume,
                    auto_resume=auto_resume,
                    stop_at=stop_at,
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
        self._stand_at(checkpoint, run_dir)
        self._agent = load_agent(checkpoint, config)

    def _stand_at(self, checkpoint: Checkpoint, resume_from: Path) -> None:
        self._checkpoint, self._resume_from = checkpoint.path, resume_from
        self._env_steps = checkpoint.env_steps
        # Environments that step together may end a few transitions past what was asked for; two
        # calls then end where one would.
        requested = saved_info(checkpoint).stop_at or checkpoint.env_steps
        self._requested_steps = min(requested, checkpoint.env_steps)

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
            if (start := WarmStart.find(self.config)) is not None:
                start.into_agent(self._agent)
        return self._agent

    def _adapter(self) -> SpaceAdapter:
        environments = self._environments()
        with ExitStack() as stack:
            env = environments.source
            if not environments.prebuilt:
                # The policy is for the spaces of training; a given eval_env may have others.
                second = self.config.eval_env is not None
                env = environments.training() if second else environments.evaluation()
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


def load(path: str | Path, env: object = None, **arguments: Any) -> ManagedAlgorithm:
    """The agent in a run directory or checkpoint, or one that comes with the package, by its name.

    Whatever its algorithm is. The arguments are those of the managed classes' `load`.
    """
    path = find_agent(path)
    _refuse_file(path)
    best, trust = (bool(arguments.get(name)) for name in ("best", "trust"))
    _, config = open_checkpoint(path, best=best, trust=trust)
    return managed_class(get_spec(config.algo)).load(path, env, **arguments)


def managed_class(spec: AlgorithmSpec) -> type[ManagedAlgorithm]:
    """The class of an algorithm: the exported one of a packaged algorithm, else one made of it."""
    from rl_training.api import algorithms

    for exported in vars(algorithms).values():
        if isinstance(exported, type) and vars(exported).get("algo_name") == spec.name:
            return exported
    return algorithm_class(spec)


def _refuse_unknown(method: Callable[..., Any], given: Mapping[str, object]) -> None:
    if given:
        from rl_training.config.other_packages import refuse_unknown_arguments

        refuse_unknown_arguments(method.__name__, given, inspect.signature(method).parameters)


def _refuse_file(path: Path) -> None:
    """Refuse what other packages save an agent to: a file."""
    if not path.is_file() or path.name == MANIFEST_NAME:
        return
    from rl_training.config.other_packages import FILES

    what = FILES.get(path.suffix.lower(), "is a file")
    raise CheckpointError(
        f"{path}: {what}, and was not opened; an agent of this package is a directory: that of a "
        "run, a checkpoint in it, or one that save() wrote"
    )


def _refuse_to_replace(target: Path) -> None:
    """Refuse to overwrite anything but an agent that `save` wrote."""
    if not (target / MANIFEST_NAME).is_file() or target.parent.name == CHECKPOINTS_DIR_NAME:
        raise SaveError(
            f"{target}: expected an agent that save() wrote, which overwrite=True replaces, found "
            "something else; choose another path"
        )


def _positional(name: str, first: object, others: Sequence[object]) -> str:
    if isinstance(first, str) and first.endswith("Policy"):
        env = repr(others[0]) if isinstance(others[0], str) else "env"
        return f"{first}: the network follows from the observation space; write {name}({env})"
    return (
        f"{name} takes one argument without a name, the environment, found {1 + len(others)}; "
        f"write {name}(env, seed=1, ...)"
    )


def _without_passed(config: TrainConfig, callbacks: Sequence[Callback]) -> TrainConfig:
    """The configuration without the callbacks that its file may not name and the caller passes."""
    passed = {
        f"{type(callback).__module__}:{type(callback).__qualname__}"
        for callback in checked_callbacks(callbacks)
    }
    names = [entry if isinstance(entry, str) else next(iter(entry)) for entry in config.callbacks]
    entries = zip(config.callbacks, names, strict=True)
    kept = [entry for entry, name in entries if untrusted_name(name) not in passed]
    return config.with_changes(callbacks=kept) if len(kept) < len(names) else config


def _checked_steps(name: str, value: Any) -> int:
    """A count of transitions; 1e6 is one too."""
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (number and 1 <= value <= MAX_STEPS and value == int(value)):
        raise UsageError(f"{name}: expected a whole number from 1 on, found {value!r:.80}")
    return int(value)
