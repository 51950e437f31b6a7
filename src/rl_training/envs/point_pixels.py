"""A small task seen as images: steer a point to a target. For tests and quick experiments."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

POINT_ID = "PointPixels-v0"
EPISODE_STEPS = 40
SPEED = 0.15  # the farthest the point moves in a step, along each axis

_TARGET, _POINT = ((255, 64, 64), 3), ((255, 255, 255), 2)
"""A colour, and how many pixels beside the middle one have it on each side."""
_MARGIN = 7  # pixels around where the middles are, so that a shift by four cuts nothing off


def register() -> None:
    """Make the task known to Gymnasium by its id, once."""
    if POINT_ID not in gym.registry:
        entry_point = f"{__name__}:{PointPixels.__qualname__}"
        gym.register(POINT_ID, entry_point, max_episode_steps=EPISODE_STEPS)


class PointPixels(gym.Env[np.ndarray, np.ndarray]):
    """A point and a target on a square; actions move the point.

    Observations are uint8 images (3, size, size), and one image shows all there is to know. The
    reward of a step is 1 less the distance to the target, or 0 where that is more than 1; the
    square's sides are 2 long. An episode ends by its time limit alone.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - as Gymnasium has it

    def __init__(self, size: int = 48, render_mode: str | None = None) -> None:
        if size < 2 * _MARGIN + 2:
            raise ValueError(f"size: expected at least {2 * _MARGIN + 2} pixels, found {size}")
        self.size, self.render_mode = size, render_mode
        self.observation_space = Box(0, 255, (3, size, size), np.uint8)
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)
        self.point = self.target = np.zeros(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """A point and a target somewhere."""
        super().reset(seed=seed, options=options)
        self.point, self.target = self.np_random.uniform(-1, 1, (2, 2))
        return self._image(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move the point."""
        move = SPEED * np.clip(np.asarray(action, np.float64), -1, 1)
        self.point = np.clip(self.point + move, -1, 1)
        return self._image(), self.reward(), False, False, {}

    def render(self) -> Any:
        """The image, with its channels last."""
        return np.moveaxis(self._image(), 0, -1)

    def reward(self) -> float:
        """1 less the distance to the target, and at least 0."""
        return max(0.0, 1.0 - float(np.hypot(*(self.target - self.point))))

    def best_action(self) -> np.ndarray:
        """Straight to the target, as fast as it goes and not beyond it."""
        return np.clip((self.target - self.point) / SPEED, -1, 1).astype(np.float32)

    def _image(self) -> np.ndarray:
        image = np.zeros((3, self.size, self.size), np.uint8)
        for place, (colour, radius) in ((self.target, _TARGET), (self.point, _POINT)):
            middle = _MARGIN + (place + 1) / 2 * (self.size - 1 - 2 * _MARGIN)
            row, column = middle.round().astype(int) - radius
            width = 2 * radius + 1
            image[:, row : row + width, column : column + width] = np.reshape(colour, (3, 1, 1))
        return image
