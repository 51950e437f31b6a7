"""DrQ-v2 (Yarats et al., 2021): a deterministic actor from shifted images, with n-step returns.

As in the authors' code: one encoder, which the critics' loss alone trains and of which there is no
target copy; action noise of a scheduled scale, clipped in targets and in the actor's loss, where
clamping to the bounds has a straight-through gradient; no entropy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import (
    Loss,
    UpdateResult,
    example_observation,
    trainable_parameters,
)
from rl_training.algorithms.deterministic_actor_critic import (
    DeterministicActorCritic,
    squared_error,
)
from rl_training.algorithms.functional.random_shift import RandomShifts
from rl_training.algorithms.optimization import Optimizer, descend_together
from rl_training.config.actor_critic import DrQv2Config
from rl_training.data.examples import example_batch
from rl_training.data.generators import derived_seeds
from rl_training.data.metrics import JoinedMetrics
from rl_training.data.types import Batch, Clock, EnvSpec
from rl_training.errors import ConfigError

BOUND = 1 - 1e-6  # of actions, so that they stay inside the squashing's range


def drqv2_loss(q_values: Tensor, target: Tensor) -> Loss:
    """Squared error of values [E, B], averaged over the batch and summed over the critics."""
    loss = squared_error(q_values, target)
    metrics = {
        "critic_loss": loss.detach(),
        "q_value_mean": q_values.detach().mean(),
        "target_q_mean": target.detach().mean(),
    }
    return Loss(loss, metrics)


class DrQv2(DeterministicActorCritic):
    """Data-regularised Q, version 2."""

    state_fields = ("encoder_optimizer", "shifts")
    module_names = ("actor", "critics", "encoder")
    compiles = False
    hyper: DrQv2Config

    def __init__(
        self,
        model: nn.Module,
        hyper: DrQv2Config,
        spec: EnvSpec,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(model, hyper, spec, seed=seed, device=device)
        self.encoder_optimizer = Optimizer(self.encoder)
        self.shifts = RandomShifts(derived_seeds(seed, 3)[2], hyper.pad, spec.obs_shape, spec.parts)

    @property
    def encoder(self) -> nn.Module:
        """Turns images into the features that actor and critics see."""
        return self.others[0]

    def update(self, batch: Batch, clock: Clock) -> UpdateResult:
        """One step of the critics and the encoder, one of the actor, and one of the targets."""
        rate, spread = self.learning_rate(clock), self.noise_scale(clock)
        self.set_training(self.model, True)
        features = self.encoder(self.shifts(batch.obs))
        with torch.no_grad():
            next_features = self.encoder(self.shifts(batch.next_obs))
        noise = self.clipped_noise(len(batch.reward), spread)
        critic = descend_together(
            (self.encoder_optimizer, self.critic_optimizer),
            self.critic_loss,
            batch._replace(obs=features, next_obs=next_features),
            noise,
            learning_rate=rate,
        )
        actor = self.actor_optimizer.descend(
            self.actor_loss,
            features.detach(),
            self.clipped_noise(len(batch.reward), spread),
            learning_rate=rate,
        )
        self.target.update(clock)
        return UpdateResult(JoinedMetrics(critic.metrics, actor.metrics))

    def critic_loss(self, batch: Batch, noise: Tensor) -> Loss:
        """`drqv2_loss` of a batch whose observations are features."""
        with torch.no_grad():
            next_action = bounded(self.actor(batch.next_obs) + noise)
            next_value = self.target(batch.next_obs, next_action).amin(0)[:, 0]
            target = batch.reward + batch.discount * next_value
        return drqv2_loss(self.critics(batch.obs, batch.action)[:, :, 0], target)

    def actor_loss(self, features: Tensor, noise: Tensor) -> Loss:
        """Minus the lowest critic's mean value of the actor's noisy actions."""
        action = bounded(self.actor(features) + noise)
        loss = -self.critics(features, action).amin(0).mean()
        return Loss(loss, {"actor_loss": loss.detach()})

    def example_inputs(self) -> dict[str, tuple[Any, ...]]:
        """A batch whose observations are features, or features alone, and noise."""
        batch = example_batch(self.spec, self.device)
        features, next_features = self.encoder(batch.obs), self.encoder(batch.next_obs).detach()
        noise = self.clipped_noise(len(batch.reward), 1.0)
        of_features = batch._replace(obs=features, next_obs=next_features)
        return {"critic_loss": (of_features, noise), "actor_loss": (features.detach(), noise)}

    @torch.no_grad()
    def mean_action(self, obs: np.ndarray) -> np.ndarray:
        """The actor's actions for images."""
        action: np.ndarray = self.actor(self.encoder(self.obs_tensor(obs))).cpu().numpy()
        return action

    def critic_values(self, obs: np.ndarray, actions: Tensor) -> Tensor:
        """The critics' values [E, B, 1] of several actions at one image, which is encoded once."""
        features = self.encoder(self.obs_tensor(obs))
        values: Tensor = self.critics(features.expand(len(actions), -1), actions)
        return values

    @torch.no_grad()
    def check_network(self) -> None:
        """Refuse a network without fitting `encoder(images)`, `actor(features)` and `critics`."""
        spec = self.spec
        for module in (self.encoder, self.actor, self.critics):
            device = trainable_parameters(module)[0].device
        self.model.eval()
        action = torch.zeros(1, spec.action_dim, device=device)
        try:
            features = self.encoder(example_observation(spec, device))
            found = tuple(self.actor(features).shape), tuple(self.critics(features, action).shape)
        except Exception as error:
            raise ConfigError(
                f"network: calling its encoder, actor and critics: {error}"
            ) from error
        expected = (1, spec.action_dim), (self.hyper.num_critics, 1, 1)
        if found != expected:
            raise ConfigError(
                f"network: expected the actor to give {expected[0]} and the critics {expected[1]} "
                f"for one observation, found {found[0]} and {found[1]}"
            )


def bounded(action: Tensor) -> Tensor:
    """Actions clipped to the bounds, with a straight-through gradient."""
    return action - action.detach() + action.detach().clip(-BOUND, BOUND)
