"""How many images of one after another an environment shows in an observation."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.wrappers import FrameStackObservation


def frames_of(env: gym.Env[Any, Any]) -> int:
    """As `PixelObservation` says it, or Gymnasium's wrapper of images without colours; else 1."""
    if env.has_wrapper_attr("stacked_frames"):
        return int(env.get_wrapper_attr("stacked_frames"))
    shape, layer = env.observation_space.shape, env
    while isinstance(layer, gym.Wrapper):
        if isinstance(layer, FrameStackObservation):
            plain = layer.observation_space.shape == shape and len(shape or ()) == 3
            return layer.stack_size if plain else 1
        layer = layer.env
    return 1
