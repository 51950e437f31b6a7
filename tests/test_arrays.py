"""Every function gives the same numbers for a tensor and for the array of it, in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rl_training.algorithms.functional.gae import explained_variance, gae
from rl_training.algorithms.functional.surrogate import normalized
from rl_training.data import arrays
from rl_training.data.arrays import HostView

NUMBERS = st.floats(-100, 100, width=32)
TABLES = hnp.arrays(
    np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9), elements=NUMBERS
)


def summed(x: Any) -> Any:
    out = np.empty(x.shape[1], np.float32)
    arrays.add_up(x, out=out if isinstance(x, np.ndarray) else torch.from_numpy(out))
    return out if isinstance(x, np.ndarray) else torch.from_numpy(out)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "row_max": arrays.row_max,
    "add_up": summed,
    "means": lambda x: arrays.means(x[:, 0], x[:, -1], 2 * x[:, 0]),
    "as_float": lambda x: arrays.as_float(x > 0),
    "constant": arrays.constant,
    "log_softmax": arrays.log_softmax,
    "rows_of": lambda x: x[arrays.rows_of(x), 0 * arrays.rows_of(x)],
    "like": lambda x: arrays.like(torch.ones(3), x) + x[0, 0],
    "namespace": lambda x: arrays.namespace(x).exp(x / 100),
    "normalized": lambda x: normalized(x[:, 0]),
    "explained_variance": lambda x: explained_variance(x[:, 0], x[:, -1]),
    "gae": lambda x: gae(
        x, x + 1, 2 * x, 0.9 * arrays.as_float(x > 0), 0.5 * arrays.as_float(x < 9)
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=40, deadline=None)
@given(table=TABLES)
def test_a_tensor_and_the_array_of_it_give_the_same_numbers(name: str, table: np.ndarray) -> None:
    before = table.copy()
    found, expected = FUNCTIONS[name](table), FUNCTIONS[name](torch.from_numpy(table))
    assert isinstance(expected, torch.Tensor)
    assert not isinstance(found, torch.Tensor)
    assert found.dtype == np.float32
    assert expected.dtype == torch.float32
    assert found.shape == expected.shape
    # A table of one number many times over has a variance of rounding errors alone.
    tolerance = 2e-3 if name in ("normalized", "explained_variance") else 1e-5
    if name not in ("normalized", "explained_variance") or table.std(0).min() > 0.1:
        np.testing.assert_allclose(found, expected.numpy(), rtol=tolerance, atol=tolerance)
    assert np.array_equal(table, before)


def test_the_functions_by_hand() -> None:
    table = np.array([[1, 5, 2], [4, 3, 0]], np.float32)
    assert arrays.row_max(table).tolist() == [5, 4]
    assert summed(table).tolist() == [5, 8, 2]
    assert arrays.means(table[0], table[1]).tolist() == pytest.approx([8 / 3, 7 / 3])
    assert table[arrays.rows_of(table), np.array([2, 0])].tolist() == [2, 4]
    assert arrays.as_float(table > 2).tolist() == [[0, 1, 0], [1, 1, 0]]
    halves = arrays.log_softmax(np.zeros((1, 2), np.float32))
    assert np.exp(halves).tolist() == [[pytest.approx(0.5)] * 2]


def test_a_softmax_of_large_numbers_stays_finite() -> None:
    logits = np.array([[1e4, 0, -1e4]], np.float32)
    assert arrays.log_softmax(logits).tolist() == [[0.0, -1e4, -2e4]]


def test_a_softmax_is_the_exponential_of_its_logarithm() -> None:
    logits = np.array([[0.0, np.log(3.0)], [1e4, -1e4]], np.float32)
    for x in (logits, torch.from_numpy(logits)):
        assert np.allclose(arrays.softmax(x), [[0.25, 0.75], [1.0, 0.0]])


def test_values_add_up_at_their_index() -> None:
    index, values = np.array([2, 0, 2]), np.array([1.0, 2.0, 4.0], np.float32)
    for kind in (np.asarray, torch.from_numpy):
        sums = arrays.sums_by_index(kind(index), kind(values), 4)
        assert sums.tolist() == [2.0, 0.0, 5.0, 0.0]
        assert str(sums.dtype).endswith("float32")


def test_an_index_is_rounded_towards_zero() -> None:
    for x in (np.array([0.0, 1.9, 2.0], np.float32), torch.tensor([0.0, 1.9, 2.0])):
        assert arrays.as_index(x).tolist() == [0, 1, 2]


def test_gradients_stop_where_a_constant_is_asked_for() -> None:
    weight = torch.ones(2, requires_grad=True)
    assert not arrays.constant(weight).requires_grad
    assert not arrays.like(weight, torch.ones(1)).requires_grad
    assert isinstance(arrays.like(weight, np.ones(1, np.float32)), np.ndarray)


class Pair(NamedTuple):
    """A record as batches and rollouts are."""

    first: Any
    second: Any


def test_a_host_view_follows_changed_contents_and_other_tensors() -> None:
    view, rows = HostView(), Pair(torch.zeros(2), np.arange(2))
    seen = view.of(rows)
    assert isinstance(seen, Pair)
    assert isinstance(seen.first, np.ndarray)
    assert seen.second is rows.second
    rows.first.fill_(7.0)  # the same tensor with other contents, as replay gives it
    assert view.of(rows).first.tolist() == [7, 7]
    assert view.of(rows).first is seen.first
    for other in (Pair(rows.first, np.ones(2)), Pair(torch.ones(2), rows.second)):
        found = view.of(other)
        assert found.first.tolist() == other.first.tolist()
        assert found.second is other.second
    assert view.of(rows).first.tolist() == [7, 7]


def test_a_host_view_is_not_fooled_by_a_tensor_at_the_address_of_an_old_one() -> None:
    view = HostView()
    for number in range(50):  # each is free, and its memory used again, once the next is seen
        assert view.of(Pair(torch.full((3,), float(number)), None)).first.tolist() == [number] * 3


def test_a_host_view_tells_records_of_different_length_apart() -> None:
    class One(NamedTuple):
        first: Any

    view, tensor = HostView(), torch.ones(1)
    assert len(view.of(Pair(tensor, tensor))) == 2
    assert view.of(One(tensor)) == One(np.ones(1, np.float32))
