"""Small tasks seen as images: steer a point to a target. For tests and quick experiments."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

POINT_ID = "PointPixels-v0"
TARGET_ID = "PointPixelsTarget-v0"
EPISODE_STEPS = 40
SPEED = 0.15  # the farthest the point moves in a step, along each axis

_TARGET, _POINT = ((255, 64, 64), 3), ((255, 255, 255), 2)
"""A colour, and how many pixels beside the middle one have it on each side."""
_MARGIN = 7  # pixels around where the middles are, so that a shift by four cuts nothing off


def register() -> None:
    """Make the tasks known to Gymnasium by their ids, once."""
    for env_id, kind in ((POINT_ID, PointPixels), (TARGET_ID, PointPixelsTarget)):
        if env_id not in gym.registry:
            entry_point = f"{__name__}:{kind.__qualname__}"
            gym.register(env_id, entry_point, max_episode_steps=EPISODE_STEPS)


class PointPixels(gym.Env[Any, Any]):
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
    ) -> tuple[Any, dict[str, Any]]:
        """A point and a target somewhere."""
        super().reset(seed=seed, options=options)
        self.point, self.target = self.np_random.uniform(-1, 1, (2, 2))
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move the point."""
        move = SPEED * np.clip(np.asarray(action, np.float64), -1, 1)
        self.point = np.clip(self.point + move, -1, 1)
        return self._observation(), self.reward(), False, False, {}

    def render(self) -> Any:
        """The image, with its channels last."""
        return np.moveaxis(self._image(self.target, self.point), 0, -1)

    def reward(self) -> float:
        """1 less the distance to the target, and at least 0."""
        return max(0.0, 1.0 - float(np.hypot(*(self.target - self.point))))

    def best_action(self) -> np.ndarray:
        """Straight to the target, as fast as it goes and not beyond it."""
        return np.clip((self.target - self.point) / SPEED, -1, 1).astype(np.float32)

    def _observation(self) -> Any:
        return self._image(self.target, self.point)

    def _image(self, target: np.ndarray | None, point: np.ndarray) -> np.ndarray:
        image = np.zeros((3, self.size, self.size), np.uint8)
        for place, (colour, radius) in ((target, _TARGET), (point, _POINT)):
            if place is None:
                continue
            middle = _MARGIN + (place + 1) / 2 * (self.size - 1 - 2 * _MARGIN)
            row, column = middle.round().astype(int) - radius
            width = 2 * radius + 1
            image[:, row : row + width, column : column + width] = np.reshape(colour, (3, 1, 1))
        return image


class PointPixelsTarget(PointPixels):
    """The same with the point in an image (size, size, 3) and the target in numbers beside it.

    Observations are `{"camera": image, "target": [row, column]}`, and neither part is enough. With
    `discrete` the nine actions move the point up or down or not (three times 0, 1, 2), and left or
    right or not, as far as it goes.
    """

    def __init__(
        self, size: int = 48, render_mode: str | None = None, *, discrete: bool = False
    ) -> None:
        super().__init__(size, render_mode)
        image = Box(0, 255, (size, size, 3), np.uint8)
        self.observation_space = Dict(camera=image, target=Box(-1.0, 1.0, (2,), np.float32))
        self.discrete = discrete
        if discrete:
            self.action_space = Discrete(9)

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move the point."""
        return super().step(np.subtract(divmod(action, 3), 1) if self.discrete else action)

    def best_action(self) -> Any:
        """Straight to the target, or the discrete action that comes closest to that."""
        best = super().best_action()
        row, column = best.round().astype(int) + 1
        return 3 * row + column if self.discrete else best

    def _observation(self) -> Any:
        image = np.moveaxis(self._image(None, self.point), 0, -1)
        return {"camera": image, "target": self.target.astype(np.float32)}
