"""The tree of sums against a plain cumulative sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.data.sum_tree import SumTree


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
