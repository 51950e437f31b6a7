"""The clipped surrogate objective of PPO (Schulman et al., 2017)."""

from __future__ import annotations

from typing import NamedTuple

from rl_training.algorithms.functional.shapes import expect_shapes
from rl_training.data.arrays import Array, as_float, constant, namespace


class Samples(NamedTuple):
    """Rows of a rollout as the loss needs them; everything but the old policy's view is fixed."""

    obs: Array
    action: Array
    log_prob: Array
    value: Array
    advantage: Array
    returns: Array


class Losses(NamedTuple):
    """The parts of the objective and how far the policy has moved, per row, and gradients [B]."""

    policy: Array
    value: Array
    kl: Array
    clipped: Array
    by_log_prob: Array
    by_value: Array


def normalized(advantage: Array) -> Array:
    """Advantages [B] to mean 0 and standard deviation 1; a single one stays as it is."""
    if len(advantage) == 1:
        return advantage
    centred = advantage - advantage.mean()
    return centred / (((centred * centred).sum() / (len(centred) - 1)) ** 0.5 + 1e-8)


def ppo_losses(
    log_prob: Array,
    value: Array,
    old: Samples,
    clip_range: float,
    value_clip_range: float | None = None,
) -> Losses:
    """The clipped surrogate (Eq. 7) and the squared value error of each row, and their gradients.

    All of shape [B]; the loss is the mean over the rows, and so are the gradients its own. With
    `value_clip_range` the prediction may leave the old one only so far, and the larger of the two
    errors counts. KL is estimated by (ratio - 1) - log ratio.
    """
    expect_shapes("B, B, B, B, B", log_prob, value, old.log_prob, old.advantage, old.returns)
    xp, count = namespace(value), len(value)
    log_ratio = log_prob - old.log_prob
    ratio = xp.exp(log_ratio)
    clipped = ratio.clip(1 - clip_range, 1 + clip_range)
    gain, bounded = ratio * old.advantage, clipped * old.advantage
    error = value - old.returns
    squared, by_value = error * error, 2.0 * error
    if value_clip_range is not None:
        moved = value - old.value
        near = old.value + moved.clip(-value_clip_range, value_clip_range) - old.returns
        by_near = 2.0 * near * (abs(moved) <= value_clip_range)
        by_value = xp.where(squared >= near * near, by_value, by_near)
        squared = xp.maximum(squared, near * near)
    return Losses(
        policy=-xp.minimum(gain, bounded),
        value=squared,
        kl=constant(ratio - 1 - log_ratio),
        clipped=as_float(clipped != ratio),
        # The bounded gain does not change with the policy; where it counts, nothing pulls.
        by_log_prob=constant(gain * (gain <= bounded)) / -count,
        by_value=constant(by_value) / count,
    )
