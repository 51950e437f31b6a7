"""DrQ (Kostrikov et al., 2020): soft actor-critic from images that are shifted at random.

As in the paper a target is the mean over `num_target_augmentations` shifts of the next image, each
with an action of its own, and the critics learn it from `num_augmentations` shifts of the image;
the actor sees the first of them. Unlike in the authors' code the log standard deviation is held in
its range by clipping, and targets move at every update, half as far as there at every other one.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from rl_training.algorithms.functional.entropy import soft_actor_loss
from rl_training.algorithms.functional.shapes import expect_shapes
from rl_training.algorithms.generators import derived_seeds
from rl_training.algorithms.image_config import ShiftedImagesConfig
from rl_training.algorithms.random_shifts import RandomShifts
from rl_training.algorithms.sac import SAC, lowest
from rl_training.algorithms.soft_actor_critic import CRITIC_METRICS, CriticLoss
from rl_training.algorithms.soft_config import Auto, SoftActorCriticConfig
from rl_training.data.metrics import Metrics
from rl_training.data.types import Batch, EnvSpec
from rl_training.experiment.config import LearningRate


class DrQConfig(ShiftedImagesConfig, SoftActorCriticConfig):
    """Hyper-parameters of DrQ."""

    learning_rate: LearningRate = Field(1e-3, description="step size of all optimisers")
    batch_size: int = Field(128, ge=1, le=1_000_000, description="transitions in one gradient step")
    policy_delay: int = Field(
        2, ge=1, le=100_000, description="updates of the critics for one of the actor"
    )
    alpha: Auto | Annotated[float, Field(ge=0, le=1e6)] = Field(
        0.1, description="weight of the entropy; auto learns it to reach target_entropy"
    )
    initial_alpha: float = Field(0.1, gt=0, le=1e6, description="where alpha: auto starts")
    tied_convolutions: bool = Field(
        False,
        description="the actor sees through the critics' convolutions and trains none",
    )
    shaping: ClassVar[tuple[str, ...]] = (
        "critic_hidden_sizes",
        "encoder",
        "feature_size",
        "tied_convolutions",
    )
    num_augmentations: int = Field(
        2, ge=1, le=100, description="shifts of an image that the critics learn a target from"
    )
    num_target_augmentations: int = Field(
        2, ge=1, le=100, description="shifts of the next image that a target is the mean over"
    )


class DrQLoss(NamedTuple):
    """What critics and actor make smaller, and the metrics of both."""

    critic: Tensor
    actor: Tensor
    metrics: Metrics


def drq_loss(
    q_values: Tensor, target: Tensor, policy_value: Tensor, log_prob: Tensor, alpha: float | Tensor
) -> DrQLoss:
    """The losses of one update, which takes them one after the other.

    Shapes: q_values [E, M, B], of E critics at M shifts of each image, and target [B], the mean
    over the shifts of what follows; policy_value and log_prob [B] of the actor's own actions.
    """
    expect_shapes("B, B, B", target, policy_value, log_prob)
    critic, _, numbers = critic_error(q_values, target)
    actor, entropy = soft_actor_loss(policy_value, log_prob, alpha)
    names = (*CRITIC_METRICS, "actor_loss", "entropy")
    numbers = torch.cat([numbers, torch.stack([actor, entropy])])
    return DrQLoss(critic, actor, Metrics(names, numbers.detach()))


def critic_error(q_values: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Squared error, averaged over the batch and summed over critics and augmentations.

    Shapes: q_values [E, M, B] and target [B]. Gives the loss, its gradient by the values and
    `CRITIC_METRICS`.
    """
    expect_shapes("E M B, B", q_values, target)
    error = q_values - target
    rows = len(target)
    loss = (error * error).sum() / rows
    return loss, error * (2 / rows), torch.stack([loss, q_values.mean(), target.mean()])


class DrQ(SAC):
    """Data-regularised Q."""

    hyper: DrQConfig  # type: ignore[assignment] # has what SAC reads of its own

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
        self.shifts = RandomShifts(derived_seeds(seed, 4)[-1], hyper.pad, spec.obs_shape)
        self.parts["shifts"] = self.shifts

    def views(self, batch: Batch) -> tuple[Batch, Tensor]:
        """The images, each shifted several times, and its actions as often; the actor sees one."""
        hyper = self.hyper
        obs = self.shifts(batch.obs, hyper.num_augmentations)
        action = batch.action.repeat(hyper.num_augmentations, 1)
        following = self.shifts(batch.next_obs, hyper.num_target_augmentations)
        seen = batch._replace(obs=obs, action=action, next_obs=following)
        return seen, obs[: len(batch.obs)]

    def critic_loss(
        self, output: Tensor, following: Tensor, cost: Tensor, batch: Batch
    ) -> CriticLoss:
        """`critic_error` towards the mean over the shifts of the next images."""
        rows = len(batch.reward)
        value = (lowest(following) - cost).reshape(-1, rows).mean(0)
        target = batch.reward + batch.discount * value
        _, gradient, numbers = critic_error(output.reshape(len(output), -1, rows), target)
        return CriticLoss(gradient.reshape(output.shape), numbers)
