"""The clipped surrogate objective of PPO (Schulman et al., 2017)."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rl_training.algorithms.functional.shapes import expect_shapes


class Samples(NamedTuple):
    """Rows of a rollout as the loss needs them; everything but the old policy's view is fixed."""

    obs: Tensor
    action: Tensor
    log_prob: Tensor
    value: Tensor
    advantage: Tensor
    returns: Tensor


class Losses(NamedTuple):
    """The parts of the objective, and how far the policy has moved."""

    policy_loss: Tensor
    value_loss: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


def normalized(advantage: Tensor) -> Tensor:
    """Advantages [B] to mean 0 and standard deviation 1; a single one stays as it is."""
    if len(advantage) == 1:
        return advantage
    return (advantage - advantage.mean()) / (advantage.std() + 1e-8)


def ppo_losses(
    log_prob: Tensor,
    value: Tensor,
    old: Samples,
    *,
    clip_range: float,
    value_clip_range: float | None = None,
) -> Losses:
    """The clipped surrogate (Eq. 7) and the squared value error, as means over the batch.

    All of shape [B]. With `value_clip_range` the prediction may leave the old one only so far, and
    the larger of the two errors counts. KL is estimated by (ratio - 1) - log ratio.
    """
    expect_shapes("B, B, B, B, B", log_prob, value, old.log_prob, old.advantage, old.returns)
    log_ratio = log_prob - old.log_prob
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
    policy_loss = -torch.minimum(ratio * old.advantage, clipped * old.advantage).mean()
    error = F.mse_loss(value, old.returns, reduction="none")
    if value_clip_range is not None:
        near = old.value + (value - old.value).clamp(-value_clip_range, value_clip_range)
        error = torch.maximum(error, F.mse_loss(near, old.returns, reduction="none"))
    with torch.no_grad():
        approx_kl = (ratio - 1 - log_ratio).mean()
        clip_fraction = ((ratio - 1).abs() > clip_range).float().mean()
    return Losses(policy_loss, error.mean(), approx_kl, clip_fraction)
