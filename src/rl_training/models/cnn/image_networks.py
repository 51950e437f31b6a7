"""Networks of images: the convolutions of Mnih et al. (2015) before the layers for vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from rl_training.data.types import EnvSpec
from rl_training.models.blocks import MLP
from rl_training.models.cnn.encoders import NATURE, Convolutions, NatureCNN, init_orthogonal
from rl_training.models.mlp_actor_critic import MLPActorCritic
from rl_training.models.mlp_categorical_q_network import MLPCategoricalQNetwork
from rl_training.models.mlp_q_network import MLPQNetwork
from rl_training.models.mlp_qr_q_network import MLPQRQNetwork

if TYPE_CHECKING:
    from rl_training.config.ppo import PPOConfig

Hyper = TypeVar("Hyper")


class ImageQNetwork(nn.Module):
    """Convolutions, and a Q-network of their features."""

    def __init__(self, convolutions: Convolutions, head: Any) -> None:
        super().__init__()
        self.convolutions, self.head = convolutions, head

    def forward(self, images: Tensor) -> Tensor:
        """The head's outputs for uint8 images (batch, channels, height, width)."""
        numbers: Tensor = self.head(self.convolutions(images))
        return numbers

    def act(self, images: Tensor) -> Tensor:
        """The greedy action of each row."""
        actions: Tensor = self.head.act(self.convolutions(images))
        return actions


class ImageActorCritic(nn.Module):
    """Policy outputs and values of images, from convolutions and layers that both share.

    ReLU and orthogonal initialisation, with gains of sqrt(2), 0.01 at the policy's output and 1 at
    the value's.
    """

    def __init__(self, spec: EnvSpec, hyper: PPOConfig) -> None:
        super().__init__()
        self.encoder = NatureCNN(spec.obs_shape, hyper.hidden_sizes)
        init_orthogonal(self.encoder, math.sqrt(2))
        size = self.encoder.size
        self.actor, self.critic = MLP((size, spec.policy_outputs)), MLP((size, 1))
        self.actor.init_orthogonal(last_gain=0.01)
        self.critic.init_orthogonal(last_gain=1.0)
        if spec.action_kind == "continuous":
            self.log_std = nn.Parameter(torch.full((spec.policy_outputs,), hyper.log_std_init))

    def policy(self, images: Tensor) -> Tensor:
        """Logits or means (batch, policy_outputs)."""
        return self.policy_and_value(images)[0]

    def value(self, images: Tensor) -> Tensor:
        """Values (batch,)."""
        return self.policy_and_value(images)[1]

    def policy_and_value(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Both, with the shared layers gone through once."""
        features = self.encoder(images)
        return self.actor(features), self.critic(features).squeeze(-1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Policy outputs and values."""
        return self.policy_and_value(images)


def _with_convolutions(
    of_vectors: Callable[[EnvSpec, Hyper], nn.Module],
) -> Callable[[EnvSpec, Hyper], nn.Module]:
    """Builds what `of_vectors` builds, for images with convolutions before it."""

    def build(spec: EnvSpec, hyper: Hyper) -> nn.Module:
        if len(spec.obs_shape) == 1:
            return of_vectors(spec, hyper)
        convolutions = Convolutions(spec.obs_shape, NATURE)
        features = replace(spec, obs_shape=(convolutions.size,), obs_dtype="float32", frames=1)
        return ImageQNetwork(convolutions, of_vectors(features, hyper))

    return build


def actor_critic(spec: EnvSpec, hyper: PPOConfig) -> nn.Module:
    """The network of vectors, or of images."""
    if len(spec.obs_shape) == 1:
        return MLPActorCritic.build(spec, hyper)
    return ImageActorCritic(spec, hyper)


q_network = _with_convolutions(MLPQNetwork.build)
quantile_network = _with_convolutions(MLPQRQNetwork.build)
categorical_network = _with_convolutions(MLPCategoricalQNetwork.build)
