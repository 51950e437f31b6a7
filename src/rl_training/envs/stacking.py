"""How many successive images an environment stacks in an observation."""

from __future__ import annotations

from inspect import getattr_static
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import FrameStackObservation, MaxAndSkipObservation, RepeatAction


def frames_of(env: gym.Env[Any, Any]) -> int:
    """As `PixelObservation` or Gymnasium's `FrameStackObservation` says it; else 1.

    It is 1 too if a wrapper around them takes several of their steps at once.
    """
    space, layer = env.observation_space, env
    while isinstance(layer, gym.Wrapper):
        if isinstance(layer, (RepeatAction, MaxAndSkipObservation)):
            return 1
        # The wrapper's or its class's, not what it may pass on of the environment inside.
        if getattr_static(layer, "stacked_frames", None) is not None:
            return int(layer.stacked_frames)  # type: ignore[attr-defined] # as was just tested
        if isinstance(layer, FrameStackObservation):
            return layer.stack_size if layer.observation_space == space else 1
        layer = layer.env
    return int(getattr(layer, "stacked_frames", 1))


def frames_of_native(venv: VectorEnv[Any, Any, Any]) -> int:
    """As Atari's vector environment stacks them, or another says in `stacked_frames`; else 1."""
    if type(venv.unwrapped).__module__.partition(".")[0] == "ale_py":
        return int((venv.single_observation_space.shape or (1,))[0])
    return int(getattr(venv.unwrapped, "stacked_frames", 1))
