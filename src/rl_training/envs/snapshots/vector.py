"""Saving and restoring the state of environments, and how exactly a run in them can be resumed.

A state is data only, in the codec of `storage.tree`. It comes from the environment's
`get_state`/`set_state` or from a walk over its attributes.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from rl_training.envs.snapshots import probe
from rl_training.envs.snapshots.classes import SnapshotUnavailable
from rl_training.envs.snapshots.layers import layers_of, load_layers, save_layers
from rl_training.envs.stacking import frames_of
from rl_training.errors import CheckpointError
from rl_training.storage.tree import Encoded, StateTree

_SYNC_SKIPPED = frozenset({"envs", "env_fns"})
_ASYNC_KEPT = frozenset(
    {"action_space", "single_action_space", "observation_space", "single_observation_space"}
    | {"observations"}
)


class SnapshotEnv(gym.Wrapper[Any, Any, Any, Any]):
    """The outermost wrapper of every env we build: state by `VectorEnv.call`, observations copied.

    Without the copy an env that reuses its observation buffer would overwrite `final_obs` when it
    is reset within the step.
    """

    def __init__(self, env: gym.Env[Any, Any], env_index: int) -> None:
        super().__init__(env)
        self.env_index = env_index

    def step(self, action: object) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step of the env."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return _copied(obs), reward, terminated, truncated, info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The first observation of a new episode; a seed also seeds the env's spaces."""
        if seed is not None:
            self.action_space.seed(seed)
            self.observation_space.seed(seed)
        obs, info = self.env.reset(seed=seed, options=options)
        return _copied(obs), info

    # An exception would end an AsyncVectorEnv's worker for good, so trouble is returned as text.

    def frames_stacked(self) -> int:
        """How many images an observation stacks."""
        return frames_of(self)

    def save_state(self) -> dict[str, Any]:
        """`{"state": encoded}`, or `{"unavailable": reason}`."""
        try:
            return {"state": save_env_state(self)}
        except SnapshotUnavailable as error:
            return {"unavailable": f"env {self.env_index}: {error}"}

    def load_state(self, states: Sequence[Encoded]) -> str:
        """Take over this env's entry of `states`; gives an empty text, or what went wrong."""
        try:
            load_env_state(self, states[self.env_index])
        except CheckpointError as error:
            return f"env {self.env_index}: {error}"
        return ""


