"""Evaluation: the policy as it is, on environments of its own, seeded per episode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.data.types import PolicyState
from rl_training.envs.spaces import SpaceAdapter
from rl_training.runtime.collector import Act
from rl_training.runtime.players import Players


@dataclass(frozen=True)
class Evaluation:
    """Undiscounted returns and lengths of evaluation episodes, in order of their numbers."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    seed: int

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Standard deviation of the returns over episodes."""
        return float(np.std(self.returns))


class EvaluationStopped(Exception):
    """The run was asked to stop during an evaluation; its result is dropped."""


class Evaluator:
    """Plays episodes in a few environments side by side.

    Episode k is reset with a seed derived from the evaluation seed and k, so its course does not
    depend on which environment plays it or when. Nothing of the training is touched.
    """

    def __init__(
        self,
        make_env: Callable[[], gym.Env[Any, Any]],
        adapter: SpaceAdapter,
        *,
        parallel: int = 10,
    ) -> None:
        self._players = Players(make_env, adapter)
        self._adapter = adapter
        self._parallel = parallel

    def evaluate(
        self,
        act: Act,
        initial_state: Callable[[int], PolicyState],
        *,
        episodes: int,
        seed: int,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Evaluation:
        """Play `episodes` episodes to their ends."""
        # Always as many rows, played or not: a matrix product's last bits depend on its size.
        rows, playable = self._parallel, min(self._parallel, episodes)
        self._players.seat(playable)
        returns, lengths = np.zeros(episodes), np.zeros(episodes, np.int64)
        playing = np.arange(rows)  # which episode each row plays; past the end: none
        spec = self._adapter.spec
        obs = np.zeros((rows, *spec.obs_shape), spec.obs_dtype)
        for row in range(playable):
            obs[row] = self._players.reset(row, seed, row)
        first, state, started = np.ones(rows, np.bool_), initial_state(rows), rows
        while (playing < episodes).any():
            if stopped():
                raise EvaluationStopped
            acting = act(obs, state, first)
            actions, state = self._adapter.decode(acting.action), acting.state
            first = np.zeros(rows, np.bool_)
            for row in np.flatnonzero(playing < episodes).tolist():
                step = self._players.step(row, actions[row])
                obs[row] = step.obs
                returns[playing[row]] += step.reward
                lengths[playing[row]] += 1
                if step.terminated or step.truncated:
                    playing[row], started = started, started + 1
                    first[row] = True
                    if playing[row] < episodes:
                        obs[row] = self._players.reset(row, seed, playing[row])
        return Evaluation(tuple(returns.tolist()), tuple(lengths.tolist()), seed)

    def close(self) -> None:
        """Close the environments."""
        self._players.close()
