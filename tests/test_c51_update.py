"""C51's projection, loss, update and network, against numbers worked out by hand."""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from rl_training.algorithms.c51 import C51, c51_loss, project
from rl_training.config.value_based import C51Config
from rl_training.data.types import Clock
from rl_training.errors import ConfigError
from rl_training.models.mlp_categorical_q_network import MLPCategoricalQNetwork
from rounding import double_precision, rounding
from value_batches import (
    KERNELS,
    SPEC,
    START,
    accelerated,
    assert_goes_on_bit_for_bit,
    differentiated,
    make_batch,
    numbers_of,
    random_batch,
    set_outputs,
)

SUPPORT = torch.tensor([0.0, 1.0, 2.0])

# The projection.


@pytest.mark.parametrize(
    ("reward", "discount", "expected"),
    [
        (0.0, 1.0, [0.2, 0.3, 0.5]),  # each return on its own place
        (1.0, 1.0, [0.0, 0.2, 0.8]),  # on the next place; the last beyond the end
        (0.25, 1.0, [0.15, 0.275, 0.575]),  # at 0.25, 1.25 and, beyond the end, 2
        (1.0, 0.5, [0.0, 0.35, 0.65]),  # at 1, 1.5 and 2
        (-1.0, 2.0, [0.2, 0.3, 0.5]),  # at -1, 1 and 3: beyond both ends
        (99.0, 1.0, [0.0, 0.0, 1.0]),
        (-99.0, 1.0, [1.0, 0.0, 0.0]),
        (1.0, 0.0, [0.0, 1.0, 0.0]),  # terminated: the reward alone, on a place
        (1.5, 0.0, [0.0, 0.5, 0.5]),  # and between two
        (2.0, 0.0, [0.0, 0.0, 1.0]),
    ],
)
def test_returns_go_to_their_neighbours(
    reward: float, discount: float, expected: list[float]
) -> None:
    other = [0.0, 1.0, 0.0]  # a second row, which keeps to itself
    found = project(
        torch.tensor([[0.2, 0.3, 0.5], other]),
        torch.tensor([reward, 0.0]),
        torch.tensor([discount, 1.0]),
        SUPPORT,
    )
    assert_close(found, torch.tensor([expected, other]))


def test_places_are_counted_from_the_lowest_return_in_steps_of_the_spacing() -> None:
    support = torch.linspace(-10, 10, 5)
    probabilities = torch.tensor([[0.5, 0.0, 0.0, 0.0, 0.5]])
    # -10 and 10 become -2 and 8: 3/5 of the way from -5 to 0, and 3/5 of that from 5 to 10.
    found = project(probabilities, torch.tensor([3.0]), torch.tensor([0.5]), support)
    assert_close(found, torch.tensor([[0.0, 0.2, 0.3, 0.2, 0.3]]))


@settings(max_examples=200, deadline=None)
@given(
    count=st.integers(2, 60),
    v_min=st.floats(-100, 100),
    width=st.floats(0.5, 200),
    discount=st.floats(0, 1),
    where=st.floats(0, 1),
    seed=st.integers(0, 2**20),
)
def test_mass_and_mean_are_conserved_where_nothing_is_cut_off(
    count: int, v_min: float, width: float, discount: float, where: float, seed: int
) -> None:
    # discount * Z + reward lies within Z's range for every reward from lowest to highest.
    lowest, highest = v_min * (1 - discount), (v_min + width) * (1 - discount)
    reward = lowest + where * (highest - lowest)
    support = torch.linspace(v_min, v_min + width, count)
    probabilities = random_probabilities(seed, count)
    found = project(probabilities, torch.tensor([reward]), torch.tensor([discount]), support)
    found = found.double()[0]
    scale = abs(v_min) + width
    assert float(found.min()) >= 0.0
    assert float(found.sum()) == pytest.approx(1.0, abs=1e-5)
    mean = reward + discount * float(probabilities[0].double() @ support.double())
    assert float(found @ support.double()) == pytest.approx(mean, abs=1e-5 * scale)


