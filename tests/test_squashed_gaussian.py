"""Squashed Gaussian actions: exact near the bounds, and so is their gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, TanhTransform, TransformedDistribution
from torch.testing import assert_close

from rl_training.algorithms.soft_actor_critic import log_tanh_derivative, squashed_sample
from rounding import EPS, double_precision, rounding


def exact_log_prob(output: Tensor, noise: Tensor) -> Tensor:
    """By torch's own distribution, which keeps the number before the squashing."""
    mean, log_std = output.double().chunk(2, 1)
    std = log_std.clamp(-20, 2).exp()
    squash = TanhTransform(cache_size=1)
    squashed = TransformedDistribution(Normal(mean, std), squash)
    return squashed.log_prob(squash(mean + std * noise.double())).sum(1)


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0, 30.0])
def test_the_log_probability_is_exact_also_near_the_bounds(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(500, 4, generator=generator) * torch.tensor([scale, scale, 1.0, 1.0])
    noise = torch.randn(500, 2, generator=generator)
    exact = exact_log_prob(output, noise)
    found = squashed_sample(output.double(), noise.double())
    assert_close(found.log_prob, exact)
    # In single precision a log-probability is the sum of these, for each of two numbers. Each comes
    # of up to four roundings, and eight are added up.
    mean, log_std = output.double().chunk(2, 1)
    before = mean.abs() + log_std.exp() * noise.abs()
    size = (0.5 * noise**2 + log_std.abs() + 1 + 2 * (math.log(4) + before)).sum(1)
    found = squashed_sample(output, noise)
    assert found.log_prob.dtype == torch.float32
    assert ((found.log_prob - exact).abs() / size).max() < rounding(4 + 8)
    if scale == 30.0:
        # The tanh of single precision is at its bound, or at the number next to it.
        assert int((found.action.abs() >= 1 - EPS / 2).sum()) > 100


@double_precision()
def test_a_sample_by_hand() -> None:
    output, noise = torch.tensor([[0.5, math.log(2.0)]]), torch.tensor([[-1.0]])
    found = squashed_sample(output, noise)
    assert float(found.action) == pytest.approx(math.tanh(0.5 - 2.0))
    density = -0.5 - math.log(2.0) - 0.5 * math.log(2 * math.pi)
    assert float(found.log_prob) == pytest.approx(density - math.log(1 - math.tanh(-1.5) ** 2))


def test_the_slope_of_tanh_far_out() -> None:
    x = torch.tensor([-50.0, 0.0, 50.0], requires_grad=True)
    expected = math.log(4) - 100
    found = log_tanh_derivative(x)
    assert_close(found, torch.tensor([expected, 0.0, expected]))
    found.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 0.0, -2.0]  # -2 tanh(x)


@double_precision()
def test_the_gradient_by_hand() -> None:
    """With x = mean + std * noise: d log_prob / dx = 2 tanh(x), and log std adds -1 itself."""
    generator = torch.Generator().manual_seed(1)
    output = torch.randn(50, 6, generator=generator)
    output[0, 3:] = 2.5  # beyond the range of log stds, where its derivative is zero
    output[1, 3:] = -21.0
    mean, log_std = output.chunk(2, 1)
    noise, grad_action = torch.randn(2, 50, 3, generator=generator)
    grad_log_prob = torch.randn(50, generator=generator)
    spread = log_std.clip(-20, 2).exp() * noise
    action = (mean + spread).tanh()
    grad_mean = grad_action * (1 - action**2) + grad_log_prob[:, None] * 2 * action
    grad_log_std = grad_mean * spread - grad_log_prob[:, None]
    grad_log_std[(log_std < -20) | (log_std > 2)] = 0
    sample = squashed_sample(output.requires_grad_(), noise)
    total = (sample.action * grad_action).sum() + (sample.log_prob * grad_log_prob).sum()
    (found,) = torch.autograd.grad(total, output)
    assert_close(found, torch.cat([grad_mean, grad_log_std], 1).detach())
    assert not found[:2, 3:].any()
