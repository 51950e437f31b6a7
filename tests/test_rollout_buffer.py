"""Rollouts and the advantages made of them, against a recursion one can check by eye."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn

from rl_training.algorithms.ppo import PPO, explained_variance, gae
from rl_training.config.ppo import PPOConfig, RecurrentPPOConfig
from rl_training.data.normalization import RewardNormalizer
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.data.types import Clock, EnvSpec, Rollout, Transitions
from rl_training.envs.spaces import SpaceAdapter
from rl_training.errors import CheckpointError
from rl_training.runtime.collector import Collector

STATES = 12
SPEC = EnvSpec(env_id="toy", obs_shape=(1,), action_kind="discrete", num_actions=2)
MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)


class RandomEpisodes(gym.Env[np.ndarray, int]):
    """Jumps between numbered states; terminates or is cut off (or both) by a coin."""

    def __init__(self) -> None:
        self.observation_space = Box(0, STATES, (1,), np.float32)
        self.action_space = Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self.state(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        terminated, truncated = (self.np_random.random(2) < 0.15).tolist()
        return self.state(), float(self.np_random.normal()), terminated, truncated, {}

    def state(self) -> np.ndarray:
        return self.np_random.integers(0, STATES, 1).astype(np.float32)


class Tabular(nn.Module):
    """A value for every state, in double precision."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(STATES + 1, generator=generator, dtype=torch.float64)
        self.logits = nn.Parameter(torch.zeros(2))

    def policy(self, obs: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(len(obs), 2)

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        return self.table[obs[:, 0].long()]


def transitions(
    obs: list[float],
    next_obs: list[float],
    reward: list[float],
    *,
    terminated: list[int] | None = None,
    truncated: list[int] | None = None,
    first: list[int] | None = None,
    valid: list[int] | None = None,
    state: tuple[np.ndarray, ...] = (),
    next_state: tuple[np.ndarray, ...] = (),
) -> Transitions:
    """One vector step by hand."""
    rows = len(obs)

    def flags(given: list[int] | None, default: int = 0) -> np.ndarray:
        return np.array([default] * rows if given is None else given, np.bool_)

    return Transitions(
        obs=np.array(obs, np.float32)[:, None],
        action=np.zeros(rows, np.int64),
        reward=np.array(reward, np.float32),
        next_obs=np.array(next_obs, np.float32)[:, None],
        terminated=flags(terminated),
        truncated=flags(truncated),
        first=flags(first),
        valid=flags(valid, 1),
        state=state,
        next_state=next_state,
    )


def memory(*rows: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """A policy state of two parts, of two numbers and one: a row per environment."""
    parts = np.array(rows, np.float32)
    return parts[:, :2], parts[:, 2:]


def buffer(steps: int, envs: int = 1, **options: Any) -> RolloutBuffer:
    return RolloutBuffer(SPEC, num_steps=steps, num_envs=envs, **options)


def same(mine: Rollout, other: Rollout) -> bool:
    pairs = list(zip(mine, other, strict=True))
    return all(a is b if a is None else torch.equal(a, b) for a, b in pairs)


def collected(
    mode: AutoresetMode, num_envs: int, seed: int, steps: int, cuts: tuple[int, ...]
) -> tuple[Rollout, list[list[tuple[Any, ...]]]]:
    """A rollout, and per environment its transitions with whether they end their episode."""
    venv = SyncVectorEnv([RandomEpisodes] * num_envs, autoreset_mode=mode)
    adapter = SpaceAdapter("toy", venv.single_observation_space, venv.single_action_space)
    collector, store = Collector(venv, adapter), buffer(steps, num_envs)
    seeds = [seed + 100 * n for n in range(num_envs)]
    collector.reset(seeds, ())
    ppo = PPO(Tabular(), PPOConfig(), SPEC, seed=seed)
    rows: list[list[tuple[Any, ...]]] = [[] for _ in range(num_envs)]
    vector_steps = 0
    while not store.full:
        if vector_steps in cuts:  # as a resume does that cannot restore environments
            collector.reset([s + vector_steps for s in seeds], ())
            for mine in rows:
                if mine:
                    mine[-1] = (*mine[-1][:-1], True)
        step = collector.step(lambda *args: ppo.act(*args, Clock(0, 1), explore=True))
        store.add(step)
        vector_steps += 1
        for n in np.flatnonzero(step.valid):
            ended = bool(step.terminated[n] or step.truncated[n])
            rows[n].append(
                (
                    int(step.obs[n, 0]),
                    float(step.reward[n]),
                    int(step.next_obs[n, 0]),
                    bool(step.terminated[n]),
                    ended,
                )
            )
    venv.close()
    return store.take(), rows


def slow_advantages(
    rows: list[tuple[Any, ...]], value: list[float], gamma: float, lam: float
) -> list[float]:
    """The definition, term by term: a discounted sum of one-step errors within the episode."""
    advantages = []
    for start in range(len(rows)):
        total, weight = 0.0, 1.0
        for obs, reward, next_obs, terminated, ended in rows[start:]:
            bootstrap = 0.0 if terminated else value[next_obs]
            total += weight * (reward + gamma * bootstrap - value[obs])
            weight *= gamma * lam
            if ended:
                break
        advantages.append(total)
    return advantages


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cuts", [(), (7,), (3, 4, 20)])
def test_advantages_equal_the_slow_recursion(
    mode: AutoresetMode, num_envs: int, cuts: tuple[int, ...]
) -> None:
    # Discounts are kept in single precision, which sums of powers of two need no rounding for.
    gamma, gae_lambda = 31 / 32, 7 / 8
    model = Tabular()
    ppo = PPO(model, PPOConfig(gamma=gamma, gae_lambda=gae_lambda), SPEC)
    kinds = set()
    for seed in range(3):
        rollout, rows = collected(mode, num_envs, seed, 30, cuts)
        samples = ppo.samples(rollout)
        table = model.table.tolist()
        # Samples are in the order of the rollout, time first; sort the slow ones likewise.
        slow = [slow_advantages(mine, table, gamma, gae_lambda) for mine in rows]
        expected, taken = [], [0] * num_envs
        for flags in rollout.valid.tolist():
            for n in np.flatnonzero(flags):
                expected.append((slow[n][taken[n]], table[rows[n][taken[n]][0]]))
                taken[n] += 1
        assert taken == [len(mine) for mine in rows]
        advantage, value = np.array(expected).T
        np.testing.assert_allclose(samples.advantage, advantage, rtol=0, atol=1e-9)
        np.testing.assert_allclose(samples.value, value, rtol=0, atol=1e-9)
        np.testing.assert_allclose(samples.returns, advantage + value, rtol=0, atol=1e-9)
        kinds |= {(r[3], r[4]) for mine in rows for r in mine}
        kinds |= {"autoreset"} if not rollout.valid.all() else set()
    assert kinds >= {(False, False), (True, True), (False, True)}
    # With one environment a step that only resets is left out of the rollout altogether.
    assert ("autoreset" in kinds) == (mode is AutoresetMode.NEXT_STEP and num_envs > 1)


def test_one_environment_gives_the_same_rollout_in_every_mode() -> None:
    reference, *others = (collected(mode, 1, 5, 60, ()) for mode in MODES)
    for rollout, rows in others:
        assert rows == reference[1]
        # An action is drawn, and ignored, for a step that only resets.
        comparable = rollout._replace(action=reference[0].action)
        assert same(comparable, reference[0])


def test_advantages_by_hand() -> None:
    # gamma 0.5, lambda 0.5; values: V(k) = k. Two steps of an episode that is truncated in state 6
    # (1 + 0.5 * 6 - 2 = 2; before it 1 + 0.5 * 2 - 4 + 0.25 * 2 = -1.5), then one that terminates
    # (3 - 1 = 2), then one that is still going on in state 2 (0 + 0.5 * 2 - 3 = -2).
    store = buffer(4)
    store.add(transitions([4], [2], [1], first=[1]))
    store.add(transitions([2], [6], [1], truncated=[1]))
    store.add(transitions([1], [9], [3], terminated=[1], first=[1]))
    store.add(transitions([3], [2], [0], first=[1]))
    model = Tabular()
    model.table = torch.arange(STATES, dtype=torch.float64)
    samples = PPO(model, PPOConfig(gamma=0.5, gae_lambda=0.5), SPEC).samples(store.take())
    assert samples.advantage.tolist() == [-1.5, 2.0, 2.0, -2.0]
    assert samples.returns.tolist() == [2.5, 4.0, 3.0, 1.0]
    np.testing.assert_allclose(samples.log_prob.detach(), np.full(4, np.log(0.5)), rtol=1e-6)


def test_gae_by_hand_and_its_extremes() -> None:
    def column(*values: float) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64)[:, None]

    reward, value, after = column(1, 2, 4), column(1, 1, 1), column(1, 1, 8)
    # Errors: 1 + 0.5 - 1 = 0.5, 2 + 0.5 - 1 = 1.5, 4 + 0.5 * 8 - 1 = 7.
    ones = torch.ones_like(reward)
    assert gae(reward, value, after, 0.5 * ones, 0 * ones)[:, 0].tolist() == [0.5, 1.5, 7.0]
    # Trace 0.5: 1.5 + 3.5 = 5, 0.5 + 2.5 = 3; no trace out of the first row: 0.5.
    assert gae(reward, value, after, 0.5 * ones, 0.5 * ones)[:, 0].tolist() == [3.0, 5.0, 7.0]
    cut = gae(reward, value, after, 0.5 * ones, column(0, 0.5, 0.5))
    assert cut[:, 0].tolist() == [0.5, 5.0, 7.0]
    with pytest.raises(ValueError, match=r"expected \[T N\]"):
        gae(reward[:, 0], value, after, ones, ones)


def test_explained_variance_by_hand() -> None:
    returns = torch.tensor([1.0, 3.0])
    assert float(explained_variance(returns, returns)) == 1.0
    assert float(explained_variance(torch.tensor([2.0, 2.0]), returns)) == 0.0
    assert float(explained_variance(torch.tensor([3.0, 1.0]), returns)) == -3.0  # 1 - 4 / 1
    assert float(explained_variance(torch.zeros(1), torch.ones(1))) == 1.0  # no variance, no NaN


def test_open_ends_carry_their_true_successors() -> None:
    # Env 0 is truncated at t = 0 and resets in a row of its own; env 1 goes on to the end.
    store = buffer(3, 2)
    store.add(transitions([1, 5], [2, 6], [1, 1], truncated=[1, 0], first=[1, 1]))
    store.add(transitions([2, 6], [3, 7], [np.nan, 1], valid=[0, 1]))
    store.add(transitions([3, 7], [4, 8], [1, 1], first=[1, 0], terminated=[0, 1]))
    assert len(store) == 5
    rollout = store.take()
    assert rollout.ended.tolist() == [[True, False], [True, False], [False, True]]
    assert rollout.reward.tolist() == [[1, 1], [0, 1], [1, 1]]  # NaN of a mere reset is dropped
    found = dict(
        zip(rollout.bootstrap_rows.tolist(), rollout.bootstrap_obs[:, 0].tolist(), strict=True)
    )
    # Flat index t * 2 + n; row 2 only resets, and whatever it bootstraps from is thrown away.
    assert found == {0: 2.0, 2: 3.0, 4: 4.0}
    samples = PPO(Tabular(), PPOConfig(), SPEC).samples(rollout)
    assert len(samples.obs) == 5
    assert torch.isfinite(samples.advantage).all()


def test_a_taken_rollout_is_a_copy_and_the_buffer_starts_again() -> None:
    store = buffer(1)
    store.add(transitions([1], [2], [3]))
    assert store.full
    rollout = store.take()
    assert not store.full
    assert len(store) == 0
    store.add(transitions([7], [8], [9]))
    assert rollout.obs.item() == 1
    half = buffer(2)
    half.add(transitions([1], [2], [3]))
    with pytest.raises(AssertionError, match="1 of 2 steps"):
        half.take()


def test_a_step_in_which_every_environment_resets_is_not_stored() -> None:
    store = buffer(1, 2)
    store.add(transitions([1, 2], [3, 4], [0, 0], valid=[0, 0]))
    assert not store.full
    store.add(transitions([1, 2], [3, 4], [0, 0], valid=[0, 1]))
    assert store.full
    assert len(store) == 1


def test_a_half_filled_rollout_survives_saving() -> None:
    def steps(rng: np.random.Generator) -> list[Transitions]:
        rows = rng.integers(0, 9, (6, 2, 3))
        return [
            transitions(*row.T.tolist(), first=[1, 0], terminated=[0, i % 2])
            for i, row in enumerate(rows)
        ]

    made = steps(np.random.default_rng(0))
    straight = buffer(6, 2, reward_normalizer=RewardNormalizer(2, 0.9))
    other = buffer(6, 2, reward_normalizer=RewardNormalizer(2, 0.9))
    for store in (straight, other):
        for step in made:  # a full rollout first, so that the statistics are under way
            store.add(step)
        store.take()
    for step in made[:4]:
        straight.add(step)
        other.add(step)
    resumed = buffer(6, 2, reward_normalizer=RewardNormalizer(2, 0.9))
    resumed.load_state_dict(other.state_dict())
    assert len(resumed) == 8
    for step in made[4:]:
        straight.add(step)
        resumed.add(step)
    assert same(resumed.take(), straight.take())


def test_states_before_each_step_and_after_the_open_ends() -> None:
    # Env 0 is truncated at t = 1 and then starts anew; env 1 terminates at t = 0 and t = 2.
    store = buffer(3, 2, state_size=3)
    states = [
        (memory([1, 2, 3], [4, 5, 6]), memory([11, 12, 13], [14, 15, 16])),
        (memory([11, 12, 13], [14, 15, 16]), memory([21, 22, 23], [24, 25, 26])),
        (memory([21, 22, 23], [24, 25, 26]), memory([31, 32, 33], [34, 35, 36])),
    ]
    flags: list[dict[str, list[int]]] = [
        {"first": [1, 0], "terminated": [0, 1]},
        {"first": [0, 1], "truncated": [1, 0]},
        {"first": [1, 0], "terminated": [0, 1]},
    ]
    for (before, after), ends in zip(states, flags, strict=True):
        store.add(transitions([0, 0], [0, 0], [0, 0], state=before, next_state=after, **ends))
    rollout = store.take()
    assert rollout.state.tolist() == [
        [[1, 2, 3], [4, 5, 6]],
        [[11, 12, 13], [14, 15, 16]],
        [[21, 22, 23], [24, 25, 26]],
    ]
    found = dict(
        zip(rollout.bootstrap_rows.tolist(), rollout.bootstrap_state.tolist(), strict=True)
    )
    # Flat index t * 2 + n: the truncated row, and the newest of env 0.
    assert found == {2: [21, 22, 23], 4: [31, 32, 33]}


def test_a_taken_rollout_keeps_its_states() -> None:
    store = buffer(1, 1, state_size=3)
    before, after = memory([1, 2, 3]), memory([4, 5, 6])
    store.add(transitions([1], [2], [3], state=before, next_state=after))
    rollout = store.take()
    for part in (*before, *after):
        part[:] = 9  # the policy may write to its own arrays
    store.add(transitions([1], [2], [3], state=before, next_state=after))
    assert rollout.state.tolist() == [[[1, 2, 3]]]
    assert rollout.bootstrap_state.tolist() == [[4, 5, 6]]


def test_a_policy_without_a_memory_takes_no_room_for_one() -> None:
    store = buffer(2, 3)
    for _ in range(2):
        store.add(transitions([1] * 3, [2] * 3, [0] * 3))
    rollout = store.take()
    assert rollout.state is None
    assert rollout.bootstrap_state is None


def with_memory(number: int) -> Transitions:
    """A vector step of two environments whose every state is another."""
    before, after = (
        memory(*np.arange(start, start + 6.0).reshape(2, 3).tolist())
        for start in (100 * number, 100 * number + 50)
    )
    ends = {"truncated": [number % 2, 0], "first": [1 - number % 2, 0]}
    return transitions([number] * 2, [0, 0], [0, 0], state=before, next_state=after, **ends)


def test_a_half_filled_rollout_with_states_survives_saving() -> None:
    straight, half, resumed = (buffer(5, 2, state_size=3) for _ in range(3))
    for number in range(5):
        straight.add(with_memory(number))
    for number in range(3):
        half.add(with_memory(number))
    resumed.load_state_dict(half.state_dict())
    for number in (3, 4):
        resumed.add(with_memory(number))
    expected = straight.take()
    assert same(resumed.take(), expected)
    assert expected.state is not None
    assert len(set(expected.state.flatten().tolist())) == 5 * 6


def test_rollouts_saved_before_there_were_states_still_load() -> None:
    straight, half, resumed = (buffer(2, 1) for _ in range(3))
    for store in (straight, half):
        store.add(transitions([1], [2], [3], first=[1]))
    saved = half.state_dict()
    for name in ("state", "next_state"):
        del saved["rows"][name]
    resumed.load_state_dict(saved)
    for store in (straight, resumed):
        store.add(transitions([2], [4], [5]))
    assert same(resumed.take(), straight.take())


def test_a_rollout_of_another_size_is_refused() -> None:
    saved = buffer(3, 1)
    saved.add(transitions([1], [2], [3]))
    for steps, envs in ((4, 1), (3, 2)):  # one column would broadcast into two
        with pytest.raises(CheckpointError, match="of 3 steps in 1 environments"):
            buffer(steps, envs).load_state_dict(saved.state_dict())
    with pytest.raises(CheckpointError, match="states of 0 numbers, this one of 1"):
        buffer(3, 1, state_size=1).load_state_dict(saved.state_dict())  # would broadcast too


def test_memory_is_what_the_arrays_take() -> None:
    # Per row: two observations of 4 bytes, an action of 8, a reward of 4, four flags.
    assert buffer(5, 3).nbytes == 15 * (8 + 8 + 4 + 4)
    # And two states of three numbers of 4 bytes.
    assert buffer(5, 3, state_size=3).nbytes == 15 * (8 + 8 + 4 + 4 + 24)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_the_memory_is_known_before_anything_is_allocated(num_envs: int) -> None:
    spec = EnvSpec(env_id="any", obs_shape=(2, 3), action_kind="continuous", action_dim=2)
    for hyper in (PPOConfig(num_steps=7), RecurrentPPOConfig(num_steps=7, core_size=5)):
        device = torch.device("cpu")
        built = RolloutBuffer.build(spec, hyper, num_envs=num_envs, seed=0, device=device)
        assert RolloutBuffer.needed_bytes(spec, hyper, num_envs) == built.nbytes
