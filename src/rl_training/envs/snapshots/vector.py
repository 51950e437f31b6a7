"""Saving and restoring the state of environments, and how exactly a run in them can be resumed.

A state is data only, in the codec of `storage.tree`. It comes from the environment's
`get_state`/`set_state` or from a walk over its attributes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from rl_training.envs.async_vector_env import QuickAsyncVectorEnv
from rl_training.envs.snapshots import probe
from rl_training.envs.snapshots.classes import SnapshotUnavailable
from rl_training.envs.snapshots.global_state import (
    attribute_data,
    changed_data,
    clear_caches,
    global_state_digests,
)
from rl_training.envs.snapshots.layers import layers_of, load_layers, save_layers
from rl_training.envs.stacking import frames_of
from rl_training.envs.vector_envs import EnvFailure
from rl_training.errors import CheckpointError, safe_text
from rl_training.storage.tree import Encoded, StateTree

_SYNC_SKIPPED = frozenset({"envs", "env_fns", "_looks_at"})
_ASYNC_KEPT = frozenset(
    {"action_space", "single_action_space", "observation_space", "single_observation_space"}
    | {"observations", "_steps", "_seeds", "_seeded_at"}
)
_ENVIRON = "it changes os.environ, which no checkpoint holds"
_IN_WORKERS = (AsyncVectorEnv, QuickAsyncVectorEnv)


class SnapshotEnv(gym.Wrapper[Any, Any, Any, Any]):
    """The outermost wrapper of every env we build: state by `VectorEnv.call`, observations copied.

    Without the copy an env that reuses its observation buffer would overwrite `final_obs` when it
    is reset within the step.
    """

    def __init__(self, env: gym.Env[Any, Any], env_index: int) -> None:
        super().__init__(env)
        self.env_index = env_index
        self._generators: list[Any] | None = None
        self._environ: dict[str, str] = {}

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
        if self._generators is None:
            self._generators, self._environ = probe.global_generators(), dict(os.environ)
        return _copied(obs), info

    # An exception would end a worker of Gymnasium's, so trouble is returned as text.

    def frames_stacked(self) -> int:
        """How many images an observation stacks."""
        return frames_of(self)

    def save_state(self) -> dict[str, Any]:
        """`{"state": encoded}`, or `{"unavailable": reason}`; asked of an environment in a worker.

        A worker's global generators and `os.environ` are its environment's, and no checkpoint holds
        them.
        """
        if not probe.bitwise_equal(self._generators, probe.global_generators()):
            reason = "it draws from a global random generator in its worker"
            return {"unavailable": f"env {self.env_index}: {reason}"}
        if self._environ != dict(os.environ):
            return {"unavailable": f"env {self.env_index}: {_ENVIRON}"}
        try:
            return {"state": save_env_state(self)}
        except SnapshotUnavailable as error:
            return {"unavailable": f"env {self.env_index}: {error}"}

    def global_state(self) -> dict[str, int]:
        """Digests of the global state that this environment's code keeps."""
        return global_state_digests(_env_layers(self))

    def attributes(self) -> dict[str, int]:
        """Digests of the attributes of this environment that can be saved."""
        return attribute_data(_env_layers(self))

    def packages(self) -> list[str]:
        """The top-level packages that the classes of this environment come from."""
        return _packages(_env_layers(self))

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

    def __call__(self) -> SnapshotEnv:
        """A new environment."""
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
    elif isinstance(base, _IN_WORKERS):
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


def global_state(venv: VectorEnv[Any, Any, Any]) -> dict[str, int]:
    """Digests of the global state that the environments' code keeps, by name.

    The state of an environment holds none of it, so it must not have changed since the first reset
    when a checkpoint claims to be exact.
    """
    data = global_state_digests(_layers_here(venv))
    base = layers_of(venv)[-1]
    if isinstance(base, _IN_WORKERS):
        _check_workers(base)
        for index, state in enumerate(base.call("global_state")):
            data |= {f"{name} (env {index})": digest for name, digest in state.items()}
    return data