@settings(max_examples=200, deadline=None)
@given(
    count=st.integers(2, 60),
    reward=st.floats(-50, 50),
    discount=st.floats(0, 2),
    seed=st.integers(0, 2**20),
)
def test_mass_is_conserved_and_the_mean_is_that_of_the_returns_held_within_the_ends(
    count: int, reward: float, discount: float, seed: int
) -> None:
    support, probabilities = torch.linspace(-10, 10, count), random_probabilities(seed, count)
    found = project(probabilities, torch.tensor([reward]), torch.tensor([discount]), support)
    found = found.double()[0]
    held = (reward + discount * support.double()).clip(-10, 10)
    assert float(found.sum()) == pytest.approx(1.0, abs=1e-5)
    mean = float(probabilities[0].double() @ held)
    assert float(found @ support.double()) == pytest.approx(mean, abs=2e-4)


def random_probabilities(seed: int, count: int) -> torch.Tensor:
    """A row of them, some zero."""
    rng = np.random.default_rng(seed)
    weights = rng.exponential(size=(1, count)) * (rng.random((1, count)) < 0.7)
    weights[0, rng.integers(count)] += 0.1
    return torch.from_numpy((weights / weights.sum()).astype(np.float32))


def test_a_shape_that_would_broadcast_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected \[B\], found \(2, 1\)"):
        project(torch.ones(2, 3) / 3, torch.zeros(2, 1), torch.zeros(2), SUPPORT)


# The loss of a batch: two actions, three returns.


def logs(*probabilities: Any) -> torch.Tensor:
    return torch.tensor(probabilities).log()


# Logits that are off by a constant mean the same probabilities.
LOGITS = logs([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]], [[0.8, 0.1, 0.1], [0.25, 0.25, 0.5]]) + 3
# The first action has the likeliest single return, and the second the higher mean: 1.3 over 0.15.
NEXT_LOGITS = logs([[0.9, 0.05, 0.05], [0.2, 0.3, 0.5]], [[0.4, 0.4, 0.2], [0.3, 0.3, 0.4]])
BATCH = make_batch([0, 1], [0.25, 1.5], [1.0, 0.0])
PREDICTED = ((0.5, 0.25, 0.25), (0.25, 0.25, 0.5))
TARGETS = ((0.15, 0.275, 0.575), (0.0, 0.5, 0.5))  # projected above
CROSS_ENTROPIES = (0.15 * log(2) + 0.85 * log(4), 0.5 * log(4) + 0.5 * log(2))
DIVERGENCES = (
    0.15 * log(0.15 / 0.5) + 0.275 * log(0.275 / 0.25) + 0.575 * log(0.575 / 0.25),
    0.5 * log(2),
)


def test_loss_metrics_and_priorities() -> None:
    result = c51_loss(LOGITS, NEXT_LOGITS, BATCH, SUPPORT)
    assert_close(result.value, torch.tensor(sum(CROSS_ENTROPIES) / 2))
    # Expected returns 0.75 and 1.25; targets 0.275 + 2 * 0.575 = 1.425 and 1.5. From logits of up
    # to 3 to a mean, 16 results are rounded: a softmax, its sum over returns, and a projection.
    assert numbers_of(result.metrics) == pytest.approx(
        {
            "loss": sum(CROSS_ENTROPIES) / 2,
            "q_value_mean": 1.0,
            "target_mean": (1.425 + 1.5) / 2,
            "td_error_mean": (0.675 + 0.25) / 2,
        },
        abs=rounding(16, 3),
    )
    assert_close(result.priority, torch.tensor(DIVERGENCES))


def test_importance_weights_scale_each_row_and_its_gradient_alone() -> None:
    batch = BATCH._replace(weight=torch.tensor([2.0, 0.5]))
    result, gradient = differentiated(c51_loss, LOGITS, NEXT_LOGITS, batch, SUPPORT)
    expected_loss = (2 * CROSS_ENTROPIES[0] + 0.5 * CROSS_ENTROPIES[1]) / 2
    assert_close(result.value, torch.tensor(expected_loss))
    difference = torch.tensor(PREDICTED) - torch.tensor(TARGETS)
    expected = torch.zeros(2, 2, 3)
    expected[0, 0], expected[1, 1] = 2 * difference[0] / 2, 0.5 * difference[1] / 2
    assert_close(gradient, expected)
    assert_close(result.priority, torch.tensor(DIVERGENCES))


