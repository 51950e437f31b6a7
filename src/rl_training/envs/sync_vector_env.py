"""Environments stepped one after another in this process."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate


class QuickSyncVectorEnv(SyncVectorEnv[Any, Any]):
    """Gymnasium's, in mode SAME_STEP, with a step that does the same with half the work.

    Observations come in an array that the next step overwrites; actions must be an array.
    """

    def __init__(self, env_fns: Any) -> None:
        super().__init__(env_fns, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
        self._in_place = isinstance(self.single_observation_space, spaces.Box)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
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
                self._observations[i] = obs
        if not self._in_place:
            self._observations = concatenate(
                self.single_observation_space, self._env_obs, self._observations
            )
        self._autoreset_envs = self._terminations | self._truncations
        copies = (x.copy() for x in (self._rewards, self._terminations, self._truncations))
        return self._observations, *copies, infos