@dataclass(frozen=True)
class SnapshotEnvMaker:
    """Builds one env of a vector env; that it was used says that the workers know `save_state`."""

    make: Callable[[], gym.Env[Any, Any]]
    env_index: int
    owner: int = field(default_factory=os.getpid)

    def __call__(self) -> SnapshotEnv:
        """A new environment."""
        if os.getpid() != self.owner:
            # A worker. Signals to the process group reach it too, but only the owner decides when
            # to stop, after a save that needs the worker; the owner's handlers are of no use here.
            for name in ("SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2"):
                if hasattr(signal, name):
                    signal.signal(getattr(signal, name), signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return SnapshotEnv(self.make(), self.env_index)


def save_env_state(env: gym.Env[Any, Any]) -> Encoded:
    """The state of an env and its wrappers; SnapshotUnavailable names what cannot be saved."""
    return save_layers(_env_layers(env))


def load_env_state(env: gym.Env[Any, Any], state: Encoded) -> None:
    """Write a saved state into an env that was built in the same way and has been reset once."""
    with _misfit_reported(env):
        load_layers(_env_layers(env), state)


def save_vector_state(venv: VectorEnv[Any, Any, Any]) -> StateTree:
    """The state of a vector env and of all envs in it; SnapshotUnavailable says what is in the way.

    It may become unavailable during a run, for instance when an env opens a file.
    """
    layers = layers_of(venv)
    base = layers[-1]
    envs: list[Encoded] = []
    if isinstance(base, SyncVectorEnv):
        envs = [save_env_state(env) for env in base.envs]
    elif isinstance(base, AsyncVectorEnv):
        _check_workers(base)
        for result in base.call("save_state"):
            if "unavailable" in result:
                raise SnapshotUnavailable(result["unavailable"])
            envs.append(result["state"])
    return {"vector": save_layers(layers, _skipped(base)), "envs": envs}


def load_vector_state(venv: VectorEnv[Any, Any, Any], state: StateTree) -> None:
    """Write a saved state into a vector env that was built in the same way and reset once.

    CheckpointError says what does not fit; the environments are then of no more use.
    """
    with _misfit_reported(venv):
        layers = layers_of(venv)
        before = _batches(layers[-1])
        _load_envs(layers[-1], state["envs"])
        load_layers(layers, state["vector"], _skipped(layers[-1]))
        if _batches(layers[-1]) != before:
            raise CheckpointError("the arrays of the vector environment have other shapes or types")


def _batches(venv: VectorEnv[Any, Any, Any]) -> dict[str, tuple[Any, tuple[int, ...]]]:
    """Type and shape of the arrays with an entry for each environment, which never change."""
    held = vars(venv).items()
    return {name: (x.dtype, x.shape) for name, x in held if isinstance(x, np.ndarray)}


class ResumeLevel(NamedTuple):
    """How exactly a run in some environment can be resumed, and why not more exactly.

    `exact`: the state can be saved. `boundary`: it cannot, but a reset seed fixes all that follows,
    so a run that cuts its episodes at checkpoints can be repeated. `statistical`: neither.
    """

    level: Literal["exact", "boundary", "statistical"]
    reason: str


def resume_level(make: Callable[[], VectorEnv[Any, Any, Any]] | None, *, seed: int) -> ResumeLevel:
    """Find the level by playing random actions in environments from `make`, closed afterwards.

    None stands for an environment that was passed already built. Nothing the environment does here
    raises, and the global generators are left as they were.
    """
    if make is None:
        return ResumeLevel(
            "statistical",
            "the environment was passed already built and cannot be built again; pass a callable "
            "that builds it",
        )
    with probe.undisturbed(), ExitStack() as opened:
        try:
            return _find_level(make, opened, seed)
        except (Exception, SystemExit) as error:
            # It will show again in training, where it is reported in full.
            raised = f"{type(error).__name__}: {error}"
            return ResumeLevel("statistical", f"the environment raised {raised}")


def _find_level(
    make: Callable[[], VectorEnv[Any, Any, Any]], opened: ExitStack, seed: int
) -> ResumeLevel:
    def build() -> VectorEnv[Any, Any, Any]:
        venv = make()
        opened.callback(probe.close, venv)
        return venv

    first = build()
    generators = probe.global_generators()
    steps = int(np.random.default_rng(seed).integers(10, 31))
    actions = probe.random_actions(first, steps + 20, seed=seed)
    first.reset(seed=seed)
    probe.play(first, actions[:steps])
    trouble = _replay_trouble(first, build(), actions[steps:], seed)
    if not trouble:
        return ResumeLevel("exact", "saved, restored and replayed to the bit")
    # Against a third one: the second may have taken over what makes it equal to the first.
    repeated = [probe.play_episode(venv, actions[:20], seed=seed) for venv in (first, build())]
    if probe.same(*repeated):
        return ResumeLevel("boundary", trouble)
    if not probe.same(generators, probe.global_generators()):
        cause = "the environment draws from a global random generator, which no reset seed fixes"
    else:
        cause = "the same reset seed and actions gave different answers"
    return ResumeLevel("statistical", f"{cause}; {trouble}")


def _replay_trouble(
    first: VectorEnv[Any, Any, Any], second: VectorEnv[Any, Any, Any], actions: list[Any], seed: int
) -> str:
    """What keeps `second` from going on like `first` after taking over its state; empty if nothing.

    The unseeded reset shows whether the generators went along.
    """
    try:
        state = save_vector_state(first)
        second.reset(seed=seed + 1000)
        load_vector_state(second, state)
    except (SnapshotUnavailable, CheckpointError) as error:
        return str(error)
    replayed = [
        probe.play(venv, actions) + probe.play_episode(venv, actions[:5], seed=None)
        for venv in (first, second)
    ]
    if probe.same(*replayed):
        return ""
    return "after a save and a restore it went another way: some state is outside its attributes"


def _load_envs(base: VectorEnv[Any, Any, Any], states: list[Encoded]) -> None:
    expected = base.num_envs if isinstance(base, (SyncVectorEnv, AsyncVectorEnv)) else 0
    if len(states) != expected:
        raise CheckpointError(f"the state is of {len(states)} environments, expected {expected}")
    if isinstance(base, SyncVectorEnv):
        for env, state in zip(base.envs, states, strict=True):
            load_env_state(env, state)
    elif isinstance(base, AsyncVectorEnv):
        _check_workers(base)
        for trouble in filter(None, base.call("load_state", states)):
            raise CheckpointError(trouble)


def _env_layers(env: gym.Env[Any, Any]) -> list[Any]:
    return [layer for layer in layers_of(env) if not isinstance(layer, SnapshotEnv)]


@contextmanager
def _misfit_reported(env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> Iterator[None]:
    try:
        yield
    except CheckpointError:
        raise
    except (Exception, SystemExit) as error:
        # A damaged state can fail anywhere, as can a set_state.
        raise CheckpointError(
            f"the saved state does not fit {type(env.unwrapped).__qualname__}: {error!r}"
        ) from error


def _check_workers(venv: AsyncVectorEnv[Any, Any]) -> None:
    if not all(isinstance(make, SnapshotEnvMaker) for make in venv.env_fns):
        raise SnapshotUnavailable("the AsyncVectorEnv was not built by rl_training")
    if venv.autoreset_mode is AutoresetMode.NEXT_STEP:
        raise SnapshotUnavailable(
            "AsyncVectorEnv in NEXT_STEP mode keeps its pending resets inside the workers"
        )


def _skipped(base: VectorEnv[Any, Any, Any]) -> frozenset[str]:
    if isinstance(base, AsyncVectorEnv):
        return frozenset(vars(base)) - _ASYNC_KEPT
    return _SYNC_SKIPPED if isinstance(base, SyncVectorEnv) else frozenset()


def _copied(obs: object) -> Any:
    if isinstance(obs, np.ndarray):
        return obs.copy()
    if isinstance(obs, dict):
        return {key: _copied(value) for key, value in obs.items()}
    return tuple(map(_copied, obs)) if type(obs) is tuple else obs