def packages_of(venv: VectorEnv[Any, Any, Any]) -> list[str]:
    """The top-level packages that the environments' classes come from."""
    base = layers_of(venv)[-1]
    if isinstance(base, _IN_WORKERS) and _built_here(base):
        return sorted({package for each in base.call("packages") for package in each})
    return _packages(_layers_here(venv))


def global_state_change(before: dict[str, int], venv: VectorEnv[Any, Any, Any]) -> str:
    """What of the global state has changed since `before`, as a reason; empty if nothing."""
    changed = changed_data(before, global_state(venv))
    if not changed:
        return ""
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    return f"data outside the environment has changed: {', '.join(changed[:3])}{more}"


Level: TypeAlias = Literal["exact", "boundary", "statistical"]


class ResumeLevel(NamedTuple):
    """How exactly a run in some environment can be resumed, and why not more exactly.

    `exact`: the state can be saved. `boundary`: it cannot, but a reset seed fixes all that follows,
    so a run that cuts its episodes at checkpoints can be repeated. `statistical`: neither.
    """

    level: Level
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
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # It will show again in training, where it is reported in full.
            raised = f"raised {type(error).__name__}: {safe_text(error)}"
            happened = error.brief if isinstance(error, EnvFailure) else raised
            return ResumeLevel("statistical", f"the environment {happened}")


def _find_level(
    make: Callable[[], VectorEnv[Any, Any, Any]], opened: ExitStack, seed: int
) -> ResumeLevel:
    def build() -> VectorEnv[Any, Any, Any]:
        venv = make()
        opened.callback(probe.close, venv)
        return venv

    first = build()
    generators = probe.global_generators()
    actions = probe.endless_actions(first, seed=seed)
    start, info = first.reset(seed=seed)
    start, initial = probe.copy_or_digest(start), _global_state(first)
    environ = dict(os.environ)
    beyond = int(np.random.default_rng(seed).integers(10, 31))
    before = probe.play_past_episode_end(first, actions, beyond=beyond, info=info)
    trouble = _restore_trouble(first, second := build(), initial, seed)
    after = probe.play_past_episode_end(first, actions, beyond=20, info=before.info)
    if not trouble:
        trouble = _replay_trouble(first, second, after)
    if environ != dict(os.environ):
        return ResumeLevel("statistical", _ENVIRON)
    if not trouble:
        return ResumeLevel(
            "exact",
            f"saved after {before.length()}, restored, and {after.length()} replayed to the bit",
        )
    # Against a third one: the second may have taken over what makes it equal to the first.
    third = build()
    clear_caches(_layers_here(third))
    new = probe.play_episode(third, (), seed=seed)
    cause = "" if initial is None else global_state_change(initial, third)
    if cause:
        return ResumeLevel("statistical", cause)
    new += probe.play(third, before.actions + after.actions)
    if not probe.bitwise_equal([start, *before.record, *after.record], new):
        cause = "the same reset seed and actions gave different answers"
        if not probe.bitwise_equal(generators, probe.global_generators()):
            cause = "the environment draws from a global random generator, no reset seed fixes it"
    elif outlived := _outlived(first, build, new, before.actions[:20], seed):
        cause = (
            "the same reset seed and actions gave different answers in a used environment and in a "
            f"new one, and {outlived} outlives an episode, which building it anew would lose"
        )
    if cause:
        return ResumeLevel("statistical", f"{cause}; {trouble}")
    played = f"{before.length()} and {after.length()}"
    return ResumeLevel("boundary", f"{trouble}; in new environments a seed fixed {played}")


def _outlived(
    used: VectorEnv[Any, Any, Any],
    build: Callable[[], VectorEnv[Any, Any, Any]],
    new: list[Any],
    actions: list[Any],
    seed: int,
) -> str:
    """An attribute that carries something from one episode to the next, and shows; empty if none.

    A running mean or a curriculum does. What is left of earlier episodes in a simulator, such as
    the order of its contacts, is in no attribute, and nobody misses it.
    """
    if probe.bitwise_equal(new[: len(actions) + 1], probe.play_episode(used, actions, seed=seed)):
        return ""
    attributes = []
    for venv in (used, build()):
        venv.reset(seed=seed)
        attributes.append(_attributes(venv))
    return ", ".join(changed_data(*attributes)[:3])


