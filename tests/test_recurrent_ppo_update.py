"""Recurrent PPO's network, sequences and update, by hand and by definition."""

from __future__ import annotations

import copy
import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from rl_training.algorithms.base import ActResult, Loss
from rl_training.algorithms.ppo import PPO, Samples
from rl_training.algorithms.recurrent_ppo import RecurrentPPO, Sequences, cut, equal_length
from rl_training.config.ppo import PPOConfig, RecurrentPPOConfig
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.data.types import Clock, PolicyState, Rollout, Transitions
from rl_training.envs.spaces import SpaceAdapter
from rl_training.errors import ConfigError
from rl_training.models.mlp_actor_critic import MLPActorCritic
from rl_training.models.recurrent.actor_critic import PolicyAndValue, RecurrentActorCritic
from rl_training.models.recurrent.core import State
from rl_training.runtime.collector import Collector
from rounding import double_precision, precise, precise_spec
from test_ppo_update import DISCRETE, SPECS, START, random_rollout
from test_rollout_buffer import MODES, slow_advantages, transitions
from value_batches import numbers_of

reference: Any = torch.distributions
CORES: dict[str, dict[str, Any]] = {
    "lstm": {},
    "gru": {"core": "gru"},
    "shared lstm": {"shared_core": True},
    "shared gru": {"core": "gru", "shared_core": True},
    "no encoder": {"hidden_sizes": ()},
}
PARTS = {"lstm": 4, "gru": 2, "shared lstm": 2, "shared gru": 1, "no encoder": 4}
SIZE = 5
each_core = pytest.mark.parametrize("core", CORES)
each_kind = pytest.mark.parametrize("kind", SPECS)


def configured(**hyper: Any) -> RecurrentPPOConfig:
    small = {"hidden_sizes": (6,), "core_size": SIZE, "max_grad_norm": None}
    return RecurrentPPOConfig(**(small | hyper))


def make(kind: str = "discrete", seed: int = 0, **hyper: Any) -> RecurrentPPO:
    """An agent whose policy is far from even, so that rows differ in their probabilities."""
    torch.manual_seed(seed)
    config, spec = configured(**hyper), precise_spec(SPECS[kind])
    network = RecurrentActorCritic.build(spec, config)
    with torch.no_grad():
        for parameter in network.actor.parameters():
            parameter.add_(torch.randn_like(parameter))
    return RecurrentPPO(network, config, spec, seed=seed)


