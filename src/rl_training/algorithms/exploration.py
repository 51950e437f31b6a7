"""Exploration over discrete actions."""

from __future__ import annotations

import numpy as np

from rl_training.algorithms.generators import BlockNoise


class EpsilonGreedy(BlockNoise):
    """One coin per environment: heads takes a uniform action, tails the greedy one."""

    def __init__(self, num_actions: int, seed: int) -> None:
        super().__init__(seed, lambda rng, rows: rng.random((rows, 2)))
        self.num_actions = num_actions

    def draw(self, epsilon: float, num_envs: int) -> tuple[np.ndarray, np.ndarray]:
        """Which environments explore, and a uniform action for each."""
        coin, choice = self.step(num_envs).T
        return coin < epsilon, (choice * self.num_actions).astype(np.int64)
