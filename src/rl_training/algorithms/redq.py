"""REDQ (Chen et al., 2021): many updates per transition, with low bias thanks to an ensemble.

As in the authors' code: one random subset of the target critics per update, for the whole batch;
the actor follows the mean of all critics and is updated once per `policy_delay` updates, by default
the replay ratio; targets move at every update; nothing is learned before the random warm-up is
over; weights start Xavier-uniform. `target_entropy: auto` is minus the number of action dimensions;
the paper's own numbers are in the packaged configurations. Unlike there, the actor's gradient is
taken after the critics' step.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Loss
from rl_training.algorithms.soft_actor_critic import (
    SoftActorCritic,
    min_over_critics,
    soft_target,
)
from rl_training.config.actor_critic import REDQConfig
from rl_training.data.generators import NumpyGenerator, derived_seeds
from rl_training.data.types import Batch, EnvSpec, expect_shapes


def redq_loss(q_values: Tensor, target: Tensor) -> Loss:
    """Squared error, averaged over the batch and summed over the critics.

    Shapes: q_values [B, N] and target [B].
    """
    expect_shapes("B N, B", q_values, target)
    target = target.detach()
    error = q_values - target[:, None]
    loss = (error**2).mean(0).sum()
    metrics = {
        "critic_loss": loss.detach(),
        "q_value_mean": q_values.detach().mean(),
        "target_q_mean": target.mean(),
    }
    return Loss(loss, metrics)


def random_subset(rng: np.random.Generator, num_critics: int, size: int) -> np.ndarray:
    """The indices of `size` distinct critics."""
    return rng.permutation(num_critics)[:size]


class REDQ(SoftActorCritic):
    """Targets take the minimum of a random subset of critics, the actor the mean of all."""

    state_fields = ("subsets",)
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

    def critic_loss(self, batch: Batch, noise: Tensor) -> Loss:
        """`redq_loss` towards the lowest critic of a random subset."""
        next_action, alpha_log_prob = self.next_action(batch, noise)
        subset = self.tensor(self.draw_subset())
        next_value = min_over_critics(self.target(batch.next_obs, next_action, subset))
        q_values = self.critics(batch.obs, batch.action)[:, :, 0].T
        return redq_loss(q_values, soft_target(batch, next_value, alpha_log_prob))

    def actor_value(self, values: Tensor) -> Tensor:
        """The mean of all critics."""
        return values.mean(0)[:, 0]

    def draw_subset(self) -> np.ndarray:
        """The indices of the critics that the next targets are computed from."""
        return random_subset(self.subsets.numpy, self.hyper.num_critics, self.hyper.subset_size)

    def check_network(self) -> None:
        """Refuse critics, too, that cannot evaluate a subset of themselves."""
        super().check_network()
        size = self.hyper.subset_size
        self.check_critics(size, torch.arange(size))
