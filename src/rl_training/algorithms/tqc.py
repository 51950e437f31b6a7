"""TQC (Kuznetsov et al., 2020): distributional critics, and targets truncated from above.

The target atoms of all critics are pooled and sorted, and the highest are dropped, which controls
overestimation finely. Every critic learns all remaining atoms; the actor follows the mean of all
quantiles of all critics. As in the authors' code the loss is a mean over everything.
"""

from __future__ import annotations

from torch import Tensor

from rl_training.algorithms.base import Loss
from rl_training.algorithms.functional.quantile import quantile_huber_loss
from rl_training.algorithms.soft_actor_critic import SoftActorCritic
from rl_training.config.actor_critic import TQCConfig
from rl_training.data.types import Batch, expect_shapes


def truncated_atoms(atoms: Tensor, dropped: int) -> Tensor:
    """The lowest atoms of all critics, pooled: [E, B, N] gives [B, E * (N - dropped)], sorted."""
    critics, _, count = atoms.shape
    pooled = atoms.movedim(0, 1).flatten(1)
    return pooled.sort(1).values[:, : critics * (count - dropped)]


def tqc_loss(quantiles: Tensor, atoms: Tensor) -> Loss:
    """Quantile Huber loss of every critic's quantiles [E, B, N] on target atoms [B, K].

    The mean over critics, batch, quantiles and atoms.
    """
    expect_shapes("E B N, B K", quantiles, atoms)
    critics, _, count = quantiles.shape
    rows = quantile_huber_loss(quantiles.flatten(0, 1), atoms.repeat(critics, 1))
    loss = rows.mean() / count
    metrics = {
        "critic_loss": loss.detach(),
        "q_value_mean": quantiles.detach().mean(),
        "target_q_mean": atoms.detach().mean(),
    }
    return Loss(loss, metrics)


class TQC(SoftActorCritic):
    """Truncated quantile critics."""

    hyper: TQCConfig

    def critic_loss(self, batch: Batch, noise: Tensor) -> Loss:
        """`tqc_loss` towards the truncated mixture of the target critics."""
        next_action, alpha_log_prob = self.next_action(batch, noise)
        next_atoms = self.target(batch.next_obs, next_action)
        kept = truncated_atoms(next_atoms, self.hyper.dropped_quantiles) - alpha_log_prob[:, None]
        target = batch.reward[:, None] + batch.discount[:, None] * kept
        return tqc_loss(self.critics(batch.obs, batch.action), target)

    def actor_value(self, values: Tensor) -> Tensor:
        """The mean of all quantiles of all critics."""
        return values.mean((0, 2))
