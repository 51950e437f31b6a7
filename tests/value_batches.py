"""Batches, and runs on tensors and arrays alike, for tests of the value-based algorithms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.value_based import ValueBased
from rl_training.data.metrics import Metrics
from rl_training.data.types import Batch, EnvSpec, Moment

SPEC = EnvSpec(env_id="toy", obs_shape=(1,), action_kind="discrete", num_actions=2)
START = Moment(env_steps=0, horizon=100)


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


def as_arrays(x: Any) -> Any:
    """Tensors, also within records, as arrays of their own."""
    if isinstance(x, Tensor):
        return x.detach().numpy().copy()
    if isinstance(x, tuple):
        return type(x)(*map(as_arrays, x))
    return x


def on_both(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What a function gives for tensors, after a check that it gives the same for arrays."""
    found = function(*arguments, **options)
    other = function(*map(as_arrays, arguments), **{k: as_arrays(x) for k, x in options.items()})
    mine, theirs = ([found], [other]) if isinstance(found, Tensor) else (found, other)
    for name, x, y in zip(getattr(found, "_fields", ("result",)), mine, theirs, strict=True):
        x, y = (part.numbers if isinstance(part, Metrics) else part for part in (x, y))
        assert not isinstance(y, Tensor), name
        assert x.dtype == torch.float32, name
        assert y.dtype == np.float32, name
        assert tuple(x.shape) == y.shape, name
        np.testing.assert_allclose(y, x.detach().numpy(), rtol=1e-4, atol=2e-6, err_msg=name)
    return found


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
            algorithm.update(batch, Moment(number, 100))
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