def test_a_selector_chooses_the_action_and_the_target_network_values_it() -> None:
    # The first action: 0.25 + (0, 1, 2) with 0.9, 0.05, 0.05, the last held at 2: mean 0.3875.
    selector = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    result = c51_loss(LOGITS, NEXT_LOGITS, BATCH, SUPPORT, selector=selector)
    mean = 0.9 * 0.25 + 0.05 * 1.25 + 0.05 * 2
    assert numbers_of(result.metrics)["target_mean"] == pytest.approx(
        (mean + 1.5) / 2, abs=rounding(16, 3)
    )


def test_the_next_state_of_a_terminated_row_does_not_count() -> None:
    other = NEXT_LOGITS.clone()
    other[1] = torch.tensor([[-50.0, 0.0, 50.0], [50.0, 0.0, 0.0]])
    found, expected = (
        differentiated(c51_loss, LOGITS, x, BATCH, SUPPORT) for x in (other, NEXT_LOGITS)
    )
    assert_close(found[0].value, expected[0].value)
    assert_close(found[1], expected[1])


def test_the_priority_is_zero_where_the_prediction_is_the_target() -> None:
    logits = torch.zeros(3, 2, 3)
    logits[0, 0] = torch.tensor(TARGETS[0]).log()
    logits[1, 1] = torch.tensor([-200.0, 0.0, 0.0])  # a probability that rounds to zero
    logits[2, 0] = torch.tensor([-200.0, -200.0, 200.0])
    next_logits = torch.cat([NEXT_LOGITS, NEXT_LOGITS[:1]])
    batch = make_batch([0, 1, 0], [0.25, 1.5, 2.0], [1.0, 0.0, 0.0])
    result, gradient = differentiated(c51_loss, logits, next_logits, batch, SUPPORT)
    # Logarithms of up to 2, and of each an exponential, a division and a sum of three.
    assert_close(result.priority, torch.zeros(3), atol=rounding(8, 2), rtol=0)
    assert_close(gradient, torch.zeros(3, 2, 3), atol=rounding(8, 2), rtol=0)


def test_rounding_makes_no_priority_negative() -> None:
    rows = 300
    logits = torch.randn(rows, 2, 51, generator=torch.Generator().manual_seed(0))
    batch = make_batch([0] * rows, [0.0] * rows, [1.0] * rows)
    selector = torch.tensor([[1.0, 0.0]] * rows)  # so that each row is its own target
    support = torch.linspace(-25, 25, 51)
    found = c51_loss(logits, logits, batch, support, selector=selector).priority
    # The difference of two sums of 51 terms, which add up to log 51 < 4 at most. The probabilities
    # in them are shares of 1, divided by another such sum.
    assert 0.0 <= float(found.min()) <= float(found.max()) < rounding(51 + 8, 4 + 1)


@pytest.mark.parametrize("count", [2, 3, 51])
def test_the_target_carries_no_gradient(count: int) -> None:
    logits = torch.randn(50, 4, count, requires_grad=True)
    next_logits = torch.randn(50, 4, count, requires_grad=True)
    support = torch.linspace(-4, 3, count)
    result = c51_loss(logits, next_logits, random_batch(0, 50, 4), support)
    assert result.priority is not None
    assert not result.priority.requires_grad
    assert not any(value.requires_grad for value in result.metrics.values())
    result.value.backward()
    assert logits.grad is not None
    assert logits.grad.any()
    assert next_logits.grad is None


# The update: two actions, the returns -1, 0 and 1.