def moved(ppo: RecurrentPPO, by: float = 0.1) -> None:
    """As after some steps of the optimiser: the probability ratios are no longer 1."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in ppo.model.parameters():
            parameter.add_(by * torch.randn(parameter.shape, generator=generator))


def gradients(ppo: RecurrentPPO) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in ppo.model.parameters()]


def step_by_step(
    network: RecurrentActorCritic, obs: Tensor, state: State, first: Tensor
) -> tuple[Tensor, Tensor]:
    """Policy outputs and values of one row at a time, the memory emptied by hand."""
    policy, value = [], []
    for row, starts in zip(obs, first, strict=True):
        state = tuple(torch.where(starts[:, None], 0.0, part) for part in state)
        seen = network.sequence(row[None], state, torch.zeros_like(starts)[None])
        policy.append(seen.policy[0])
        value.append(seen.value[0])
        state = network.act(row, state, torch.zeros_like(starts))[1]
    return torch.stack(policy), torch.stack(value)


# The network.


@each_core
@pytest.mark.parametrize("kind", ["discrete", "continuous"])
@double_precision()
def test_acting_step_by_step_equals_the_sequence(kind: str, core: str) -> None:
    network = make(kind, **CORES[core]).model
    generator = torch.Generator().manual_seed(1)
    obs = torch.randn(7, 4, 3, generator=generator)
    first = torch.rand(7, 4, generator=generator) < 0.3
    assert 0 < int(first[1:].sum()) < 24
    state = tuple(torch.randn(4, SIZE, generator=generator) for _ in range(PARTS[core]))
    whole = network.sequence(obs, state, first)
    policy, value = step_by_step(network, obs, state, first)
    assert whole.policy.shape == (7, 4, SPECS[kind].policy_outputs)
    assert_close(whole.policy, policy)
    assert_close(whole.value, value)
    for row, starts, expected in zip(obs, first, policy, strict=True):
        output, state = network.act(row, state, starts)
        assert_close(output, expected)


@each_core
def test_a_memory_begins_empty_and_is_emptied_row_by_row(core: str) -> None:
    ppo = make(**CORES[core])
    initial = ppo.model.initial_state(3)
    assert [part.shape for part in initial] == [(3, SIZE)] * PARTS[core]
    assert [part.shape[1] for part in initial] == list(ppo.hyper.state_sizes)
    assert not any(part.any() for part in initial)
    assert [part.tolist() for part in ppo.initial_state(3)] == [p.tolist() for p in initial]
    full = tuple(torch.ones(3, SIZE) for _ in initial)
    for part in ppo.model.reset_state(full, torch.tensor([False, True, False])):
        assert part.tolist() == [[1.0] * SIZE, [0.0] * SIZE, [1.0] * SIZE]


def sees(network: RecurrentActorCritic, state: State) -> PolicyAndValue:
    return network.sequence(torch.ones(2, 1, 3), state, torch.zeros(2, 1, dtype=torch.bool))


@each_core
def test_policy_and_value_remember_apart_unless_they_share(core: str) -> None:
    network = make(**CORES[core]).model
    state = network.initial_state(1)
    half = len(state) // 2
    before = sees(network, state)
    if core.startswith("shared"):
        after = sees(network, tuple(part + 1 for part in state))
        assert (after.policy != before.policy).all()
        assert (after.value != before.value).all()
        return
    policys, values = state[:half], state[half:]
    other = sees(network, (*policys, *(part + 1 for part in values)))
    assert torch.equal(other.policy, before.policy)
    assert (other.value != before.value).all()
    other = sees(network, (*(part + 1 for part in policys), *values))
    assert (other.policy != before.policy).all()
    assert torch.equal(other.value, before.value)
    torch.autograd.backward(before.value.sum())
    unmoved = (*network.memories[0].parameters(), *network.actor.parameters())
    assert not any(p.grad.any() for p in unmoved)
    assert all(p.grad.any() for p in network.memories[1].core.parameters())


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
@double_precision()
def test_the_first_weights_are_orthogonal_and_the_policy_nearly_even(kind: str) -> None:
    network = RecurrentActorCritic.build(SPECS[kind], configured(log_std_init=-0.5))
    for layers, gain in ((network.actor, 0.01), (network.critic, 1.0)):
        weight, bias = layers.parameters()
        assert_close(weight @ weight.T, gain**2 * torch.eye(len(weight)))
        assert not bias.any()
    memory: Any = network.memories[0]
    for name, parameter in memory.core.layer.named_parameters():
        if "weight" in name:
            assert_close(parameter.T @ parameter, torch.eye(parameter.shape[1]))
        else:
            assert not parameter.any()
    if kind == "continuous":
        assert network.log_std.tolist() == [-0.5, -0.5]
    else:
        assert not hasattr(network, "log_std")


# Sequences.


def test_a_rollout_is_cut_at_equal_lengths_but_for_the_last_and_the_invalid() -> None:
    valid = np.ones((5, 2), np.bool_)
    valid[2:4, 1] = False  # no row of the second piece of the second environment
    assert cut(valid, 2).tolist() == [[0, 0], [2, 0], [4, 0], [0, 1], [4, 1]]
    valid[3, 1] = True  # one is enough
    assert cut(valid, 2).tolist() == [[0, 0], [2, 0], [4, 0], [0, 1], [2, 1], [4, 1]]
    assert cut(valid, 5).tolist() == cut(valid, 99).tolist() == [[0, 0], [0, 1]]
    valid[4, 0] = False  # the last, shorter piece
    assert cut(valid, 4).tolist() == [[0, 0], [0, 1], [4, 1]]


def test_sequences_are_as_equal_as_can_be() -> None:
    lengths = [equal_length(33, longest) for longest in (1, 2, 16, 17, 32, 33, 99)]
    assert lengths == [1, 2, 11, 17, 17, 33, 33]


def numbered(valid: np.ndarray, first: np.ndarray) -> Samples:
    """Row t * N + n has that number for observation, state, action and everything else."""
    count = valid.size
    numbers = torch.arange(count)
    rows = numbers[torch.from_numpy(valid).reshape(-1)]
    nothing = torch.zeros(valid.shape, dtype=torch.bool)
    rollout = Rollout(
        obs=numbers.float().reshape(*valid.shape, 1),
        action=numbers.reshape(valid.shape),
        reward=torch.zeros(valid.shape),
        terminated=nothing,
        ended=nothing,
        first=torch.from_numpy(first),
        valid=torch.from_numpy(valid),
        bootstrap_rows=torch.zeros(0, dtype=torch.int64),
        bootstrap_obs=torch.zeros(0, 1),
        state=numbers.float().reshape(*valid.shape, 1) + torch.tensor([0.0, 0.5]),
    )
    columns = (rows + count * k for k in range(1, 5))
    return Samples(rollout, rows, *(column.float() for column in columns))


shapes = {"steps": st.integers(1, 12), "envs": st.integers(1, 4), "length": st.integers(1, 14)}


@settings(max_examples=100, deadline=None)
@given(
    **shapes, more=st.integers(0, 20), share=st.sampled_from([0.2, 0.7, 1]), seed=st.integers(0, 99)
)
def test_each_valid_row_occurs_once_per_epoch_with_what_belongs_to_it(
    steps: int, envs: int, length: int, more: int, share: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    valid, first = rng.random((steps, envs)) < share, rng.random((steps, envs)) < 0.3
    valid[rng.integers(steps), rng.integers(envs)] = True
    batch_size = max(2, min(steps, length)) + more
    hyper: dict[str, Any] = {"num_steps": steps, "sequence_length": length}
    ppo = make(core="gru", core_size=1, epochs=2, seed=seed, batch_size=batch_size, **hyper)
    samples, count = numbered(valid, first), valid.size
    minibatches = list(ppo.minibatches(samples))
    pieces = len(minibatches) // 2
    assert len(minibatches) == 2 * pieces
    assert pieces <= -(-int(valid.sum()) // ppo.hyper.batch_size)
    for epoch in (minibatches[:pieces], minibatches[pieces:]):
        seen = torch.cat([minibatch.action for minibatch in epoch])
        assert sorted(seen.tolist()) == np.flatnonzero(valid).tolist()
    for minibatch in minibatches:
        sequences: Sequences = minibatch.obs
        rows = minibatch.action
        assert len(rows) > 0
        assert torch.equal(sequences.obs.flatten()[sequences.rows].long(), rows)
        assert minibatch.legal is None
        for k, column in enumerate(minibatch[2:6], 1):
            assert torch.equal(column.long(), rows + count * k)
        begin = sequences.obs[0, :, 0].long()
        assert bool((begin // envs % equal_length(steps, length) == 0).all())
        policys, values = sequences.state
        assert torch.equal(policys[:, 0], begin.float())
        assert torch.equal(values[:, 0], begin + 0.5)
        # Its rows are those that follow in the same environment, up to the end of the rollout.
        expected = begin + envs * torch.arange(len(sequences.obs))[:, None]
        inside = expected < count
        assert torch.equal(sequences.obs[..., 0].long()[inside], expected[inside])
        flags = torch.from_numpy(first).flatten()[expected[inside]]
        assert torch.equal(sequences.first[inside], flags)
        assert set(sequences.rows.tolist()) <= set(inside.flatten().nonzero().flatten().tolist())


def test_sequences_are_shuffled_anew_in_each_epoch() -> None:
    valid = np.ones((8, 8), np.bool_)
    ppo = make(core="gru", core_size=1, num_steps=8, sequence_length=2, batch_size=2, epochs=2)
    order = [m.action.tolist() for m in ppo.minibatches(numbered(valid, ~valid))]
    assert len(order) == 64
    assert order[:32] != order[32:]
    assert order[:32] != sorted(order[:32])


def test_minibatches_hold_whole_sequences() -> None:
    with pytest.raises(
        ValueError, match="batch_size must be at least the length of a sequence, 32"
    ):
        RecurrentPPOConfig(num_steps=64, sequence_length=32, batch_size=31)
    # A rollout of 16 steps has no sequence longer than that.
    assert RecurrentPPOConfig(num_steps=16, sequence_length=32, batch_size=16).batch_size == 16
    with pytest.raises(ValueError, match="at least the length of a sequence, 16"):
        RecurrentPPOConfig(num_steps=16, sequence_length=32, batch_size=15)


# Rollouts that were played.


class RandomEpisodes(gym.Env[np.ndarray, Any]):
    """Observes noise; terminates or is cut off (or both) by a coin."""

    def __init__(self, actions: Any = None) -> None:
        self.observation_space = Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = actions or Discrete(4)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        terminated, truncated = (self.np_random.random(2) < 0.12).tolist()
        return self.observe(), float(self.np_random.normal()), terminated, truncated, {}

    def observe(self) -> np.ndarray:
        return self.np_random.normal(size=3).astype(np.float32)


class Played:
    """Rollouts of an agent, and what it saw while acting: per environment, row by row.

    A row is (number, reward, number of its successor, terminated, ended), and `values` has the
    value of each number; `log_probs` those of the actions.
    """

    def __init__(self, ppo: RecurrentPPO, mode: AutoresetMode, num_envs: int, steps: int) -> None:
        self.ppo, self.num_envs, self.steps = ppo, num_envs, steps
        self.venv = SyncVectorEnv([RandomEpisodes] * num_envs, autoreset_mode=mode)
        spaces = self.venv.single_observation_space, self.venv.single_action_space
        self.collector = Collector(self.venv, SpaceAdapter("toy", *spaces))
        self.store = RolloutBuffer(
            ppo.spec, num_steps=steps, num_envs=num_envs, state_size=sum(ppo.hyper.state_sizes)
        )
        self.start(0)

    def start(self, seed: int) -> None:
        seeds = [seed + 100 * n for n in range(self.num_envs)]
        self.collector.reset(seeds, self.ppo.initial_state(self.num_envs))

    def act(self, obs: np.ndarray, state: PolicyState, first: np.ndarray) -> ActResult:
        return self.ppo.act(*precise((obs, state, first)), START, explore=True)

    def take(self, cuts: tuple[int, ...] = ()) -> Rollout:
        """The next rollout; at the cuts all environments are reset without an end of theirs."""
        self.rows: list[list[tuple[Any, ...]]] = [[] for _ in range(self.num_envs)]
        self.values: list[float] = []
        self.log_probs: list[list[float]] = [[] for _ in range(self.num_envs)]
        taken = 0
        while not self.store.full:
            if taken in cuts:
                self.start(taken)
                for mine in filter(None, self.rows):
                    mine[-1] = (*mine[-1][:-1], True)
            step = self.collector.step(self.act)
            self.store.add(step)
            self.record(step)
            taken += 1
        return precise(self.store.take())

    @torch.no_grad()
    def record(self, step: Transitions) -> None:
        def tensors(parts: tuple[Any, ...]) -> tuple[Tensor, ...]:
            return precise(tuple(torch.from_numpy(part.copy()) for part in parts))

        first = torch.from_numpy(step.first)
        obs, following, action = tensors((step.obs, step.next_obs, step.action))
        seen = self.ppo.model.sequence(obs[None], tensors(step.state), first[None])
        after = self.ppo.model.sequence(
            following[None], tensors(step.next_state), torch.zeros_like(first)[None]
        )
        log_prob = reference.Categorical(logits=seen.policy[0]).log_prob(action)
        for n in np.flatnonzero(step.valid):
            number = len(self.values)
            self.values += [float(seen.value[0, n]), float(after.value[0, n])]
            terminated, truncated = bool(step.terminated[n]), bool(step.truncated[n])
            ends = terminated, terminated or truncated
            self.rows[n].append((number, float(step.reward[n]), number + 1, *ends))
            self.log_probs[n].append(float(log_prob[n]))

    def in_order(self, columns: list[list[Any]], rollout: Rollout) -> list[Any]:
        """The valid rows, time first."""
        left = [iter(column) for column in columns]
        rows = [next(left[n]) for flags in rollout.valid.numpy() for n in np.flatnonzero(flags)]
        assert not any(list(column) for column in left)
        return rows


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("core", "cuts"), [("lstm", ()), ("gru", (6, 7)), ("shared lstm", ())])
@double_precision()
def test_learning_sees_what_acting_saw(
    core: str, cuts: tuple[int, ...], mode: AutoresetMode, num_envs: int
) -> None:
    """Log-probabilities, values, and values after each end, over episodes and rollouts.

    A rollout keeps states of up to 1 in single precision, so they are off by 6e-8; the network
    makes a few times as much of that, and an advantage adds up 1 / (1 - gamma * lambda) = 6.6 such
    errors. gamma and lambda are sums of powers of two, which no precision rounds.
    """
    gamma, gae_lambda = 31 / 32, 7 / 8
    ppo = make(gamma=gamma, gae_lambda=gae_lambda, **CORES[core])
    played = Played(ppo, mode, num_envs, 30)
    kinds: set[Any] = set()
    for _ in range(3):
        rollout = played.take(cuts)
        samples = ppo.samples(rollout)
        rows = played.rows
        values = [[played.values[row[0]] for row in mine] for mine in rows]
        slow = [slow_advantages(mine, played.values, gamma, gae_lambda) for mine in rows]
        expected = {
            "log_prob": played.in_order(played.log_probs, rollout),
            "value": played.in_order(values, rollout),
            "advantage": played.in_order(slow, rollout),
        }
        for name, numbers in expected.items():
            np.testing.assert_allclose(getattr(samples, name), numbers, rtol=0, atol=1e-5)
        assert_close(samples.returns, samples.advantage + samples.value)
        kinds |= {row[3:] for mine in rows for row in mine}
        kinds |= {"autoreset"} if not rollout.valid.all() else set()
        kinds |= {"goes on"} if not rollout.first[0].all() else set()
    assert kinds >= {(False, False), (True, True), (False, True), "goes on"}
    assert ("autoreset" in kinds) == (mode is AutoresetMode.NEXT_STEP and num_envs > 1)
    played.venv.close()


@each_kind
@pytest.mark.parametrize("length", [1, 5, 32])
@double_precision()
def test_the_ratio_is_one_before_the_first_step(kind: str, length: int) -> None:
    """Sequences go on from the states that acting had, so they see what it saw."""
    ppo = make(kind, sequence_length=length, batch_size=64, num_steps=32, epochs=1)
    rollout = played_through(ppo, random_rollout(SPECS[kind], 32))
    result = ppo.update(rollout, START)
    assert result.gradient_steps == 1
    assert all(math.isfinite(float(value)) for value in result.metrics.values())
    assert float(result.metrics["approx_kl"]) == pytest.approx(0.0, abs=1e-7)
    assert float(result.metrics["clip_fraction"]) == 0.0
    assert float(result.metrics["policy_loss"]) == pytest.approx(0.0, abs=1e-6)
    assert float(result.metrics["entropy"]) != 0.0


@torch.no_grad()
def played_through(ppo: RecurrentPPO, rollout: Rollout, seed: int = 0) -> Rollout:
    """The rollout with the states that acting on its observations leads through."""
    generator = torch.Generator().manual_seed(seed)
    parts = torch.randn(rollout.obs.shape[1], sum(ppo.hyper.state_sizes), generator=generator)
    state, states = ppo._parts(parts), []
    for obs, first in zip(rollout.obs, rollout.first, strict=True):
        states.append(torch.cat(state, -1))
        state = ppo.model.act(obs, state, first)[1]
    last = torch.cat(state, -1)[rollout.bootstrap_rows % len(parts)]
    return rollout._replace(state=torch.stack(states), bootstrap_state=last)


# Advantages by hand.


class Adding(nn.Module):
    """Remembers the sum of the observations of its episode, and takes it for the value."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(2))
        self.scale = nn.Parameter(torch.ones(1))

    def initial_state(self, batch_size: int) -> State:
        return (torch.zeros(batch_size, 1),)

    def sequence(self, obs: Tensor, state: State, first: Tensor) -> PolicyAndValue:
        (total,), totals = state, []
        for row, starts in zip(obs, first, strict=True):
            total = torch.where(starts[:, None], 0.0, total) + row
            totals.append(total[:, 0])
        value = self.scale * torch.stack(totals)
        return PolicyAndValue(self.logits.expand(*value.shape, 2), value)

    def act(self, obs: Tensor, state: State, first: Tensor) -> tuple[Tensor, State]:
        total = torch.where(first[:, None], 0.0, state[0]) + obs
        return self.sequence(obs[None], state, first[None]).policy[0], (total,)


