"""The optimiser: its steps against torch's, clipping, and parameters in one buffer."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from rl_training.algorithms import optimization
from rl_training.algorithms.base import Loss
from rl_training.algorithms.optimization import (
    RMSPROP_DECAY,
    Optimizer,
    adam,
    descend_together,
    fused_adam,
)
from rl_training.errors import ConfigError, UsageError
from rl_training.models.blocks import MLP
from rl_training.models.mlp_q_network import MLPQNetwork
from rounding import double_precision

STEPS = 10


def random_gradients(size: int, seed: int) -> list[Tensor]:
    """Of sizes that change from step to step, some of them zero."""
    generator = torch.Generator().manual_seed(seed)
    scales = 10.0 ** torch.randint(-4, 3, (STEPS, 1), generator=generator)
    gradients = scales * torch.randn(STEPS, size, generator=generator)
    gradients[:, 0] = 0.0
    return list(gradients)


@settings(max_examples=30, deadline=None)
@given(
    size=st.integers(1, 40),
    learning_rate=st.sampled_from([1e-4, 1e-2, 1.0]),
    eps=st.sampled_from([1e-8, 1e-5, 0.1]),
    seed=st.integers(0, 2**20),
)
@double_precision()
def test_adam_is_torchs_written_out_or_fused(
    size: int, learning_rate: float, eps: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(size, generator=generator)
    parameter = nn.Parameter(start.clone())
    reference = torch.optim.Adam([parameter], lr=learning_rate, eps=eps, foreach=False)
    moved = {step: start.clone() for step in (adam, fused_adam)}
    averages = {step: (torch.zeros(size), torch.zeros(size)) for step in moved}
    for number, gradient in enumerate(random_gradients(size, seed), 1):
        parameter.grad = gradient.clone()
        reference.step()
        for step, values in moved.items():
            grad = gradient.clone()
            step(values, grad, *averages[step], torch.tensor(float(number)), learning_rate, eps)
            assert_close(values, parameter.detach())
            assert torch.equal(grad, gradient)
    assert not torch.equal(parameter[1:], start[1:]) or size == 1
    assert_close(averages[adam], averages[fused_adam])


def test_without_the_private_call_adam_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def moved() -> Tensor:
        values = torch.ones(3)
        averages = torch.zeros(3), torch.zeros(3)
        fused_adam(values, torch.tensor([1.0, -2.0, 0.0]), *averages, torch.ones(()), 0.5, 1e-8)
        return values

    # The first step is the learning rate against the sign.
    expected = torch.tensor([0.5, 1.5, 1.0])
    assert_close(moved(), expected)
    calls: list[Any] = []
    monkeypatch.setattr(optimization, "adam", lambda *args: calls.append(args) or adam(*args))
    assert_close(moved(), expected)
    assert not calls
    monkeypatch.delattr(torch, "_fused_adam_")
    assert_close(moved(), expected)
    assert len(calls) == 1


@pytest.mark.parametrize("name", ["adam", "rmsprop"])
@double_precision()
def test_an_optimiser_makes_torchs_steps(name: Any) -> None:
    torch.manual_seed(0)
    network = MLP((3, 4, 2))
    twin = copy.deepcopy(network)
    mine = Optimizer(network, name=name, eps=1e-3)
    parameters = list(twin.parameters())
    reference: torch.optim.Optimizer = torch.optim.Adam(parameters, lr=0.01, eps=1e-3)
    if name == "rmsprop":
        options: Any = {"alpha": RMSPROP_DECAY, "eps": 1e-3, "centered": True}
        reference = torch.optim.RMSprop(parameters, lr=0.01, **options)
    for _ in range(STEPS):
        x = torch.randn(5, 3)
        mine.descend(lambda x: network(x).square().sum(), x, learning_rate=0.01)
        reference.zero_grad()
        twin(x).square().sum().backward()
        reference.step()
    assert_close(list(network.parameters()), parameters)


def test_clipping_scales_a_gradient_to_the_bound_and_leaves_a_smaller_one_alone() -> None:
    optimizer = Optimizer(MLP((2, 1)), max_grad_norm=5.0)
    for values, expected in (([3.0, 4.0, 12.0], 5 / 13), ([0.0, 3.0, 4.0], 1.0)):
        assert optimizer.flat.grad is not None
        optimizer.flat.grad.copy_(torch.tensor(values))
        optimizer.step(0.1)
        assert_close(optimizer.flat.grad, expected * torch.tensor(values), atol=1e-5, rtol=1e-5)


def test_a_network_in_one_buffer_and_its_copy_have_memory_apart() -> None:
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


def test_frozen_parameters_are_neither_moved_nor_in_the_buffer() -> None:
    network = MLP((3, 4, 2))
    network.weight0.requires_grad_(False)
    frozen = network.weight0.clone()
    optimizer = Optimizer(network)
    assert optimizer.flat.numel() == 4 + 2 * 4 + 2
    optimizer.descend(lambda x: network(x).sum(), torch.ones(1, 3), learning_rate=0.1)
    assert torch.equal(network.weight0, frozen)
    assert network.weight0.grad is None
    assert network.bias1.grad is not None
    assert network.bias1.grad.tolist() == [1.0, 1.0]


def test_a_loss_trains_the_network_of_its_optimiser_alone() -> None:
    """As an actor's loss goes through the critics."""
    actor, critic = nn.Linear(2, 2), nn.Linear(2, 1)
    optimizers = Optimizer(actor), Optimizer(critic)
    before = optimizers[1].flat.detach().clone()

    def loss(x: Tensor) -> Tensor:
        return critic(actor(x)).mean()

    result = optimizers[0].descend(loss, torch.ones(3, 2), learning_rate=0.1)
    assert list(result.metrics) == ["loss"]
    assert torch.equal(optimizers[1].flat, before)
    assert optimizers[1].flat.grad is not None
    assert not optimizers[1].flat.grad.any()
    descend_together(optimizers, loss, torch.ones(3, 2), learning_rate=0.1)
    assert not torch.equal(optimizers[1].flat, before)


