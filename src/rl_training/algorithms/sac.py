"""SAC (Haarnoja et al., 2018): soft actor-critic with a learned temperature.

The temperature's loss is -log(alpha) * (log_prob + target), as in the authors' later code. The
actor is updated after the critics, with the same batch.
"""

from __future__ import annotations

from rl_training.algorithms.functional.shapes import expect_shapes
from rl_training.algorithms.soft_actor_critic import CriticLoss, SoftActorCritic
from rl_training.algorithms.soft_config import VectorCriticsConfig
from rl_training.data.arrays import Array, as_float, namespace
from rl_training.data.types import Batch


class SACConfig(VectorCriticsConfig):
    """Hyper-parameters of SAC."""


def soft_target(batch: Batch, value: Array, cost: Array) -> Array:
    """`reward + discount * (value - cost)`; all are [B].

    `cost` is alpha times the log-probability of the action that was valued. Discount is zero after
    a termination: neither value nor entropy follows. With `n_step` rewards the entropy of the
    actions in between is left out, as is usual.
    """
    expect_shapes("B, B, B, B", batch.reward, batch.discount, value, cost)
    return batch.reward + batch.discount * (value - cost)


def lowest(values: Array) -> Array:
    """The lowest of the critics' values: [E, B, 1] gives [B]."""
    return namespace(values).amin(values, 0)[:, 0]


def sac_loss(q_values: Array, target: Array) -> CriticLoss:
    """Half the squared error of values [E, B, 1], a mean over the batch and a sum over critics."""
    expect_shapes("E B O, B", q_values, target)
    error = q_values - target[:, None]
    rows = len(target)
    numbers = [0.5 * (error * error).sum() / rows, q_values.mean(), target.mean()]
    return CriticLoss(error / rows, namespace(error).stack(numbers))


class SAC(SoftActorCritic):
    """The lowest of the critics is the value of an action, to targets and actor."""

    hyper: SACConfig

    def critic_loss(self, output: Array, following: Array, cost: Array, batch: Batch) -> CriticLoss:
        """`sac_loss` towards the lowest target critic."""
        return sac_loss(output, soft_target(batch, lowest(following), cost))

    def actor_value(self, values: Array) -> tuple[Array, Array]:
        """The lowest critic's value, and one for that critic."""
        value = lowest(values)
        return value, as_float(values == value[:, None])
