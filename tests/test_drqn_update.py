"""DRQN's loss and update by hand and by definition, and that it learns what needs a memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from rl_training.algorithms.drqn import DRQN, drqn_loss, sequence_target
from rl_training.config.value_based import DRQNConfig
from rl_training.data.recurrent_replay_buffer import RecurrentReplayBuffer
from rl_training.data.types import Clock, EnvSpec, SequenceBatch
from rl_training.envs.factory import make_vector_env
from rl_training.envs.spaces import SpaceAdapter
from rl_training.errors import ConfigError
from rl_training.models.mlp_q_network import MLPQNetwork
from rl_training.models.recurrent.lstm_q_network import LSTMQNetwork
from rl_training.runtime.collector import Collector
from rounding import double_precision, precise, precise_spec
from training import recalled
from value_batches import differentiated, numbers_of

SPEC = EnvSpec(env_id="toy", obs_shape=(3,), action_kind="discrete", num_actions=2)
START = Clock(env_steps=0, horizon=100)


def test_lstm_q_network_vector_obs_returns_q_values_actions_and_state() -> None:
    network = LSTMQNetwork(obs_dim=4, action_dim=3, hidden_sizes=(16,), core_size=8)
    state = network.initial_state(5)
    acted = network.act(torch.randn(5, 4), state, torch.ones(5, dtype=torch.bool))
    assert acted.q_values.shape == (5, 3)
    assert acted.actions.tolist() == acted.q_values.argmax(1).tolist()
    assert [part.shape for part in acted.state] == [part.shape for part in state] == [(5, 8)] * 2
    assert all(part.any(1).all() for part in acted.state)


# The loss: two columns of two transitions, the last of the second column being padding.

Q_VALUES = torch.tensor([[[1.0, 3.0], [2.0, 0.0]], [[2.5, 2.0], [4.0, 1.0]], [[9.0, 8.0]] * 2])
TARGET_VALUES = torch.tensor([[[7e3, 7e3]] * 2, [[2.0, 4.0], [6.0, 2.0]], [[100.0, 50.0]] * 2])
BATCH = SequenceBatch(
    obs=torch.zeros(3, 2, 3),
    action=torch.tensor([[0, 0], [1, 0]]),
    reward=torch.tensor([[1.0, -1.5], [3.0, 77.0]]),
    discount=torch.tensor([[0.5, 0.5], [0.0, 0.5]]),
    first=torch.zeros(3, 2, dtype=torch.bool),
    mask=torch.tensor([[True, True], [True, False]]),
    state=(),
)
# Targets: 1 + 0.5 * 4 = 3 for the value 1; the second column was truncated: -1.5 + 0.5 * 6 = 1.5
# for the value 2; the first one terminated: 3 for the value 2. Errors -2, 0.5 and -1, three rows.


@pytest.mark.parametrize(
    ("kind", "losses", "slopes"),
    [("huber", (1.5, 0.125, 0.5), (-1.0, 0.5, -1.0)), ("mse", (2, 0.125, 0.5), (-2.0, 0.5, -1.0))],
)
def test_the_loss_by_hand(kind: Any, losses: tuple[float, ...], slopes: tuple[float, ...]) -> None:
    result, found = differentiated(drqn_loss, Q_VALUES, TARGET_VALUES, BATCH, kind=kind)
    assert_close(result.value, torch.tensor(sum(losses) / 3))
    gradient = torch.zeros(3, 2, 2)
    gradient[0, 0, 0], gradient[0, 1, 0], gradient[1, 0, 1] = (slope / 3 for slope in slopes)
    assert_close(found, gradient)
    assert numbers_of(result.metrics) == pytest.approx(
        {
            "loss": sum(losses) / 3,
            "q_value_mean": (1 + 2 + 2) / 3,
            "target_mean": (3 + 1.5 + 3) / 3,
            "td_error_mean": (2 + 0.5 + 1) / 3,
        }
    )
    assert result.priority is None


def test_with_double_the_online_network_chooses_and_the_target_network_values() -> None:
    # Online the first action is the better one after the first row, 2.5 over 2: 1 + 0.5 * 2 = 2,
    # an error of -1. The others stay.
    result = drqn_loss(Q_VALUES, TARGET_VALUES, BATCH, double=True)
    assert_close(result.value, torch.tensor((0.5 + 0.125 + 0.5) / 3))
    assert numbers_of(result.metrics)["target_mean"] == pytest.approx((2 + 1.5 + 3) / 3)


def test_a_termination_ends_the_sum_and_a_truncation_does_not() -> None:
    def target_mean(discount: float) -> float:
        batch = BATCH._replace(discount=torch.tensor([[0.5, discount], [0.0, 0.5]]))
        return numbers_of(drqn_loss(Q_VALUES, TARGET_VALUES, batch).metrics)["target_mean"]

    assert target_mean(0.5) == pytest.approx((3 + (-1.5 + 3) + 3) / 3)
    assert target_mean(0.0) == pytest.approx((3 + -1.5 + 3) / 3)


def test_rewards_are_summed_as_far_as_the_sequence_and_its_episode_go() -> None:
    # One column of five transitions; the third is truncated, the fourth starts another episode.
    batch = SequenceBatch(
        obs=torch.zeros(6, 1, 3),
        action=torch.zeros(5, 1, dtype=torch.int64),
        reward=torch.tensor([[1.0], [2.0], [4.0], [8.0], [16.0]]),
        discount=torch.full((5, 1), 0.5),
        first=torch.tensor([[True], [False], [False], [True], [False], [False]]),
        mask=torch.ones(5, 1, dtype=torch.bool),
        state=(),
    )
    best = torch.tensor([0.0, 10.0, 20.0, 40.0, 80.0, 160.0])
    target_values = torch.stack([best, best - 1], 1)[:, None]

    def targets(n_step: int, changed: SequenceBatch = batch) -> list[float]:
        # The gradient of half the squared error of a zero is minus the target, over five rows.
        options: Any = {"n_step": n_step, "kind": "mse"}
        q_values = torch.zeros(5, 1, 2)
        _, gradient = differentiated(drqn_loss, q_values, target_values, changed, **options)
        found = (-5 * gradient[:, 0, 0]).tolist()
        assert sequence_target(changed, best[1:, None], n_step).flatten().tolist() == found
        return found

    one = [1 + 5, 2 + 10, 4 + 20, 8 + 40, 16 + 80]
    assert targets(1) == one
    two = [1 + 0.5 * one[1], 2 + 0.5 * one[2], one[2], 8 + 0.5 * one[4], one[4]]
    assert targets(2) == two
    assert targets(3) == targets(9) == [1 + 0.5 * two[1], *two[1:]]
    ended = batch._replace(discount=torch.tensor([[0.5], [0.0], [0.5], [0.5], [0.5]]))
    assert targets(3, ended)[:2] == [1 + 0.5 * 2, 2]


def test_padding_ends_the_sum_too() -> None:
    batch = random_batch(1, 6, 4, starts=0.0)
    batch = batch._replace(mask=torch.arange(6)[:, None] < torch.tensor([6, 4, 1, 0]))
    q_values, target_values = torch.randn(2, 7, 4, 2)
    expected, gradient = differentiated(drqn_loss, q_values, target_values, batch, n_step=4)
    garbage = batch._replace(reward=batch.reward.masked_fill(~batch.mask, 1e6))
    changed, other = differentiated(drqn_loss, q_values, target_values, garbage, n_step=4)
    assert torch.equal(expected.value, changed.value)
    assert torch.equal(gradient, other)


def test_a_row_outside_the_mask_counts_for_nothing() -> None:
    changed = BATCH._replace(
        reward=torch.tensor([[1.0, -1.5], [3.0, -9e5]]), action=torch.tensor([[0, 0], [1, 1]])
    )
    q_values, target_values = Q_VALUES.clone(), TARGET_VALUES.clone()
    q_values[1:, 1] = target_values[2, 1] = 1e4
    expected, gradient = differentiated(drqn_loss, Q_VALUES, TARGET_VALUES, BATCH)
    found, other = differentiated(drqn_loss, q_values, target_values, changed)
    assert torch.equal(found.value, expected.value)
    assert torch.equal(other, gradient)
    assert numbers_of(found.metrics) == numbers_of(expected.metrics)


def test_without_a_row_to_learn_from_the_loss_is_zero() -> None:
    batch = BATCH._replace(mask=torch.zeros(2, 2, dtype=torch.bool))
    result, gradient = differentiated(drqn_loss, Q_VALUES, TARGET_VALUES, batch)
    assert float(result.value) == 0.0
    assert not gradient.any()


def random_batch(
    seed: int, steps: int, size: int, *, core_size: int = 5, parts: int = 2, starts: float = 0.2
) -> SequenceBatch:
    """Sequences in which episodes start and terminate; the mask is all set."""
    rng = np.random.default_rng(seed)

    def numbers(*shape: int) -> Tensor:
        return torch.from_numpy(rng.normal(size=shape).astype(np.float32))

    batch = SequenceBatch(
        obs=numbers(steps + 1, size, *SPEC.obs_shape),
        action=torch.from_numpy(rng.integers(0, SPEC.num_actions, (steps, size))),
        reward=2 * numbers(steps, size),
        discount=torch.from_numpy(rng.choice([0.0, 0.9, 0.9], (steps, size)).astype(np.float32)),
        first=torch.from_numpy(rng.random((steps + 1, size)) < starts),
        mask=torch.ones(steps, size, dtype=torch.bool),
        state=tuple(numbers(size, core_size) for _ in range(parts)),
    )
    return precise(batch)


@pytest.mark.parametrize("kind", ["huber", "mse"])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("n_step", [1, 3])
@double_precision()
def test_only_the_values_of_the_actions_taken_are_learned(
    kind: Any, double: bool, n_step: int
) -> None:
    batch = random_batch(0, 9, 6)
    batch = batch._replace(mask=torch.rand(9, 6, generator=torch.Generator().manual_seed(0)) < 0.7)
    q_values = torch.randn(10, 6, 2).requires_grad_()
    target_values = torch.randn(10, 6, 2).requires_grad_()
    options: Any = {"double": double, "n_step": n_step, "kind": kind}
    result = drqn_loss(q_values, target_values, batch, **options)
    assert not any(value.requires_grad for value in result.metrics.values())
    result.value.backward()
    assert q_values.grad is not None
    assert target_values.grad is None
    assert not q_values.grad[-1].any()  # the successor is only looked at
    taken = torch.nn.functional.one_hot(batch.action, 2).bool() & batch.mask[..., None]
    assert torch.equal(q_values.grad[:-1] != 0, taken)


@pytest.mark.parametrize("field", ["reward", "discount", "mask"])
def test_fields_of_different_shapes_are_refused(field: str) -> None:
    wrong = BATCH._replace(**{field: getattr(BATCH, field)[:1]})
    with pytest.raises(ValueError, match=r"expected|shape"):
        drqn_loss(Q_VALUES, TARGET_VALUES, wrong)


# The update.


def make(seed: int = 0, **hyper: Any) -> DRQN:
    """A small network and a target network of other weights."""
    torch.manual_seed(seed)
    sizes = {"hidden_sizes": (6,), "core_size": 5, "max_grad_norm": None}
    settings = DRQNConfig(**(sizes | hyper))
    drqn = DRQN(LSTMQNetwork.build(SPEC, settings), settings, precise_spec(SPEC))
    with torch.no_grad():
        for parameter in drqn.target.module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return drqn


def learned(batch: SequenceBatch, seed: int = 0, **hyper: Any) -> tuple[Tensor, Tensor]:
    """Loss and gradient of the first update of a new agent."""
    drqn = make(seed, **hyper)
    loss = drqn.update(batch, START).metrics["loss"]
    assert drqn.optimizer.flat.grad is not None
    return loss.clone(), drqn.optimizer.flat.grad.clone()


def by_definition(batch: SequenceBatch, *, detach: bool = True, **hyper: Any) -> list[Tensor]:
    """Loss and gradient from single steps: one row and one action at a time."""
    drqn = make(**hyper)
    settings, online, target = drqn.hyper, drqn.model, drqn.target.module
    zero = settings.initial_state == "zero"
    states = [tuple(0 * part if zero else part for part in batch.state)] * 2
    values: list[list[Tensor]] = [[], []]
    for row, obs in enumerate(batch.obs):
        if row == settings.burn_in and detach:
            states[0] = tuple(part.detach() for part in states[0])
        for index, network in enumerate((online, target)):
            acted = network.act(obs, states[index], batch.first[row])
            values[index].append(acted.q_values)
            states[index] = acted.state
    total, count = torch.zeros(()), 0
    for row, column in batch.mask.nonzero().tolist():
        if row < settings.burn_in:
            continue
        last, target_value, weight = row, 0.0, 1.0
        while True:
            target_value += weight * float(batch.reward[last, column])
            weight *= float(batch.discount[last, column])
            last += 1
            enough = last - row == settings.n_step or last == len(batch.mask)
            if enough or batch.first[last, column] or not batch.mask[last, column]:
                break
        next_q = values[1][last][column]
        selector = values[0][last][column] if settings.double else next_q
        target_value += weight * float(next_q[selector.argmax()])
        error = values[0][row][column, batch.action[row, column]] - target_value
        small = settings.loss == "mse" or abs(error.item()) <= 1
        total = total + (0.5 * error**2 if small else error.abs() - 0.5)
        count += 1
    loss = total / count
    grads = torch.autograd.grad(loss, list(online.parameters()))
    return [loss, torch.cat([grad.flatten() for grad in grads])]


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "double": {"double": True},
    "mse": {"loss": "mse"},
    "zero state": {"initial_state": "zero"},
    "burn-in": {"burn_in": 4},
    "burn-in from zeros": {"burn_in": 4, "initial_state": "zero", "double": True},
    "n-step": {"n_step": 3},
    "n-step, double, burn-in": {"n_step": 4, "double": True, "burn_in": 2},
    "gru": {"core": "gru", "burn_in": 2},
    "dueling": {"dueling": True, "double": True},
    "no encoder": {"hidden_sizes": (), "burn_in": 1},
}


def batch_for(option: str, seed: int = 1, steps: int = 8, size: int = 4) -> SequenceBatch:
    parts = 1 if OPTIONS[option].get("core") == "gru" else 2
    batch = random_batch(seed, steps, size, parts=parts)
    mask = torch.rand(steps, size, generator=torch.Generator().manual_seed(seed)) < 0.7
    mask[: OPTIONS[option].get("burn_in", 0)] = False
    return batch._replace(mask=mask)


@pytest.mark.parametrize("option", OPTIONS)
@double_precision()
def test_an_update_is_its_definition_step_by_step(option: str) -> None:
    batch = batch_for(option)
    expected = by_definition(batch, **OPTIONS[option])
    for mine, theirs in zip(learned(batch, **OPTIONS[option]), expected, strict=True):
        assert_close(mine, theirs.detach())


@pytest.mark.parametrize("option", ["burn-in", "gru"])
@double_precision()
def test_burn_in_rows_change_the_state_and_get_no_gradient(option: str) -> None:
    hyper = OPTIONS[option]
    batch = batch_for(option)._replace(first=torch.zeros(9, 4, dtype=torch.bool))
    obs = batch.obs.clone()
    obs[: hyper["burn_in"]] += 1
    loss, gradient = learned(batch, **hyper)
    other, _ = learned(batch._replace(obs=obs), **hyper)
    assert abs(float(loss - other)) > 1e-4  # they lead to another state
    through = by_definition(batch, detach=False, **hyper)
    assert_close(loss, through[0].detach())
    assert float((gradient - through[1]).abs().max()) > 1e-3  # what it would be, not stopped
    assert_close(gradient, by_definition(batch, **hyper)[1])


@double_precision()
def test_burn_in_starts_both_networks_from_the_stored_state() -> None:
    batch = random_batch(2, 8, 4, starts=0.0)
    batch = batch._replace(mask=torch.arange(8)[:, None].expand(8, 4) >= 3)
    drqn = make(burn_in=3)
    after = []
    for network in (drqn.model, drqn.target.module):
        state = network.q_values_sequence(batch.obs[:3], batch.state, batch.first[:3])[1]
        after.append(network.q_values_sequence(batch.obs[3:], state, batch.first[3:])[0])
    rest = SequenceBatch(*(field[3:] for field in batch[:6]), ())
    expected = drqn_loss(after[0], after[1], rest).value.detach()
    assert_close(drqn.update(batch, START).metrics["loss"], expected)


def test_a_sequence_starts_from_the_stored_state_or_from_zeros() -> None:
    batch = random_batch(3, 6, 4, starts=0.0)
    blank = batch._replace(state=tuple(torch.zeros_like(part) for part in batch.state))
    stored, from_zeros = learned(batch), learned(blank)
    assert abs(float(stored[0] - from_zeros[0])) > 1e-3
    for state in (batch, blank):
        for mine, theirs in zip(learned(state, initial_state="zero"), from_zeros, strict=True):
            assert torch.equal(mine, theirs)


@double_precision()
def test_the_gradient_is_divided_by_the_rows_to_learn_from() -> None:
    """Twice the same sequences, or sequences that are half padding: the same gradient."""
    batch = random_batch(4, 5, 3, starts=0.0)
    twice = [torch.cat([field, field], 1) for field in batch[:6]]
    doubled = SequenceBatch(*twice, tuple(torch.cat([x, x]) for x in batch.state))
    padded = [torch.cat([field, torch.zeros_like(field[:5])]) for field in batch[:6]]
    longer = SequenceBatch(*padded, batch.state)
    expected = learned(batch)
    for other in (doubled, longer):
        for mine, theirs in zip(learned(other), expected, strict=True):
            assert_close(mine, theirs)


def replaced(field: Tensor, rows: Tensor, seed: int) -> Tensor:
    """The field with garbage in some rows, of its own type."""
    generator = torch.Generator().manual_seed(seed)
    if field.dtype == torch.bool:
        garbage = torch.rand(field.shape, generator=generator) < 0.5
    elif field.dtype == torch.int64:
        garbage = torch.randint(0, SPEC.num_actions, field.shape, generator=generator)
    else:
        garbage = 10 * torch.randn(field.shape, generator=generator)
    return torch.where(rows.reshape(*rows.shape, *(1,) * (field.ndim - 2)), garbage, field)


@settings(max_examples=30, deadline=None)
@given(data=st.data(), burn_in=st.integers(0, 4), steps=st.integers(1, 6), seed=st.integers(0, 999))
@double_precision()
def test_padding_changes_neither_loss_nor_gradient(
    data: st.DataObject, burn_in: int, steps: int, seed: int
) -> None:
    """Random lengths, with padding before an episode's start and after its end.

    Whatever is in it, the loss is that of the sequences without it, one by one.
    """
    size = data.draw(st.integers(1, 4))
    lengths = data.draw(st.lists(st.integers(1, steps), min_size=size, max_size=size))
    before = data.draw(st.lists(st.integers(0, burn_in), min_size=size, max_size=size))
    batch = random_batch(seed, burn_in + steps, size)
    row = torch.arange(burn_in + steps + 1)[:, None]
    begin, end = torch.tensor(before), burn_in + torch.tensor(lengths)
    first = batch.first | ((row == begin) & (begin > 0))  # an episode starts after the padding
    mask = (row[:-1] >= burn_in) & (row[:-1] < end)
    batch = batch._replace(first=first, mask=mask)
    outside = (row < begin) | (row > end)  # the row at the end is the successor
    fields: dict[str, Any] = {
        name: replaced(getattr(batch, name), outside, seed + place)
        for place, name in enumerate(("obs", "first"))
    } | {
        name: replaced(getattr(batch, name), outside[:-1] | (row[:-1] == end), seed + place)
        for place, name in enumerate(("action", "reward", "discount"))
    }
    loss, gradient = learned(batch, burn_in=burn_in)
    garbage = learned(batch._replace(**fields), burn_in=burn_in)
    assert_close(garbage[0], loss)
    assert_close(garbage[1], gradient)
    sums = [torch.zeros_like(loss), torch.zeros_like(gradient)]
    for column in range(size):
        start, stop = before[column], burn_in + lengths[column]
        rows = [field[start:stop, column : column + 1] for field in batch[:6]]
        state = tuple(part[column : column + 1] for part in batch.state)
        alone = SequenceBatch(*rows, state)
        alone = alone._replace(
            obs=batch.obs[start : stop + 1, column : column + 1],
            first=first[start : stop + 1, column : column + 1],
        )
        for place, number in enumerate(learned(alone, burn_in=burn_in - start)):
            sums[place] += lengths[column] / sum(lengths) * number
    assert_close(loss, sums[0])
    assert_close(gradient, sums[1])


@double_precision()
def test_one_adam_step_and_the_copy_of_the_target_network() -> None:
    drqn = make(learning_rate=0.01, target_update_interval=10)
    batch = random_batch(5, 6, 4)
    before, target = drqn.optimizer.flat.detach().clone(), list(drqn.target.module.parameters())
    copied = [parameter.clone() for parameter in target]
    result = drqn.update(batch, Clock(9, 100))
    assert drqn.optimizer.flat.grad is not None
    grad = drqn.optimizer.flat.grad
    # Adam's first step is the learning rate against the sign.
    moved = drqn.optimizer.flat.detach() - before
    large = grad.abs() > 1e-4
    assert large.sum() > 100
    assert_close(moved[large], -0.01 * grad.sign()[large], rtol=1e-3, atol=0)
    assert result.gradient_steps == 1
    assert all(map(torch.equal, target, copied))
    drqn.update(batch, Clock(12, 100))
    assert all(map(torch.equal, target, drqn.model.parameters()))


def test_state_round_trip_continues_bit_for_bit() -> None:
    def trained(drqn: DRQN, numbers: range) -> DRQN:
        for number in numbers:
            drqn.update(random_batch(number, 6, 4), Clock(number, 100))
        return drqn

    hyper = {"burn_in": 2, "target_update_interval": 3}
    straight = trained(make(0, **hyper), range(10))
    resumed = make(1, **hyper)
    resumed.load_state_dict(trained(make(0, **hyper), range(5)).state_dict())
    trained(resumed, range(5, 10))
    assert torch.equal(resumed.optimizer.flat, straight.optimizer.flat)
    networks = (drqn.target.module.parameters() for drqn in (resumed, straight))
    assert all(torch.equal(mine, other) for mine, other in zip(*networks, strict=True))


# Acting.


@pytest.mark.parametrize("core", ["lstm", "gru"])
@double_precision()
def test_acting_is_greedy_and_gives_the_state_that_follows(core: str) -> None:
    drqn = make(core=core)
    obs = np.random.default_rng(0).normal(size=(4, 3))
    state = tuple(part + 0.5 for part in drqn.initial_state(4))
    first = np.array([False, True, False, True])
    tensors = [torch.from_numpy(part) for part in state]
    expected = drqn.model.act(torch.from_numpy(obs), tuple(tensors), torch.from_numpy(first))
    acting = drqn.act(obs, state, first, START, explore=False)
    assert acting.action.tolist() == expected.actions.tolist()
    for mine, theirs in zip(acting.state, expected.state, strict=True):
        np.testing.assert_allclose(mine, theirs.detach().numpy(), rtol=0, atol=1e-7)
    # A random action leaves the memory what it is: it depends on observations alone.
    drqn = make(core=core, epsilon=1.0)
    random = [drqn.act(obs, state, first, START, explore=True) for _ in range(20)]
    assert len({tuple(acting.action.tolist()) for acting in random}) > 5
    assert all(np.array_equal(mine.state[0], acting.state[0]) for mine in random)


def test_the_share_of_random_actions_is_epsilon() -> None:
    drqn = make(epsilon=0.3)
    obs, first = np.ones((2000, 3), np.float32), np.ones(2000, np.bool_)
    state = drqn.initial_state(2000)
    greedy = drqn.act(obs, state, first, START, explore=False).action
    action = drqn.act(obs, state, first, START, explore=True).action
    # Half of the random actions are the greedy one: 300 differ, standard deviation 16.
    assert len(set(greedy.tolist())) == 1
    assert 220 < np.count_nonzero(action != greedy) < 380


@pytest.mark.parametrize("native", [True, False], ids=["next step", "same step"])
@pytest.mark.parametrize("shape", [{}, {"burn_in": 3, "overlap": 2}, {"burn_in": 7}])
@pytest.mark.parametrize("core", ["lstm", "gru"])
@double_precision()
def test_training_sees_the_values_that_acting_saw(
    core: str, shape: dict[str, int], native: bool
) -> None:
    """Whatever the way episodes are reset, the same parameters give the same Q-values.

    Replay keeps states of up to 1 in single precision: a stored one is off by 6e-8 at most, and
    the network, whose weights are all below 1, makes a few times as much of that.
    """
    sources: Any = gym.make_vec("CartPole-v1", num_envs=3) if native else "CartPole-v1"
    envs = make_vector_env(sources, num_envs=3)
    adapter = SpaceAdapter("CartPole-v1", envs.single_observation_space, envs.single_action_space)
    hyper = DRQNConfig(core=core, core_size=8, sequence_length=5, learning_starts=15, **shape)
    torch.manual_seed(0)
    drqn = DRQN(LSTMQNetwork.build(adapter.spec, hyper), hyper, precise_spec(adapter.spec))
    buffer = RecurrentReplayBuffer.build(
        adapter.spec, hyper, num_envs=3, seed=0, device=torch.device("cpu")
    )
    collector = Collector(envs, adapter)
    collector.reset([1, 2, 3], drqn.initial_state(3))
    seen: dict[bytes, Tensor] = {}

    def act(obs: np.ndarray, state: Any, first: np.ndarray) -> Any:
        arrays = precise((obs, *state, first))
        tensors = [torch.from_numpy(x) for x in arrays]
        q_values = drqn.model.act(tensors[0], tuple(tensors[1:-1]), tensors[-1]).q_values
        seen.update(zip((row.tobytes() for row in obs), q_values.detach(), strict=True))
        return drqn.act(arrays[0], arrays[1:-1], first, Clock(0, 1, 1), explore=True)

    for _ in range(90):
        buffer.add(collector.step(act))
    envs.close()
    assert collector.episodes_finished > 5
    batch = buffer.sample(200)
    assert any(part.any() for part in batch.state)
    sequences = precise((batch.obs, batch.state, batch.first))
    q_values = drqn.model.q_values_sequence(*sequences)[0].detach()
    rows = batch.mask.nonzero().tolist()
    assert len(rows) > 500
    for row, column in rows:
        expected = seen[batch.obs[row, column].numpy().tobytes()]
        assert_close(q_values[row, column], expected, rtol=0, atol=1e-5)


# Networks and hyper-parameters that do not fit.


class NoSequences(nn.Module):
    """Acts, but goes through no sequences."""

    initial_state = LSTMQNetwork.initial_state
    act = LSTMQNetwork.act


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (MLPQNetwork(3, 2, (8,)), "expected a method initial_state, found none"),
        (NoSequences(), "expected a method q_values_sequence, found none"),
        (
            LSTMQNetwork(3, 2, core_size=7),
            r"state \[\(1, 5\), \(1, 5\)\], found .*state \[\(1, 7\), \(1, 7\)\]",
        ),
        (
            LSTMQNetwork(3, 4, core_size=5),
            r"expected q_values \(2, 1, 2\).*found q_values \(2, 1, 4\)",
        ),
        (
            LSTMQNetwork(3, 2, core_size=5, core="gru"),
            r"state \[\(1, 5\), \(1, 5\)\], found .*state \[\(1, 5\)\]",
        ),
        (LSTMQNetwork(9, 2, core_size=5), "raised: mat1 and mat2 shapes"),
    ],
)
def test_a_network_that_does_not_fit_is_refused(network: nn.Module, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DRQN(network, DRQNConfig(core_size=5), SPEC)


def test_chunks_must_move_on() -> None:
    assert DRQNConfig(sequence_length=4, overlap=3).overlap == 3
    with pytest.raises(ValueError, match="n_step must be at most sequence_length, 4; found 5"):
        DRQNConfig(sequence_length=4, n_step=5)
    with pytest.raises(ValueError, match="overlap must be less than sequence_length, 4; found 4"):
        DRQNConfig(sequence_length=4, overlap=4)


# A task that cannot be done without a memory.


def played(algo: str, tmp_path: Path, **hyper: Any) -> float:
    """Mean return of the final policy; 1 is a memory, 0.5 a coin."""
    learning = {"learning_starts": 200, "epsilon": 0.3, "tau": 0.05} | hyper
    return recalled(algo, tmp_path, hyper=learning, total_timesteps=2_500, num_envs=2)


@pytest.mark.parametrize(
    "shape",
    [{"sequence_length": 6}, {"sequence_length": 2, "burn_in": 4, "core": "gru"}],
    ids=["whole episodes", "short sequences after burn-in"],
)
def test_drqn_remembers_a_cue(shape: dict[str, Any], tmp_path: Path) -> None:
    assert played("drqn", tmp_path, core_size=16, batch_size=32, **shape) > 0.95


def test_dqn_cannot_remember_a_cue(tmp_path: Path) -> None:
    # Half of 200 coins, standard deviation 7: five of them.
    assert 0.325 < played("dqn", tmp_path) < 0.675
