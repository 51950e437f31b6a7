"""The tree of sums, prioritised replay by hand, and every kind of replay against plain lists."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_model import BATCH, SEQUENCES, PlainReplay, played
from rl_training.config.schedule import Schedule
from rl_training.config.value_based import DQNConfig
from rl_training.data.prioritized_replay import (
    OptionallyPrioritized,
    PrioritizedReplayBuffer,
    SumTree,
)
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.types import Batch, Clock
from rl_training.errors import NonFiniteError, UsageError
from rl_training.storage.tree import join, split, tree_hash
from test_replay_buffer import SPEC, one_step


def filled(count: int, **options: Any) -> PrioritizedReplayBuffer:
    """One episode 0 -> 1 -> 2 ..., so that transition t lies in slot t."""
    settings = {"capacity": 20, "exponent": 1.0} | options
    buffer = PrioritizedReplayBuffer(SPEC, **settings)
    for t in range(count):
        buffer.add(one_step(t, t + 1, first=t == 0))
    return buffer


def weights_of(buffer: PrioritizedReplayBuffer) -> list[float]:
    """The weight of each row of the one environment that was ever written."""
    found: list[float] = buffer.state_dict()["weights"][0].tolist()
    return found


def weigh(buffer: PrioritizedReplayBuffer, errors: list[float]) -> None:
    buffer.sample(1)  # as the loop does before it knows of any error
    buffer.update_priorities(np.arange(len(errors)), torch.tensor(errors))


# Probabilities.


def test_chances_are_in_proportion_to_a_power_of_the_error() -> None:
    buffer = filled(4, exponent=0.5)
    weigh(buffer, [0.0, 1.0, 4.0, 9.0])
    # Square roots of the errors + 1e-6: 0.001, 1, 2 and 3, of 6.001 in all. A batch is cut into
    # equal parts, one draw in each, so a count is off by less than two.
    slots = buffer.sample(60_010).slots
    assert np.bincount(slots) == pytest.approx([10, 10_000, 20_000, 30_000], abs=2)


def test_single_draws_have_these_chances_too() -> None:
    buffer = filled(3)
    weigh(buffer, [1.0, 2.0, 5.0])
    counts = np.bincount([int(buffer.sample(1).slots[0]) for _ in range(2400)])
    # 300, 600 and 1500 expected; five standard deviations (16, 21, 24) either way.
    assert (abs(counts - [300, 600, 1500]) < [80, 105, 120]).all()


def test_each_part_of_a_batch_is_drawn_from_evenly() -> None:
    buffer = filled(4)  # equal weights: a batch of four has each once
    for _ in range(20):
        assert buffer.sample(4).slots.tolist() == [0, 1, 2, 3]
    # A batch of two draws its first row from the first two, half of the time each.
    first = [int(buffer.sample(2).slots[0]) for _ in range(400)]
    assert set(first) == {0, 1}
    assert abs(sum(first) - 200) < 50  # five standard deviations


def test_of_a_slot_that_comes_twice_the_last_error_counts() -> None:
    buffer = filled(3)
    buffer.sample(1)
    buffer.update_priorities(np.array([1, 2, 1]), torch.tensor([3.0, 4.0, 5.0]))
    assert weights_of(buffer)[:3] == pytest.approx([1.0, 5.0, 4.0], rel=1e-5)


def test_the_same_seed_draws_the_same_batches() -> None:
    first, same, other = (filled(19, seed=seed).sample(8).slots for seed in (3, 3, 4))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


# Importance weights.


def test_importance_weights_by_hand() -> None:
    buffer = filled(2, correction=0.5)
    weigh(buffer, [1.0, 4.0])
    # Chances 1/5 and 4/5: the square roots of 5 and 5/4, divided by the larger.
    batch = buffer.sample(100)
    expected = np.where(batch.slots == 0, 1.0, 0.5)
    assert 0 < np.count_nonzero(expected == 1.0) < 100
    np.testing.assert_allclose(batch.weight, expected, rtol=1e-5)
    assert batch.weight.dtype == torch.float32


def test_weights_are_divided_by_the_highest_of_their_batch() -> None:
    buffer = filled(2, correction=0.5)
    weigh(buffer, [1.0, 4.0])
    for _ in range(50):
        assert buffer.sample(1).weight.tolist() == [1.0]


@pytest.mark.parametrize(
    ("clock", "expected"),
    [
        (None, 1.0),  # without a clock the schedule's start: an exponent of zero
        (Clock(0, 100), 1.0),
        (Clock(50, 100), 0.5),
        (Clock(100, 100), 0.25),
        (Clock(500, 100), 0.25),
    ],
)
def test_the_correction_follows_its_schedule(clock: Clock | None, expected: float) -> None:
    buffer = filled(2, correction=Schedule(initial=0.0, final=1.0))
    weigh(buffer, [1.0, 4.0])
    batch = buffer.sample(100, clock)
    np.testing.assert_allclose(batch.weight[batch.slots == 1], expected, rtol=1e-5)
    np.testing.assert_allclose(batch.weight[batch.slots == 0], 1.0)


def test_equal_errors_have_weights_of_one() -> None:
    assert filled(7, correction=1.0).sample(64).weight.tolist() == [1.0] * 64


# New and overwritten transitions.


def test_every_new_transition_counts_however_often_one_samples() -> None:
    for every in (1, 2, 3, 4):
        buffer = filled(0)
        for t in range(12):
            buffer.add(one_step(t, t + 1, first=t == 0))
            if t % every == 0:
                buffer.sample(2)
        assert weights_of(buffer) == [1.0] * 12 + [0.0]
        assert set(buffer.sample(64).obs[:, 0].tolist()) == set(range(12))


def test_new_transitions_get_the_highest_weight_so_far() -> None:
    buffer = filled(2)
    assert weights_of(buffer) == [1.0, 1.0, 0.0]
    weigh(buffer, [7.0, 0.5])
    buffer.add(one_step(2, 3))
    assert weights_of(buffer) == pytest.approx([7.0, 0.5, 7.0, 0.0], rel=1e-5)
    weigh(buffer, [0.1, 0.1, 0.1])  # the highest so far stays what it was
    buffer.add(one_step(3, 4))
    assert weights_of(buffer) == pytest.approx([0.1, 0.1, 0.1, 7.0, 0.0], rel=1e-4)


def test_overwritten_transitions_and_tails_have_no_weight() -> None:
    buffer = filled(5, capacity=4)  # five rows: transitions 0 to 4, the last into row 4 and row 0
    assert weights_of(buffer) == [0.0, 1.0, 1.0, 1.0, 1.0]
    buffer.sample(1)
    buffer.add(one_step(50, 51, first=True))  # row 0 is now a tail, and row 2 the newest
    assert weights_of(buffer) == [0.0, 1.0, 0.0, 1.0, 1.0]
    assert set(buffer.sample(64).obs[:, 0].tolist()) == {3.0, 4.0, 50.0}


def test_an_error_that_comes_after_its_transition_was_overwritten_does_not_bring_it_back() -> None:
    buffer = filled(3, capacity=3)
    slots = buffer.sample(3).slots.copy()
    buffer.add(one_step(3, 4))  # row 0 now holds the newest observation
    buffer.sample(1)
    buffer.update_priorities(slots, torch.full((3,), 9.0))
    assert weights_of(buffer)[0] == 0.0
    assert set(buffer.sample(64).obs[:, 0].tolist()) == {1.0, 2.0, 3.0}


# Saving, refusals and memory.


def test_weights_and_the_highest_of_them_are_restored() -> None:
    buffer = filled(6, exponent=0.5)
    weigh(buffer, [16.0, 0.0, 1.0])
    buffer.add(one_step(6, 7))  # not yet weighed
    resumed = PrioritizedReplayBuffer(SPEC, capacity=20, exponent=0.5, seed=99)
    resumed.load_state_dict(join(*split(buffer.state_dict())))
    assert weights_of(resumed) == pytest.approx([4, 0.001, 1, 1, 1, 1, 4, 0], rel=1e-5)
    resumed.add(one_step(7, 8))
    assert weights_of(resumed)[7] == pytest.approx(4.0)


@pytest.mark.parametrize("sampled", [True, False])
def test_loading_forgets_what_was_there(sampled: bool) -> None:
    saved, buffer = filled(2), filled(15)
    weigh(saved, [0.5, 0.25])
    if sampled:
        buffer.sample(1)  # all fifteen are weighed; else they wait for it
    buffer.load_state_dict(saved.state_dict())
    assert weights_of(buffer) == pytest.approx([0.5, 0.25, 0.0], rel=1e-5)
    assert set(buffer.sample(64).obs[:, 0].tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_an_error_that_is_not_finite_is_refused(wrong: float) -> None:
    buffer = filled(3)
    buffer.sample(1)
    before = weights_of(buffer)
    with pytest.raises(NonFiniteError, match=r"not finite.*learning rate"):
        buffer.update_priorities(np.arange(3), torch.tensor([1.0, wrong, 2.0]))
    assert weights_of(buffer) == before


def test_sampling_an_empty_buffer_is_an_error() -> None:
    with pytest.raises(UsageError, match="empty"):
        filled(0).sample(1)


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("capacity", [1, 2, 3, 100, 127, 128, 1023, 1024])
def test_no_more_memory_is_taken_than_predicted(capacity: int, num_envs: int) -> None:
    buffer = PrioritizedReplayBuffer(SPEC, capacity=capacity, num_envs=num_envs)
    predicted = PrioritizedReplayBuffer.predicted_bytes(SPEC, capacity, num_envs)
    assert buffer.nbytes <= predicted
    # Rows of 25 bytes, and a tree of twice as many numbers as its leaves, a power of two.
    slots = num_envs * ReplayBuffer.rows_per_env(capacity, num_envs)
    assert buffer.nbytes >= slots * (25 + 16)


def test_the_hyper_parameters_say_which_buffer_is_built() -> None:
    def build(**hyper: Any) -> ReplayBuffer:
        settings = DQNConfig(buffer_size=10, n_step=3, gamma=0.5, **hyper)
        return OptionallyPrioritized.build(
            SPEC, settings, num_envs=2, seed=0, device=torch.device("cpu")
        )

    assert type(build()) is ReplayBuffer
    buffer = build(prioritized=True, priority_exponent=0.7, priority_correction=0.25)
    assert isinstance(buffer, PrioritizedReplayBuffer)
    assert (buffer.exponent, buffer.correction) == (0.7, 0.25)
    assert (buffer.n_step, buffer.gamma, buffer.num_envs) == (3, 0.5, 2)
    default = build(prioritized=True)
    assert isinstance(default, PrioritizedReplayBuffer)
    assert default.correction == Schedule(initial=0.4, final=1.0)


# Any sequence of steps, samples, errors and saves, against plain lists.

GAMMA = 0.5  # so that every sum of rewards is exact
EXPONENT, CORRECTION = 0.6, 0.4


def build_kind(kind: str, seed: int, **options: Any) -> ReplayBuffer:
    if kind == "uniform":
        return ReplayBuffer(SPEC, gamma=GAMMA, seed=seed, **options)
    prioritized = {"exponent": EXPONENT, "correction": CORRECTION}
    return PrioritizedReplayBuffer(SPEC, gamma=GAMMA, seed=seed, **prioritized, **options)


def sampled_alike(buffers: list[ReplayBuffer], size: int) -> Batch:
    """A batch of the first buffer, which its restored twin gives to the last bit too."""
    batch, *others = (buffer.sample(size) for buffer in buffers)
    for other in others:
        for mine, restored in zip(batch, other, strict=True):
            assert np.asarray(mine).tobytes() == np.asarray(restored).tobytes()
    return batch


def assert_rows_are_the_models(batch: Batch, model: PlainReplay, *, prioritized: bool) -> None:
    expected, content = model.samples(), model.content()
    columns = (batch.reward, batch.discount, batch.next_obs[:, 0])
    observations = batch.obs[:, 0].tolist()
    for obs, *row in zip(observations, *(x.tolist() for x in columns), strict=True):
        assert tuple(row) == expected[obs]
    if prioritized:
        chances = np.array([content[obs].weight for obs in observations])
        importance = (chances / chances.min()) ** -CORRECTION
        assert np.abs(batch.weight.numpy() / importance - 1).max() < 1e-4
    else:
        assert batch.weight.tolist() == [1.0] * len(observations)


def assert_all_is_there(batch: Batch, model: PlainReplay, *, prioritized: bool) -> None:
    """Every transition can be drawn; as often as its weight says if there are weights."""
    counts, content = Counter(batch.obs[:, 0].tolist()), model.content()
    assert set(counts) <= set(content)
    total = sum(row.weight for row in content.values())
    for obs, row in content.items():
        if prioritized:
            assert abs(counts[obs] - row.weight / total * len(batch.obs)) < 2.001
        else:
            assert counts[obs] > 0


@pytest.mark.parametrize("kind", ["uniform", "prioritized"])
@settings(max_examples=500, deadline=None)
@given(
    num_envs=st.integers(1, 3),
    capacity=st.integers(2, 10),
    n_step=st.integers(1, 4),
    sequence=SEQUENCES,
)
def test_any_sequence_of_operations_equals_plain_lists(
    kind: str, num_envs: int, capacity: int, n_step: int, sequence: bytes
) -> None:
    prioritized, options = kind == "prioritized", {"num_envs": num_envs, "n_step": n_step}
    buffers = [build_kind(kind, 0, capacity=capacity, **options)]
    rows = ReplayBuffer.rows_per_env(capacity, num_envs)
    model = PlainReplay(rows, num_envs, n_step=n_step, exponent=EXPONENT)
    for step in played(sequence, num_envs, GAMMA):
        for buffer in buffers:
            buffer.add(step.transitions)
        for env, obs, discount, first in step.added:
            model.add(env, obs, discount, first=first)
        if step.learns and model.content():
            batch = sampled_alike(buffers, BATCH)
            assert_rows_are_the_models(batch, model, prioritized=prioritized)
            for buffer in buffers:
                buffer.update_priorities(batch.slots, torch.tensor(step.errors))
            if prioritized:
                model.weigh(batch.obs[:, 0].tolist(), step.errors)
        if step.saves:
            twin = build_kind(kind, 99, capacity=capacity, **options)
            twin.load_state_dict(join(*split(buffers[0].state_dict())))
            buffers = [buffers[0], twin]
    assert len(buffers[0]) == len(model.content())
    assert len({tree_hash(buffer.state_dict()) for buffer in buffers}) == 1
    if model.content():
        batch = sampled_alike(buffers, 400)
        assert_rows_are_the_models(batch, model, prioritized=prioritized)
        assert_all_is_there(batch, model, prioritized=prioritized)


# The tree of sums, against a plain cumulative sum.


def tree_of(weights: list[float]) -> SumTree:
    tree = SumTree(len(weights))
    tree.set(np.arange(len(weights)), np.array(weights))
    return tree


def test_masses_fall_into_the_leaf_that_holds_them() -> None:
    tree = tree_of([1.0, 0.0, 2.0, 0.5, 0.0])
    assert tree.total == 3.5
    assert tree.weights.tolist() == [1.0, 0.0, 2.0, 0.5, 0.0]
    # Leaf 0 is [0, 1), leaf 2 is [1, 3) and leaf 3 is [3, 3.5).
    masses = np.array([0.0, 0.999, 1.0, 2.999, 3.0, 3.499])
    before = masses.copy()
    assert tree.find(masses).tolist() == [0, 0, 2, 2, 3, 3]
    assert np.array_equal(masses, before)


def test_an_empty_tree_has_no_mass() -> None:
    tree = SumTree(5)
    assert tree.total == 0.0
    assert tree.weights.tolist() == [0.0] * 5


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 9])
def test_each_leaf_of_any_size_of_tree_is_found(size: int) -> None:
    tree = tree_of([1.0] * size)
    assert tree.total == size
    assert tree.find(np.arange(size) + 0.5).tolist() == list(range(size))


def test_of_an_index_that_comes_twice_the_last_counts() -> None:
    tree = tree_of([1.0, 1.0, 1.0])
    tree.set(np.array([2, 0, 2, 0, 2]), np.array([5.0, 6.0, 7.0, 8.0, 9.0]))
    assert tree.weights.tolist() == [8.0, 1.0, 9.0]
    assert tree.total == 18.0


def test_setting_does_not_change_its_arguments() -> None:
    tree, index, weights = SumTree(4), np.array([3, 1]), np.array([2.0, 5.0])
    tree.set(index, weights)
    assert index.tolist() == [3, 1]
    assert weights.tolist() == [2.0, 5.0]


def test_a_mass_that_rounding_left_over_goes_to_a_leaf_with_a_weight() -> None:
    """0.1 + 0.2 is more than 0.3: sums from below and subtractions from above do not agree."""
    tree = tree_of([0.1, 0.2, 0.3, 0.0, 0.0, 0.0])
    highest = np.array([tree.total, np.nextafter(tree.total, 0.0), np.nextafter(tree.total, 9.0)])
    assert tree.find(highest).tolist() == [2, 2, 2]
    # All is in the first leaf, and nothing to the right of it.
    tree = tree_of([0.7, 0.0, 0.0, 0.0])
    assert tree.find(np.array([0.7, np.nextafter(0.7, 1.0)])).tolist() == [0, 0]


def test_a_small_weight_among_large_ones_is_not_forgotten() -> None:
    """A running total would keep what was added and taken away; this tree sums anew."""
    tree = tree_of([1e16, 1.0])
    tree.set(np.array([0]), np.array([0.0]))
    assert tree.total == 1.0
    tree.set(np.array([0]), np.array([1e-9]))
    assert tree.total == 1.0 + 1e-9


# Weights of very different size, many of them zero.
WEIGHTS = st.one_of(st.just(0.0), st.floats(1e-9, 1e6), st.integers(1, 9).map(float))


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_sequence_of_settings_equals_a_cumulative_sum(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 70))
    tree, plain = SumTree(size), np.zeros(size)
    for _ in range(data.draw(st.integers(1, 4))):
        changes = data.draw(
            st.lists(st.tuples(st.integers(0, size - 1), WEIGHTS), min_size=1, max_size=40)
        )
        index, weights = (np.array(column) for column in zip(*changes, strict=True))
        tree.set(index, weights)
        for where, weight in changes:
            plain[where] = weight
    assert np.array_equal(tree.weights, plain)
    assert tree.total == pytest.approx(plain.sum(), rel=1e-12)
    # What is set little by little is, to the last bit, what is summed up at once.
    twin = SumTree(size)
    twin.weights[:] = plain
    twin.rebuild()
    assert np.array_equal(twin._nodes, tree._nodes)
    if not plain.any():
        return
    shares = np.array(data.draw(st.lists(st.floats(0, 1), min_size=1, max_size=20)))
    masses = np.concatenate([shares * tree.total, np.cumsum(plain) - plain, [0.0, tree.total]])
    found = tree.find(masses)
    assert (plain[found] > 0).all()
    # Each mass lies in its leaf's part of the cumulative sum, up to rounding.
    ends, slack = np.cumsum(plain), 1e-12 * plain.sum()
    assert (masses >= (ends - plain)[found] - slack).all()
    assert (masses <= ends[found] + slack).all()


@settings(max_examples=50, deadline=None)
@given(
    weights=st.lists(st.integers(0, 4).map(float), min_size=1, max_size=40).filter(any),
    per_unit=st.integers(1, 5),
)
def test_evenly_spread_masses_find_each_leaf_in_proportion(
    weights: list[float], per_unit: int
) -> None:
    tree = tree_of(weights)
    masses = (np.arange(int(tree.total) * per_unit) + 0.5) / per_unit
    counts = np.bincount(tree.find(masses), minlength=len(weights))
    assert counts.tolist() == [weight * per_unit for weight in weights]


@pytest.mark.parametrize("size", [1, 2, 3, 1000, 1024, 1025])
def test_a_tree_has_at_most_four_nodes_of_eight_bytes_for_each_weight(size: int) -> None:
    assert SumTree(size).nbytes <= 32 * size
