"""Our vector environment does, step for step, what Gymnasium's does in the same mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rl_training.envs.vector_envs import QuickSyncVectorEnv
from rl_training.errors import EnvError
from rl_training.tools.doctor.contract import random_play
from toy_envs import BufferReusingEnv, CountingEnv


class DictEnv(gym.Env[dict[str, Any], int]):
    """A dictionary to see, infos of several kinds, episodes that end at random."""

    def __init__(self) -> None:
        self.observation_space = Dict({"x": Box(-9, 9, (2,), np.float32), "k": Discrete(5)})
        self.action_space = Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self.observe(), {"start": int(self.np_random.integers(9)), "nested": {"a": 1.5}}

    def step(self, action: int) -> Any:
        draws = self.np_random.random(4)
        info: dict[str, Any] = {"array": draws.copy()}
        if draws[0] < 0.4:
            info |= {"words": f"action {action}", "number": float(draws[1])}
        return self.observe(), draws[1] + action, draws[2] < 0.2, draws[3] < 0.2, info

    def observe(self) -> dict[str, Any]:
        x = self.np_random.normal(size=2).astype(np.float32)
        return {"x": x, "k": self.np_random.integers(5)}


class Doubles(CountingEnv):
    """Gives float64, and rewards and flags that are NumPy's, where the space says float32."""

    def step(self, action: int) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        reward, terminated = np.float32(reward), np.bool_(terminated)
        return obs.astype(np.float64), reward, terminated, truncated, info


MAKERS: dict[str, Callable[[], gym.Env[Any, Any]]] = {
    "CartPole": lambda: gym.make("CartPole-v1", max_episode_steps=15),
    "Pendulum": lambda: gym.make("Pendulum-v1", max_episode_steps=7),
    "FrozenLake": lambda: gym.make("FrozenLake-v1"),  # sees a number
    "counting": lambda: CountingEnv(4, "truncation"),
    "dict": DictEnv,
    "doubles": lambda: Doubles(3),
    "reused buffer": lambda: BufferReusingEnv(3),
}


def equal(mine: Any, other: Any) -> None:
    """The same structure, types and numbers."""
    assert type(mine) is type(other)
    if isinstance(mine, dict):
        assert list(mine) == list(other)
        for key in mine:
            equal(mine[key], other[key])
    elif isinstance(mine, np.ndarray) and mine.dtype == object:
        assert mine.shape == other.shape
        for one, two in zip(mine, other, strict=True):
            equal(one, two)
    elif isinstance(mine, np.ndarray):
        assert mine.dtype == other.dtype
        assert np.array_equal(mine, other)
    else:
        assert mine == other


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("name", MAKERS)
def test_every_step_equals_gymnasiums(name: str, num_envs: int) -> None:
    makers = [MAKERS[name]] * num_envs
    mine = QuickSyncVectorEnv(makers)
    other = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    assert mine.metadata == other.metadata
    assert mine.observation_space == other.observation_space
    mine.action_space.seed(0)
    ends = 0
    for _ in range(2):  # a reset in the middle of episodes starts over
        seeds = [7 + 3 * n for n in range(num_envs)]
        equal(mine.reset(seed=seeds)[0], other.reset(seed=seeds)[0])
        for _ in range(60):
            actions = mine.action_space.sample()
            found, expected = mine.step(actions), other.step(actions)
            assert len(found) == len(expected) == 5
            for one, two in zip(found, expected, strict=True):
                equal(one, two)
            assert np.array_equal(mine._autoreset_envs, other._autoreset_envs)
            ends += int(np.count_nonzero(found[2] | found[3]))
            assert ("final_obs" in found[4]) == bool((found[2] | found[3]).any())
    assert ends > 4
    mine.close()
    other.close()


def test_observations_are_overwritten_by_the_next_step_and_the_rest_is_not() -> None:
    envs = QuickSyncVectorEnv([lambda: CountingEnv(9)] * 2)
    envs.reset(seed=[0, 1])
    first = envs.step(np.zeros(2, np.int64))
    kept = [part.copy() for part in first[1:4]]
    second = envs.step(np.zeros(2, np.int64))
    assert first[0] is second[0]
    assert second[0][:, 1].tolist() == [2, 2]
    assert all(map(np.array_equal, first[1:4], kept))
    assert first[1].tolist() != second[1].tolist()


class Misshapen(CountingEnv):
    """Gives observations that its space does not describe, from the second step on."""

    def __init__(self, given: Any) -> None:
        super().__init__(9)
        self.given = given

    def observe(self) -> Any:
        return super().observe() if self.t < 2 else self.given


