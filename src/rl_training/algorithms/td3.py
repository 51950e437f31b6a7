"""TD3 (Fujimoto et al., 2018): a deterministic actor, twin critics, and targets smoothed by noise.

As in the authors' code: the target action is the target actor's with clipped noise, within the
bounds; the lowest target critic values it; actor and targets move once per `policy_delay` updates
of the critics, and the actor follows the first critic. With `num_critics: 1`, `policy_delay: 1` and
`target_noise: 0` this is DDPG (Lillicrap et al., 2016) with Gaussian instead of correlated noise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import (
    Loss,
    SampledValues,
    UpdateResult,
    check_output,
    example_observation,
    trainable_parameters,
)
from rl_training.algorithms.deterministic_actor_critic import (
    DeterministicActorCritic,
    squared_error,
)
from rl_training.algorithms.optimization import TargetNetwork
from rl_training.config.actor_critic import TD3Config
from rl_training.data.examples import example_batch
from rl_training.data.metrics import JoinedMetrics
from rl_training.data.types import Batch, Clock, EnvSpec, expect_shapes


def td3_target(batch: Batch, next_values: Tensor) -> Tensor:
    """`reward + discount * min over critics`: next_values [E, B] gives [B]."""
    expect_shapes("B, B, E B", batch.reward, batch.discount, next_values)
    return batch.reward + batch.discount * next_values.amin(0)


def td3_loss(q_values: Tensor, target: Tensor) -> Loss:
    """Squared error of values [E, B] on targets [B], a sum over the critics."""
    loss = squared_error(q_values, target)
    metrics = {
        "critic_loss": loss.detach(),
        "q_value_mean": q_values.detach().mean(),
        "target_q_mean": target.detach().mean(),
    }
    return Loss(loss, metrics)


class TD3(DeterministicActorCritic):
    """Twin delayed deterministic policy gradient."""

    state_fields = ("target_actor", "updates")
    state_counts = ("updates",)
    hyper: TD3Config

    def __init__(
        self,
        model: nn.Module,
        hyper: TD3Config,
        spec: EnvSpec,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(model, hyper, spec, seed=seed, device=device)
        self.target_actor = TargetNetwork(self.actor_optimizer, tau=hyper.tau)
        self.updates = 0

    def update(self, batch: Batch, clock: Clock) -> UpdateResult:
        """One step of the critics; where due, one of the actor and of both targets."""
        rate = self.learning_rate(clock)
        self.set_training(self.model, True)
        self.updates += 1
        noise = self.clipped_noise(len(batch.reward), self.hyper.target_noise)
        critic = self.critic_optimizer.descend(self.critic_loss, batch, noise, learning_rate=rate)
        if self.updates % self.hyper.policy_delay:
            return UpdateResult(critic.metrics)
        actor = self.actor_optimizer.descend(self.actor_loss, batch, learning_rate=rate)
        self.target.update(clock)
        self.target_actor.update(clock)
        return UpdateResult(JoinedMetrics(critic.metrics, actor.metrics))

    def critic_loss(self, batch: Batch, noise: Tensor) -> Loss:
        """`td3_loss` towards the lowest target critic at the smoothed target action."""
        next_action = (self.target_actor(batch.next_obs) + noise).clip(-1, 1)
        next_values = self.target(batch.next_obs, next_action)[:, :, 0]
        q_values = self.critics(batch.obs, batch.action)[:, :, 0]
        return td3_loss(q_values, td3_target(batch, next_values))

    def actor_loss(self, batch: Batch) -> Loss:
        """Minus the first critic's mean value of the actor's actions."""
        loss = -self.critics(batch.obs, self.actor(batch.obs))[0].mean()
        return Loss(loss, {"actor_loss": loss.detach()})

    @torch.no_grad()
    def sampled_values(self, obs: np.ndarray, noise: np.ndarray) -> SampledValues:  # noqa: ARG002
        """The actor's deterministic actions, and the critics' mean values of them."""
        self.set_training(self.model, False)
        rows = self.obs_tensor(obs)
        action = self.actor(rows)
        value = self.critics(rows, action).mean((0, 2))
        no_entropy = torch.zeros_like(value)
        return SampledValues(*(x.cpu().numpy() for x in (action, value, no_entropy)))

    def example_inputs(self) -> dict[str, tuple[Any, ...]]:
        """A batch, and noise for the critics."""
        batch = example_batch(self.spec, self.device)
        noise = self.clipped_noise(len(batch.reward), self.hyper.target_noise)
        return {"critic_loss": (batch, noise), "actor_loss": (batch,)}

    def check_network(self) -> None:
        """Refuse a network without a fitting `actor(obs)` and `critics(obs, action)`."""
        actor, critics, spec = self.actor, self.critics, self.spec
        obs = example_observation(spec, trainable_parameters(actor)[0].device)
        trainable_parameters(critics)
        action = torch.zeros(1, spec.action_dim, device=obs.device)
        outputs = ((1, spec.action_dim), (self.hyper.num_critics, 1, 1))
        check_output(actor, actor, [obs], outputs[0], name="network.actor(obs)")
        name = "network.critics(obs, action)"
        check_output(critics, critics, [obs, action], outputs[1], name=name)
