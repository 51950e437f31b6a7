"""DQN's loss, update, target network and exploration, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from rl_training.algorithms.base import UpdateResult
from rl_training.algorithms.dqn import DQN, dqn_loss, td_target
from rl_training.config.value_based import DQNConfig
from rl_training.data.types import Clock, EnvSpec, expect_shapes
from rl_training.errors import ConfigError
from rl_training.models.mlp_q_network import MLPQNetwork
from rounding import double_precision
from value_batches import KERNELS, accelerated, assert_goes_on_bit_for_bit, make_batch

SPEC = EnvSpec(env_id="toy", obs_shape=(1,), action_kind="discrete", num_actions=2)
START = Clock(env_steps=0, horizon=100)


class TwoWeights(nn.Module):
    """Q-values w * obs: two weights, no bias, so that a step can be followed by hand."""

    def __init__(self, start: float = 0.0) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2, bias=False)
        nn.init.constant_(self.layer.weight, start)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.layer(obs)

    @property
    def weights(self) -> list[float]:
        return self.layer.weight[:, 0].tolist()


Q = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
NEXT_Q = torch.tensor([[5.0, 6.0], [7.0, 8.0]])


def test_loss_is_the_mean_huber_error_and_metrics_describe_it() -> None:
    # Targets: 1 + 0.9 * 6 = 6.4 and 0.5 + 0 = 0.5; values 1 and 4; errors 5.4 and -3.5.
    batch = make_batch([0, 1], [1.0, 0.5], [0.9, 0.0])
    result = dqn_loss(Q, NEXT_Q, batch)
    assert_close(result.value, torch.tensor((4.9 + 3.0) / 2))
    assert_close(result.priority, torch.tensor([5.4, 3.5]))
    expected = {"loss": 3.95, "q_value_mean": 2.5, "target_mean": 3.45, "td_error_mean": 4.45}
    assert set(result.metrics) == set(expected)
    for name, value in expected.items():
        assert_close(result.metrics[name], torch.tensor(value))
        assert not result.metrics[name].requires_grad


def test_importance_weights_scale_each_row() -> None:
    batch = make_batch([0, 1], [1.0, 0.5], [0.9, 0.0], weight=[2.0, 0.5])
    assert_close(dqn_loss(Q, NEXT_Q, batch).value, torch.tensor((2 * 4.9 + 0.5 * 3.0) / 2))


def test_squared_loss_is_half_the_mean_square() -> None:
    batch = make_batch([0, 1], [1.0, 0.5], [0.9, 0.0])
    loss = dqn_loss(Q, NEXT_Q, batch, kind="mse").value
    assert_close(loss, torch.tensor((0.5 * 5.4**2 + 0.5 * 3.5**2) / 2))


def test_double_q_learning_takes_the_online_choice_and_the_target_value() -> None:
    # The online network prefers action 0 in row 0, so the target is 1 + 0.9 * 5 = 5.5.
    selector = torch.tensor([[9.0, 1.0], [0.0, 1.0]])
    batch = make_batch([0, 1], [1.0, 0.5], [0.9, 0.0])
    assert_close(dqn_loss(Q, NEXT_Q, batch, selector=selector).value, torch.tensor((4.0 + 3.0) / 2))


def test_gradient_reaches_only_the_chosen_actions_and_never_the_target() -> None:
    q = Q.clone().requires_grad_()
    next_q = NEXT_Q.clone().requires_grad_()
    result = dqn_loss(q, next_q, make_batch([0, 1], [1.0, 0.5], [0.9, 0.0]))
    result.value.backward()
    # Beyond 1 the Huber gradient is the sign of the error; the batch mean halves it.
    assert_close(q.grad, torch.tensor([[-0.5, 0.0], [0.0, 0.5]]))
    assert next_q.grad is None


def test_a_shape_that_would_broadcast_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected \[B\], found \(2, 1\)"):
        td_target(torch.zeros(2), torch.zeros(2, 1), NEXT_Q, NEXT_Q)
    with pytest.raises(ValueError, match="with B = 2"):
        expect_shapes("B A, B", torch.zeros(2, 3), torch.zeros(3))


def test_one_adam_step_moves_the_taken_action_by_the_learning_rate() -> None:
    model = TwoWeights()
    dqn = DQN(model, DQNConfig(learning_rate=0.01), SPEC)
    result = dqn.update(make_batch([0], [1.0], [0.0]), START)
    assert isinstance(result, UpdateResult)
    assert result.gradient_steps == 1
    assert_close(result.priorities, torch.tensor([1.0]))
    # Adam's first step is the learning rate times the sign of the gradient.
    assert model.weights == pytest.approx([0.01, 0.0], abs=1e-8)


def test_one_centred_rmsprop_step() -> None:
    model = TwoWeights()
    hyper = DQNConfig(learning_rate=0.01, optimizer="rmsprop", optimizer_eps=1e-8)
    DQN(model, hyper, SPEC).update(make_batch([0], [1.0], [0.0]), START)
    # With decay 0.95 the step is g / sqrt(0.05 g^2 - 0.0025 g^2) times the learning rate.
    assert model.weights == pytest.approx([0.01 / 0.0475**0.5, 0.0], rel=1e-5)


def test_the_learning_rate_follows_its_schedule() -> None:
    model = TwoWeights()
    hyper = DQNConfig(learning_rate={"initial": 0.02, "final": 0.0})
    DQN(model, hyper, SPEC).update(make_batch([0], [1.0], [0.0]), Clock(75, 100))
    assert model.weights[0] == pytest.approx(0.005, abs=1e-8)


def test_gradients_are_clipped_by_their_norm() -> None:
    # Both actions have error 8, so the gradient is (-0.5, -0.5), of norm 0.7071.
    for bound, expected in ((0.1, 0.1), (10.0, 0.5**0.5), (None, 0.5**0.5)):
        dqn = DQN(TwoWeights(), DQNConfig(max_grad_norm=bound), SPEC)
        dqn.update(make_batch([0, 1], [8.0, 8.0], [0.0, 0.0]), START)
        assert float(dqn.optimizer.flat.grad.norm()) == pytest.approx(expected, rel=1e-4)


def test_the_target_network_is_copied_when_an_interval_has_passed() -> None:
    model = TwoWeights()
    dqn = DQN(model, DQNConfig(learning_rate=0.01, target_update_interval=10), SPEC)
    batch = make_batch([0], [1.0], [0.0])
    dqn.update(batch, Clock(9, 100))
    assert dqn.target.module.weights == [0.0, 0.0]
    dqn.update(batch, Clock(12, 100))  # updates need not meet the multiple of 10 itself
    copied = model.weights
    assert dqn.target.module.weights == copied
    dqn.update(batch, Clock(19, 100))
    assert dqn.target.module.weights == copied
    assert model.weights != copied
    dqn.update(batch, Clock(35, 100))
    assert dqn.target.module.weights == model.weights


def test_a_soft_target_moves_a_share_at_every_update() -> None:
    model = TwoWeights()
    dqn = DQN(model, DQNConfig(learning_rate=0.01, tau=0.25), SPEC)
    dqn.update(make_batch([0], [1.0], [0.0]), START)
    assert dqn.target.module.weights[0] == pytest.approx(0.25 * model.weights[0])


def test_the_target_shares_no_memory_with_the_network_and_copies_its_buffers() -> None:
    model = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2))
    dqn = DQN(model.eval(), DQNConfig(tau=0.5), SPEC)
    own = {p.data_ptr() for p in model.parameters()}
    assert own.isdisjoint(p.data_ptr() for p in dqn.target.module.parameters())
    model[1].running_mean.fill_(3.0)
    dqn.update(make_batch([0, 1], [1.0, 1.0], [0.0, 0.0]), START)
    assert model[1].running_mean.tolist() != [3.0, 3.0]  # learning moved it
    assert torch.equal(dqn.target.module[1].running_mean, model[1].running_mean)


def test_tau_and_an_interval_together_are_refused() -> None:
    with pytest.raises(ValueError, match="leave target_update_interval out"):
        DQNConfig(tau=0.5, target_update_interval=10)


def test_each_environment_has_its_own_coin() -> None:
    dqn = DQN(TwoWeights(), DQNConfig(epsilon=0.5), SPEC)
    actions = dqn.exploration.act(0.5, 10_000, lambda: np.full(10_000, 7))
    # One coin for all would give 0 or 10,000; the standard deviation is 50.
    assert 4_700 < (actions == 7).sum() < 5_300
    assert 2_250 < (actions == 1).sum() < 2_750


def test_actions_are_greedy_except_for_the_share_epsilon() -> None:
    model = TwoWeights()
    model.layer.weight.data[1] = 1.0  # action 1 is the better one for a positive observation
    dqn = DQN(model, DQNConfig(epsilon={"initial": 1.0, "final": 0.2, "fraction": 0.5}), SPEC)
    obs, first = np.ones((20_000, 1), np.float32), np.zeros(20_000, np.bool_)

    def share_of_other(clock: Clock) -> float:
        return float((dqn.act(obs, (), first, clock, explore=True).action == 0).mean())

    assert share_of_other(Clock(0, 100)) == pytest.approx(0.5, abs=0.02)
    assert share_of_other(Clock(25, 100)) == pytest.approx(0.3, abs=0.02)  # epsilon 0.6
    assert share_of_other(Clock(80, 100)) == pytest.approx(0.1, abs=0.02)  # epsilon 0.2
    assert share_of_other(Clock(80, 100, learning_starts=81)) == pytest.approx(0.5, abs=0.02)
    assert (dqn.act(obs, (), first, Clock(0, 100), explore=False).action == 1).all()


@KERNELS
def test_state_round_trip_continues_bit_for_bit(kernels: bool) -> None:
    def build() -> DQN:
        dqn = DQN(MLPQNetwork(1, 2, (8,)), DQNConfig(target_update_interval=3), SPEC)
        return accelerated(dqn) if kernels else dqn

    assert_goes_on_bit_for_bit(build)


@double_precision()
def test_network_gives_a_value_per_action_and_acts_greedily() -> None:
    network = MLPQNetwork(3, 4, (16, 16))
    obs = torch.randn(5, 3)
    weights, x = list(network.parameters()), obs
    for weight, bias in zip(weights[:4:2], weights[1:4:2], strict=True):
        x = (x @ weight.T + bias).clamp(min=0)
    torch.testing.assert_close(network(obs), x @ weights[4].T + weights[5])
    assert network(obs).shape == (5, 4)
    assert torch.equal(network.act(obs), network(obs).argmax(1))
    bounds = [
        p.abs().max().item() <= 1 / fan_in**0.5
        for p, fan_in in zip(network.parameters(), (3, 3, 16, 16, 16, 16), strict=True)
    ]
    assert all(bounds)


def test_a_network_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"expected \(batch, 2\) .* found \(1, 5\)"):
        DQN(nn.Linear(1, 5), DQNConfig(), SPEC)
    with pytest.raises(ConfigError, match="calling it raised"):
        DQN(nn.Linear(7, 2), DQNConfig(), SPEC)
