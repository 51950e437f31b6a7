"""REDQ (Chen et al., 2021): many updates per transition, kept honest by an ensemble.

As in the authors' code: one random subset of the target critics per update, for the whole batch;
the actor follows the mean of all critics and is updated once per `policy_delay` updates, by default
the replay ratio; targets move at every update; nothing is learned before the random warm-up is
over; weights start Xavier-uniform. `target_entropy: auto` is minus the number of action dimensions;
the paper's own numbers are in the packaged configurations. Unlike there, the actor's gradient is
taken after the critics' step.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import nn
from typing_extensions import Self

from rl_training.algorithms.functional.shapes import expect_shapes
from rl_training.algorithms.generators import NumpyGenerator, derived_seeds
from rl_training.algorithms.sac import lowest, soft_target
from rl_training.algorithms.soft_actor_critic import CRITIC_METRICS, CriticLoss, SoftActorCritic
from rl_training.algorithms.soft_config import VectorCriticsConfig
from rl_training.data.arrays import Array, namespace
from rl_training.data.metrics import Metrics
from rl_training.data.types import Batch, EnvSpec
from rl_training.experiment.config import check


class REDQConfig(VectorCriticsConfig):
    """Hyper-parameters of REDQ."""

    num_critics: int = Field(10, ge=1, le=1000, description="critics in the ensemble")
    subset_size: int = Field(2, ge=1, le=1000, description="critics that a target comes from")
    replay_ratio: float = Field(
        20.0, gt=0, le=1000, description="gradient steps per environment transition"
    )
    policy_delay: int | None = Field(  # type: ignore[assignment]
        None, ge=1, le=100_000, description="updates per one of the actor; null is replay_ratio"
    )
    learning_starts: int = Field(
        5_000, ge=0, description="environment transitions of random play before the first update"
    )

    xavier: ClassVar[bool] = True

    @model_validator(mode="after")
    def _subsets_fit(self) -> Self:
        check(
            self.subset_size <= self.num_critics,
            f"subset_size must be at most num_critics, {self.num_critics}; found "
            f"{self.subset_size}",
        )
        return self

    @property
    def actor_interval(self) -> int:
        """Updates for one of the actor."""
        return self.policy_delay or max(1, round(self.replay_ratio))


def redq_loss(q_values: Array, target: Array) -> tuple[Array, Array, Metrics]:
    """Squared error, averaged over the batch and summed over the critics, and its gradient.

    Shapes: q_values [B, N] and target [B]. Gives the loss, its gradient by the values [B, N] and
    the metrics.
    """
    expect_shapes("B N, B", q_values, target)
    error = q_values - target[:, None]
    rows = len(target)
    loss = (error * error).sum() / rows
    numbers = namespace(error).stack([loss, q_values.mean(), target.mean()])
    return loss, error * (2 / rows), Metrics(CRITIC_METRICS, numbers)


def random_subset(rng: np.random.Generator, num_critics: int, size: int) -> np.ndarray:
    """The numbers of `size` different critics."""
    return rng.permutation(num_critics)[:size]


class REDQ(SoftActorCritic):
    """Targets from the lowest of a random subset, the actor after the mean of all critics."""

    hyper: REDQConfig

    def __init__(
        self,
        model: nn.Module,
        hyper: REDQConfig,
        spec: EnvSpec,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(model, hyper, spec, seed=seed, device=device)
        self.subsets = NumpyGenerator(derived_seeds(seed, 3)[-1])
        self.parts["subsets"] = self.subsets

    def members(self) -> Array | None:
        """A random subset of the critics."""
        subset = random_subset(self.subsets.numpy, self.hyper.num_critics, self.hyper.subset_size)
        return subset if self.learns_on_host else torch.from_numpy(subset).to(self.device)

    def critic_loss(self, output: Array, following: Array, cost: Array, batch: Batch) -> CriticLoss:
        """`redq_loss` towards the lowest critic of the subset."""
        target = soft_target(batch, lowest(following), cost)
        _, gradient, metrics = redq_loss(output[:, :, 0].T, target)
        return CriticLoss(gradient.T[:, :, None], metrics.numbers)

    def actor_value(self, values: Array) -> tuple[Array, Array]:
        """The mean of all critics."""
        slope: Any = namespace(values).full_like(values, 1 / len(values))
        return values.mean(0)[:, 0], slope
