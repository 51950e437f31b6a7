"""The bias of the critics: what they expect of the policy, less what it then collects."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import numpy as np

from rl_training.algorithms.soft_acting import SoftActing
from rl_training.envs.factory import make_env
from rl_training.errors import ConfigError, UsageError
from rl_training.runtime.assembly import Environments
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.evaluator import Evaluation
from rl_training.runtime.result import TrainResult
from rl_training.runtime.seeding import (
    derive_seed,
    global_generator_state,
    restore_global_generators,
)

if TYPE_CHECKING:
    from rl_training.runtime.training_run import TrainingRun

TAIL = 0.01
"""What a return may lack: rewards are counted until their discount is below it."""


class Episode(NamedTuple):
    """One episode: rewards, alpha * log_prob of its actions, and what the critics expected."""

    rewards: np.ndarray
    costs: np.ndarray
    values: np.ndarray
    terminated: bool


class QBias(Callback):
    """With each evaluation, measures how far the critics are from the truth (Chen et al., 2021).

    Plays `episodes` episodes with sampled actions, on environments of its own, and compares what
    the critics' mean expects in the first `states` steps of each with the discounted return that
    follows, entropy included. Where an episode is cut rather than over, a step counts only if the
    rewards after the cut would weigh less than a hundredth; a registered time limit is extended to
    that end, as it does not end a value either.

    Logs `eval/q_bias_mean` and `eval/q_bias_std` over those steps, the same two divided by the size
    of the mean return (`eval/q_bias_normalized_...`), and `eval/q_return_mean`, that return.
    """

    def __init__(self, episodes: int = 10, states: int = 350) -> None:
        if min(episodes, states) < 1:
            raise ValueError(f"expected at least 1 of each, found {episodes=}, {states=}")
        self.episodes, self.states = episodes, states
        self._envs: list[gym.Env[Any, Any]] = []

    def on_start(self, run: TrainingRun) -> None:
        """Refuse what cannot be measured before anything is trained."""
        if not isinstance(run.algorithm, SoftActing):
            raise ConfigError(
                f"callbacks: QBias measures critics of sac, tqc and redq, not of {run.config.algo}"
            )
        gamma = run.hyper.gamma
        if gamma == 1:
            raise ConfigError("callbacks: QBias needs algo_kwargs.gamma below 1, found 1")
        self.horizon = math.ceil(math.log(TAIL) / math.log(gamma)) if gamma else 1
        self._envs = [self._make_env(run) for _ in range(self.episodes)]

    def on_evaluation(self, run: TrainingRun, evaluation: Evaluation) -> None:
        """Measure and log."""
        generators = global_generator_state()
        try:
            episodes = self._play(run, derive_seed(evaluation.seed, "q_bias"))
        finally:
            restore_global_generators(generators)
        values = bias_of(episodes, run.hyper.gamma, states=self.states, horizon=self.horizon)
        for name, value in values.items():
            run.log(f"eval/{name}", value)

    def on_end(self, run: TrainingRun, result: TrainResult) -> None:  # noqa: ARG002
        """Close the environments."""
        while self._envs:
            self._envs.pop().close()

    def _make_env(self, run: TrainingRun) -> gym.Env[Any, Any]:
        environments, config = Environments(run.config), run.config
        env = environments.single()
        if not isinstance(config.env_id, str) or env.spec is None or not env.spec.max_episode_steps:
            return env
        env.close()
        longer = {**config.env_kwargs, "max_episode_steps": self.states + self.horizon}
        return make_env(config.env_id, env_kwargs=longer, wrappers=config.wrappers)

    def _play(self, run: TrainingRun, seed: int) -> list[Episode]:
        """Episodes side by side, each to its end or as long as it counts."""
        adapter, algorithm = run.agent.adapter, run.algorithm
        assert isinstance(algorithm, SoftActing)
        noise, rows = np.random.default_rng(seed), range(self.episodes)
        obs = np.stack(
            [
                adapter.encode_one(self._envs[row].reset(seed=derive_seed(seed, "episode", row))[0])
                for row in rows
            ]
        )
        seen: list[list[tuple[float, float, float]]] = [[] for _ in rows]
        terminated, playing = np.zeros(len(rows), np.bool_), np.ones(len(rows), np.bool_)
        for _ in range(self.states + self.horizon):
            if not playing.any():
                break
            draws = noise.standard_normal((len(rows), adapter.spec.action_dim), np.float32)
            expected = algorithm.expectation(run.agent.normalizer.array(obs), draws)
            actions = adapter.decode(expected.action)
            for row in np.flatnonzero(playing).tolist():
                following, reward, over, cut, _ = self._envs[row].step(actions[row])
                obs[row] = adapter.encode_one(following)
                numbers = float(reward), float(expected.cost[row]), float(expected.value[row])
                seen[row].append(numbers)
                terminated[row], playing[row] = over, not (over or cut)
        return [
            Episode(rewards, costs, values, bool(over))
            for (rewards, costs, values), over in zip(
                (np.array(numbers).T for numbers in seen), terminated, strict=True
            )
        ]


def bias_of(
    episodes: list[Episode], gamma: float, *, states: int, horizon: int
) -> dict[str, float]:
    """Mean and spread over the steps that count, and both in units of the mean return."""
    biases, returns = [], []
    for episode in episodes:
        length = len(episode.rewards)
        counted = min(states, length if episode.terminated else length - horizon)
        if counted > 0:
            found = soft_returns(episode.rewards, episode.costs, gamma)[:counted]
            biases.append(episode.values[:counted] - found)
            returns.append(found)
    if not biases:
        raise UsageError(
            f"QBias: every episode was cut off within {horizon} steps, the reach of gamma {gamma}, "
            "so there is no return to compare with; use a longer time limit or a smaller gamma"
        )
    bias, mean = np.concatenate(biases), float(np.concatenate(returns).mean())
    size = max(abs(mean), 1e-8)
    return {
        "q_bias_mean": float(bias.mean()),
        "q_bias_std": float(bias.std()),
        "q_bias_normalized_mean": float(bias.mean()) / size,
        "q_bias_normalized_std": float(bias.std()) / size,
        "q_return_mean": mean,
    }


def soft_returns(rewards: np.ndarray, costs: np.ndarray, gamma: float) -> np.ndarray:
    """G[t] = reward[t] + gamma * (G[t + 1] - cost[t + 1]), with nothing after the last step."""
    returns, following = np.zeros(len(rewards)), 0.0
    for step in reversed(range(len(rewards))):
        returns[step] = rewards[step] + gamma * following
        following = returns[step] - costs[step]
    return returns
