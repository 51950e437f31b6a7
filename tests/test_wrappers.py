"""Wrappers for tasks that need a memory: what they hide and append, and what they refuse."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

from rl_training.config.train_config import TrainConfig
from rl_training.envs.factory import make_env, make_vector_env
from rl_training.envs.snapshots.vector import resume_level
from rl_training.envs.wrappers import MaskVelocity, PreviousActionReward
from rl_training.errors import ConfigError
from rl_training.experiment.registry import train_config
from toy_envs import CountingEnv, RandomWalkEnv

# Masked velocities.

KNOWN: dict[str, list[int]] = {
    "CartPole-v0": [1, 3],
    "CartPole-v1": [1, 3],
    "MountainCar-v0": [1],
    "MountainCarContinuous-v0": [1],
    "Pendulum-v1": [2],
    "Acrobot-v1": [4, 5],
}


@pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
@pytest.mark.parametrize("env_id", KNOWN)
def test_the_velocities_of_known_environments_are_hidden_and_nothing_else(env_id: str) -> None:
    env, plain = make_env(env_id, wrappers=["MaskVelocity"]), make_env(env_id)
    env.action_space.seed(0)
    (obs, _), (whole, _) = env.reset(seed=1), plain.reset(seed=1)
    moved = np.zeros(len(obs), np.bool_)
    for _ in range(30):
        shown = np.delete(np.arange(len(obs)), KNOWN[env_id])
        assert not obs[KNOWN[env_id]].any()
        assert np.array_equal(obs[shown], whole[shown])
        assert env.observation_space.contains(obs)
        moved |= whole != 0
        action = env.action_space.sample()
        (obs, *_, terminated, truncated, _) = env.step(action)
        (whole, *_) = plain.step(action)
        if terminated or truncated:
            (obs, _), (whole, _) = env.reset(seed=2), plain.reset(seed=2)
    assert moved[KNOWN[env_id]].all()  # there was something to hide
    assert env.observation_space == plain.observation_space
    env.close()
    plain.close()


@pytest.mark.parametrize("env_id", ["LunarLander-v3", "LunarLanderContinuous-v3"])
def test_the_landers_velocities_are_known_too(env_id: str) -> None:
    class Lander(CountingEnv):
        """Its observation has the lander's length: x, y, their speeds, angle, its speed, legs."""

        def __init__(self) -> None:
            super().__init__()
            self.observation_space = Box(-9.0, 9.0, (8,), np.float32)
            self.spec = gym.spec(env_id)

    shown = MaskVelocity(Lander()).observation(np.ones(8, np.float32))
    assert shown.tolist() == [1, 1, 0, 0, 1, 0, 1, 1]


def test_a_hidden_number_is_the_speed_of_the_number_before_it() -> None:
    """CartPole moves by its velocities, so the numbers hidden are what a memory has to find."""
    env, plain = make_env("CartPole-v1", wrappers=["MaskVelocity"]), make_env("CartPole-v1")
    (before, _), (whole, _) = env.reset(seed=3), plain.reset(seed=3)
    after = env.step(1)[0]
    np.testing.assert_allclose((after - before)[[0, 2]] / 0.02, whole[[1, 3]], atol=1e-5)


def test_the_environments_own_observation_is_left_alone() -> None:
    env = MaskVelocity(RandomWalkEnv(), indices=[0])
    whole = np.array([3.0, 4.0], np.float32)
    assert env.observation(whole).tolist() == [0.0, 4.0]
    assert whole.tolist() == [3.0, 4.0]
    assert env.observation(whole).dtype == np.float32


def test_indices_say_what_to_hide_also_of_a_known_environment() -> None:
    env = make_env("CartPole-v1", wrappers=[{"MaskVelocity": {"indices": [0, 2]}}])
    obs, _ = env.reset(seed=0)
    assert (obs == 0).tolist() == [True, False, True, False]
    walk = make_env(RandomWalkEnv, wrappers=[{"MaskVelocity": {"indices": (1,)}}])
    walk.reset(seed=0)
    assert walk.step(0)[0][1] == 0.0