ONE_NUMBER: dict[str, Any] = {"core": "gru", "core_size": 1, "shared_core": True}


def test_advantages_by_hand() -> None:
    # gamma 0.5, lambda 0.5. The first episode sees 1 and 2, values 1 and 3, and is truncated where
    # it sees 3: 3 + 3 = 6 is the value there. 1 + 0.5 * 6 - 3 = 1; before it
    # 1 + 0.5 * 3 - 1 + 0.25 * 1 = 1.75. The second sees 4 and terminates: 3 - 4 = -1. The third
    # sees 2 and goes on to 5, with the value 7: 0 + 0.5 * 7 - 2 = 1.5.
    def state(number: float) -> tuple[np.ndarray, ...]:
        return (np.array([[number]], np.float32),)

    store = RolloutBuffer(DISCRETE, num_steps=4, state_size=1)
    # Before a start there is what the episode before it left, which must not count.
    steps: list[tuple[list[float], list[float], list[float], dict[str, list[int]], int, int]] = [
        ([1], [2], [1], {"first": [1]}, 99, 1),
        ([2], [3], [1], {"truncated": [1]}, 1, 3),
        ([4], [9], [3], {"first": [1], "terminated": [1]}, 3, 4),
        ([2], [5], [0], {"first": [1]}, 4, 2),
    ]
    for obs, following, reward, flags, before, after in steps:
        states = {"state": state(before), "next_state": state(after)}
        store.add(transitions(obs, following, reward, **states, **flags))  # type: ignore[arg-type]
    ppo = RecurrentPPO(Adding(), configured(gamma=0.5, gae_lambda=0.5, **ONE_NUMBER), DISCRETE)
    samples = ppo.samples(store.take())
    assert samples.value.tolist() == [1.0, 3.0, 4.0, 2.0]
    assert samples.advantage.tolist() == [1.75, 1.0, -1.0, 1.5]
    assert samples.returns.tolist() == [2.75, 4.0, 3.0, 3.5]
    np.testing.assert_allclose(samples.log_prob, np.full(4, np.log(0.5)), rtol=1e-6)


