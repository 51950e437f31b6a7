"""Exploration over discrete actions."""

from __future__ import annotations

from typing import Any

import numpy as np


class EpsilonGreedy:
    """One coin per environment: heads takes a uniform action, tails the greedy one."""

    def __init__(self, num_actions: int, seed: int) -> None:
        self.num_actions = num_actions
        self._rng = np.random.default_rng(seed)

    def draw(self, epsilon: float, num_envs: int) -> tuple[np.ndarray, np.ndarray]:
        """Which environments explore, and a uniform action for each."""
        explores = self._rng.random(num_envs) < epsilon
        return explores, self._rng.integers(0, self.num_actions, num_envs)

    def state_dict(self) -> dict[str, Any]:
        """The generator's state."""
        return {"rng": self._rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the generator."""
        self._rng.bit_generator.state = state["rng"]
