"""Batches, losses with their gradients, and kernels, for tests of the value-based algorithms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Algorithm, Loss
from rl_training.algorithms.value_based import ValueBased
from rl_training.data.types import Batch, Clock, EnvSpec
from rl_training.fast.accelerate import accelerate, has_loss_kernels

SPEC = EnvSpec(env_id="toy", obs_shape=(1,), action_kind="discrete", num_actions=2)
START = Clock(env_steps=0, horizon=100)
KERNELS = pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "definition"])
AnyAlgorithm = TypeVar("AnyAlgorithm", bound=Algorithm)


def make_batch(
    action: Sequence[int],
    reward: Sequence[float],
    discount: Sequence[float],
    weight: Sequence[float] | None = None,
) -> Batch:
    """Transitions whose observations are all one."""
    size = len(action)
    return Batch(
        obs=torch.ones(size, 1),
        action=torch.tensor(action),
        reward=torch.tensor(reward),
        next_obs=torch.ones(size, 1),
        discount=torch.tensor(discount),
        weight=torch.ones(size) if weight is None else torch.tensor(weight),
        slots=np.arange(size),
    )


def random_batch(seed: int, size: int, num_actions: int, obs_dim: int = 1) -> Batch:
    """Rewards on both sides of 1, weights other than 1, some terminations."""
    rng = np.random.default_rng(seed)

    def numbers(*shape: int) -> Tensor:
        return torch.from_numpy(rng.normal(size=shape).astype(np.float32))

    return Batch(
        obs=numbers(size, obs_dim),
        action=torch.from_numpy(rng.integers(0, num_actions, size)),
        reward=3 * numbers(size),
        next_obs=numbers(size, obs_dim),
        discount=torch.from_numpy(rng.choice([0.0, 0.9], size).astype(np.float32)),
        weight=numbers(size).abs() + 0.1,
        slots=np.arange(size),
    )


def differentiated(
    loss: Callable[..., Loss], output: Tensor, *arguments: Any, **options: Any
) -> tuple[Loss, Tensor]:
    """A loss, and its gradient with respect to the network's output."""
    output = output.detach().clone().requires_grad_()
    result = loss(output, *arguments, **options)
    (gradient,) = torch.autograd.grad(result.value, output)
    return result._replace(value=result.value.detach()), gradient


def accelerated(algorithm: AnyAlgorithm) -> AnyAlgorithm:
    """The algorithm with the kernels of its losses in place, as one thread would have them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    assert has_loss_kernels(algorithm)
    accelerate(algorithm)
    torch.set_num_threads(threads)
    return algorithm


def set_outputs(network: nn.Module, values: Any) -> None:
    """Make a linear network of one input give `values` for an observation of one."""
    weight, bias = network.parameters()
    with torch.no_grad():
        weight.copy_(torch.as_tensor(values, dtype=torch.float32).reshape(-1, 1))
        bias.zero_()


def numbers_of(metrics: Any) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


def assert_goes_on_bit_for_bit(build: Callable[[], ValueBased]) -> None:
    """Ten updates in a row are five, a save into a network of other weights, and five more."""

    def trained(algorithm: ValueBased, numbers: range) -> ValueBased:
        for number in numbers:
            batch = random_batch(number, 16, SPEC.num_actions)
            algorithm.update(batch, Clock(number, 100))
        return algorithm

    def fresh(seed: int) -> ValueBased:
        torch.manual_seed(seed)
        return build()

    straight = trained(fresh(0), range(10))
    resumed = fresh(1)
    assert not torch.equal(resumed.optimizer.flat, fresh(0).optimizer.flat)
    resumed.load_state_dict(trained(fresh(0), range(5)).state_dict())
    trained(resumed, range(5, 10))
    assert torch.equal(resumed.optimizer.flat, straight.optimizer.flat)
    networks = (algorithm.target.module for algorithm in (resumed, straight))
    for mine, other in zip(*(network.parameters() for network in networks), strict=True):
        assert torch.equal(mine, other)