def test_a_rollout_in_which_every_episode_terminates_needs_no_bootstrap() -> None:
    ppo = make(num_steps=4, batch_size=8)
    over = torch.ones(4, 2, dtype=torch.bool)
    rollout = random_rollout(SPECS["discrete"], 4)._replace(
        terminated=over,
        ended=over,
        first=over,
        bootstrap_rows=torch.zeros(0, dtype=torch.int64),
        bootstrap_obs=torch.zeros(0, 3),
        state=torch.zeros(4, 2, 4 * SIZE),
        bootstrap_state=torch.zeros(0, 4 * SIZE),
    )
    samples = ppo.samples(rollout)
    assert_close(samples.returns, rollout.reward.flatten())


# The gradient.


def reference_policy(ppo: RecurrentPPO, output: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies by torch's own distributions."""
    kind = ppo.spec.action_kind
    if kind == "multi_discrete":
        parts = torch.split(output, list(ppo.spec.action_sizes), -1)
        each = [reference.Categorical(logits=part) for part in parts]
        log_probs = [part.log_prob(action[:, k]) for k, part in enumerate(each)]
        return torch.stack(log_probs).sum(0), torch.stack([p.entropy() for p in each]).sum(0)
    if kind == "discrete":
        one = reference.Categorical(logits=output)
        return one.log_prob(action), one.entropy()
    chosen: Any = reference.Bernoulli(logits=output)
    if kind == "continuous":
        chosen = reference.Normal(output, ppo.model.log_std.exp())
    return chosen.log_prob(action.float()).sum(-1), chosen.entropy().sum(-1)


def written_out(
    ppo: RecurrentPPO, rollout: Rollout, old: Samples
) -> tuple[dict[str, float], list[Tensor]]:
    """PPO's numbers and gradient from single steps and automatic differentiation, all rows once."""
    hyper, model = ppo.hyper, ppo.model
    policy, value = step_by_step(model, rollout.obs, ppo._parts(rollout.state[0]), rollout.first)
    rows = rollout.valid.flatten()
    log_prob, entropy = reference_policy(ppo, policy.flatten(0, 1)[rows], old.action)
    value = value.flatten()[rows]
    ratio = (log_prob - old.log_prob).exp()
    advantage = (old.advantage - old.advantage.mean()) / (old.advantage.std() + 1e-8)
    bounded = ratio.clamp(1 - 0.2, 1 + 0.2)
    near = old.value + (value - old.value).clamp(-0.1, 0.1)
    policy_loss = -torch.minimum(ratio * advantage, bounded * advantage).mean()
    value_loss = torch.maximum((value - old.returns) ** 2, (near - old.returns) ** 2).mean()
    loss = policy_loss + hyper.value_coef * value_loss - hyper.entropy_coef * entropy.mean()
    kl = (ratio - 1 - ratio.log()).mean()
    clipped = ((ratio - 1).abs() > 0.2).float().mean()
    numbers = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "approx_kl": kl,
        "clip_fraction": clipped,
        "entropy": entropy.mean(),
        "loss": loss,
    }
    gradient = list(torch.autograd.grad(loss, list(model.parameters())))
    return {name: float(x.detach()) for name, x in numbers.items()}, gradient


