"""Exploration over discrete actions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rl_training.algorithms.generators import BlockNoise


class EpsilonGreedy(BlockNoise):
    """One coin per environment: heads takes a uniform action, tails the greedy one."""

    def __init__(self, num_actions: int, seed: int) -> None:
        super().__init__(seed, lambda rng, rows: rng.random((rows, 2)), width=2)
        self.num_actions = num_actions

    def act(self, epsilon: float, num_envs: int, greedy: Callable[[], np.ndarray]) -> np.ndarray:
        """Uniform actions where the coin falls below epsilon, and `greedy()` elsewhere."""
        coin, choice = self.step(num_envs).T
        explores = coin < epsilon
        exploring = np.count_nonzero(explores)
        if not exploring:
            return greedy()
        uniform = (choice * self.num_actions).astype(np.int64)
        return uniform if exploring == num_envs else np.where(explores, uniform, greedy())
