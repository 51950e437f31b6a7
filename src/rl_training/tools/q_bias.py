"""Q bias: the critics' mean estimate of the policy's return, less the return it then collects."""

from __future__ import annotations

import logging
import math
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import TimeLimit

from rl_training.algorithms.base import ActResult, HasCritics, SampledValues
from rl_training.data.types import PolicyState
from rl_training.errors import ConfigError
from rl_training.runtime.assembly import Environments
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.episodes import EpisodePlayer
from rl_training.runtime.evaluator import Evaluation
from rl_training.runtime.seeding import (
    derive_seed,
    global_generator_state,
    restore_global_generators,
)

if TYPE_CHECKING:
    from rl_training.runtime.training_run import TrainingRun

logger = logging.getLogger("rl_training")

TAIL = 0.01
"""The part of a return that may be missing: rewards count until their discount is below it."""


class Episode(NamedTuple):
    """One episode: rewards, alpha * log_prob of its actions, and the critics' values of them."""

    rewards: np.ndarray
    alpha_log_probs: np.ndarray
    values: np.ndarray
    terminated: bool


class QBias(Callback):
    """With each evaluation, measures the bias of the critics (Chen et al., 2021).

    Plays `episodes` episodes with sampled actions, on dedicated environments, and compares the
    critics' mean value in the first `states` steps of each with the discounted return from there,
    entropy included. A time limit does not end a value, so it is lifted, and an episode goes on
    until the rewards it would still bring weigh less than a hundredth. Where the environment itself
    truncates an episode before that, nothing is measured: to drop such episodes would select the
    others by how they end.

    Logs `eval/q_bias_mean` and `eval/q_bias_std` over those steps, the same two divided by the size
    of the mean return (`eval/q_bias_normalized_...`), and `eval/q_return_mean`, that return.
    """

    state_fields = ("_missed",)

    def __init__(self, episodes: int = 10, states: int = 350) -> None:
        if not all(type(count) is int and count >= 1 for count in (episodes, states)):
            raise ValueError(
                f"expected at least 1 of each, in whole numbers, found {episodes=}, {states=}"
            )
        self.episodes, self.states = episodes, states
        self._missed = self._warned = False

    def on_start(self, run: TrainingRun) -> None:
        """Refuse what cannot be measured before anything is trained.

        A measurement that a signal interrupted is repeated when the run is resumed.
        """
        check_measurable(run)
        gamma = run.hyper.gamma
        self.horizon = math.ceil(math.log(TAIL) / math.log(gamma)) if gamma else 1
        self._player(run).close()  # an environment that cannot be built is refused now
        if self._missed:
            self._measure(run)

    def on_evaluation(self, run: TrainingRun, evaluation: Evaluation) -> None:  # noqa: ARG002
        """Measure and log."""
        self._measure(run)

    def _measure(self, run: TrainingRun) -> None:
        generators, player = global_generator_state(), self._player(run)
        try:
            episodes = self._play(run, player, derive_seed(run.config.seed, "q_bias"))
        finally:
            player.close()
            # An environment that draws from the global generators must not disturb training.
            restore_global_generators(generators)
        self._missed = run.interrupts.received is not None
        if self._missed:
            return
        values = bias_of(episodes, run.hyper.gamma, states=self.states, horizon=self.horizon)
        if values:
            run.log_evaluation(values)
        elif not self._warned:
            self._warned = True
            logger.warning(
                "QBias measured nothing: the environment itself cut an episode within %d steps, "
                "the reach of gamma %g, so its return is not known; a smaller gamma or longer "
                "episodes would help",
                self.horizon,
                run.hyper.gamma,
            )

    def _player(self, run: TrainingRun) -> EpisodePlayer:
        make_env = Environments(run.config, run.collector.calls).evaluation
        return EpisodePlayer(
            lambda: without_time_limit(make_env()),
            run.agent.adapter,
            rows=self.episodes,
            calls=run.collector.calls,
        )

    def _play(self, run: TrainingRun, player: EpisodePlayer, seed: int) -> list[Episode]:
        """Episodes with sampled actions, each to its end or as long as its rewards count."""
        algorithm, action_dim = run.algorithm, run.agent.adapter.spec.action_dim
        assert isinstance(algorithm, HasCritics)
        noise = np.random.default_rng(seed)
        sampled: SampledValues

        def act(obs: np.ndarray, state: PolicyState, first: np.ndarray) -> ActResult:  # noqa: ARG001
            nonlocal sampled
            draws = noise.standard_normal((len(obs), action_dim), np.float32)
            sampled = algorithm.sampled_values(run.agent.normalizer.array(obs), draws)
            return ActResult(sampled.action, state)

        recorded: list[list[tuple[float, float, float]]] = [[] for _ in range(self.episodes)]
        terminated = [False] * self.episodes
        steps = player.play(act, run.algorithm.initial_state, episodes=self.episodes, seed=seed)
        for taken in islice(steps, self.states + self.horizon):
            for step in taken:
                reward = step.reward * run.hyper.reward_scale
                alpha_log_prob, value = sampled.alpha_log_prob[step.row], sampled.value[step.row]
                recorded[step.episode].append((reward, float(alpha_log_prob), float(value)))
                terminated[step.episode] = step.terminated
            if run.interrupts.received is not None:
                break
        columns = (np.array(rows).T for rows in recorded)
        return [
            Episode(rewards, alpha_log_probs, values, ended)
            for (rewards, alpha_log_probs, values), ended in zip(columns, terminated, strict=True)
        ]


