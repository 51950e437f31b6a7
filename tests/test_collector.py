"""Whatever a vector environment does when an episode ends, true transitions come out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.algorithms.base import ActResult
from rl_training.data.types import PolicyState, Transitions
from rl_training.envs.factory import make_vector_env
from rl_training.envs.spaces import SpaceAdapter
from rl_training.errors import CheckpointError, EnvError, NonFiniteError
from rl_training.runtime.collector import Collector, Episode
from rl_training.storage.tree import join, split, tree_hash
from toy_envs import CountingEnv, NaNEnv, RaisingEnv, RandomWalkEnv

MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)


class Row(NamedTuple):
    obs: tuple[float, ...]
    action: int
    reward: float
    next_obs: tuple[float, ...]
    terminated: bool
    truncated: bool
    first: bool


def scripted(obs: np.ndarray, state: PolicyState, first: np.ndarray) -> ActResult:
    """Actions that are a function of what is seen: the same wherever the same is seen."""
    return ActResult((np.abs(obs * 1000).sum(1).astype(np.int64)) % 2, state)


def collect(venv: VectorEnv[Any, Any, Any], transitions: int, seed: int = 5) -> list[list[Row]]:
    """The first transitions of each environment."""
    adapter = SpaceAdapter("toy", venv.single_observation_space, venv.single_action_space)
    collector = Collector(venv, adapter)
    rows: list[list[Row]] = [[] for _ in range(venv.num_envs)]
    try:
        collector.reset([seed + i for i in range(venv.num_envs)], state=())
        while min(map(len, rows)) < transitions:
            step = collector.step(scripted)
            for env in np.flatnonzero(step.valid):
                rows[env].append(row_of(step, env))
    finally:
        collector.close()
    return [env_rows[:transitions] for env_rows in rows]


def row_of(step: Transitions, env: int) -> Row:
    return Row(
        tuple(step.obs[env].tolist()),
        int(step.action[env]),
        float(step.reward[env]),
        tuple(step.next_obs[env].tolist()),
        bool(step.terminated[env]),
        bool(step.truncated[env]),
        bool(step.first[env]),
    )


def make(kind: Callable[..., gym.Env[Any, Any]], *args: Any) -> Callable[[], gym.Env[Any, Any]]:
    return partial(kind, *args)


def test_each_mode_gives_the_transitions_written_down_by_hand() -> None:
    # Env 0 terminates after 2 steps, env 1 is truncated after 3; the reward is the step number.
    makers = [make(CountingEnv, 2, "termination"), make(CountingEnv, 3, "truncation")]
    for mode in MODES:
        short, long = collect(SyncVectorEnv(makers, autoreset_mode=mode), 4)
        seen = [(r.obs, r.reward, r.next_obs, r.terminated, r.truncated, r.first) for r in short]
        assert seen == [
            ((0, 0), 1, (0, 1), False, False, True),
            ((0, 1), 2, (0, 2), True, False, False),
            ((1, 0), 1, (1, 1), False, False, True),
            ((1, 1), 2, (1, 2), True, False, False),
        ], mode
        seen = [(r.obs, r.reward, r.next_obs, r.terminated, r.truncated, r.first) for r in long]
        assert seen == [
            ((0, 0), 1, (0, 1), False, False, True),
            ((0, 1), 2, (0, 2), False, False, False),
            ((0, 2), 3, (0, 3), False, True, False),
            ((1, 0), 1, (1, 1), False, False, True),
        ], mode


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    ends=st.lists(st.sampled_from(["termination", "truncation"]), min_size=4, max_size=4),
    seed=st.integers(0, 1000),
)
def test_all_modes_give_identical_transitions(
    lengths: list[int], ends: list[str], seed: int
) -> None:
    counting = [make(CountingEnv, n, end) for n, end in zip(lengths, ends, strict=False)]
    walking = [make(RandomWalkEnv, 0.5 * n) for n in lengths]  # these draw random numbers
    for makers in (counting, walking):
        reference, *others = (
            collect(SyncVectorEnv(makers, autoreset_mode=mode), 15, seed) for mode in MODES
        )
        assert all(other == reference for other in others)


@pytest.mark.parametrize("mode", MODES)
def test_processes_give_the_same_as_one_process(mode: AutoresetMode) -> None:
    for makers in (
        [make(CountingEnv, 3, "truncation"), make(CountingEnv, 1), make(CountingEnv, 4)],
        [make(RandomWalkEnv, 1.5), make(RandomWalkEnv, 0.5)],
    ):
        sync = collect(SyncVectorEnv(makers, autoreset_mode=mode), 12)
        assert collect(AsyncVectorEnv(makers, autoreset_mode=mode), 12) == sync


def test_the_factorys_own_environments_are_no_exception() -> None:
    by_hand = SyncVectorEnv([make(RandomWalkEnv, 1.5)] * 2)
    expected = collect(by_hand, 20)
    for vectorization in ("sync", "async"):
        venv = make_vector_env(make(RandomWalkEnv, 1.5), num_envs=2, vectorization=vectorization)
        assert collect(venv, 20) == expected


def test_a_vector_environment_that_reuses_its_arrays_is_copied() -> None:
    makers = [make(CountingEnv, 3)] * 2
    expected = collect(SyncVectorEnv(makers), 10)
    assert collect(SyncVectorEnv(makers, copy=False), 10) == expected


def cartpole_successor(obs: np.ndarray, action: int) -> np.ndarray:
    """CartPole's equations of motion, one Euler step of 0.02 s."""
    x, x_dot, theta, theta_dot = obs.astype(np.float64)
    force = 10.0 if action == 1 else -10.0
    temp = (force + 0.05 * theta_dot**2 * np.sin(theta)) / 1.1
    acceleration = (9.8 * np.sin(theta) - np.cos(theta) * temp) / (
        0.5 * (4.0 / 3.0 - 0.1 * np.cos(theta) ** 2 / 1.1)
    )
    x_acceleration = temp - 0.05 * acceleration * np.cos(theta) / 1.1
    return np.array(
        [
            x + 0.02 * x_dot,
            x_dot + 0.02 * x_acceleration,
            theta + 0.02 * theta_dot,
            theta_dot + 0.02 * acceleration,
        ]
    )


