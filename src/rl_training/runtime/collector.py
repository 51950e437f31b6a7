"""Collection of experience: the only loop that handles autoreset modes.

Whatever a vector environment does when an episode ends, what leaves here are true transitions:
the successor is the last observation of the episode, and a row that only resets is not valid.
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
from rl_training.data.types import PolicyState, Transitions
from rl_training.envs.async_vector_env import QuickAsyncVectorEnv
from rl_training.envs.snapshots.classes import SnapshotUnavailable
from rl_training.envs.snapshots.vector import (
    load_vector_state,
    outside_data,
    program_state,
    save_vector_state,
)
from rl_training.envs.spaces import SpaceAdapter
from rl_training.envs.vector_envs import EnvFailure
from rl_training.errors import CheckpointError, EnvError, NonFiniteError, safe_text
from rl_training.runtime.process import EnvCalls
from rl_training.runtime.transcript import Answers, Transcript
from rl_training.storage.checks import saved_count, saved_number
from rl_training.storage.state import Stateful
from rl_training.storage.tree import StateTree

logger = logging.getLogger("rl_training")

_ONE_BY_ONE = (SyncVectorEnv, AsyncVectorEnv, QuickAsyncVectorEnv)


class Act(Protocol):
    """Chooses actions for a vector step."""

    def __call__(self, obs: np.ndarray, state: PolicyState, first: np.ndarray, /) -> ActResult:
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

    def __init__(self, envs: VectorEnv[Any, Any, Any], adapter: SpaceAdapter) -> None:
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
        self.calls = EnvCalls()
        self.transcript = Transcript()
        self._outside: dict[str, int] | None = None
        self._failed = False
        self._no_rows = np.zeros(self.num_envs, np.bool_)
        self._all_rows = np.ones(self.num_envs, np.bool_)

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
            obs, _ = envs.reset(seed=cast("int", seeds if one_each else seeds[0]))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an exit() or a panic must not skip the save
            raise self._env_error("reset", error) from error
        finally:
            self.calls.leave()
        self._obs = self._require_finite(self.adapter.encode(obs))
        self._first = self._all_rows.copy()
        self._resetting = self._no_rows.copy()  # NEXT_STEP: the coming step only resets these
        self._state = tuple(np.array(part) for part in state)  # a resume writes into it
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, np.int64)
        if self._outside is None:
            self._outside = self._program_state()

    def step(self, act: Act) -> Transitions:
        """Act once in every environment."""
        obs, first, state = self._obs, self._first, self._state
        result = act(obs, state, first)
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
        if ended and self.mode is not AutoresetMode.NEXT_STEP:
            next_obs, reset_obs = self._final_and_reset_obs(next_obs, done, info)
        reward, next_obs = self._checked_reward(reward, valid), self._require_finite(next_obs)
        ends = terminated, truncated
        states = state, result.state
        step = Transitions(obs, result.action, reward, next_obs, *ends, first, valid, *states)
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
    ) -> tuple[np.ndarray, np.ndarray]:
        """The true successors, and the observations the next step starts from."""
        if self.mode is AutoresetMode.SAME_STEP:
            final = obs.copy()
            for row in np.flatnonzero(done):
                final[row] = self.adapter.encode_one(info["final_obs"][row])
            return final, self._require_finite(obs)
        self.calls.enter()
        try:
            restarted, _ = self.envs.reset(options={"reset_mask": done})
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise self._env_error("reset", error) from error
        finally:
            self.calls.leave()
        return obs, self._require_finite(self.adapter.encode(restarted))

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
        if obs.dtype.kind == "f" and np.count_nonzero(np.isfinite(obs)) < obs.size:
            self._refuse("observation", ~np.isfinite(obs.reshape(len(obs), -1)).all(1))
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

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a collector stood; its environments are restored apart, where they can be."""
        parts = len(self._state)
        super().load_state_dict(state)
        if len(self._state) != parts:  # of a feed-forward policy any would fit
            raise CheckpointError(f"state: expected {parts} arrays, found {len(self._state)}")
        episodes = [
            Episode(saved_number(episode, "episode_return"), saved_count(episode, "length"))
            for episode in state["episodes"]
        ]
        self.episodes.clear()
        self.episodes.extend(episodes)
        for name, array in (("obs", self._obs), ("returns", self._returns)):
            if not np.isfinite(array).all():
                raise CheckpointError(f"{name}: expected finite numbers, found others")

    def save_envs(self) -> StateTree:
        """The state of the environments themselves; SnapshotUnavailable if it cannot be saved."""
        try:
            if reason := self.outside_change():
                raise SnapshotUnavailable(reason)
            return save_vector_state(self.envs)
        except (SnapshotUnavailable, EnvError):
            raise
        except Exception as error:  # an object that does not stand being looked at
            raise SnapshotUnavailable(
                f"looking at its state raised {type(error).__name__}: {safe_text(error)}"
            ) from error

    def outside_change(self) -> str:
        """Which data that their code keeps outside the environments changed since the first reset;
        empty if none.
        """
        return outside_data(self._outside, self.envs) if self._outside else ""

    def replace_envs(self, make: Callable[[], VectorEnv[Any, Any, Any]]) -> None:
        """Go on in new environments, which are to be reset next."""
        self.close()
        self.envs = make()

    def stand_at(self, obs: np.ndarray, resetting: np.ndarray) -> None:
        """Continue from where restored environments stand."""
        self._obs, self._resetting = obs, resetting

    def position(self) -> tuple[np.ndarray, np.ndarray]:
        """Copies of what `stand_at` takes."""
        return self._obs.copy(), self._resetting.copy()

    def finished_transcript(self) -> dict[str, Any] | None:
        """The transcript up to here as a checkpoint holds it; None if there is none."""
        self.transcript.finish(self._obs)
        return self.transcript.finished

    def answers(self) -> Answers | None:
        """What the transcript has kept up to here."""
        return self.transcript.answers(self._obs)

    def _program_state(self) -> dict[str, int]:
        try:
            return program_state(self.envs)
        except SnapshotUnavailable:  # workers of another kind, whose state is out of reach as well
            return {}

    def load_envs(self, state: StateTree) -> None:
        """Restore the environments; if that fails, they are of no more use."""
        self._failed = True
        load_vector_state(self.envs, state)
        self._failed = False