def check_measurable(run: TrainingRun) -> None:
    """Refuse a run whose critics' bias cannot be measured."""
    if not isinstance(run.algorithm, HasCritics):
        raise ConfigError(
            f"callbacks: QBias asks an algorithm's critics with sampled_values, which "
            f"{run.config.algo} does not define; leave it out"
        )
    if run.evaluator is None:
        raise ConfigError(
            "callbacks: QBias measures with each evaluation, and eval_interval and "
            "final_eval_episodes are 0; leave it out or set one of them"
        )
    if run.hyper.gamma == 1:
        raise ConfigError("callbacks: QBias needs algo_kwargs.gamma below 1, found 1")
    if run.hyper.n_step > 1:
        raise ConfigError(
            "callbacks: QBias needs algo_kwargs.n_step 1: with more, the critics' targets leave "
            f"out entropy that returns have; found {run.hyper.n_step}"
        )


def without_time_limit(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """The environment, with the limits of its TimeLimit wrappers lifted."""
    layer = env
    while isinstance(layer, gym.Wrapper):
        if isinstance(layer, TimeLimit):
            layer._max_episode_steps = sys.maxsize
        layer = layer.env
    return env


def bias_of(
    episodes: list[Episode], gamma: float, *, states: int, horizon: int
) -> dict[str, float]:
    """Mean and spread over the steps whose return is known, and both in units of the mean return.

    Empty if an episode was cut before the return of its first step is known.
    """
    counted = [
        min(states, len(e.rewards) if e.terminated else len(e.rewards) - horizon) for e in episodes
    ]
    if min(counted) < 1:
        return {}
    returns = [
        soft_returns(e.rewards, e.alpha_log_probs, gamma)[:count]
        for e, count in zip(episodes, counted, strict=True)
    ]
    values = [e.values[:count] for e, count in zip(episodes, counted, strict=True)]
    mean = float(np.concatenate(returns).mean())
    bias = np.concatenate(values) - np.concatenate(returns)
    size = max(abs(mean), 1e-8)
    return {
        "q_bias_mean": float(bias.mean()),
        "q_bias_std": float(bias.std()),
        "q_bias_normalized_mean": float(bias.mean()) / size,
        "q_bias_normalized_std": float(bias.std()) / size,
        "q_return_mean": mean,
    }


def soft_returns(rewards: np.ndarray, alpha_log_probs: np.ndarray, gamma: float) -> np.ndarray:
    """G[t] = reward[t] + gamma * (G[t + 1] - alpha_log_prob[t + 1]), and nothing after the end."""
    returns, next_value = np.zeros(len(rewards)), 0.0
    for step in reversed(range(len(rewards))):
        returns[step] = rewards[step] + gamma * next_value
        next_value = returns[step] - alpha_log_probs[step]
    return returns