ONE_MINIBATCH: dict[str, Any] = {
    "batch_size": 1000,
    "num_steps": 12,
    "value_clip_range": 0.1,
    "entropy_coef": 0.3,
    "learning_rate": 1e-3,
}


@each_kind
@pytest.mark.parametrize("core", ["lstm", "gru", "shared lstm"])
@double_precision()
def test_the_gradient_of_one_sequence_is_that_of_the_loss_written_out(kind: str, core: str) -> None:
    """One episode and a half in each of two environments, in a sequence each."""
    ppo = make(kind, sequence_length=12, **ONE_MINIBATCH, **CORES[core])
    first = torch.zeros(12, 2, dtype=torch.bool)
    first[0] = first[7, 1] = True
    rollout = played_through(ppo, random_rollout(SPECS[kind], 12)._replace(first=first))
    samples = ppo.samples(rollout)
    moved(ppo, 0.2)
    (minibatch,) = list(ppo.minibatches(samples))[:1]
    found = ppo.optimizer.differentiate(ppo.loss, minibatch, 0.2)
    numbers, expected = written_out(ppo, rollout, samples)
    assert 0 < numbers["clip_fraction"] < 1
    assert numbers_of(found.metrics) == pytest.approx(numbers, rel=0, abs=1e-7)
    for mine, theirs in zip(gradients(ppo), expected, strict=True):
        assert_close(mine, theirs)


@double_precision()
def test_shorter_sequences_cut_the_gradient_but_not_the_loss() -> None:
    rollout = played_through(make(), random_rollout(SPECS["discrete"], 12))
    found = {}
    for length in (12, 4, 1):
        ppo = make(sequence_length=length, epochs=1, **ONE_MINIBATCH)
        loss = ppo.update(rollout, START).metrics["loss"]
        found[length] = float(loss), torch.cat([g.flatten() for g in gradients(ppo)])
    for length in (4, 1):
        assert found[length][0] == pytest.approx(found[12][0], abs=1e-7)
        assert float((found[length][1] - found[12][1]).abs().max()) > 1e-3


class Forgetful(nn.Module):
    """The recurrent network without any memory, as the feed-forward update takes it."""

    def __init__(self, network: RecurrentActorCritic) -> None:
        super().__init__()
        self.network = copy.deepcopy(network)

    def seen(self, obs: Tensor) -> PolicyAndValue:
        empty = self.network.initial_state(len(obs))
        return self.network.sequence(obs[None], empty, torch.zeros(1, len(obs), dtype=torch.bool))

    def policy(self, obs: Tensor) -> Tensor:
        return self.seen(obs).policy[0]

    def value(self, obs: Tensor) -> Tensor:
        return self.seen(obs).value[0]


@each_core
@pytest.mark.parametrize("length", [3, 12])
@double_precision()
def test_no_memory_leaks_over_the_start_of_an_episode(core: str, length: int) -> None:
    """Where every row is an episode of its own, the update is the feed-forward one."""
    over = torch.ones(12, 2, dtype=torch.bool)
    recurrent = make(sequence_length=length, epochs=3, **ONE_MINIBATCH, **CORES[core])
    feed_forward = PPO(
        Forgetful(recurrent.model),
        PPOConfig(epochs=3, max_grad_norm=None, **ONE_MINIBATCH),
        recurrent.spec,
    )
    rollout = random_rollout(SPECS["discrete"], 12)._replace(
        first=over,
        ended=over,
        terminated=over,
        bootstrap_rows=torch.zeros(0, dtype=torch.int64),
        bootstrap_obs=torch.zeros(0, 3),
        state=torch.randn(12, 2, PARTS[core] * SIZE),  # of before the start
        bootstrap_state=torch.zeros(0, PARTS[core] * SIZE),
    )
    expected = feed_forward.update(rollout, START)
    found = recurrent.update(rollout, START)
    assert found.gradient_steps == expected.gradient_steps == 3
    for name, value in expected.metrics.items():
        assert float(found.metrics[name]) == pytest.approx(float(value), rel=0, abs=1e-7)
    assert_close(recurrent.optimizer.flat, feed_forward.optimizer.flat)


