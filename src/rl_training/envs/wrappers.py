"""The wrappers of this package; a config names them under `wrappers`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, flatten, flatten_space

from rl_training.envs.masks import ActionMaskInfo, HideActionMask
from rl_training.envs.pixels import PixelObservation

__all__ = [
    "ActionMaskInfo",
    "HideActionMask",
    "MaskVelocity",
    "PixelObservation",
    "PreviousActionReward",
]

VELOCITIES = {
    "CartPole": (1, 3),
    "MountainCar": (1,),
    "MountainCarContinuous": (1,),
    "Pendulum": (2,),
    "Acrobot": (4, 5),
    "LunarLander": (2, 3, 5),
    "LunarLanderContinuous": (2, 3, 5),
}
"""Where an environment's observation holds velocities."""


class MaskVelocity(gym.ObservationWrapper[np.ndarray, Any, np.ndarray]):
    """Hides the velocities of a vector observation: those numbers are always 0.

    Where they are is known of Gymnasium's classic environments; of others `indices` says it.
    """

    def __init__(self, env: gym.Env[np.ndarray, Any], indices: Sequence[int] | None = None) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, Box) or len(space.shape) != 1:
            raise ValueError(f"expected an environment with vector observations, found {space}")
        if indices is None:
            name = env.spec.id.rpartition("-")[0].rpartition("/")[2] if env.spec else ""
            if name not in VELOCITIES:
                raise ValueError(
                    "its velocities are not known; give indices, such as [1, 3], or use one of "
                    f"{', '.join(VELOCITIES)}"
                )
            indices = VELOCITIES[name]
        if not indices:
            raise ValueError("indices is empty: nothing would be hidden")
        size = space.shape[0]
        if wrong := [index for index in indices if not 0 <= index < size]:
            raise ValueError(f"expected indices from 0 to {size - 1}, found {wrong}")
        self._hidden = list(indices)
        low, high = space.low.copy(), space.high.copy()
        low[self._hidden] = np.minimum(low[self._hidden], 0)
        high[self._hidden] = np.maximum(high[self._hidden], 0)
        self.observation_space = Box(low, high, dtype=space.dtype.type)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """The observation without its velocities."""
        masked = np.array(observation)
        masked[self._hidden] = 0
        return masked


class PreviousActionReward(gym.Wrapper[np.ndarray, Any, np.ndarray, Any]):
    """Appends the action before and the reward it gave to a vector observation.

    A discrete action takes one number per choice. In an episode's first observation all are 0.
    """

    def __init__(
        self, env: gym.Env[np.ndarray, Any], *, action: bool = True, reward: bool = True
    ) -> None:
        super().__init__(env)
        space = flatten_space(env.observation_space)
        extra = flatten_space(env.action_space)
        if not isinstance(space, Box) or not isinstance(extra, Box):
            raise ValueError("expected observations and actions that can be flattened")
        if not action and not reward:
            raise ValueError("action and reward are both false: nothing would be appended")
        self._action, self._reward = action, reward
        low, high = [space.low], [space.high]
        if action:  # zeros before the first action
            low.append(np.minimum(extra.low, 0))
            high.append(np.maximum(extra.high, 0))
        if reward:
            low.append(np.array([-np.inf]))
            high.append(np.array([np.inf]))
        self.observation_space = Box(
            np.concatenate(low).astype(np.float32),
            np.concatenate(high).astype(np.float32),
            dtype=np.float32,
        )
        self._no_action = np.zeros(extra.shape, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """The first observation, before any action."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._joined(obs, self._no_action, 0.0), info

    def step(self, action: object) -> tuple[np.ndarray, SupportsFloat, bool, bool, dict[str, Any]]:
        """The observation with the action taken and its reward."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        taken = np.asarray(flatten(self.env.action_space, action))
        return self._joined(obs, taken, float(reward)), reward, terminated, truncated, info

    def _joined(self, obs: object, action: np.ndarray, reward: float) -> np.ndarray:
        parts = [np.asarray(flatten(self.env.observation_space, obs))]
        if self._action:
            parts.append(action)
        if self._reward:
            parts.append(np.array([reward]))
        return np.concatenate(parts).astype(np.float32)
