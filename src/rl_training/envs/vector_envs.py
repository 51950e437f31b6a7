"""Vector environments of this package: stepped in this process, and a vector of one as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import concatenate

from rl_training.envs.stacking import frames_of_native


class QuickSyncVectorEnv(SyncVectorEnv[Any, Any]):
    """Gymnasium's, in mode SAME_STEP, with a step that does the same with half the work.

    Observations come in an array that the next step overwrites; actions must be an array.
    """

    def __init__(self, env_fns: Sequence[Callable[[], gym.Env[Any, Any]]]) -> None:
        super().__init__(env_fns, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
        space = self.single_observation_space
        self._in_place = isinstance(space, spaces.Box) and space.dtype.kind == "f"
        self._shape = space.shape

    def step(self, actions: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every environment, and reset those whose episode ended."""
        infos: dict[str, Any] = {}
        for i, env in enumerate(self.envs):
            obs, reward, terminated, truncated, info = env.step(actions[i])
            self._rewards[i], self._terminations[i] = reward, terminated
            self._truncations[i] = truncated
            if terminated or truncated:
                infos = self._add_info(infos, {"final_obs": obs, "final_info": info}, i)
                obs, info = env.reset()
            if info:
                infos = self._add_info(infos, info, i)
            self._env_obs[i] = obs
            if self._in_place:
                if getattr(obs, "shape", None) != self._shape:
                    obs = self._shaped(obs)
                self._observations[i] = obs
        if not self._in_place:
            self._observations = concatenate(
                self.single_observation_space, self._env_obs, self._observations
            )
        self._autoreset_envs = self._terminations | self._truncations
        copies = (x.copy() for x in (self._rewards, self._terminations, self._truncations))
        return self._observations, *copies, infos

    def _shaped(self, obs: object) -> np.ndarray:
        """A list or number as an array; one of another shape would be spread over the row."""
        array = np.asarray(obs)
        if array.shape != self._shape:
            raise ValueError(
                f"expected an observation of shape {self._shape}, found {array.shape}; fix the "
                "environment or its observation_space"
            )
        return array


class OneOfVector(gym.Env[Any, Any]):
    """A vector environment of one, as a single environment that shows the same observations.

    For environments that come with a vector implementation, such as Atari's.
    """

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

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:
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