# Rows that are no transitions.


def masked_rollout(ppo: RecurrentPPO, steps: int, envs: int, seed: int) -> Rollout:
    """Episodes that end, some of them followed by a row that only resets."""
    rng = np.random.default_rng(seed)
    store = RolloutBuffer(
        ppo.spec, num_steps=steps, num_envs=envs, state_size=sum(ppo.hyper.state_sizes)
    )
    none = np.zeros(envs, np.bool_)
    first, resetting = none, none
    while not store.full:
        # In the first environment all that can happen does: it alone is always valid.
        done, cut_off = rng.random((2, envs)) < 0.25
        resets = resetting & (np.arange(envs) > 0)
        ends = done & ~resets
        numbers = rng.normal(size=(2, envs, 3 + sum(ppo.hyper.state_sizes))).astype(np.float32)
        store.add(
            Transitions(
                obs=numbers[0, :, :3],
                action=rng.integers(0, 4, envs),
                reward=rng.normal(size=envs).astype(np.float32),
                next_obs=numbers[1, :, :3],
                terminated=ends & ~cut_off,
                truncated=ends & cut_off,
                first=first,
                valid=~resets,
                state=(numbers[0, :, 3:],),
                next_state=(numbers[1, :, 3:],),
            )
        )
        # A reset of its own comes before the start, or the start follows the end at once.
        resetting = ends & (rng.random(envs) < 0.7) & (np.arange(envs) > 0)
        first = (ends & ~resetting) | resets
    return precise(store.take())


def spoiled(rollout: Rollout, seed: int) -> Rollout:
    """Garbage in the rows that are not valid."""
    generator = torch.Generator().manual_seed(seed)
    invalid = ~rollout.valid

    def garbage(field: Tensor, scale: float) -> Tensor:
        noise = scale * torch.randn(field.shape, generator=generator)
        return torch.where(invalid.reshape(*invalid.shape, *(1,) * (field.ndim - 2)), noise, field)

    wrong = invalid.flatten()[rollout.bootstrap_rows]
    bootstrap_obs, bootstrap_state = rollout.bootstrap_obs.clone(), rollout.bootstrap_state.clone()
    bootstrap_obs[wrong] = 77.0
    bootstrap_state[wrong] = -55.0
    return rollout._replace(
        obs=garbage(rollout.obs, 100.0),
        action=torch.where(invalid, 3 - rollout.action, rollout.action),
        reward=garbage(rollout.reward, 1e4),
        state=garbage(rollout.state, 10.0),
        bootstrap_obs=bootstrap_obs,
        bootstrap_state=bootstrap_state,
    )


@settings(max_examples=15, deadline=None)
@given(**shapes, core=st.sampled_from(["lstm", "gru", "shared lstm"]), seed=st.integers(0, 999))
@double_precision()
def test_rows_that_only_reset_change_nothing(
    steps: int, envs: int, length: int, core: str, seed: int
) -> None:
    hyper: dict[str, Any] = {"num_steps": steps, "sequence_length": length}
    hyper |= {"batch_size": 1000, "epochs": 1}
    agents = [make(seed=seed, **hyper, **CORES[core]) for _ in range(2)]
    rollout = masked_rollout(agents[0], steps, envs, seed)
    rollouts = [rollout, spoiled(rollout, seed)]
    samples = [ppo.samples(each) for ppo, each in zip(agents, rollouts, strict=True)]
    for mine, theirs in zip(samples[0][1:], samples[1][1:], strict=True):
        assert_close(mine, theirs)
    results = [ppo.update(each, START) for ppo, each in zip(agents, rollouts, strict=True)]
    found = {name: float(value) for name, value in results[0].metrics.items()}
    expected = {name: float(value) for name, value in results[1].metrics.items()}
    assert found == pytest.approx(expected, rel=1e-7, abs=1e-7)
    for mine, theirs in zip(gradients(agents[0]), gradients(agents[1]), strict=True):
        assert_close(mine, theirs)


@settings(max_examples=25, deadline=None)
@given(**shapes, seed=st.integers(0, 999))
@double_precision()
def test_padding_changes_neither_numbers_nor_gradient(
    steps: int, envs: int, length: int, seed: int
) -> None:
    """Whatever is past the end of a rollout, or in a row that only resets."""
    ppo = make(seed=seed, num_steps=steps, sequence_length=length, batch_size=14)
    generator = torch.Generator().manual_seed(seed)
    samples = ppo.samples(masked_rollout(ppo, steps, envs, seed))
    moved(ppo)
    for minibatch in ppo.minibatches(samples):
        sequences: Sequences = minibatch.obs
        padding = torch.ones(sequences.first.numel(), dtype=torch.bool)
        padding[sequences.rows] = False
        padding = padding.reshape(sequences.first.shape)
        noise = 100 * torch.randn(sequences.obs.shape, generator=generator)
        flags = torch.rand(padding.shape, generator=generator) < 0.5
        garbage = sequences._replace(
            obs=torch.where(padding[..., None], noise, sequences.obs),
            first=torch.where(padding, flags, sequences.first),
        )
        found = ppo.optimizer.differentiate(ppo.loss, minibatch, 0.2)
        mine = gradients(ppo)
        spoiled_rows = minibatch._replace(obs=garbage)
        other = ppo.optimizer.differentiate(ppo.loss, spoiled_rows, 0.2)
        expected = numbers_of(found.metrics)
        assert numbers_of(other.metrics) == pytest.approx(expected, rel=1e-7, abs=1e-7)
        for one, another in zip(mine, gradients(ppo), strict=True):
            assert_close(one, another)


