"""Separate multi-layer perceptrons for a policy and its value, as PPO uses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rl_training.data.types import EnvSpec
from rl_training.models.blocks import MLP

if TYPE_CHECKING:
    from rl_training.config.ppo import PPOConfig


class MLPActorCritic(nn.Module):
    """Policy outputs and values of vector observations; tanh layers, orthogonal initialisation.

    Gains are sqrt(2) in hidden layers, 0.01 at the policy's output, so that it starts near
    uniform, and 1 at the value's (Engstrom et al., 2020). For continuous actions `log_std` is one
    learned number per dimension, whatever the observation.
    """

    def __init__(
        self,
        obs_dim: int,
        policy_outputs: int,
        hidden_sizes: Sequence[int] = (64, 64),
        *,
        gaussian: bool = False,
        log_std_init: float = 0.0,
    ) -> None:
        super().__init__()
        self.actor = MLP((obs_dim, *hidden_sizes, policy_outputs), activation="tanh")
        self.critic = MLP((obs_dim, *hidden_sizes, 1), activation="tanh")
        self.actor.init_orthogonal(last_gain=0.01)
        self.critic.init_orthogonal(last_gain=1.0)
        if gaussian:
            self.log_std = nn.Parameter(torch.full((policy_outputs,), log_std_init))

    @classmethod
    def build(cls, spec: EnvSpec, hyper: PPOConfig) -> MLPActorCritic:
        """The network for an environment, as the hyper-parameters size it."""
        return cls(
            spec.obs_dim,
            spec.policy_outputs,
            hyper.hidden_sizes,
            gaussian=spec.action_kind == "continuous",
            log_std_init=hyper.log_std_init,
        )

    def policy(self, obs: Tensor) -> Tensor:
        """Logits or means (batch, policy_outputs)."""
        outputs: Tensor = self.actor(obs)
        return outputs

    def value(self, obs: Tensor) -> Tensor:
        """Values (batch,)."""
        values: Tensor = self.critic(obs).squeeze(-1)
        return values

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Policy outputs and values."""
        return self.policy(obs), self.value(obs)
