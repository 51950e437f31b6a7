"""The bias of the critics: what they expect of the policy, less what it then collects."""

from __future__ import annotations

import logging
import math
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import TimeLimit

from rl_training.algorithms.soft_acting import SoftActing
from rl_training.errors import ConfigError
from rl_training.runtime.assembly import Environments
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.evaluator import Evaluation
from rl_training.runtime.players import Players
from rl_training.runtime.seeding import (
    derive_seed,
    global_generator_state,
    restore_global_generators,
)

if TYPE_CHECKING:
    from rl_training.runtime.training_run import TrainingRun

logger = logging.getLogger("rl_training")

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
    follows, entropy included. A time limit does not end a value, so it is lifted, and an episode
    goes on until the rewards it would still bring weigh less than a hundredth. Where the
    environment itself cuts an episode before that, nothing is measured: to leave such an episode
    out would choose the others by their end.

    Logs `eval/q_bias_mean` and `eval/q_bias_std` over those steps, the same two divided by the size
    of the mean return (`eval/q_bias_normalized_...`), and `eval/q_return_mean`, that return.
    """

    def __init__(self, episodes: int = 10, states: int = 350) -> None:
        if min(episodes, states) < 1:
            raise ValueError(f"expected at least 1 of each, found {episodes=}, {states=}")
        self.episodes, self.states = episodes, states
        self._missed = self._warned = False

    def on_start(self, run: TrainingRun) -> None:
        """Refuse what cannot be measured before anything is trained; make up for what was missed.

        A measurement that a signal broke off is made when the run is resumed.
        """
        check_measurable(run)
        gamma = run.hyper.gamma
        self.horizon = math.ceil(math.log(TAIL) / math.log(gamma)) if gamma else 1
        self._players(run).close()
        if self._missed:
            self._measure(run)

    def on_evaluation(self, run: TrainingRun, evaluation: Evaluation) -> None:  # noqa: ARG002
        """Measure and log."""
        self._measure(run)

    def state_dict(self) -> dict[str, Any]:
        """Whether a measurement is owed."""
        return {"missed": True} if self._missed else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the debt."""
        self._missed = state["missed"]

    def _measure(self, run: TrainingRun) -> None:
        generators, players = global_generator_state(), self._players(run)
        try:
            episodes = self._play(run, players, derive_seed(run.config.seed, "q_bias"))
        finally:
            players.close()
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

    def _players(self, run: TrainingRun) -> Players:
        single = Environments(run.config).single
        return Players(lambda: without_time_limit(single()), run.agent.adapter)

    def _play(self, run: TrainingRun, players: Players, seed: int) -> list[Episode]:
        """Episodes side by side, each to its end or as long as it counts."""
        adapter, algorithm = run.agent.adapter, run.algorithm
        assert isinstance(algorithm, SoftActing)
        noise, rows = np.random.default_rng(seed), self.episodes
        players.seat(rows)
        obs = np.stack([players.reset(row, seed, row) for row in range(rows)])
        seen: list[list[tuple[float, float, float]]] = [[] for _ in range(rows)]
        terminated, playing = np.zeros(rows, np.bool_), np.ones(rows, np.bool_)
        for _ in range(self.states + self.horizon):
            if not playing.any() or run.interrupts.received is not None:
                break
            draws = noise.standard_normal((rows, adapter.spec.action_dim), np.float32)
            expected = algorithm.expectation(run.agent.normalizer.array(obs), draws)
            actions = adapter.decode(expected.action)
            for row in np.flatnonzero(playing).tolist():
                step = players.step(row, actions[row])
                obs[row] = step.obs
                cost, value = float(expected.cost[row]), float(expected.value[row])
                seen[row].append((step.reward * run.hyper.reward_scale, cost, value))
                terminated[row] = step.terminated
                playing[row] = not (step.terminated or step.truncated)
        columns = [np.array(numbers).reshape(-1, 3).T for numbers in seen]
        return [
            Episode(rewards, costs, values, terminated=bool(over))
            for (rewards, costs, values), over in zip(columns, terminated, strict=True)
        ]


def check_measurable(run: TrainingRun) -> None:
    """Refuse a run whose critics have no bias that could be measured."""
    if not isinstance(run.algorithm, SoftActing):
        raise ConfigError(
            f"callbacks: QBias measures critics of sac, tqc, redq and drq, not of {run.config.algo}"
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
    """The environment, in which no wrapper ends episodes by their length any more."""
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

    Nothing if an episode was cut before one step of it had its return.
    """
    counted = [
        min(states, len(e.rewards) if e.terminated else len(e.rewards) - horizon) for e in episodes
    ]
    if min(counted) < 1:
        return {}
    returns = [
        soft_returns(e.rewards, e.costs, gamma)[:count]
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


def soft_returns(rewards: np.ndarray, costs: np.ndarray, gamma: float) -> np.ndarray:
    """G[t] = reward[t] + gamma * (G[t + 1] - cost[t + 1]), with nothing after the last step."""
    returns, following = np.zeros(len(rewards)), 0.0
    for step in reversed(range(len(rewards))):
        returns[step] = rewards[step] + gamma * following
        following = returns[step] - costs[step]
    return returns
