"""SAC (Haarnoja et al., 2018a): soft actor-critic, with a learned temperature (2018b).

The first paper fixes the temperature; the second (arXiv:1812.05905) learns it, by a loss with
alpha. Here that is `log(alpha) * (entropy - target_entropy)`, as in its authors' code. The actor is
updated after the critics, with the same batch.
"""

from __future__ import annotations

from torch import Tensor

from rl_training.algorithms.base import Loss
from rl_training.algorithms.soft_actor_critic import (
    SoftActorCritic,
    min_over_critics,
    soft_target,
)
from rl_training.config.actor_critic import SACConfig
from rl_training.data.types import Batch, expect_shapes


def sac_loss(q_values: Tensor, target: Tensor) -> Loss:
    """Half the squared error of values [E, B, 1], a mean over the batch and a sum over critics."""
    expect_shapes("E B 1, B", q_values, target)
    target = target.detach()
    error = q_values[:, :, 0] - target
    loss = 0.5 * (error**2).mean(1).sum()
    metrics = {
        "critic_loss": loss.detach(),
        "q_value_mean": q_values.detach().mean(),
        "target_q_mean": target.mean(),
    }
    return Loss(loss, metrics)


class SAC(SoftActorCritic):
    """Clipped double Q: the minimum over the critics, both in the target and for the actor."""

    hyper: SACConfig

    def critic_loss(self, batch: Batch, noise: Tensor) -> Loss:
        """`sac_loss` towards the lowest target critic."""
        next_action, alpha_log_prob = self.next_action(batch, noise)
        next_value = min_over_critics(self.target(batch.next_obs, next_action))
        return sac_loss(
            self.critics(batch.obs, batch.action), soft_target(batch, next_value, alpha_log_prob)
        )

    def actor_value(self, values: Tensor) -> Tensor:
        """The lowest critic's value."""
        return min_over_critics(values)
