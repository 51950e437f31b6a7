"""Environments that come with a vector implementation of their own, such as Atari's."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from rl_training.envs.stacking import frames_of_native


class OneOfVector(gym.Env[Any, Any]):
    """A vector environment of one, as a single environment that shows the same observations."""

    def __init__(self, venv: VectorEnv[Any, Any, Any]) -> None:
        self._venv = venv
        self.observation_space = venv.single_observation_space
        self.action_space = venv.single_action_space
        self.spec, self.render_mode = venv.spec, venv.render_mode
        self.stacked_frames = frames_of_native(venv)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The first observation of an episode."""
        obs, info = self._venv.reset(seed=seed, options=options)
        return obs[0], info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """What the environment answers; whether an episode's end shows its last observation or the
        next one's first is up to how it resets.
        """
        actions = np.asarray(action, self.action_space.dtype)[None]
        obs, reward, terminated, truncated, info = self._venv.step(actions)
        return obs[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), info

    def render(self) -> Any:
        """The image of the one environment."""
        images = self._venv.render()
        return None if images is None else images[0]

    def close(self) -> None:
        """Close the vector environment."""
        self._venv.close()
