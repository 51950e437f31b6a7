"""Environments seen as images: rendered, resized, stacked, channels first."""

from __future__ import annotations

import os
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import (
    AddRenderObservation,
    FrameStackObservation,
    GrayscaleObservation,
    RepeatAction,
    ResizeObservation,
)

from rl_training.envs.snapshots import SnapshotEnvMaker


class PixelObservation(gym.ObservationWrapper[np.ndarray, Any, np.ndarray]):
    """What an environment renders, as bytes (frame_stack * channels, size, size), oldest first.

    An action is repeated `action_repeat` times, and one image made after that. At the start of an
    episode its first image fills the stack. The environment has to render into arrays
    (`env_kwargs: {render_mode: rgb_array}`).
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        size: int = 84,
        *,
        frame_stack: int = 3,
        action_repeat: int = 1,
        grayscale: bool = False,
    ) -> None:
        if env.render_mode != "rgb_array":
            raise ValueError(
                f"expected an environment that renders into arrays, found render_mode "
                f"{env.render_mode!r}; set env_kwargs: {{render_mode: rgb_array}}"
            )
        if min(size, frame_stack, action_repeat) < 1:
            raise ValueError(
                f"expected at least 1 of each, found {size=}, {frame_stack=}, {action_repeat=}"
            )
        if action_repeat > 1:
            env = RepeatAction(env, action_repeat)
        env = ResizeObservation(AddRenderObservation(env, render_only=True), (size, size))
        if grayscale:
            env = GrayscaleObservation(env, keep_dim=True)
        super().__init__(FrameStackObservation(env, frame_stack))
        self.stacked_frames = frame_stack
        channels = 1 if grayscale else 3
        self.observation_space = Box(0, 255, (frame_stack * channels, size, size), np.uint8)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """(stack, height, width, channels) as (stack * channels, height, width)."""
        images = np.moveaxis(np.asarray(observation), -1, 1)
        return np.ascontiguousarray(images).reshape(self.observation_space.shape)


def stacked_frames(envs: VectorEnv[Any, Any, Any]) -> int:
    """How many images an observation of a vector environment stacks; 1 if nothing says it."""
    base = envs.unwrapped
    if isinstance(base, SyncVectorEnv):
        env = base.envs[0]
        known = env.has_wrapper_attr("stacked_frames")
        return int(env.get_wrapper_attr("stacked_frames")) if known else 1
    if isinstance(base, AsyncVectorEnv) and all(
        isinstance(make, SnapshotEnvMaker) for make in base.env_fns
    ):
        return int(base.call("frames_stacked")[0])
    return int(getattr(base, "stacked_frames", 1))


def render_without_a_screen() -> None:
    """Have MuJoCo and pygame draw into memory where no screen is connected."""
    if not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
