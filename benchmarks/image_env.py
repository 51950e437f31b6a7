"""An environment of images that costs next to nothing, so that what is timed is the learning."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

ENV_ID = "BenchmarkImages-v0"
SHAPE = (9, 84, 84)


class Images(gym.Env[np.ndarray, np.ndarray]):
    """Shows one of 16 random images after the other; each step is worth its action's first number.

    The shape is that of three stacked colour images, but they are not declared to be stacked.
    """

    def __init__(self) -> None:
        self.observation_space = Box(0, 255, SHAPE, np.uint8)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)
        self._images = np.random.default_rng(0).integers(0, 256, (16, *SHAPE), np.uint8)
        self._next = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """The next image."""
        super().reset(seed=seed, options=options)
        return self._image(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """The next image."""
        return self._image(), float(action[0]), False, False, {}

    def _image(self) -> np.ndarray:
        self._next = (self._next + 1) % len(self._images)
        return self._images[self._next]


gym.register(ENV_ID, f"{__name__}:Images", max_episode_steps=200)
