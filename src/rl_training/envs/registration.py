"""What Gymnasium is told of the package's own environments."""

from __future__ import annotations

from gymnasium.envs.registration import register as add
from gymnasium.envs.registration import registry

POINT_ID = "PointPixels-v0"
EPISODE_STEPS = 40


def register() -> None:
    """Register them, once."""
    if POINT_ID not in registry:
        entry_point = "rl_training.envs.point_pixels:PointPixels"
        add(POINT_ID, entry_point, max_episode_steps=EPISODE_STEPS)
