"""QR-DQN's loss, update and network, against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from rl_training.algorithms.functional.quantile import midpoints, quantile_huber_loss
from rl_training.algorithms.qr_dqn import QRDQN, qr_dqn_loss
from rl_training.config.value_based import QRDQNConfig
from rl_training.data.types import Clock
from rl_training.errors import ConfigError
from rl_training.models.mlp_qr_q_network import MLPQRQNetwork
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

# The loss of a row.


def rows_and_gradient(quantiles: Any, samples: Any) -> tuple[Tensor, Tensor]:
    """The rows' losses, and the gradient of each row's with respect to its quantiles."""
    quantiles = torch.as_tensor(quantiles).clone().requires_grad_()
    rows = quantile_huber_loss(quantiles, torch.as_tensor(samples))
    return rows.detach(), torch.autograd.grad(rows.sum(), quantiles)[0]


def test_quantiles_stand_at_the_middles_of_equal_shares() -> None:
    assert midpoints(2).tolist() == [0.25, 0.75]
    assert midpoints(4).tolist() == [0.125, 0.375, 0.625, 0.875]


def test_as_many_samples_as_quantiles() -> None:
    # Shares 1/4 and 3/4. Errors (sample - quantile) of the first: 1 and 3, both above, with Huber
    # losses 0.5 and 2.5; of the second: -1 and 1, with 0.5 each.
    # First: 1/4 (0.5 + 2.5) = 0.75. Second: (1 - 3/4) 0.5 + 3/4 0.5 = 0.5. Sum 1.25, two samples.
    rows, gradient = rows_and_gradient([[0.0, 2.0]], [[1.0, 3.0]])
    assert_close(rows, torch.tensor([0.625]))
    # The slopes are 1, 1 and -1, 1: -(1/4 * 2) / 2, and -(-1/4 + 3/4) / 2.
    assert_close(gradient, torch.tensor([[-0.25, -0.25]]))


def test_more_samples_than_quantiles() -> None:
    # As above with a third sample at -0.5. Errors -0.5 (Huber 0.125) and -2.5 (Huber 2), below:
    # First: 0.75 + 3/4 * 0.125 = 0.84375. Second: 0.5 + 1/4 * 2 = 1. Sum 1.84375, three samples.
    rows, gradient = rows_and_gradient([[0.0, 2.0]], [[1.0, 3.0, -0.5]])
    assert_close(rows, torch.tensor([1.84375 / 3]))
    # Slopes 1, 1, -0.5 and -1, 1, -1: -(0.5 - 3/4 * 0.5) / 3, and -(0.5 - 1/4) / 3.
    assert_close(gradient, torch.tensor([[-0.125 / 3, -0.25 / 3]]))


def test_fewer_samples_than_quantiles() -> None:
    # Shares 1/6, 1/2, 5/6. The third quantile's errors are -4 and -2: Huber 3.5 and 1.5.
    # 1/6 (0.5 + 2.5) + 1/2 (0.5 + 0.5) + (1 - 5/6) (3.5 + 1.5) = 1/2 + 1/2 + 5/6, two samples.
    rows, gradient = rows_and_gradient([[0.0, 2.0, 5.0]], [[1.0, 3.0]])
    assert_close(rows, torch.tensor([11 / 12]))
    assert_close(gradient, torch.tensor([[-1 / 6, 0.0, 1 / 6]]))


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_the_gradient_is_zero_at_the_true_quantiles_of_a_sample(count: int) -> None:
    """Twice as many samples as quantiles, ten apart, and each quantile between two of them.

    Every error is beyond 1, so a slope is +1 or -1 and counts decide. Quantile i of N, with the
    share (2i + 1) / 2N, has 2i + 1 samples below it and 2N - 2i - 1 above: share * above equals
    (1 - share) * below.
    """
    samples = 10 * torch.arange(2 * count, dtype=torch.float32)
    samples = samples[torch.randperm(2 * count)][None]  # their order does not matter
    true = 5 + 20 * torch.arange(count, dtype=torch.float32)[None]
    assert_close(rows_and_gradient(true, samples)[1], torch.zeros(1, count))
    # One sample further up, one more is below: the slope is 1 over the number of samples.
    for distance, slope in ((10.0, 1.0), (-10.0, -1.0)):
        _, gradient = rows_and_gradient(true + distance, samples)
        assert_close(gradient, torch.full((1, count), slope / (2 * count)))


def test_samples_of_another_batch_size_are_refused() -> None:
    with pytest.raises(ValueError, match="with B = 2"):
        quantile_huber_loss(torch.zeros(2, 3), torch.zeros(1, 3))


# The loss of a batch: two actions, two quantiles, three samples.

QUANTILES = torch.tensor([[[0.0, 2.0], [70.0, 80.0]], [[90.0, 60.0], [0.0, 2.0]]])
# The first action has the highest single quantile and the second the highest mean, 1/3 over -1.
NEXT_QUANTILES = torch.tensor([[[9.0, -6.0, -6.0], [0.0, 4.0, -3.0]], [[50.0] * 3, [40.0] * 3]])
BATCH = make_batch([0, 1], [1.0, 2.0], [0.5, 0.0])
# Row 0: samples 1 + (0, 4, -3) / 2 = (1, 3, -0.5), as above. Row 1 is terminated: three times 2, so
# its errors are 2 (Huber 1.5, share 1/4) and 0: a loss of 0.375.
ROW_LOSSES = (1.84375 / 3, 0.375)


def test_loss_metrics_and_priorities() -> None:
    result = qr_dqn_loss(QUANTILES, NEXT_QUANTILES, BATCH)
    assert_close(result.value, torch.tensor(sum(ROW_LOSSES) / 2))
    # Means of the quantiles: 1 and 1; of the samples: 3.5 / 3 and 2.
    assert numbers_of(result.metrics) == pytest.approx(
        {
            "loss": sum(ROW_LOSSES) / 2,
            "q_value_mean": 1.0,
            "target_mean": (3.5 / 3 + 2) / 2,
            "td_error_mean": (0.5 / 3 + 1) / 2,
        },
        abs=rounding(3 + 2 + 2, 2),  # means of three and of two numbers within 2, and a difference
    )
    assert_close(result.priority, torch.tensor([0.5 / 3, 1.0]))


def test_importance_weights_scale_each_row_and_its_gradient_alone() -> None:
    batch = BATCH._replace(weight=torch.tensor([2.0, 0.5]))
    result, gradient = differentiated(qr_dqn_loss, QUANTILES, NEXT_QUANTILES, batch)
    assert_close(result.value, torch.tensor((2 * ROW_LOSSES[0] + 0.5 * ROW_LOSSES[1]) / 2))
    expected = torch.zeros(2, 2, 2)
    expected[0, 0] = 2 * torch.tensor([-0.125 / 3, -0.25 / 3]) / 2
    expected[1, 1] = 0.5 * torch.tensor([-0.25, 0.0]) / 2
    assert_close(gradient, expected)
    assert_close(result.priority, torch.tensor([0.5 / 3, 1.0]))


def test_a_selector_chooses_the_action_and_the_target_network_values_it() -> None:
    # The first action's samples: 1 + (9, -6, -6) / 2, of mean 0.5; the terminated row stays at 2.
    selector = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    result = qr_dqn_loss(QUANTILES, NEXT_QUANTILES, BATCH, selector=selector)
    assert numbers_of(result.metrics)["target_mean"] == pytest.approx((0.5 + 2) / 2)


def test_the_next_state_of_a_terminated_row_does_not_count() -> None:
    other = NEXT_QUANTILES.clone()
    other[1] = torch.tensor([[-3e4] * 3, [7e4] * 3])
    found, expected = (
        differentiated(qr_dqn_loss, QUANTILES, x, BATCH) for x in (other, NEXT_QUANTILES)
    )
    assert torch.equal(found[0].value, expected[0].value)
    assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize(("count", "samples"), [(7, 7), (7, 11)])
def test_the_target_carries_no_gradient(count: int, samples: int) -> None:
    quantiles = torch.randn(50, 4, count, requires_grad=True)
    next_quantiles = torch.randn(50, 4, samples, requires_grad=True)
    result = qr_dqn_loss(quantiles, next_quantiles, random_batch(0, 50, 4))
    assert result.priority is not None
    assert not result.priority.requires_grad
    assert not any(value.requires_grad for value in result.metrics.values())
    result.value.backward()
    assert quantiles.grad is not None
    assert quantiles.grad.any()
    assert next_quantiles.grad is None


# The update.


def make(outputs: Any = 0.0, *, kernels: bool = False, **hyper: Any) -> QRDQN:
    """Two actions with two quantiles each: a layer whose weights are the quantiles."""
    network = MLPQRQNetwork(1, 2, 2, ())
    set_outputs(network, torch.as_tensor(outputs).expand(2, 2))
    settings = {"num_quantiles": 2, "learning_rate": 0.01} | hyper
    qr_dqn = QRDQN(network, QRDQNConfig(**settings), SPEC)
    return accelerated(qr_dqn) if kernels else qr_dqn


@KERNELS
def test_two_adam_steps_by_hand(kernels: bool) -> None:
    qr_dqn = make(kernels=kernels)
    result = qr_dqn.update(make_batch([0], [8.0], [0.0]), START)
    # Both samples lie 8 above both quantiles: Huber 7.5, times 1/4 and 3/4.
    expected = {"loss": 7.5, "q_value_mean": 0.0, "target_mean": 8.0, "td_error_mean": 8.0}
    assert numbers_of(result.metrics) == pytest.approx(expected)
    assert result.gradient_steps == 1
    assert result.priorities.tolist() == [8.0]
    # Adam's first step is the learning rate against the sign, here of -1/4 and -3/4.
    weight, bias = (p.detach().flatten() for p in qr_dqn.model.parameters())
    assert_close(weight, torch.tensor([0.01, 0.01, 0.0, 0.0]))
    assert_close(bias, weight)
    # Then samples far below: the gradients are 3/4 and 1/4.
    result = qr_dqn.update(make_batch([0], [-8.0], [0.0]), START)
    np.testing.assert_allclose(result.priorities, [8.02], rtol=rounding(1))
    first, second = np.array([-0.25, -0.75]), np.array([0.75, 0.25])
    mean = (0.09 * first + 0.1 * second) / (1 - 0.9**2)
    square = (0.000999 * first**2 + 0.001 * second**2) / (1 - 0.999**2)
    steps = 0.01 - 0.01 * mean / np.sqrt(square)
    np.testing.assert_allclose(weight[:2], steps, rtol=1e-4)
    assert weight[2:].tolist() == [0.0, 0.0]


@KERNELS
@pytest.mark.parametrize("double", [False, True])
def test_the_target_network_values_the_action_that_it_or_the_online_one_prefers(
    double: bool, kernels: bool
) -> None:
    # By single quantiles and by the online network the first action is the better one; by the mean
    # of the target network's quantiles the second: 2 over 1.
    qr_dqn = make([[9.0, 9.0], [0.0, 0.0]], double=double, kernels=kernels)
    set_outputs(qr_dqn.target.module, [[9.0, -7.0], [1.5, 2.5]])
    result = qr_dqn.update(make_batch([1], [1.0], [0.5]), START)
    mean = 1 + 0.5 * (1 if double else 2)
    assert numbers_of(result.metrics)["target_mean"] == pytest.approx(mean)
    assert numbers_of(result.metrics)["q_value_mean"] == 0.0
    assert result.priorities.tolist() == [mean]


@KERNELS
def test_the_target_network_is_copied_when_an_interval_has_passed(kernels: bool) -> None:
    qr_dqn = make(target_update_interval=10, kernels=kernels)
    obs, batch = torch.ones(1, 1), make_batch([0], [8.0], [0.0])
    qr_dqn.update(batch, Clock(9, 100))
    assert not qr_dqn.target.module(obs).any()
    qr_dqn.update(batch, Clock(12, 100))
    assert torch.equal(qr_dqn.target.module(obs), qr_dqn.model(obs))
    assert qr_dqn.target.module(obs)[0, 0].tolist() == pytest.approx([0.04, 0.04], rel=1e-3)


@KERNELS
def test_state_round_trip_continues_bit_for_bit(kernels: bool) -> None:
    def build() -> QRDQN:
        hyper = QRDQNConfig(num_quantiles=5, target_update_interval=3)
        qr_dqn = QRDQN(MLPQRQNetwork(1, 2, 5, (8,)), hyper, SPEC)
        return accelerated(qr_dqn) if kernels else qr_dqn

    assert_goes_on_bit_for_bit(build)


@KERNELS
def test_acting_is_greedy_by_the_mean(kernels: bool) -> None:
    qr_dqn = make([[9.0, -7.0], [1.5, 2.5]], kernels=kernels)
    obs, first = np.array([[1.0], [-1.0]], np.float32), np.zeros(2, np.bool_)
    assert qr_dqn.act(obs, (), first, START, explore=False).action.tolist() == [1, 0]


# The network and the hyper-parameters.


@pytest.mark.parametrize("dueling", [False, True])
@double_precision()
def test_the_network_gives_quantiles_per_action_and_acts_by_their_mean(dueling: bool) -> None:
    network = MLPQRQNetwork(3, 4, 7, (16, 16), dueling=dueling)
    obs = torch.randn(5, 3)
    quantiles = network(obs)
    assert quantiles.shape == (5, 4, 7)
    assert torch.equal(network.act(obs), quantiles.mean(-1).argmax(-1))


def test_the_actions_of_the_network_by_hand() -> None:
    network = MLPQRQNetwork(1, 2, 3, ())
    set_outputs(network, [[9.0, -6.0, -6.0], [0.0, 4.0, -3.0]])
    assert network(torch.ones(1, 1)).tolist() == [[[9.0, -6.0, -6.0], [0.0, 4.0, -3.0]]]
    assert network.act(torch.tensor([[1.0], [-1.0]])).tolist() == [1, 0]


def test_the_network_is_built_as_the_hyper_parameters_size_it() -> None:
    hyper = QRDQNConfig(num_quantiles=6, hidden_sizes=(5,))
    assert MLPQRQNetwork.build(SPEC, hyper)(torch.zeros(3, 1)).shape == (3, 2, 6)


def test_a_network_of_the_wrong_shape_is_refused() -> None:
    hyper = QRDQNConfig(num_quantiles=3)
    with pytest.raises(ConfigError, match=r"expected \(batch, 2, 3\) .* found \(1, 2, 4\)"):
        QRDQN(MLPQRQNetwork(1, 2, 4, (8,)), hyper, SPEC)
    with pytest.raises(ConfigError, match=r"expected \(batch, 2, 3\) .* found \(1, 6\)"):
        QRDQN(nn.Linear(1, 6), hyper, SPEC)


@pytest.mark.parametrize("wrong", [0, -1, 10_001, 2.5, None, "many"])
def test_a_number_of_quantiles_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="num_quantiles"):
        QRDQNConfig(num_quantiles=wrong)


def test_the_default_is_the_papers_number_of_quantiles() -> None:
    assert QRDQNConfig().num_quantiles == 200
