"""Episodes played side by side: which steps they have, in which batches, with which seeds."""

from __future__ import annotations

from itertools import islice
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training.algorithms.base import ActResult
from rl_training.data.types import PolicyState
from rl_training.envs.spaces import SpaceAdapter
from rl_training.errors import EnvError
from rl_training.runtime.episodes import EpisodePlayer
from rl_training.runtime.evaluator import Evaluation, EvaluationStopped, Evaluator
from rl_training.runtime.seeding import derive_seed
from toy_envs import CountingEnv, RaisingEnv, RandomWalkEnv


class Policy:
    """Always action 1; keeps the batches it was given, and counts its steps in its state."""

    def __init__(self) -> None:
        self.obs: list[list[list[float]]] = []
        self.first: list[list[bool]] = []
        self.counts: list[list[int]] = []

    def initial_state(self, rows: int) -> PolicyState:
        return (np.zeros(rows, np.int64),)

    def __call__(self, obs: np.ndarray, state: PolicyState, first: np.ndarray) -> ActResult:
        self.obs.append(obs.tolist())
        self.first.append(first.tolist())
        self.counts.append(state[0].tolist())
        return ActResult(np.ones(len(obs), np.int64), (np.where(first, 1, state[0] + 1),))


def adapter(env: gym.Env[Any, Any]) -> SpaceAdapter:
    return SpaceAdapter("toy", env.observation_space, env.action_space)


def player(make: Any, rows: int) -> EpisodePlayer:
    return EpisodePlayer(make, adapter(make()), rows=rows)


def test_a_row_whose_episode_ended_begins_the_next_one() -> None:
    policy = Policy()
    played = player(lambda: CountingEnv(length=2), 2).play(
        policy, policy.initial_state, episodes=3, seed=0
    )
    assert [[tuple(step) for step in steps] for steps in played] == [
        [(0, 0, 1.0, False, False), (1, 1, 1.0, False, False)],
        [(0, 0, 2.0, True, False), (1, 1, 2.0, True, False)],
        [(0, 2, 1.0, False, False)],
        [(0, 2, 2.0, True, False)],
    ]
    # Row 1 has no episode left: it stays in the batch with what it saw last.
    assert policy.obs[2] == [[0, 0], [0, 2]]
    assert policy.obs[3] == [[0, 1], [0, 2]]
    assert policy.first == [[True, True], [False, False], [True, True], [False, False]]
    assert [row[0] for row in policy.counts] == [0, 1, 2, 1]  # the policy resets where it is told


@pytest.mark.parametrize("episodes", [1, 2, 7])
def test_a_batch_has_always_as_many_rows(episodes: int) -> None:
    policy = Policy()
    list(player(CountingEnv, 4).play(policy, policy.initial_state, episodes=episodes, seed=0))
    assert {len(rows) for rows in policy.obs} == {4}


class SeededEnv(RandomWalkEnv):
    seeds: list[int | None] = []  # noqa: RUF012 - of all of them

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seeds.append(seed)
        return super().reset(seed=seed, options=options)


def test_the_course_of_an_episode_depends_on_its_number_alone() -> None:
    returns = []
    for rows in (1, 2, 5):
        SeededEnv.seeds.clear()
        policy, totals = Policy(), [0.0] * 5
        for steps in player(SeededEnv, rows).play(policy, policy.initial_state, episodes=5, seed=7):
            for step in steps:
                totals[step.episode] += step.reward
        assert sorted(SeededEnv.seeds) == sorted(derive_seed(7, "episode", k) for k in range(5))
        returns.append(totals)
    assert returns[0] == returns[1] == returns[2]
    assert len(set(returns[0])) == 5


def test_playing_can_be_left_and_begun_again() -> None:
    policy = Policy()
    made = player(RandomWalkEnv, 2)

    def play() -> Any:
        return made.play(policy, policy.initial_state, episodes=3, seed=1)

    whole = list(play())
    assert list(islice(play(), 4)) == whole[:4]
    assert list(play()) == whole


class CountedEnv(CountingEnv):
    made = closed = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).made += 1

    def close(self) -> None:
        type(self).closed += 1


def test_one_environment_is_made_at_once_and_the_others_when_they_are_needed() -> None:
    spaces, policy = adapter(CountingEnv()), Policy()
    CountedEnv.made = CountedEnv.closed = 0
    made = EpisodePlayer(CountedEnv, spaces, rows=4)
    assert CountedEnv.made == 1
    for episodes, number in ((1, 1), (3, 3), (9, 4), (2, 4)):
        list(made.play(policy, policy.initial_state, episodes=episodes, seed=0))
        assert CountedEnv.made == number
    made.close()
    assert CountedEnv.closed == 4


def test_an_environment_that_raises_is_named_with_the_call() -> None:
    policy = Policy()
    message = r"RuntimeError in step during an evaluation \(episode 0, reset seed \d+\): the robot"
    with pytest.raises(EnvError, match=message):
        list(player(RaisingEnv, 1).play(policy, policy.initial_state, episodes=1, seed=0))


class ClosesBadly(CountingEnv):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def close(self) -> None:
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("no screen"), SystemExit("no screen")], ids=repr)
def test_an_environment_that_raises_when_it_is_closed_is_warned_of(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    player(lambda: ClosesBadly(error), 2).close()
    assert f"toy raised {type(error).__name__} in close: no screen" in caplog.text


class Wordy(CountingEnv):
    def step(self, action: int) -> Any:
        obs, _, *rest = super().step(action)
        return obs, [1.0, 2.0], *rest


def test_an_environment_that_breaks_its_contract_is_an_env_error() -> None:
    policy = Policy()
    message = r"toy broke Gymnasium's contract in step .*: reward: expected a number, found a list"
    with pytest.raises(EnvError, match=message):
        list(player(Wordy, 1).play(policy, policy.initial_state, episodes=1, seed=0))


@pytest.mark.parametrize(("limit", "warnings"), [(4, 1), (5, 0), (6, 0), (None, 0)])
def test_an_episode_of_the_greatest_length_is_cut_with_one_warning(
    limit: int | None, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Episodes of five steps with rewards 1 to 5."""
    policy = Policy()
    evaluator = Evaluator(CountingEnv, adapter(CountingEnv()), max_steps=limit)
    found = evaluator.evaluate(policy, policy.initial_state, episodes=12, seed=0)
    length, value = (4, 10.0) if limit == 4 else (5, 15.0)
    assert found == Evaluation((value,) * 12, (length,) * 12, 0)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == warnings
    assert all("toy: an evaluation episode reached max_eval_steps = 4" in text for text in told)
    assert all("TimeLimit" in text for text in told)


@pytest.mark.parametrize(("steps", "complete"), [(0, False), (4, False), (5, True)])
def test_an_evaluation_is_dropped_unless_it_was_complete_when_it_was_stopped(
    steps: int, complete: bool
) -> None:
    """Two episodes of five steps, side by side."""
    policy = Policy()
    evaluator = Evaluator(CountingEnv, adapter(CountingEnv()))

    def evaluate() -> Evaluation:
        return evaluator.evaluate(
            policy,
            policy.initial_state,
            episodes=2,
            seed=0,
            stopped=lambda: len(policy.obs) >= steps,
        )

    if complete:
        assert evaluate() == Evaluation((15.0, 15.0), (5, 5), 0)
    else:
        with pytest.raises(EvaluationStopped):
            evaluate()
    assert len(policy.obs) == steps
