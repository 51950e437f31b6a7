"""Generalised advantage estimation (Schulman et al., 2016)."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.algorithms.functional.shapes import expect_shapes


def gae(
    reward: Tensor, value: Tensor, next_value: Tensor, discount: Tensor, trace: Tensor
) -> Tensor:
    """Advantages of a rollout, newest step last; all arguments and the result are [T, N].

    `next_value` is the value of the true successor. `discount` is `gamma * (1 - terminated)`: a
    time limit bootstraps, a termination does not. `trace` is `gamma * lambda * (1 - ended)`: no
    trace crosses the end of an episode, however it ended.
    """
    expect_shapes("T N, T N, T N, T N, T N", reward, value, next_value, discount, trace)
    delta = reward + discount * next_value - value
    running, advantages = torch.zeros_like(delta[0]), []
    for step, carried in zip(reversed(delta.unbind()), reversed(trace.unbind()), strict=True):
        running = torch.addcmul(step, carried, running)
        advantages.append(running)
    return torch.stack(advantages[::-1])


def explained_variance(value: Tensor, returns: Tensor) -> Tensor:
    """The share of the variance of returns [B] that the values account for; 1 at best."""
    expect_shapes("B, B", value, returns)
    rest, total = (returns - value).var(correction=0), returns.var(correction=0)
    return 1 - rest / total.clamp(min=1e-8)
