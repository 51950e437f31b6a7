"""TQC (Kuznetsov et al., 2020): distributional critics, and targets without their highest atoms.

The target's atoms of all critics are pooled and sorted, and the highest are left out: that controls
overestimation finely. Every critic learns all remaining atoms; the actor follows the mean of all
quantiles of all critics. As in the authors' code the loss is a mean over everything.
"""

from __future__ import annotations

from pydantic import Field, model_validator
from typing_extensions import Self

from rl_training.algorithms.functional.quantile import quantile_huber
from rl_training.algorithms.functional.shapes import expect_shapes
from rl_training.algorithms.soft_actor_critic import CriticLoss, SoftActorCritic
from rl_training.algorithms.soft_config import VectorCriticsConfig
from rl_training.data.arrays import Array, namespace
from rl_training.data.types import Batch
from rl_training.experiment.config import check


class TQCConfig(VectorCriticsConfig):
    """Hyper-parameters of TQC."""

    num_critics: int = Field(5, ge=1, le=1000, description="critics in the ensemble")
    num_quantiles: int = Field(25, ge=1, le=10_000, description="quantiles of each critic")
    dropped_quantiles: int = Field(
        2, ge=0, le=10_000, description="highest atoms left out of a target, per critic"
    )

    @property
    def critic_outputs(self) -> int:
        """Numbers each critic gives for an action."""
        return self.num_quantiles

    @model_validator(mode="after")
    def _something_is_left(self) -> Self:
        check(
            self.dropped_quantiles < self.num_quantiles,
            f"dropped_quantiles must be less than num_quantiles, {self.num_quantiles}; found "
            f"{self.dropped_quantiles}",
        )
        return self


def truncated_atoms(atoms: Array, dropped: int) -> Array:
    """The lowest atoms of all critics, pooled: [E, B, N] gives [B, E * (N - dropped)], sorted."""
    critics, rows, count = atoms.shape
    xp = namespace(atoms)
    pooled = xp.moveaxis(atoms, 0, 1).reshape(rows, critics * count)
    ordered = xp.sort(pooled, 1)
    values = ordered if isinstance(ordered, type(pooled)) else ordered.values
    return values[:, : critics * (count - dropped)]


def tqc_loss(quantiles: Array, atoms: Array) -> CriticLoss:
    """Quantile Huber loss of every critic's quantiles [E, B, N] on target atoms [B, K].

    The mean over critics, batch, quantiles and atoms.
    """
    expect_shapes("E B N, B K", quantiles, atoms)
    critics, rows, count = quantiles.shape
    xp = namespace(quantiles)
    targets = xp.concatenate([atoms] * critics)
    losses = quantile_huber(quantiles.reshape(critics * rows, count), targets)
    share = 1 / (critics * rows * count)
    numbers = xp.stack([losses.rows.sum() * share, quantiles.mean(), atoms.mean()])
    return CriticLoss(losses.gradient.reshape(quantiles.shape) * share, numbers)


class TQC(SoftActorCritic):
    """Truncated quantile critics."""

    hyper: TQCConfig

    def critic_loss(self, output: Array, following: Array, cost: Array, batch: Batch) -> CriticLoss:
        """`tqc_loss` on the pooled atoms without the highest."""
        atoms = truncated_atoms(following, self.hyper.dropped_quantiles)
        reward, discount, taken = (x[:, None] for x in (batch.reward, batch.discount, cost))
        return tqc_loss(output, reward + discount * (atoms - taken))

    def actor_value(self, values: Array) -> tuple[Array, Array]:
        """The mean of all quantiles of all critics."""
        count = values.shape[0] * values.shape[2]
        return values.mean((0, 2)), namespace(values).full_like(values, 1 / count)
