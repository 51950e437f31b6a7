"""Collection of experience: the only loop that handles autoreset modes.

Whatever a vector environment does when an episode ends, what leaves here are true transitions:
the successor is the last observation of the episode, and a row that only resets is not valid. Where
the environment gives action masks, each observation has its own.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from math import isfinite
from typing import Any, NamedTuple, Protocol, cast

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from rl_training.algorithms.base import ActResult
from rl_training.data.masks import some_legal
from rl_training.data.types import PolicyState, Transitions
from rl_training.envs import masks
from rl_training.envs.async_vector_env import QuickAsyncVectorEnv
from rl_training.envs.snapshots.classes import SnapshotUnavailable
from rl_training.envs.snapshots.vector import (
    global_state,
    global_state_change,
    load_vector_state,
    save_vector_state,
)
from rl_training.envs.spaces import SpaceAdapter
from rl_training.envs.vector_envs import EnvFailure
from rl_training.errors import CheckpointError, EnvError, NonFiniteError, safe_text
from rl_training.runtime.process import EnvCalls
from rl_training.runtime.transcript import Trajectory, Transcript
from rl_training.storage.checks import saved_array, saved_count, saved_number
from rl_training.storage.state import Stateful
from rl_training.storage.tree import StateTree

logger = logging.getLogger("rl_training")

_ONE_BY_ONE = (SyncVectorEnv, AsyncVectorEnv, QuickAsyncVectorEnv)


class Act(Protocol):
    """Chooses actions for a vector step, in an environment without action masks."""

    def __call__(self, obs: np.ndarray, state: PolicyState, first: np.ndarray, /) -> ActResult:
        """An action per row, and the policy state after it."""


class MaskedAct(Protocol):
    """Chooses actions for a vector step among those that `legal` [N, A] allows."""

    def __call__(
        self, obs: np.ndarray, state: PolicyState, first: np.ndarray, legal: np.ndarray, /
    ) -> ActResult:
        """An action per row, and the policy state after it."""


class Episode(NamedTuple):
    """A finished episode: its undiscounted return and its length."""

    episode_return: float
    length: int


def close_or_warn(
    env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any], name: str, *, level: int = logging.WARNING
) -> None:
    """Close an environment; what it raises is not worth an error, as what was learned is saved."""
    try:
        env.close()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        logger.log(level, "%s raised %s in close: %s", name, type(error).__name__, safe_text(error))


class Collector(Stateful):
    """Steps a vector environment and hands over true transitions."""

    state_fields = (
        "_obs",
        "_first",
        "_resetting",
        "_state",
        "_returns",
        "_lengths",
        "episodes",
        "episodes_finished",
        "steps",
    )
    state_counts = ("episodes_finished", "steps")

    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        adapter: SpaceAdapter,
        calls: EnvCalls | None = None,
    ) -> None:
        self.envs = envs
        self.adapter = adapter
        self.num_envs = envs.num_envs
        # `metadata` may be a class attribute that another instance has overwritten; the attribute
        # wins.
        declared = envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self.mode = AutoresetMode(getattr(envs.unwrapped, "autoreset_mode", declared))
        self.steps = 0
        self.episodes: deque[Episode] = deque(maxlen=100)
        self.episodes_finished = 0
        self.calls = calls or EnvCalls()
        self.transcript = Transcript()
        self._initial_global_state: dict[str, int] | None = None
        self._failed = False
        self._no_rows = np.zeros(self.num_envs, np.bool_)
        self._all_rows = np.ones(self.num_envs, np.bool_)
        self._masked = adapter.spec.masked
        self._legal: np.ndarray | None = None  # of the observations to act on
        self._has_float_bytes = adapter.spec.float_bytes > 0

    def reset(self, seeds: list[int], state: PolicyState) -> None:
        """Start new episodes everywhere, each environment with its seed."""
        envs = self.envs
        for space in (envs.action_space, envs.observation_space):
            space.seed(seeds[0])
        envs.single_action_space.seed(seeds[0])
        envs.single_observation_space.seed(seeds[0])
        # A native vector environment draws all its numbers from one generator.
        one_each = isinstance(envs.unwrapped, _ONE_BY_ONE)
        self.calls.enter()
        try:
            obs, info = envs.reset(seed=cast("int", seeds if one_each else seeds[0]))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an exit() or a panic must not skip the save
            raise self._env_error("reset", error) from error
        finally:
            self.calls.leave()
        self._obs = self._require_finite(self.adapter.encode(obs))
        self._legal = self._masks(info, self._all_rows) if self._masked else None
        self.gave_masks = masks.KEY in info
        if self.gave_masks and not self._masked:
            self._refuse_masks()
        self._first = self._all_rows.copy()
        self._resetting = self._no_rows.copy()  # NEXT_STEP: the coming step only resets these
        self._state = tuple(np.array(part) for part in state)  # a resume writes into it
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, np.int64)
        if self._initial_global_state is None:
            self._initial_global_state = self._global_state()

    def step(self, act: Act | MaskedAct) -> Transitions:
        """Act once in every environment."""
        obs, first, state, legal = self._obs, self._first, self._state, self._legal
        if legal is None:
            result = cast(Act, act)(obs, state, first)
        else:
            result = cast(MaskedAct, act)(obs, state, first, legal)
        action = self.adapter.decode(result.action)  # outside: its failure is not the environment's
        self.calls.enter()
        try:
            raw, reward, terminated, truncated, info = self.envs.step(action)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise self._env_error("step", error) from error
        finally:
            self.calls.leave()
        done = terminated | truncated
        valid = self._all_rows
        if self.mode is AutoresetMode.NEXT_STEP:
            valid = ~self._resetting
            done &= valid
        ended = np.count_nonzero(done)
        next_obs = reset_obs = self.adapter.encode(raw)
        reset_info = info
        if ended and self.mode is not AutoresetMode.NEXT_STEP:
            next_obs, reset_obs, reset_info = self._final_and_reset_obs(next_obs, done, info)
        next_legal = None
        if self._masked:
            next_legal, self._legal = self._masks_after(info, reset_info, terminated, done)
        elif masks.KEY in info:
            self._refuse_masks()
        reward, next_obs = self._checked_reward(reward, valid), self._require_finite(next_obs)
        ends = terminated, truncated
        states = state, result.state
        masked = legal, next_legal
        step = Transitions(
            obs, result.action, reward, next_obs, *ends, first, valid, *states, *masked
        )
        self._obs, self._state = reset_obs, result.state
        if self.mode is AutoresetMode.NEXT_STEP:
            self._first, self._resetting = self._resetting, done
        else:
            self._first = done
        self._count(step, done if ended else None)
        if self.transcript.open:
            self.transcript.add(obs, result.action, reward, ends)
        return step

    def _final_and_reset_obs(
        self, obs: np.ndarray, done: np.ndarray, info: dict[str, Any]
    ) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
        """The true successors, the observations the next step starts from, and their info."""
        if self.mode is AutoresetMode.SAME_STEP:
            final = obs.copy()
            for row in np.flatnonzero(done):
                final[row] = self.adapter.encode_one(info["final_obs"][row])
            return final, self._require_finite(obs), info
        self.calls.enter()
        try:
            restarted, reset_info = self.envs.reset(options={"reset_mask": done})
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise self._env_error("reset", error) from error
        finally:
            self.calls.leave()
        return obs, self._require_finite(self.adapter.encode(restarted)), reset_info

    def _masks_after(
        self,
        info: dict[str, Any],
        reset_info: dict[str, Any],
        terminated: np.ndarray,
        done: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The masks of the true successors, and of the observations the next step starts from.

        A terminated state has none to be looked at: whatever the environment says of it, every
        action counts as legal.
        """
        goes_on = ~(terminated & done)
        if self.mode is AutoresetMode.SAME_STEP:
            legal = self._masks(info, self._all_rows)
            if not np.count_nonzero(done):
                return legal, legal
            final = self._masks(info.get("final_info", {}), done & goes_on)
            return np.where(done[:, None], final, legal), legal
        legal = self._masks(info, goes_on)
        if self.mode is AutoresetMode.NEXT_STEP or not np.count_nonzero(done):
            return legal, legal
        return legal, np.where(done[:, None], self._masks(reset_info, done), legal)

    def _refuse_masks(self) -> None:
        """Masks that come only now were not reckoned with; other actions than choices have none."""
        if self.adapter.spec.maskable:
            raise EnvError(
                f"{self.adapter.spec.env_id} gave an action mask at vector step {self.steps + 1} "
                "and none with an earlier observation: expected one with each. Put it into the "
                "info of every reset and step, or hide it with the wrapper HideActionMask."
            )

    def _masks(self, info: dict[str, Any], rows: np.ndarray) -> np.ndarray:
        """The masks of some rows; every action is legal in the others."""
        try:
            return masks.vector_masks(self.adapter.spec, info, rows)
        except masks.MaskProblem as problem:
            raise EnvError(
                f"{self.adapter.spec.env_id} gave a wrong action mask in environment "
                f"{problem.index} at vector step {self.steps + 1}: {problem.text}. Fix the mask, "
                "or hide it with the wrapper HideActionMask."
            ) from None

    def _count(self, step: Transitions, done: np.ndarray | None) -> None:
        self.steps += 1
        if step.valid is self._all_rows:
            self._returns += step.reward
            self._lengths += 1
        else:
            # The reward of a row that only resets may be anything.
            self._returns += np.where(step.valid, step.reward, 0.0)
            self._lengths += step.valid
        if done is None:
            return
        for row in np.flatnonzero(done):
            self.episodes.append(Episode(float(self._returns[row]), int(self._lengths[row])))
            self.episodes_finished += 1
        self._returns[done] = 0.0
        self._lengths[done] = 0

    def _require_finite(self, obs: np.ndarray) -> np.ndarray:
        numbers = self.adapter.spec.floats(obs) if self._has_float_bytes else obs
        if numbers.dtype.kind == "f" and np.count_nonzero(np.isfinite(numbers)) < numbers.size:
            self._refuse("observation", ~np.isfinite(numbers.reshape(len(obs), -1)).all(1))
        return obs

    def _checked_reward(self, reward: np.ndarray, rows: np.ndarray) -> np.ndarray:
        numbers = np.asarray(reward, np.float32)
        if numbers.ndim != 1:
            raise self._env_error("step", ValueError(f"rewards of the shape {numbers.shape}"))
        if not all(map(isfinite, numbers.tolist())):
            self._refuse("reward", ~np.isfinite(numbers) & rows)
        return numbers

    def _refuse(self, what: str, bad: np.ndarray) -> None:
        if bad.any():
            raise NonFiniteError(
                f"{self.adapter.spec.env_id} gave a non-finite {what} in environment "
                f"{int(np.flatnonzero(bad)[0])} at vector step {self.steps + 1}. Training stopped "
                "before it was stored. Fix the environment, or wrap it so that it gives finite "
                "numbers."
            )

    @property
    def longest_episode(self) -> int:
        """Steps of the longest episode in progress."""
        return int(self._lengths.max())

    def close(self) -> None:
        """Close the environments; after an error in one of them, without waiting for the others."""
        with self.calls.inside():
            self._close()

    def _close(self) -> None:
        envs = self.envs.unwrapped
        if self._failed and isinstance(envs, AsyncVectorEnv):
            # Gymnasium's close would wait for answers that never come.
            for process in envs.processes:
                process.kill()
                process.join()
            envs.closed = True
        elif self._failed:
            # An error has been reported, and this may follow from it.
            close_or_warn(self.envs, self.adapter.spec.env_id, level=logging.DEBUG)
        else:
            close_or_warn(self.envs, self.adapter.spec.env_id)

    def _env_error(self, call: str, error: BaseException) -> EnvError:
        self._failed = True
        name, when = self.adapter.spec.env_id, f" at vector step {self.steps + 1}"
        if isinstance(error, EnvFailure):
            return EnvError(f"{name}: {error.text(when)}")
        what = f"raised {type(error).__name__} in {call}"
        return EnvError(f"{name} {what}{when}: {safe_text(error)}")

    def state_dict(self) -> dict[str, Any]:
        """Where it stands, with the masks if there are any."""
        state = super().state_dict()
        return state if self._legal is None else state | {"legal": self._legal}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a collector stood; its environments are restored apart, where they can be."""
        parts = len(self._state)
        if self._legal is not None:
            self._legal = saved_array(state, "legal", self._legal).copy()
            state = {key: value for key, value in state.items() if key != "legal"}
            if not some_legal(self.adapter.spec, self._legal).all():
                raise CheckpointError("legal: expected masks that allow an action, found none")
        super().load_state_dict(state)
        if len(self._state) != parts:  # of a feed-forward policy any would fit
            raise CheckpointError(f"state: expected {parts} arrays, found {len(self._state)}")
        episodes = [
            Episode(saved_number(episode, "episode_return"), saved_count(episode, "length"))
            for episode in state["episodes"]
        ]
        self.episodes.clear()
        self.episodes.extend(episodes)
        numbers = self.adapter.spec.floats(self._obs)
        for name, array in (("obs", numbers), ("returns", self._returns)):
            if not np.isfinite(array).all():
                raise CheckpointError(f"{name}: expected finite numbers, found others")

    def save_envs(self) -> StateTree:
        """The state of the environments themselves; SnapshotUnavailable if it cannot be saved."""
        try:
            if reason := self.global_state_change():
                raise SnapshotUnavailable(reason)
            with self.calls.inside():
                return save_vector_state(self.envs)
        except (SnapshotUnavailable, EnvError):
            raise
        except Exception as error:  # an object that does not stand being looked at
            raise SnapshotUnavailable(
                f"looking at its state raised {type(error).__name__}: {safe_text(error)}"
            ) from error

    def global_state_change(self) -> str:
        """Which global state has changed since the first reset, as a reason; empty if none."""
        initial = self._initial_global_state
        return global_state_change(initial, self.envs) if initial else ""

    def replace_envs(self, make: Callable[[], VectorEnv[Any, Any, Any]]) -> None:
        """Go on in new environments, which are to be reset next."""
        self.close()
        self.envs = make()

    def set_position(self, obs: np.ndarray, resetting: np.ndarray) -> None:
        """Continue from where restored environments stand."""
        self._obs, self._resetting = obs, resetting

    def position(self) -> tuple[np.ndarray, np.ndarray]:
        """Copies of what `set_position` takes."""
        return self._obs.copy(), self._resetting.copy()

    def finished_transcript(self) -> dict[str, Any] | None:
        """The transcript up to here as a checkpoint holds it; None if there is none."""
        self.transcript.finish(self._obs)
        return self.transcript.finished

    def trajectory(self) -> Trajectory | None:
        """What the transcript has kept up to here."""
        return self.transcript.trajectory(self._obs)

    def _global_state(self) -> dict[str, int]:
        try:
            return global_state(self.envs)
        except SnapshotUnavailable:  # workers of another kind, whose state is out of reach as well
            return {}

    def load_envs(self, state: StateTree) -> None:
        """Restore the environments; if that fails, they are of no more use."""
        self._failed = True
        with self.calls.inside():
            load_vector_state(self.envs, state)
        self._failed = False