def test_native_vector_environments_keep_the_invariants() -> None:
    limit = 25
    venv = CartPoleVectorEnv(num_envs=4, max_episode_steps=limit)
    adapter = SpaceAdapter("cartpole", venv.single_observation_space, venv.single_action_space)
    collector = Collector(venv, adapter)
    collector.reset([0, 1, 2, 3], state=())
    length = np.zeros(4, int)
    ends = {"terminated": 0, "truncated": 0, "reset rows": 0}
    for _ in range(400):
        step = collector.step(scripted)
        for env in range(4):
            if not step.valid[env]:
                ends["reset rows"] += 1
                continue
            length[env] += 1
            assert step.first[env] == (length[env] == 1)
            expected = cartpole_successor(step.obs[env], int(step.action[env]))
            np.testing.assert_allclose(step.next_obs[env], expected, atol=1e-5)
            fell = abs(step.next_obs[env, 0]) > 2.4 or abs(step.next_obs[env, 2]) > np.pi / 15
            assert bool(step.terminated[env]) == fell
            assert bool(step.truncated[env]) == (length[env] >= limit)
            ends["terminated"] += int(fell)
            ends["truncated"] += int(step.truncated[env])
            if fell or step.truncated[env]:
                length[env] = 0
    assert min(ends.values()) > 0, ends
    # Each ended episode costs one reset row, but for those that ended at the very last step.
    assert 0 <= collector.episodes_finished - ends["reset rows"] <= 4
    venv.close()


def test_finished_episodes_are_reported_with_return_and_length() -> None:
    venv = SyncVectorEnv([make(CountingEnv, 3)])
    collector = Collector(
        venv, SpaceAdapter("toy", venv.single_observation_space, venv.single_action_space)
    )
    collector.reset([0], state=())
    for _ in range(7):  # two episodes of three steps, one reset row between them
        collector.step(scripted)
    assert [tuple(episode) for episode in collector.episodes] == [(6.0, 3), (6.0, 3)]


def test_policy_state_is_carried_and_given_back_with_the_step() -> None:
    venv = make_vector_env(make(CountingEnv, 3), num_envs=2)
    collector = Collector(
        venv, SpaceAdapter("toy", venv.single_observation_space, venv.single_action_space)
    )
    collector.reset([0, 1], state=(np.zeros(2),))

    def count(obs: np.ndarray, state: PolicyState, first: np.ndarray) -> ActResult:
        carried = np.where(first, 0.0, state[0])
        return ActResult(np.zeros(2, np.int64), (carried + 1,))

    before = [collector.step(count).state[0].tolist() for _ in range(5)]
    assert before == [[0, 0], [1, 1], [2, 2], [3, 3], [1, 1]]  # an episode of 3 ended at step 3