def test_a_gradient_replaces_the_one_before() -> None:
    optimizer = Optimizer(nn.Linear(1, 1, bias=False))
    weight = optimizer.module.weight

    def twice(x: Tensor) -> Loss:
        value = 2 * weight.sum() * x
        return Loss(value, {"value": value.detach()})

    for _ in range(2):
        result = optimizer.differentiate(twice, torch.tensor(3.0))
        assert weight.grad.tolist() == [[6.0]]
        assert list(result.metrics) == ["value"]


def clamp(network: nn.Module) -> None:
    for parameter in network.parameters():
        parameter.data = parameter.data.clamp(-1, 1)


@pytest.mark.parametrize("careless", [nn.Module.zero_grad, clamp])
def test_what_code_of_others_puts_elsewhere_is_trained_all_the_same(careless: Any) -> None:
    """Weights within 1 stay as they are, and a gradient of None is none."""
    x, ends = torch.randn(5, 3), []
    for inside in (False, True):
        torch.manual_seed(0)
        network = MLP((3, 8, 2))
        optimizer = Optimizer(network)

        def loss(network: MLP = network, inside: bool = inside) -> Tensor:
            if inside:
                careless(network)
            return network(x).square().mean()

        for _ in range(3):
            optimizer.descend(loss, learning_rate=0.01)
        careless(network)
        network(x).square().mean().backward()
        optimizer.step(0.01)
        ends.append(torch.cat([p.detach().flatten() for p in network.parameters()]))
        assert torch.equal(ends[-1], optimizer.flat.detach())
    assert torch.equal(ends[0], ends[1])


def test_a_layer_frozen_later_stays_as_it_is() -> None:
    network = MLP((3, 8, 2))
    optimizer, first = Optimizer(network), next(network.parameters())
    first.requires_grad_(False)
    before = optimizer.flat.detach().clone()
    optimizer.descend(lambda: network(torch.ones(2, 3)).sum(), learning_rate=0.01)
    moved = (optimizer.flat.detach() != before).nonzero()
    assert moved.min() >= first.numel()


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1).double()), "one type, found float32 and"),
        (nn.Linear(2, 1).bfloat16(), r"float32 or float64, found torch\.bfloat16"),
    ],
)
def test_parameters_that_no_buffer_holds_are_refused(network: nn.Module, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Optimizer(network)


def test_a_loss_that_is_no_scalar_is_refused() -> None:
    network = MLP((3, 2))
    with pytest.raises(UsageError, match=r"a scalar loss, found the shape \(4, 2\)"):
        Optimizer(network).descend(lambda: network(torch.ones(4, 3)), learning_rate=0.1)


def test_layers_are_those_that_are_registered_now() -> None:
    network, x = MLP((3, 4, 1)), torch.ones(2, 3)
    zeros = {name: torch.zeros_like(p) for name, p in network.named_parameters()}
    assert not torch.func.functional_call(network, zeros, (x,)).any()
    assert network(x).any()
    network.load_state_dict(zeros, assign=True)
    assert not network(x).any()