@pytest.mark.parametrize(
    "given",
    [np.ones(1, np.float32), np.float32(1), np.ones((1, 2), np.float32), np.ones(3), [1.0], 1.0],
    ids=str,
)
def test_an_observation_of_another_shape_is_refused_not_spread(given: Any) -> None:
    envs = QuickSyncVectorEnv([lambda: CountingEnv(9), lambda: Misshapen(given)])
    envs.reset(seed=[0, 1])
    envs.step(np.zeros(2, np.int64))
    with pytest.raises(EnvError, match=r"environment 1, 2 steps .* seed 1, broke .*observation"):
        envs.step(np.zeros(2, np.int64))


def test_a_list_of_the_right_length_is_an_observation() -> None:
    envs = QuickSyncVectorEnv([lambda: Misshapen([3.0, 4.0])])
    envs.reset(seed=[0])
    envs.step(np.zeros(1, np.int64))
    assert envs.step(np.zeros(1, np.int64))[0].tolist() == [[3, 4]]


class Halves(CountingEnv):
    """Gives fractions although its space is one of integers."""

    def __init__(self) -> None:
        super().__init__(9)
        self.observation_space = Box(0, 9, (2,), np.int64)

    def observe(self) -> np.ndarray:
        return np.zeros(2, np.int64) if self.t < 1 else np.array([0.5, 1.5])


def test_fractions_are_not_cut_off_to_fit_a_space_of_integers() -> None:
    envs = QuickSyncVectorEnv([Halves])
    envs.reset(seed=[0])
    with pytest.raises(EnvError, match=r"expected int64, found float64; it cannot be converted"):
        envs.step(np.zeros(1, np.int64))


def test_too_few_actions_are_an_error() -> None:
    envs = QuickSyncVectorEnv([lambda: CountingEnv(9)] * 2)
    envs.reset(seed=[0, 1])
    with pytest.raises(IndexError):
        envs.step(np.zeros(1, np.int64))


# The words for a broken contract are doctor's.


class Answering(CountingEnv):
    """Gives `answer` from `call`, changed from the right one."""

    def __init__(self, call: str, answer: Callable[[Any], Any]) -> None:
        super().__init__(3)
        self._call, self._answer = call, answer

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        right = super().reset(seed=seed, options=options)
        return self._answer(right) if self._call == "reset" else right

    def step(self, action: int) -> Any:
        right = super().step(action)
        return self._answer(right) if self._call == "step" else right


BREACHES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "observation alone": ("reset", lambda right: right[0]),
    "info that is a list": ("reset", lambda right: (right[0], ["x"])),
    "first observation of another shape": ("reset", lambda right: (np.zeros(3), {})),
    "four values": ("step", lambda right: right[:4]),
    "reward of text": ("step", lambda right: (right[0], "much", *right[2:])),
    "another shape": ("step", lambda right: (np.zeros(3, np.float32), *right[1:])),
    "another dtype": ("step", lambda right: (np.array(["a", "b"]), *right[1:])),
    "flag of two": ("step", lambda right: (*right[:2], np.zeros(2, np.bool_), *right[3:])),
}


@pytest.mark.parametrize("breach", BREACHES)
@pytest.mark.parametrize("again", [False, True], ids=["at once", "in an autoreset"])
def test_a_broken_contract_is_named_in_the_words_of_doctor(breach: str, again: bool) -> None:
    call, answer = BREACHES[breach]
    if again and call == "step":
        pytest.skip("a step resets only after itself")
    made = Answering(call, answer)
    play = random_play(Answering(call, answer), seconds=0.0)
    (problem,) = (finding.text for finding in play.problems.values() if finding.mark == "error")
    words = problem.removesuffix(" (in the first reset)").removesuffix(" (first seen at step 1)")
    envs = QuickSyncVectorEnv([lambda: made])
    if again:
        made._call = ""
    with pytest.raises(EnvError) as caught:  # noqa: PT012 - which call depends on the breach
        envs.reset(seed=0)
        made._call = call
        for _ in range(3):
            envs.step(np.zeros(1, np.int64))
    assert f"broke Gymnasium's contract in {call}: {words}" in str(caught.value)


def test_float64_is_warned_of_once_and_float32_never(caplog: pytest.LogCaptureFixture) -> None:
    for make, said in ((CountingEnv, 0), (Doubles, 1)):
        envs = QuickSyncVectorEnv([lambda make=make: make(3)] * 2)
        for seed in (0, 1):
            envs.reset(seed=seed)
            for _ in range(4):
                envs.step(np.zeros(2, np.int64))
        assert len(caplog.messages) == said
    assert caplog.messages == [
        "Doubles: observation of step: expected float32, found float64; it is converted in training"
    ]
