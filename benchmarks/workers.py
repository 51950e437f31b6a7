"""Environments in worker processes: our vector environment beside Gymnasium's AsyncVectorEnv."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv

from rl_training.envs.async_vector_env import QuickAsyncVectorEnv

OURS, GYMNASIUM = "ours", "Gymnasium's AsyncVectorEnv"


def steps_per_second(
    env_id: str, num_envs: int, *, rounds: int, steps: int
) -> dict[str, list[float]]:
    """Environment steps per second of wall time, per round; the two take turns, with one script."""
    makers = [partial(gym.make, env_id)] * num_envs
    kinds: dict[str, VectorEnv[Any, Any, Any]] = {
        OURS: QuickAsyncVectorEnv(makers),
        GYMNASIUM: AsyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP),
    }
    space = kinds[OURS].action_space
    space.seed(0)
    actions = [space.sample() for _ in range(steps)]
    speeds: dict[str, list[float]] = {kind: [] for kind in kinds}
    try:
        for envs in kinds.values():
            _play(envs, actions[: max(1, steps // 10)])  # warm-up
        for _ in range(rounds):
            for kind, envs in kinds.items():
                speeds[kind].append(steps * num_envs / _play(envs, actions))
    finally:
        for envs in kinds.values():
            envs.close()
    return speeds


def _play(envs: VectorEnv[Any, Any, Any], actions: list[np.ndarray]) -> float:
    """Seconds for the actions, from a reset with one seed."""
    envs.reset(seed=0)
    started = time.perf_counter()
    for action in actions:
        envs.step(action)
    return time.perf_counter() - started
