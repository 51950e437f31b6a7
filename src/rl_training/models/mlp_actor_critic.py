"""Separate multi-layer perceptrons for a policy and its value, as PPO uses them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from rl_training.data.arrays import Array
from rl_training.data.types import EnvSpec
from rl_training.experiment.config import HyperParameters
from rl_training.models.blocks import MLP


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
    def build(cls, spec: EnvSpec, hyper: HyperParameters) -> MLPActorCritic:
        """The network for an environment, as the hyper-parameters size it."""
        return cls(
            spec.obs_dim,
            spec.policy_outputs,
            hyper.hidden_sizes,
            gaussian=spec.action_kind == "continuous",
            log_std_init=getattr(hyper, "log_std_init", 0.0),
        )

    def policy(self, obs: Array) -> Array:
        """Logits or means (batch, policy_outputs)."""
        return self.actor.forward(obs)

    def value(self, obs: Array) -> Array:
        """Values (batch,)."""
        return self.critic.forward(obs).squeeze(-1)

    def forward(self, obs: Array) -> tuple[Array, Array]:
        """Policy outputs and values."""
        return self.policy(obs), self.value(obs)

    def vjp(self, obs: Array) -> tuple[tuple[Array, Array], Callable[[Sequence[Array]], None]]:
        """Policy outputs and values, and the function from their gradients to the parameters'.

        With continuous actions it takes a third gradient, that of `log_std`.
        """
        outputs, to_actor = self.actor.vjp(obs)
        values, to_critic = self.critic.vjp(obs)

        def pull_back(grads: Sequence[Array]) -> None:
            to_actor(grads[0])
            to_critic(grads[1][:, None])
            for grad in grads[2:]:
                assert self.log_std.grad is not None
                self.log_std.grad.copy_(torch.as_tensor(grad))

        return (outputs, values.squeeze(-1)), pull_back