def stepped(mode: AutoresetMode, steps: int, seeds: tuple[int, int] = (0, 1)) -> Collector:
    """A collector of a policy that carries a number, after some steps of short episodes."""
    venv = SyncVectorEnv([make(RandomWalkEnv)] * 2, autoreset_mode=mode)
    spaces = venv.single_observation_space, venv.single_action_space
    collector = Collector(venv, SpaceAdapter("toy", *spaces))
    collector.reset(list(seeds), state=(np.zeros(2),))
    for _ in range(steps):
        collector.step(carried)
    return collector


def carried(obs: np.ndarray, state: PolicyState, first: np.ndarray) -> ActResult:
    return ActResult(scripted(obs, state, first).action, (np.where(first, 0.0, state[0]) + 1,))


@pytest.mark.parametrize("mode", MODES)
def test_a_restored_collector_goes_on_like_the_one_that_was_saved(mode: AutoresetMode) -> None:
    initial = (np.zeros(2),)
    saved, fresh = stepped(mode, 97), stepped(mode, 0, seeds=(8, 9))
    fresh.reset([3, 4], state=initial)
    assert len(saved.episodes) > 1
    fresh.load_state_dict(join(*split(saved.state_dict())))
    fresh.load_envs(join(*split(saved.save_envs())))
    assert initial[0].tolist() == [0, 0]  # what the caller passed is not written to
    assert fresh.episodes == saved.episodes
    assert {type(episode) for episode in fresh.episodes} == {Episode}
    for _ in range(40):
        assert tree_hash(list(fresh.step(carried))) == tree_hash(list(saved.step(carried)))
    assert (fresh.steps, fresh.episodes_finished) == (saved.steps, saved.episodes_finished)
    assert tree_hash(fresh.state_dict()) == tree_hash(saved.state_dict())


def test_a_state_of_another_number_of_environments_is_refused() -> None:
    collector = stepped(AutoresetMode.SAME_STEP, 3)
    state = collector.state_dict() | {"returns": np.zeros(3)}
    with pytest.raises(CheckpointError, match=r"^returns: expected an array float64\[2\], found"):
        collector.load_state_dict(state)


@pytest.mark.parametrize(("where", "what"), [("reward", "reward"), ("obs", "observation")])
def test_the_first_nan_stops_with_environment_and_step(where: str, what: str) -> None:
    makers = [make(CountingEnv, 5), make(NaNEnv, 4, where)]
    for mode in MODES:
        with pytest.raises(
            NonFiniteError, match=rf"non-finite {what} in environment 1 at vector step 4"
        ):
            collect(SyncVectorEnv(makers, autoreset_mode=mode), 10)


def test_nan_in_the_first_observation_of_an_episode_is_found() -> None:
    class BadStart(CountingEnv):
        def observe(self) -> np.ndarray:
            return np.full(2, np.nan if self.episode == 1 and self.t == 0 else 0.0, np.float32)

    for mode in MODES:
        with pytest.raises(NonFiniteError, match="non-finite observation in environment 0"):
            collect(SyncVectorEnv([make(BadStart, 2)], autoreset_mode=mode), 10)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize("at", [0, 1, 4])
def test_an_environment_that_raises_is_named(vectorization: str, at: int) -> None:
    venv = make_vector_env(make(RaisingEnv, at), num_envs=2, vectorization=vectorization)
    with pytest.raises(EnvError) as caught:
        collect(venv, 10)
    since = f"{at} steps after its reset with seed 5" if at else "reset seed 5"
    call = f"step at vector step {at}" if at else "reset at vector step 1"
    assert str(caught.value).startswith(
        f"toy: environment 0, {since}, raised RuntimeError in {call}: the robot fell over"
    )


class ClosesBadly(CountingEnv):
    def close(self) -> None:
        raise AttributeError("no screen")


def test_an_environment_that_raises_when_it_is_closed_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, logger="rl_training"):
        collect(make_vector_env(ClosesBadly, num_envs=1), 3)
    assert "raised AttributeError in close: no screen" in caplog.text
