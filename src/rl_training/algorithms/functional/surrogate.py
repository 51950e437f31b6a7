"""The clipped surrogate objective of PPO (Schulman et al., 2017)."""

from __future__ import annotations

from typing import NamedTuple

import torch
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
    """The parts of the objective, how far the policy has moved, and the parts' gradients [B]."""

    policy_loss: Tensor
    value_loss: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor
    by_log_prob: Tensor
    by_value: Tensor

    @property
    def metrics(self) -> dict[str, Tensor]:
        """The numbers by name."""
        return dict(zip(self._fields[:4], self[:4], strict=True))


def normalized(advantage: Tensor) -> Tensor:
    """Advantages [B] to mean 0 and standard deviation 1; a single one stays as it is."""
    if len(advantage) == 1:
        return advantage
    std, mean = torch.std_mean(advantage)
    return (advantage - mean) / (std + 1e-8)


def ppo_losses(
    log_prob: Tensor,
    value: Tensor,
    old: Samples,
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
    gain, bounded = ratio * old.advantage, clipped * old.advantage
    error = value - old.returns
    squared, by_value = error.square(), 2.0 * error
    if value_clip_range is not None:
        near = old.value + (value - old.value).clamp(-value_clip_range, value_clip_range)
        held, inside = (near - old.returns).square(), (value - old.value).abs() <= value_clip_range
        by_held = torch.where(inside, 2.0 * (near - old.returns), 0.0)
        by_value = torch.where(squared >= held, by_value, by_held)
        squared = torch.maximum(squared, held)
    kl, outside = ratio - 1 - log_ratio, (clipped != ratio).float()
    rows = torch.stack((-torch.minimum(gain, bounded), squared, kl, outside))
    count = len(ratio)
    # The bounded gain does not change with the policy; where it counts, the gradient is zero.
    by_log_prob = torch.where(gain <= bounded, gain, 0.0).div(-count)
    policy_loss, value_loss, approx_kl, clip_fraction = rows.mean(1).unbind()
    return Losses(
        policy_loss,
        value_loss,
        approx_kl.detach(),
        clip_fraction.detach(),
        by_log_prob.detach(),
        by_value.detach().div(count),
    )