def make(outputs: Any = 0.0, *, kernels: bool = False, **hyper: Any) -> C51:
    """A layer whose weights are the logits."""
    network = MLPCategoricalQNetwork(1, 2, 3, ())
    set_outputs(network, torch.as_tensor(outputs).expand(2, 3))
    settings = {"num_atoms": 3, "v_min": -1, "v_max": 1, "learning_rate": 0.01} | hyper
    c51 = C51(network, C51Config(**settings), SPEC)
    return accelerated(c51) if kernels else c51


@KERNELS
def test_two_adam_steps_by_hand(kernels: bool) -> None:
    c51 = make(kernels=kernels)
    result = c51.update(make_batch([0], [1.0], [0.0]), START)
    # The prediction is 1/3 each, the target all on the last: cross-entropy and divergence log 3.
    expected = {"loss": log(3), "q_value_mean": 0.0, "target_mean": 1.0, "td_error_mean": 1.0}
    assert numbers_of(result.metrics) == pytest.approx(expected, abs=1e-6)
    assert result.gradient_steps == 1
    np.testing.assert_allclose(result.priorities, [log(3)], rtol=1e-5)
    # Adam's first step is the learning rate against the sign, here of 1/3, 1/3 and -2/3.
    weight, bias = (p.detach().flatten() for p in c51.model.parameters())
    assert_close(weight, torch.tensor([-0.01, -0.01, 0.01, 0.0, 0.0, 0.0]))
    assert_close(bias, weight)
    # Then all on the first. The logits are now -0.02, -0.02 and 0.02.
    powers = np.exp([-0.02, -0.02, 0.02])
    first, second = np.array([1, 1, -2]) / 3, powers / powers.sum() - [1, 0, 0]
    c51.update(make_batch([0], [-1.0], [0.0]), START)
    mean = (0.09 * first + 0.1 * second) / (1 - 0.9**2)
    square = (0.000999 * first**2 + 0.001 * second**2) / (1 - 0.999**2)
    steps = 0.01 * np.array([-1, -1, 1]) - 0.01 * mean / np.sqrt(square)
    np.testing.assert_allclose(weight[:3], steps, rtol=1e-4)
    assert weight[3:].tolist() == [0.0, 0.0, 0.0]


@KERNELS
@pytest.mark.parametrize("double", [False, True])
def test_the_target_network_values_the_action_that_it_or_the_online_one_prefers(
    double: bool, kernels: bool
) -> None:
    # By the likeliest single return and by the online network the first action is the better one;
    # by the target network's expected return the second: 0.4 over 0.1.
    c51 = make([[-9.0, -9.0, 9.0], [0.0, 0.0, 0.0]], double=double, kernels=kernels)
    set_outputs(c51.target.module, logs([0.45, 0.0001, 0.5499], [0.05, 0.5, 0.45]))
    result = c51.update(make_batch([1], [0.25], [0.5]), START)
    mean = 0.25 + 0.5 * (0.0999 if double else 0.4)
    # Of returns within 1: a softmax, its sum over three returns, and a projection.
    found = numbers_of(result.metrics)
    assert found["target_mean"] == pytest.approx(mean, abs=rounding(16))
    assert found["q_value_mean"] == pytest.approx(0.0, abs=rounding(16))
    assert found["td_error_mean"] == pytest.approx(mean, abs=rounding(16))


@KERNELS
def test_the_target_network_is_copied_when_an_interval_has_passed(kernels: bool) -> None:
    c51 = make(target_update_interval=10, kernels=kernels)
    obs, batch = torch.ones(1, 1), make_batch([0], [1.0], [0.0])
    c51.update(batch, Clock(9, 100))
    assert not c51.target.module(obs).any()
    c51.update(batch, Clock(12, 100))
    assert torch.equal(c51.target.module(obs), c51.model(obs))
    assert c51.model(obs).any()


@KERNELS
def test_state_round_trip_continues_bit_for_bit(kernels: bool) -> None:
    def build() -> C51:
        hyper = C51Config(num_atoms=5, v_min=-3, v_max=4, target_update_interval=3)
        c51 = C51(MLPCategoricalQNetwork.build(SPEC, hyper), hyper, SPEC)
        return accelerated(c51) if kernels else c51

    assert_goes_on_bit_for_bit(build)


