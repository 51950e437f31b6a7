"""Environments in which a policy is judged, apart from those it is trained in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from rl_training.envs.spaces import SpaceAdapter
from rl_training.errors import EnvError, NonFiniteError
from rl_training.runtime.seeding import derive_seed


class Played(NamedTuple):
    """One step: the encoded observation, the reward, and whether the episode is over or cut."""

    obs: np.ndarray
    reward: float
    terminated: bool
    truncated: bool


class Players:
    """Environments played side by side, one per row.

    Episode k is reset with a seed derived from the given one and k, so its course does not depend
    on which row plays it. What an environment raises becomes an EnvError, and numbers that are not
    finite a NonFiniteError.
    """

    def __init__(self, make_env: Callable[[], gym.Env[Any, Any]], adapter: SpaceAdapter) -> None:
        self._make_env = make_env
        self._adapter = adapter
        # The first is made now: what cannot be built is refused before an hour of training.
        self._envs = [make_env()]

    def seat(self, rows: int) -> None:
        """See to it that there are so many environments."""
        while len(self._envs) < rows:
            self._envs.append(self._make_env())

    def reset(self, row: int, seed: int, episode: int) -> np.ndarray:
        """Begin an episode; gives its first observation, encoded."""
        try:
            obs, _ = self._envs[row].reset(seed=derive_seed(seed, "episode", int(episode)))
        except Exception as error:
            raise self._error("reset", error) from error
        return self._finite("observation", self._adapter.encode_one(obs))

    def step(self, row: int, action: Any) -> Played:
        """Take an action."""
        try:
            obs, reward, terminated, truncated, _ = self._envs[row].step(action)
        except Exception as error:
            raise self._error("step", error) from error
        following = self._finite("observation", self._adapter.encode_one(obs))
        self._finite("reward", np.asarray(reward, np.float64))
        return Played(following, float(reward), bool(terminated), bool(truncated))

    def close(self) -> None:
        """Close the environments."""
        while self._envs:
            self._envs.pop().close()

    def _finite(self, what: str, values: np.ndarray) -> np.ndarray:
        if not np.isfinite(values).all():
            raise NonFiniteError(
                f"{self._adapter.spec.env_id} gave a non-finite {what} during an evaluation. Mend "
                "the environment, or wrap it so that it gives finite numbers."
            )
        return values

    def _error(self, call: str, error: Exception) -> EnvError:
        return EnvError(
            f"{self._adapter.spec.env_id} raised {type(error).__name__} in {call} during an "
            f"evaluation: {error}"
        )
