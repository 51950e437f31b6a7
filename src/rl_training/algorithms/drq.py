"""DrQ (Kostrikov et al., 2020): soft actor-critic from images that are shifted at random.

As in the paper a target is the mean over `num_target_augmentations` shifts of the next image, each
with a separate action, and the critics learn it from `num_augmentations` shifts of the image;
the actor sees the first of them. Unlike in the authors' code the log standard deviation is clipped
to its range, and targets move at every update, half as far as theirs at every other one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Loss
from rl_training.algorithms.functional.random_shift import RandomShifts
from rl_training.algorithms.soft_actor_critic import (
    SoftActorCritic,
    min_over_critics,
    soft_actor_loss,
)
from rl_training.config.actor_critic import DrQConfig
from rl_training.data.generators import derived_seeds
from rl_training.data.types import Batch, EnvSpec, expect_shapes


class DrQLoss(NamedTuple):
    """The losses of critics and actor, and the metrics of both."""

    critic: Tensor
    actor: Tensor
    metrics: dict[str, Tensor]


def drq_loss(
    q_values: Tensor, target: Tensor, policy_value: Tensor, log_prob: Tensor, alpha: float | Tensor
) -> DrQLoss:
    """The losses of one update, which takes them one after the other.

    Shapes: q_values [E, M, B], of E critics at M shifts of each image, and target [B], the mean
    over the shifts of the next image; policy_value and log_prob [B] of the actor's actions.
    """
    critic = drq_critic_loss(q_values, target)
    actor = soft_actor_loss(policy_value, log_prob, alpha)
    return DrQLoss(critic.value, actor.value, {**critic.metrics, **actor.metrics})


def drq_critic_loss(q_values: Tensor, target: Tensor) -> Loss:
    """Squared error, averaged over the batch and summed over critics and augmentations.

    Shapes: q_values [E, M, B] and target [B].
    """
    expect_shapes("E M B, B", q_values, target)
    target = target.detach()
    loss = ((q_values - target) ** 2).sum() / len(target)
    metrics = {
        "critic_loss": loss.detach(),
        "q_value_mean": q_values.detach().mean(),
        "target_q_mean": target.mean(),
    }
    return Loss(loss, metrics)


class DrQ(SoftActorCritic):
    """SAC whose targets average over random image shifts, on which the critics train."""

    state_fields = ("shifts",)
    hyper: DrQConfig

    def __init__(
        self,
        model: nn.Module,
        hyper: DrQConfig,
        spec: EnvSpec,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(model, hyper, spec, seed=seed, device=device)
        self.shifts = RandomShifts(
            derived_seeds(seed, 4)[-1], hyper.pad, spec.obs_shape, spec.parts
        )

    def augment(self, batch: Batch) -> Batch:
        """Several random shifts of each image, and its action repeated to match."""
        hyper = self.hyper
        return batch._replace(
            obs=self.shifts(batch.obs, hyper.num_augmentations),
            action=batch.action.repeat(hyper.num_augmentations, 1),
            next_obs=self.shifts(batch.next_obs, hyper.num_target_augmentations),
        )

    def critic_loss(self, batch: Batch, noise: Tensor) -> Loss:
        """`drq_critic_loss` towards the mean over the shifts of the next images."""
        rows = len(batch.reward)
        next_action, alpha_log_prob = self.next_action(batch, noise)
        next_value = min_over_critics(self.target(batch.next_obs, next_action)) - alpha_log_prob
        target = batch.reward + batch.discount * next_value.reshape(-1, rows).mean(0)
        q_values = self.critics(batch.obs, batch.action)
        return drq_critic_loss(q_values.reshape(len(q_values), -1, rows), target)

    def actor_value(self, values: Tensor) -> Tensor:
        """The lowest critic's value."""
        return min_over_critics(values)