@KERNELS
def test_acting_is_greedy_by_the_expected_return(kernels: bool) -> None:
    likely, better = [0.45, 0.0001, 0.5499], [0.05, 0.5, 0.45]
    c51 = make(logs(likely, better), kernels=kernels)
    obs, first = np.ones((2, 1), np.float32), np.zeros(2, np.bool_)
    assert c51.act(obs, (), first, START, explore=False).action.tolist() == [1, 1]


# The network and the hyper-parameters.


@pytest.mark.parametrize("dueling", [False, True])
@double_precision()
def test_the_network_gives_logits_and_acts_by_the_expected_return(dueling: bool) -> None:
    network = MLPCategoricalQNetwork(3, 4, 7, (16, 16), dueling=dueling)
    obs = 5 * torch.randn(20, 3)
    logits = network(obs)
    assert logits.shape == (20, 4, 7)
    expected = (logits.softmax(-1) * (-2 + 7 * torch.arange(7) / 6)).sum(-1).argmax(-1)
    assert torch.equal(network.act(obs), expected)


def test_a_network_of_the_wrong_shape_is_refused() -> None:
    hyper = C51Config(num_atoms=3)
    with pytest.raises(ConfigError, match=r"expected \(batch, 2, 3\) .* found \(1, 2, 4\)"):
        C51(MLPCategoricalQNetwork(1, 2, 4), hyper, SPEC)
    with pytest.raises(ConfigError, match=r"expected \(batch, 2, 3\) .* found \(1, 6\)"):
        C51(nn.Linear(1, 6), hyper, SPEC)


@pytest.mark.parametrize(
    ("v_min", "v_max"),
    [(1.0, 1.0), (2.0, -2.0), (10.0, 10.0), (999_990.0, 1e6), (-1e6, -999_510.0)],
)
def test_ends_the_wrong_way_round_are_refused(v_min: float, v_max: float) -> None:
    with pytest.raises(ValueError, match=f"v_min below v_max, .* found {v_min} and {v_max}"):
        C51Config(v_min=v_min, v_max=v_max)


def test_ends_just_far_enough_apart_are_taken() -> None:
    # 51 returns from 999,490 to 1,000,000 are 10.2 apart, and 1e-5 of the largest is 10.
    assert C51Config(v_min=999_490.0, v_max=1e6).v_min == 999_490


@pytest.mark.parametrize(
    "wrong", [{"num_atoms": 1}, {"num_atoms": 0}, {"v_min": float("nan")}, {"v_max": float("inf")}]
)
def test_fewer_than_two_returns_and_ends_that_are_no_numbers_are_refused(
    wrong: dict[str, float],
) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        C51Config(**wrong)


# Targets beyond the support.


@KERNELS
def test_targets_beyond_the_support_are_named_with_the_range_they_need(kernels: bool) -> None:
    c51 = make(v_min=0, v_max=2, gamma=0.9, kernels=kernels)
    set_outputs(c51.target.module, torch.tensor([[-99.0, -99.0, 99.0]] * 2))  # all at 2
    batch = make_batch([0, 1], [3.0, 1.0], [0.9, 0.0])
    # The first target is 3 + 0.9 * 2 = 4.8, beyond the end by 2.8; the second is 1. The mean, 1.4,
    # is more than the distance of two atoms, 1.
    episodes = [(100.0, 100), (-6.0, 2)]  # 1 a step: 10 (1 - 0.9^100); -3 a step: -3 - 2.7
    text = c51.trouble(batch, episodes)
    assert text.startswith("targets fall outside C51's support, 0 to 2, and are clipped by 1.4 ")
    assert "The episodes so far need about -5.7 to 10: set algo_kwargs.v_min and" in text
    assert c51.trouble(make_batch([0, 1], [1.0, 0.0], [0.9, 0.9]), episodes) == ""  # 0.8 / 2