@pytest.mark.parametrize("length", [5, 8])
@double_precision()
def test_a_last_shorter_sequence_counts_its_rows_once(length: int) -> None:
    """The mean is over the 26 rows, not over the rows of whole sequences."""
    ppo = make(sequence_length=length, **ONE_MINIBATCH)
    rollout = played_through(ppo, random_rollout(SPECS["discrete"], 13))
    length = {5: 5, 8: 7}[length]  # thirteen steps in 5, 5 and 3, and in 7 and 6
    samples = ppo.samples(rollout)
    moved(ppo, 0.02)
    minibatch = next(ppo.minibatches(samples))
    found = numbers_of(ppo.loss(minibatch, 0.2).metrics)
    with torch.no_grad():
        # Each row, seen from the state that its sequence starts from.
        pieces = [
            step_by_step(
                ppo.model,
                rollout.obs[begin : begin + length],
                ppo._parts(rollout.state[begin]),
                rollout.first[begin : begin + length],
            )
            for begin in range(0, 13, length)
        ]
    value = torch.cat([piece[1] for piece in pieces]).flatten()
    near = samples.value + (value - samples.value).clamp(-0.1, 0.1)
    errors = (torch.stack([value, near]) - samples.returns) ** 2
    assert len(minibatch.value) == 26
    assert found["value_loss"] == pytest.approx(float(errors.amax(0).mean()), rel=1e-7)
    output = torch.cat([piece[0] for piece in pieces]).flatten(0, 1)
    log_ratio = reference_policy(ppo, output, samples.action)[0] - samples.log_prob
    expected = float((log_ratio.exp() - 1 - log_ratio).mean())
    assert expected > 1e-5
    assert found["approx_kl"] == pytest.approx(expected, rel=1e-7)


# The epochs.


def test_a_target_kl_stops_before_the_step_that_would_go_on_from_too_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hyper: dict[str, Any] = {"num_steps": 12, "sequence_length": 5, "batch_size": 1000}
    hyper |= {"learning_rate": 0.01}
    rollout = played_through(make(), random_rollout(SPECS["discrete"], 12))

    def learned(**more: Any) -> tuple[RecurrentPPO, int, list[float]]:
        ppo, kls = make(**hyper, **more), []
        loss = ppo.loss

        def watched(rows: Samples, clip_range: float) -> Loss:
            result = loss(rows, clip_range)
            kls.append(float(result.metrics["approx_kl"]))
            return result

        monkeypatch.setattr(ppo, "loss", watched)
        return ppo, ppo.update(rollout, START).gradient_steps, kls

    two, _, _ = learned(epochs=2)
    _, steps, kls = learned(epochs=5)
    assert steps == 5
    assert kls == sorted(kls)
    # Passed after the second step, before the third is made.
    stopped, steps, _ = learned(epochs=5, target_kl=kls[2] / 1.5 * 0.99)
    assert steps == 2
    assert torch.equal(stopped.optimizer.flat, two.optimizer.flat)
    _, steps, _ = learned(epochs=5, target_kl=kls[2] / 1.5 * 1.01)
    assert steps == 3


@each_kind
def test_an_update_learns_in_every_kind_of_action(kind: str) -> None:
    """The actions with the larger rewards become more likely."""
    ppo = make(kind, num_steps=32, sequence_length=8, batch_size=16, learning_rate=1e-2, gamma=0)
    rollout = played_through(ppo, random_rollout(SPECS[kind], 32))
    liked = rollout.action.flatten(2)[..., 0] if kind != "discrete" else rollout.action
    rollout = rollout._replace(reward=(liked > 0).float())
    before = ppo.optimizer.flat.clone()
    old = ppo.samples(rollout)
    result = ppo.update(rollout, START)
    new = ppo.samples(rollout)
    assert result.gradient_steps == ppo.hyper.epochs * 4
    assert all(math.isfinite(float(value)) for value in result.metrics.values())
    assert not torch.equal(ppo.optimizer.flat, before)
    gained = new.log_prob - old.log_prob
    rewarded = rollout.reward.flatten() > 0
    assert float(gained[rewarded].mean()) > float(gained[~rewarded].mean()) + 0.1


@each_core
@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_state_round_trip_continues_bit_for_bit(kind: str, core: str) -> None:
    hyper: dict[str, Any] = {
        "num_steps": 10,
        "sequence_length": 4,
        "batch_size": 8,
        "epochs": 2,
        **CORES[core],
    }
    first = np.array([True, False])

    def go_on(ppo: RecurrentPPO, rounds: range) -> list[np.ndarray]:
        actions = []
        for number in rounds:
            obs = np.full((2, 3), number, np.float32)
            acting = ppo.act(obs, ppo.initial_state(2), first, START, explore=True)
            actions += [acting.action, *acting.state]
            rollout = played_through(ppo, random_rollout(SPECS[kind], 10, seed=number))
            ppo.update(rollout, Clock(number, 100))
        return actions

    straight, half, resumed = make(kind, **hyper), make(kind, **hyper), make(kind, 1, **hyper)
    go_on(straight, range(2))
    expected = go_on(straight, range(2, 4))
    go_on(half, range(2))
    resumed.load_state_dict(half.state_dict())
    found = go_on(resumed, range(2, 4))
    assert torch.equal(resumed.optimizer.flat, straight.optimizer.flat)
    assert all(map(np.array_equal, found, expected))


# Acting.


@each_core
def test_acting_carries_the_memory_and_starts_anew_row_by_row(core: str) -> None:
    ppo = make(**CORES[core])
    obs = np.ones((2, 3), np.float32)
    going_on, starting = np.array([False, False]), np.array([True, False])
    empty = ppo.initial_state(2)
    once = ppo.act(obs, empty, going_on, START, explore=False)
    twice = ppo.act(obs, once.state, starting, START, explore=False)
    for before, after in zip(once.state, twice.state, strict=True):
        assert after.dtype == np.float32
        assert after.shape == (2, SIZE)
        np.testing.assert_allclose(after[0], before[0], rtol=0, atol=1e-6)  # as from the start
        assert not np.allclose(after[1], before[1], atol=1e-3)
    assert not any(part.any() for part in empty)
    output, _ = step_by_step(
        ppo.model, torch.ones(2, 1, 3), ppo.model.initial_state(1), torch.zeros(2, 1).bool()
    )[:2]
    assert twice.action.tolist() == output[:, 0].argmax(-1).tolist()


