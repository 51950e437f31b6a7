"""Evaluation: the returns of the policy, deterministic, on dedicated environments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from rl_training.data.types import PolicyState
from rl_training.envs.spaces import SpaceAdapter
from rl_training.runtime.collector import Act, MaskedAct
from rl_training.runtime.episodes import EpisodePlayer
from rl_training.runtime.process import EnvCalls

if TYPE_CHECKING:
    from rl_training.algorithms.base import ActResult


@dataclass(frozen=True)
class Evaluation:
    """Undiscounted returns and lengths of evaluation episodes, in order of their numbers."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    seed: int

    def first(self, episodes: int) -> Evaluation:
        """Of the first episodes alone: what an evaluation of so many would have measured."""
        return Evaluation(self.returns[:episodes], self.lengths[:episodes], self.seed)

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
    """Measures the returns of episodes in dedicated environments; training state is not touched."""

    def __init__(
        self,
        make_env: Callable[[], gym.Env[Any, Any]],
        adapter: SpaceAdapter,
        *,
        max_steps: int | None = None,
        calls: EnvCalls | None = None,
    ) -> None:
        self._player = EpisodePlayer(make_env, adapter, max_steps=max_steps, calls=calls)

    @property
    def env(self) -> gym.Env[Any, Any]:
        """One of the environments, to be asked what it says of itself."""
        return self._player.env

    def evaluate(
        self,
        act: Act | MaskedAct,
        initial_state: Callable[[int], PolicyState],
        *,
        episodes: int,
        seed: int,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Evaluation:
        """Play `episodes` episodes to their ends, or raise EvaluationStopped."""

        def act_unless_stopped(*seen: Any) -> ActResult:
            # Checked before acting: a signal during the last step must not drop a whole result.
            if stopped():
                raise EvaluationStopped
            return act(*seen)

        returns, lengths = np.zeros(episodes), np.zeros(episodes, np.int64)
        played = self._player.play(act_unless_stopped, initial_state, episodes=episodes, seed=seed)
        for steps in played:
            for step in steps:
                returns[step.episode] += step.reward
                lengths[step.episode] += 1
        return Evaluation(tuple(returns.tolist()), tuple(lengths.tolist()), seed)

    def close(self) -> None:
        """Close the environments."""
        self._player.close()
