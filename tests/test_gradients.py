"""Gradients written out by hand against automatic differentiation."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from rl_training.algorithms.gradients import vjp_of
from rl_training.algorithms.optimization import Optimizer, flatten
from rl_training.models.blocks import MLP
from rl_training.models.mlp_actor_critic import MLPActorCritic
from rl_training.models.mlp_q_network import MLPQNetwork


def automatic(network: nn.Module, outputs: Any, grads: Any) -> list[Tensor]:
    return list(torch.autograd.grad(outputs, list(network.parameters()), grads))


def written(network: nn.Module) -> list[Tensor]:
    return [p.grad for p in network.parameters()]  # type: ignore[misc]


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("sizes", [(3, 5), (3, 8, 2), (20, 32, 17, 4), (1, 1, 1)])
def test_the_gradient_of_a_perceptron(sizes: tuple[int, ...], activation: Any) -> None:
    torch.manual_seed(0)
    network = MLP(sizes, activation=activation)
    flatten(network, gradients=True)
    for rows in (1, 6):
        obs, grad = torch.randn(rows, sizes[0]), torch.randn(rows, sizes[-1])
        expected = automatic(network, network(obs), grad)
        output, pull_back = vjp_of(network)(obs)
        assert_close(output, network(obs).detach())
        assert not output.requires_grad
        for parameter in network.parameters():
            parameter.grad.fill_(99.0)  # type: ignore[union-attr]
        pull_back(grad)  # overwrites
        for mine, other in zip(written(network), expected, strict=True):
            assert_close(mine, other, atol=1e-5, rtol=1e-5)


def test_the_gradient_of_an_actor_and_its_critic() -> None:
    torch.manual_seed(0)
    network = MLPActorCritic(3, 2, (8, 8), gaussian=True)
    flatten(network, gradients=True)
    obs, grads = torch.randn(5, 3), [torch.randn(5, 2), torch.randn(5), torch.randn(2)]
    expected = automatic(network, [*network(obs), network.log_std], grads)
    (outputs, values), pull_back = vjp_of(network)(obs)
    assert_close((outputs, values), tuple(x.detach() for x in network(obs)))
    pull_back(grads)
    for mine, other in zip(written(network), expected, strict=True):
        assert_close(mine, other, atol=1e-5, rtol=1e-5)


class Doubled(MLPQNetwork):
    """Inherits a gradient that is not its own."""

    def forward(self, obs: Tensor) -> Tensor:
        return 2 * super().forward(obs)


def test_a_class_that_changes_a_network_is_differentiated() -> None:
    network = Doubled(3, 2, (8,))
    flatten(network, gradients=True)
    obs, grad = torch.randn(4, 3), torch.randn(4, 2)
    expected = automatic(network, network(obs), grad)
    output, pull_back = vjp_of(network)(obs)
    assert_close(output, network(obs).detach())
    for _ in range(2):  # a second one overwrites the first
        output, pull_back = vjp_of(network)(obs)
        pull_back(grad)
    for mine, other in zip(written(network), expected, strict=True):
        assert_close(mine, other)


def test_a_network_that_was_moved_into_one_buffer_and_copied_computes_with_its_own_weights() -> (
    None
):
    network = MLPQNetwork(3, 2, (8,))
    optimizer = Optimizer(network)
    twin = copy.deepcopy(network)
    obs = torch.randn(4, 3)
    with torch.no_grad():
        before = network(obs)
        assert torch.equal(twin(obs), before)
        optimizer.flat.zero_()
        assert network(obs).abs().max() == 0.0
        assert torch.equal(twin(obs), before)
        network.load_state_dict(twin.state_dict())
        assert torch.equal(network(obs), before)


def test_clipping_scales_a_gradient_to_the_bound_and_leaves_a_smaller_one_alone() -> None:
    network = MLP((2, 1))
    optimizer = Optimizer(network, max_grad_norm=5.0)
    for values, expected in (([3.0, 4.0, 12.0], 5 / 13), ([0.0, 3.0, 4.0], 1.0)):
        optimizer.flat.grad.copy_(torch.tensor(values))  # type: ignore[union-attr]
        optimizer.step(0.1)
        assert_close(optimizer.flat.grad, expected * torch.tensor(values), atol=1e-5, rtol=1e-5)


def test_a_packaged_network_with_frozen_parameters_is_differentiated() -> None:
    network = MLPQNetwork(3, 2, (8,))
    network.layers.weight0.requires_grad_(False)
    flatten(network, gradients=True)
    obs, grad = torch.randn(4, 3), torch.randn(4, 2)
    trained = [p for p in network.parameters() if p.requires_grad]
    expected = torch.autograd.grad(network(obs), trained, grad)
    _, pull_back = vjp_of(network)(obs)
    pull_back(grad)
    assert network.layers.weight0.grad is None
    for parameter, other in zip(trained, expected, strict=True):
        assert_close(parameter.grad, other)
