"""The actor's loss of soft actor-critics (Haarnoja et al., 2018)."""

from __future__ import annotations

from typing import Any

from rl_training.algorithms.functional.shapes import expect_shapes
from rl_training.data.arrays import Array


def soft_actor_loss(value: Array, log_prob: Array, alpha: Any) -> tuple[Any, Any]:
    """The mean of `alpha * log_prob - value`, both [B], of an actor's own actions; and its entropy.

    Its derivatives are alpha / B by a log_prob and -1 / B by a value.
    """
    expect_shapes("B, B", value, log_prob)
    entropy = -log_prob.mean()
    return -alpha * entropy - value.mean(), entropy
