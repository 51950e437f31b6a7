"""How many successive images an environment stacks in an observation."""

from __future__ import annotations

from inspect import getattr_static
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import FrameStackObservation, MaxAndSkipObservation, RepeatAction


def frames_of(env: gym.Env[Any, Any]) -> int:
    """As `PixelObservation` says it, or Gymnasium's wrapper of images without colours; else 1.

    It is 1 too if a wrapper around them takes several of their steps at once.
    """
    shape, layer = env.observation_space.shape, env
    while isinstance(layer, gym.Wrapper):
        if isinstance(layer, (RepeatAction, MaxAndSkipObservation)):
            return 1
        # The wrapper's or its class's, not what it may pass on of the environment inside.
        if getattr_static(layer, "stacked_frames", None) is not None:
            return int(layer.stacked_frames)  # type: ignore[attr-defined] # as was just tested
        if isinstance(layer, FrameStackObservation):
            plain = layer.observation_space.shape == shape and len(shape or ()) == 3
            return layer.stack_size if plain else 1
        layer = layer.env
    return int(getattr(layer, "stacked_frames", 1))


def frames_of_native(venv: VectorEnv[Any, Any, Any]) -> int:
    """As Atari's vector environment stacks them, or another says in `stacked_frames`; else 1."""
    if type(venv.unwrapped).__module__.partition(".")[0] == "ale_py":
        return int((venv.single_observation_space.shape or (1,))[0])
    return int(getattr(venv.unwrapped, "stacked_frames", 1))
