"""Metrics: a vector that is a mapping, and the means of the latest ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rl_training.data.metrics import (
    RECENT_UPDATES,
    JoinedMetrics,
    Metrics,
    RecentMetrics,
    mean_metrics,
)
from rl_training.errors import CheckpointError
from rl_training.storage.tree import join, split


def test_names_go_with_0_d_tensors_of_either_kind() -> None:
    for values in (np.array([1.5, 2.5], np.float32), torch.tensor([1.5, 2.5], requires_grad=True)):
        found = Metrics(("a", "b"), values)
        assert {name: float(value) for name, value in found.items()} == {"a": 1.5, "b": 2.5}
        for value in found.values():
            assert value.ndim == 0
            assert value.dtype == torch.float32
            assert not value.requires_grad
        assert len(found) == 2
        assert "c" not in found
        with pytest.raises(KeyError, match="c"):
            found["c"]
        with pytest.raises(ValueError, match=r"expected 1 numbers for .*, found 2"):
            Metrics(("a",), values)


def test_a_metric_that_is_not_detached_keeps_no_graph() -> None:
    weight = torch.tensor(3.0, requires_grad=True)
    recent = RecentMetrics()
    recent.add({"loss": weight * 2})
    assert recent.means() == {"loss": 6.0}
    assert not mean_metrics([{"loss": weight * 2}])["loss"].requires_grad


def test_the_mean_of_several_gradient_steps() -> None:
    rows = [{"a": torch.tensor(1.0), "b": torch.tensor(4.0)}]
    rows.append({"a": torch.tensor(2.0), "b": torch.tensor(8.0)})
    vectors = [Metrics(("a", "b"), np.array(x, np.float32)) for x in ([1, 4], [2, 8])]
    for found in (mean_metrics(rows), mean_metrics(vectors)):
        assert {name: float(value) for name, value in found.items()} == {"a": 1.5, "b": 6.0}


def test_means_are_over_the_latest_updates_only() -> None:
    recent = RecentMetrics()
    for number in range(RECENT_UPDATES + 50):
        recent.add(Metrics(("a", "b"), np.array([number, -1], np.float32)))
    # 50 ... 149
    assert recent.means() == {"a": 99.5, "b": -1.0}


def test_updates_may_report_different_names() -> None:
    recent = RecentMetrics()
    recent.add({"critic": torch.tensor(1.0)})
    recent.add({"critic": torch.tensor(2.0)})
    recent.add({"critic": torch.tensor(6.0), "actor": torch.tensor(5.0)})
    assert recent.means() == {"critic": 3.0, "actor": 5.0}


def test_what_is_reported_is_copied_and_may_be_a_plain_number() -> None:
    """The metric is a view of a parameter that a later update moves."""
    parameter, recent = torch.nn.Parameter(torch.tensor(1.0)), RecentMetrics()
    recent.add({"a": parameter.detach(), "b": 2.0})  # type: ignore[dict-item]
    recent.add({"c": parameter.detach()})
    parameter.data.fill_(7.0)
    assert recent.means() == {"a": 1.0, "b": 2.0, "c": 1.0}


def test_saved_numbers_go_on_where_they_stood() -> None:
    recent, again = RecentMetrics(), RecentMetrics()
    assert recent.means() == {}
    for number in range(RECENT_UPDATES):
        recent.add(Metrics(("a",), np.array([number], np.float32)))
    again.add({"b": torch.tensor(1.0)})
    again.load_state_dict(join(*split(recent.state_dict())))
    for either in (recent, again):
        either.add(Metrics(("a",), np.array([RECENT_UPDATES], np.float32)))
    assert again.means() == recent.means() == {"a": 50.5}
    with pytest.raises(CheckpointError, match="expected 2 numbers by update"):
        again.load_state_dict({"rows": {("a", "b"): torch.zeros(3, 1)}})


def test_the_parts_of_an_update_are_averaged_each_on_its_own() -> None:
    """Of four updates two had a second part: the first part's mean is over all four."""
    recent = RecentMetrics()
    for number in range(4):
        first = Metrics(("loss",), torch.tensor([float(number)]))
        second = Metrics(("other",), torch.tensor([10.0 * number]))
        joined = JoinedMetrics(first, second)
        recent.add(joined if number % 2 else first)
    assert recent.means() == {"loss": 1.5, "other": 20.0}
    assert dict(joined) == {"loss": torch.tensor(3.0), "other": torch.tensor(30.0)}
    assert len(joined) == 2
    with pytest.raises(KeyError):
        joined["none"]
