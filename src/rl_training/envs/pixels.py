"""Environments seen as images: rendered, resized, stacked, channels first."""

from __future__ import annotations

import importlib.util
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

from rl_training.envs.async_vector_env import QuickAsyncVectorEnv
from rl_training.envs.snapshots.vector import SnapshotEnvMaker
from rl_training.envs.stacking import frames_of, frames_of_native
from rl_training.errors import MissingExtra


class PixelObservation(gym.ObservationWrapper[np.ndarray, Any, np.ndarray]):
    """What an environment renders, as bytes (frame_stack * channels, size, size), oldest first.

    An action is repeated `action_repeat` times, and one image made after that. At the start of an
    episode its first image fills the stack. With `crop` an image is the square, that many pixels on
    a side, in the middle of what is rendered. The environment has to render into arrays
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
        crop: int | None = None,
    ) -> None:
        if env.render_mode != "rgb_array":
            raise ValueError(
                f"expected an environment that renders into arrays, found render_mode "
                f"{env.render_mode!r}; set env_kwargs: {{render_mode: rgb_array}}"
            )
        if importlib.util.find_spec("cv2") is None:
            raise MissingExtra("PixelObservation needs OpenCV: pip install 'rl-training[pixels]'")
        counts = {"size": size, "frame_stack": frame_stack, "action_repeat": action_repeat}
        if crop is not None:
            counts["crop"] = crop
        for name, count in counts.items():
            if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
                raise ValueError(f"{name}: expected a whole number from 1 on, found {count!r}")
        if type(grayscale) is not bool:
            raise ValueError(f"grayscale: expected true or false, found {grayscale!r}")
        if action_repeat > 1:
            env = RepeatAction(env, action_repeat)
        env.reset(seed=0)  # a camera may stand where the first image finds things
        env = AddRenderObservation(env, render_only=True)
        if crop is not None:
            env = Middle(env, crop)
        env = ResizeObservation(env, (size, size))
        if grayscale:
            env = GrayscaleObservation(env, keep_dim=True)
        env.observation_space.seed(0)  # the stacking copies its generator, which would be random
        super().__init__(FrameStackObservation(env, frame_stack))
        self.stacked_frames = frame_stack
        channels = 1 if grayscale else 3
        self.observation_space = Box(0, 255, (frame_stack * channels, size, size), np.uint8)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """(stack, height, width, channels) as (stack * channels, height, width)."""
        images = np.moveaxis(np.asarray(observation), -1, 1)
        return np.ascontiguousarray(images).reshape(self.observation_space.shape)


class Middle(gym.ObservationWrapper[np.ndarray, Any, np.ndarray]):
    """The square in the middle of an image, with `side` pixels on a side."""

    def __init__(self, env: gym.Env[Any, Any], side: int) -> None:
        super().__init__(env)
        height, width, channels = env.observation_space.shape or ()
        if side > min(height, width):
            raise ValueError(
                f"crop: expected at most the {height} x {width} pixels that are rendered, found "
                f"{side}"
            )
        self._side, self._corner = side, ((height - side) // 2, (width - side) // 2)
        self.observation_space = Box(0, 255, (side, side, channels), np.uint8)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """Cut it out."""
        (top, left), side = self._corner, self._side
        return observation[top : top + side, left : left + side]


def stacked_frames(envs: gym.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> int:
    """How many images an observation of an environment stacks; 1 if nothing says it."""
    if isinstance(envs, gym.Env):
        return frames_of(envs)
    base = envs.unwrapped
    if isinstance(base, SyncVectorEnv):
        return frames_of(base.envs[0])
    if isinstance(base, (AsyncVectorEnv, QuickAsyncVectorEnv)) and all(
        isinstance(make, SnapshotEnvMaker) for make in base.env_fns
    ):
        return int(base.call("frames_stacked")[0])
    return frames_of_native(envs)
