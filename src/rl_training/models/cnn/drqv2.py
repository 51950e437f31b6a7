"""The networks of DrQ-v2: one encoder of images, and behind it an actor and critics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rl_training.data.types import EnvSpec
from rl_training.models.blocks import MLP, EnsembleMLP
from rl_training.models.cnn.encoders import (
    ENCODERS,
    Convolutions,
    NormalizedFeatures,
    PartConvolutions,
    image_encoder,
    init_orthogonal,
)

if TYPE_CHECKING:
    from rl_training.config.actor_critic import DrQv2Config


class FeatureActor(nn.Module):
    """Actions (batch, action_dim) in [-1, 1] for the encoder's features."""

    def __init__(
        self,
        inputs: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        *,
        features: int = 50,
        beside: int = 0,
    ) -> None:
        super().__init__()
        self.features = NormalizedFeatures(inputs, features, beside=beside)
        self.layers = MLP((self.features.size, *hidden_sizes, action_dim))

    def forward(self, features: Tensor) -> Tensor:
        """Actions."""
        return torch.tanh(self.layers(self.features(features)))


class FeatureCritics(nn.Module):
    """Values (members, batch, 1) of actions for the encoder's features."""

    def __init__(
        self,
        inputs: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        *,
        features: int = 50,
        beside: int = 0,
        num_critics: int = 2,
    ) -> None:
        super().__init__()
        self.features = NormalizedFeatures(inputs, features, beside=beside)
        inputs = self.features.size + action_dim
        self.layers = EnsembleMLP(num_critics, (inputs, *hidden_sizes, 1))

    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        """Values."""
        values: Tensor = self.layers(torch.cat([self.features(features), action], 1))
        return values


class CNNDrQv2Model(nn.Module):
    """An encoder, and an actor and critics behind it."""

    def __init__(
        self,
        encoder: Convolutions | PartConvolutions,
        actor: FeatureActor,
        critics: FeatureCritics,
    ) -> None:
        super().__init__()
        self.encoder, self.actor, self.critics = encoder, actor, critics

    @classmethod
    def build(cls, spec: EnvSpec, hyper: DrQv2Config) -> CNNDrQv2Model:
        """The networks for an environment, as the hyper-parameters size them."""
        layers = ENCODERS[hyper.encoder]
        encoder = image_encoder(spec, layers, centered=True)
        sizes = encoder.size, spec.action_dim, hyper.hidden_sizes
        options: dict[str, Any] = {"features": hyper.feature_size, "beside": encoder.beside}
        critics = FeatureCritics(*sizes, num_critics=hyper.num_critics, **options)
        model = cls(encoder, FeatureActor(*sizes, **options), critics)
        init_orthogonal(model)
        return model

    def q_values(self, images: Tensor, action: Tensor) -> Tensor:
        """Each critic's value of actions (batch, action_dim): (batch, num_critics)."""
        values: Tensor = self.critics(self.encoder(images), action)[:, :, 0].T
        return values