def test_acting_samples_the_policy_of_what_is_remembered() -> None:
    ppo = make()
    rows = 20_000
    obs, first = np.ones((rows, 3), np.float32), np.zeros(rows, np.bool_)
    state = tuple(np.full((rows, SIZE), 0.5, np.float32) for _ in range(4))
    found = ppo.act(obs, state, first, START, explore=True).action
    one = tuple(torch.from_numpy(part[:1]) for part in state)
    output, _ = ppo.model.act(torch.ones(1, 3), one, torch.tensor([False]))
    shares = torch.bincount(torch.from_numpy(found), minlength=4) / rows
    assert_close(shares, output[0].softmax(-1).detach(), rtol=0, atol=0.015)
    forgotten = ppo.act(obs, state, ~first, START, explore=True).action
    other = torch.bincount(torch.from_numpy(forgotten), minlength=4) / rows
    assert float((other - shares).abs().max()) > 0.03


# Networks of the user's own.


class Own(Adding):
    """Two logits, and a value, of the sum of what was seen."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 2)
        nn.init.zeros_(self.head.weight)  # knows nothing at first
        nn.init.zeros_(self.head.bias)

    def sequence(self, obs: Tensor, state: State, first: Tensor) -> PolicyAndValue:
        seen = super().sequence(obs, state, first)
        return seen._replace(policy=self.head(seen.value.detach()[..., None]))


def test_a_network_of_the_users_own_learns_what_needs_its_memory() -> None:
    """A cue of +-1, then a blank: the second action should repeat the cue."""
    ppo = RecurrentPPO(
        Own(), configured(num_steps=2, batch_size=64, learning_rate=0.05, **ONE_NUMBER), DISCRETE
    )
    cue = torch.randint(0, 2, (64,), generator=torch.Generator().manual_seed(0))
    obs = torch.stack([2.0 * cue - 1, torch.zeros(64)])[..., None]
    last = torch.tensor([[False], [True]]).expand(2, 64)
    first = np.array([[True], [False]]).repeat(64, 1)

    def play(*, explore: bool) -> tuple[Tensor, Tensor]:
        state, actions, states = ppo.initial_state(64), [], []
        for row, starts in zip(obs.numpy(), first, strict=True):
            states.append(torch.from_numpy(state[0]))
            acting = ppo.act(row, state, starts, START, explore=explore)
            state = acting.state
            actions.append(torch.from_numpy(acting.action))
        return torch.stack(actions), torch.stack(states)

    assert float((play(explore=False)[0][1] == cue).float().mean()) < 0.9
    for _ in range(30):
        action, state = play(explore=True)
        rollout = Rollout(
            obs=obs,
            action=action,
            reward=(action == cue).float() * last,
            terminated=last,
            ended=last,
            first=torch.from_numpy(first),
            valid=torch.ones(2, 64, dtype=torch.bool),
            bootstrap_rows=torch.zeros(0, dtype=torch.int64),
            bootstrap_obs=torch.zeros(0, 1),
            state=state,
            bootstrap_state=torch.zeros(0, 1),
        )
        ppo.update(rollout, START)
    assert play(explore=False)[0][1].tolist() == cue.tolist()


class NoSequences(nn.Module):
    """Acts, but goes through no sequences."""

    initial_state = RecurrentActorCritic.initial_state
    act = RecurrentActorCritic.act


class ValuesInColumns(RecurrentActorCritic):
    """Values (time, batch, 1), which would broadcast."""

    def sequence(self, obs: Tensor, state: State, first: Tensor) -> PolicyAndValue:
        seen = super().sequence(obs, state, first)
        return seen._replace(value=seen.value[..., None])


class NoNames(RecurrentActorCritic):
    """Policy and value in a plain tuple."""

    def sequence(self, obs: Tensor, state: State, first: Tensor) -> Any:
        return tuple(super().sequence(obs, state, first))


class ActsInSequences(RecurrentActorCritic):
    """Leaves the time in what it gives for a step."""

    def act(self, obs: Tensor, state: State, first: Tensor) -> tuple[Tensor, State]:
        output, after = super().act(obs, state, first)
        return output[None], after


WRONG_NETWORKS: dict[str, tuple[Any, str]] = {
    "feed-forward": (
        lambda: MLPActorCritic(3, 4, (8,)),
        "expected a method initial_state, found none",
    ),
    "no sequences": (NoSequences, "expected a method sequence, found none"),
    "larger": (
        lambda: RecurrentActorCritic(3, 4, core_size=7),
        r"state \[\(1, 5\).*found .*state \[\(1, 7\)",
    ),
    "one memory": (
        lambda: RecurrentActorCritic(3, 4, core_size=5, shared_core=True),
        r"found .*state \[\(1, 5\), \(1, 5\)\]$",
    ),
    "more actions": (
        lambda: RecurrentActorCritic(3, 6, core_size=5),
        r"network.sequence.*expected policy \(2, 1, 4\).*found policy \(2, 1, 6\)",
    ),
    "other observations": (
        lambda: RecurrentActorCritic(9, 4, core_size=5),
        "network.sequence.*calling it raised",
    ),
    "values in columns": (lambda: ValuesInColumns(3, 4, core_size=5), "value"),
    "no names": (lambda: NoNames(3, 4, core_size=5), "value"),
    "acts in sequences": (lambda: ActsInSequences(3, 4, core_size=5), "act"),
}


@pytest.mark.parametrize("wrong", WRONG_NETWORKS)
def test_networks_that_do_not_fit_are_refused(wrong: str) -> None:
    network, message = WRONG_NETWORKS[wrong]
    with pytest.raises(ConfigError, match=message):
        RecurrentPPO(network(), configured(), SPECS["discrete"])


def test_a_continuous_policy_needs_a_log_std_that_can_be_learned() -> None:
    network = RecurrentActorCritic(3, 2, core_size=5)
    with pytest.raises(ConfigError, match=r"expected a parameter log_std of shape \(2,\)"):
        RecurrentPPO(network, configured(), SPECS["continuous"])


def test_what_it_shares_with_ppo_has_ppos_defaults() -> None:
    mine, theirs = RecurrentPPOConfig().model_dump(), PPOConfig().model_dump()
    own = {"hidden_sizes": (64,), "batch_size": 128}
    assert {name: mine[name] for name in theirs} == theirs | own