@pytest.mark.parametrize(
    ("source", "arguments", "message"),
    [
        (
            RandomWalkEnv,
            {},
            r"velocities are not known; give indices, such as \[1, 3\], .*CartPole",
        ),
        ("Blackjack-v1", {}, "expected an environment with vector observations, found Tuple"),
        ("CartPole-v1", {"indices": []}, "indices is empty: nothing would be hidden"),
        ("CartPole-v1", {"indices": [4]}, r"expected indices from 0 to 3, found \[4\]"),
        ("CartPole-v1", {"indices": [-1, 0, 9]}, r"indices from 0 to 3, found \[-1, 9\]"),
        ("CartPole-v1", {"columns": [1]}, "unexpected keyword argument 'columns'"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused_with_the_key_it_came_from(
    source: Any, arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    wrappers: list[Any] = [{"MaskVelocity": arguments} if arguments else "MaskVelocity"]
    with pytest.raises(ConfigError, match=rf"wrappers: MaskVelocity .*cannot wrap .*: .*{message}"):
        make_vector_env(source, num_envs=2, wrappers=wrappers)
    config = TrainConfig(algo="dqn", env_id=source, wrappers=wrappers, output_dir=tmp_path)
    with pytest.raises(ConfigError, match=message):
        train_config(config)
    assert list(tmp_path.iterdir()) == []


def test_a_wrapper_written_wrong_is_answered_with_the_right_one() -> None:
    with pytest.raises(ConfigError, match=r"no wrapper 'MaskVelocities' .*did you mean 'MaskVel"):
        make_env("CartPole-v1", wrappers=["MaskVelocities"])


def test_a_space_without_zero_still_contains_what_is_shown() -> None:
    class Warm(CountingEnv):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = Box(1.0, 9.0, (2,), np.float32)

        def observe(self) -> np.ndarray:
            return np.array([5.0, 6.0], np.float32)

    env = MaskVelocity(Warm(), indices=[1])
    obs, _ = env.reset(seed=0)
    assert obs.tolist() == [5.0, 0.0]
    assert env.observation_space.contains(obs)


# The previous action and reward.


def numbers(env: gym.Env[Any, Any], actions: list[Any]) -> list[list[float]]:
    """Observations of a reset and of the steps after it."""
    seen = [env.reset(seed=0)[0]]
    seen += [env.step(action)[0] for action in actions]
    assert all(env.observation_space.contains(obs) for obs in seen)
    assert {obs.dtype for obs in seen} == {np.dtype(np.float32)}
    return [obs.tolist() for obs in seen]


def test_discrete_actions_and_rewards_are_appended_by_hand() -> None:
    env = make_env(partial(CountingEnv, 9, rewards=(5.0, -2.0)), wrappers=["PreviousActionReward"])
    # [episode, step], one number per action, the reward.
    assert numbers(env, [1, 0]) == [[0, 0, 0, 0, 0], [0, 1, 0, 1, 5], [0, 2, 1, 0, -2]]
    obs, _ = env.reset()
    assert obs.tolist() == [1, 0, 0, 0, 0]  # nothing of the episode before


@pytest.mark.parametrize(
    ("arguments", "appended"),
    [
        ({"reward": False}, [[0, 0], [0, 1], [1, 0]]),
        ({"action": False}, [[0], [1], [2]]),
    ],
)
def test_either_of_the_two_can_be_left_out(
    arguments: dict[str, bool], appended: list[list[float]]
) -> None:
    env = make_env(CountingEnv, wrappers=[{"PreviousActionReward": arguments}])
    assert [obs[2:] for obs in numbers(env, [1, 0])] == appended


def test_an_action_that_does_not_count_from_zero() -> None:
    class FromFive(CountingEnv):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = Discrete(3, start=5)

    env = PreviousActionReward(FromFive(), reward=False)
    assert [obs[2:] for obs in numbers(env, [5, 7])] == [[0, 0, 0], [1, 0, 0], [0, 0, 1]]


def test_continuous_actions_are_appended_as_they_were_taken() -> None:
    class Continuous(CountingEnv):
        def __init__(self) -> None:
            super().__init__()
            low, high = np.array([1.0, -3.0], np.float32), np.array([2.0, -2.0], np.float32)
            self.action_space = Box(low, high)  # type: ignore[assignment]

    env = PreviousActionReward(Continuous())
    actions = [np.array([1.5, -2.5], np.float32), np.array([2.0, -3.0], np.float32)]
    assert numbers(env, actions) == [[0, 0, 0, 0, 0], [0, 1, 1.5, -2.5, 1], [0, 2, 2, -3, 2]]
    space = env.observation_space
    assert isinstance(space, Box)
    # Zeros stand for no action, so they belong to the space; a reward has no bounds.
    assert space.low.tolist() == [-1, -1, 0, -3, -np.inf]
    assert space.high.tolist() == [1e6, 1e6, 2, 0, np.inf]


def test_other_spaces_are_flattened() -> None:
    class Parts(CountingEnv):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = Dict(a=Discrete(2), b=Box(-1, 1, (2,)))  # type: ignore[assignment]
            self.action_space = MultiBinary(2)  # type: ignore[assignment]

        def observe(self) -> Any:
            return {"a": 1, "b": np.array([0.25, 0.5], np.float32)}

    env = PreviousActionReward(Parts())
    action = np.array([1, 0], np.int8)
    assert numbers(env, [action]) == [[0, 1, 0.25, 0.5, 0, 0, 0], [0, 1, 0.25, 0.5, 1, 0, 1]]


def test_a_wrapper_that_would_append_nothing_is_refused() -> None:
    wrapper = {"PreviousActionReward": {"action": False, "reward": False}}
    with pytest.raises(ConfigError, match=r"wrappers: .*action and reward are both false: nothing"):
        make_env("CartPole-v1", wrappers=[wrapper])


def test_spaces_that_cannot_be_flattened_are_refused() -> None:
    class Words(CountingEnv):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = gym.spaces.Sequence(Discrete(3))  # type: ignore[assignment]

    with pytest.raises(ConfigError, match=r"wrappers: .*expected observations and actions"):
        make_env(Words, wrappers=["PreviousActionReward"])


# Together, and saved.


def test_wrappers_go_on_in_their_order() -> None:
    env = make_env("CartPole-v1", wrappers=["MaskVelocity", "PreviousActionReward"])
    env.reset(seed=0)
    obs = env.step(1)[0]
    assert obs.shape == (7,)
    assert (obs[[1, 3]] == 0).all()
    assert obs[4:].tolist() == [0, 1, 1]


@pytest.mark.parametrize("source", ["CartPole-v1", RandomWalkEnv])
def test_wrapped_environments_can_be_saved_exactly(source: Any) -> None:
    wrappers: list[Any] = [{"MaskVelocity": {"indices": [1]}}, "PreviousActionReward"]
    make = partial(make_vector_env, source, num_envs=2, wrappers=wrappers)
    level = resume_level(make, seed=0)
    assert level.level == "exact", level.reason