def _attributes(venv: VectorEnv[Any, Any, Any]) -> dict[str, int]:
    base = layers_of(venv)[-1]
    data = attribute_data([layer for layer in _layers_here(venv) if layer is not base])
    if isinstance(base, _IN_WORKERS) and _built_here(base):
        for index, state in enumerate(base.call("attributes")):
            data |= {f"{name} (env {index})": digest for name, digest in state.items()}
    return data


def _global_state(venv: VectorEnv[Any, Any, Any]) -> dict[str, int] | None:
    """None where it is out of sight, as the environments' state is then."""
    try:
        return global_state(venv)
    except SnapshotUnavailable:
        return None


def _restore_trouble(
    first: VectorEnv[Any, Any, Any],
    second: VectorEnv[Any, Any, Any],
    initial: dict[str, int] | None,
    seed: int,
) -> str:
    """What keeps `second` from taking over the state of `first`; empty if nothing."""
    try:
        state = save_vector_state(first)
        if initial is not None and (changed := global_state_change(initial, first)):
            return changed
        second.reset(seed=seed + 1000)
        load_vector_state(second, state)
    except (SnapshotUnavailable, CheckpointError) as error:
        return str(error)
    return ""


def _replay_trouble(
    first: VectorEnv[Any, Any, Any], second: VectorEnv[Any, Any, Any], after: probe.Playback
) -> str:
    """What keeps `second` from going on like `first` did in `after`; empty if nothing.

    The unseeded reset shows whether the generators went along.
    """
    clear_caches(_layers_here(second))
    same = probe.bitwise_equal(after.record, probe.play(second, after.actions))
    if same and probe.bitwise_equal(
        *(probe.play_episode(venv, after.actions[:5], seed=None) for venv in (first, second))
    ):
        return ""
    return "after a save and a restore it went another way: some state is outside its attributes"


def _load_envs(base: VectorEnv[Any, Any, Any], states: list[Encoded]) -> None:
    expected = base.num_envs if isinstance(base, (SyncVectorEnv, *_IN_WORKERS)) else 0
    if len(states) != expected:
        raise CheckpointError(f"the state is of {len(states)} environments, expected {expected}")
    if isinstance(base, SyncVectorEnv):
        for env, state in zip(base.envs, states, strict=True):
            load_env_state(env, state)
    elif isinstance(base, _IN_WORKERS):
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


def _layers_here(venv: VectorEnv[Any, Any, Any]) -> list[Any]:
    """The layers of a vector environment and of the environments that are in this process."""
    layers = layers_of(venv)
    if isinstance(layers[-1], SyncVectorEnv):
        layers += [layer for env in layers[-1].envs for layer in _env_layers(env)]
    return layers


def _packages(layers: Sequence[object]) -> list[str]:
    bases = {base for layer in layers for base in type(layer).__mro__}
    names = {base.__module__.partition(".")[0] for base in bases}
    return sorted(names - set(sys.stdlib_module_names))


def _built_here(venv: AsyncVectorEnv[Any, Any] | QuickAsyncVectorEnv) -> bool:
    return all(isinstance(make, SnapshotEnvMaker) for make in venv.env_fns)


def _check_workers(venv: AsyncVectorEnv[Any, Any] | QuickAsyncVectorEnv) -> None:
    if not _built_here(venv):
        raise SnapshotUnavailable("the AsyncVectorEnv was not built by rl_training")
    if venv.autoreset_mode is AutoresetMode.NEXT_STEP:
        raise SnapshotUnavailable(
            "AsyncVectorEnv in NEXT_STEP mode keeps its pending resets inside the workers"
        )


def _skipped(base: VectorEnv[Any, Any, Any]) -> frozenset[str]:
    if isinstance(base, _IN_WORKERS):
        return frozenset(vars(base)) - _ASYNC_KEPT
    return _SYNC_SKIPPED if isinstance(base, SyncVectorEnv) else frozenset()


def _copied(obs: object) -> Any:
    if isinstance(obs, np.ndarray):
        return obs.copy()
    if isinstance(obs, dict):
        return {key: _copied(value) for key, value in obs.items()}
    return tuple(map(_copied, obs)) if type(obs) is tuple else obs
