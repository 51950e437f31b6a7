"""The networks of DrQ: an actor and critics that see images, each with a separate encoder."""

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
    from rl_training.config.actor_critic import DrQConfig


class PixelActor(nn.Module):
    """Means and log standard deviations (batch, 2 * action_dim) of actions before squashing.

    With `tied` convolutions, which are the critics', their features come without a gradient.
    """

    def __init__(
        self,
        convolutions: Convolutions | PartConvolutions,
        action_dim: int,
        hidden_sizes: Sequence[int],
        *,
        features: int = 50,
        tied: bool = False,
    ) -> None:
        super().__init__()
        # In a list, a network is no part of this one: its parameters are the critics' alone.
        self._borrowed = [convolutions] if tied else []
        self.convolutions = None if tied else convolutions
        if tied:  # yet an actor that is saved on its own is whole
            hooks: Any = self  # torch has no types for them
            hooks.register_state_dict_post_hook(_save_borrowed)
            hooks.register_load_state_dict_pre_hook(_load_borrowed)
        beside = convolutions.beside
        self.features = NormalizedFeatures(convolutions.size, features, beside=beside)
        self.layers = MLP((self.features.size, *hidden_sizes, 2 * action_dim))

    def forward(self, images: Tensor) -> Tensor:
        """Outputs for uint8 images (batch, channels, height, width)."""
        if self.convolutions is None:
            features = self._borrowed[0](images).detach()
        else:
            features = self.convolutions(images)
        outputs: Tensor = self.layers(self.features(features))
        return outputs


def _save_borrowed(actor: PixelActor, state: dict[str, Tensor], prefix: str, _: object) -> None:
    (convolutions,) = actor._borrowed
    state.update(convolutions.state_dict(prefix=f"{prefix}convolutions."))


def _load_borrowed(actor: PixelActor, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    (convolutions,) = actor._borrowed
    start = f"{prefix}convolutions."
    names = [name for name in state if name.startswith(start)]
    convolutions.load_state_dict({name.removeprefix(start): state.pop(name) for name in names})


class PixelCritics(nn.Module):
    """Values of each critic for images and actions: (members, batch, 1)."""

    def __init__(
        self,
        convolutions: Convolutions | PartConvolutions,
        action_dim: int,
        hidden_sizes: Sequence[int],
        *,
        features: int = 50,
        num_critics: int = 2,
    ) -> None:
        super().__init__()
        self.convolutions = convolutions
        beside = convolutions.beside
        self.features = NormalizedFeatures(convolutions.size, features, beside=beside)
        inputs = self.features.size + action_dim
        self.layers = EnsembleMLP(num_critics, (inputs, *hidden_sizes, 1))

    def forward(self, images: Tensor, action: Tensor) -> Tensor:
        """Values of all critics."""
        features = self.features(self.convolutions(images))
        numbers: Tensor = self.layers(torch.cat([features, action], 1))
        return numbers


class CNNDrQModel(nn.Module):
    """An actor and critics that see images."""

    def __init__(self, actor: PixelActor, critics: PixelCritics) -> None:
        super().__init__()
        self.actor, self.critics = actor, critics

    @classmethod
    def build(cls, spec: EnvSpec, hyper: DrQConfig) -> CNNDrQModel:
        """The networks for an environment, as the hyper-parameters size them."""
        layers = ENCODERS[hyper.encoder]
        convolutions = image_encoder(spec, layers)
        critics = PixelCritics(
            convolutions,
            spec.action_dim,
            hyper.critic_sizes,
            features=hyper.feature_size,
            num_critics=hyper.num_critics,
        )
        if not hyper.tied_convolutions:
            convolutions = image_encoder(spec, layers)
        actor = PixelActor(
            convolutions,
            spec.action_dim,
            hyper.hidden_sizes,
            features=hyper.feature_size,
            tied=hyper.tied_convolutions,
        )
        model = cls(actor, critics)
        init_orthogonal(model)
        return model

    def q_values(self, images: Tensor, action: Tensor) -> Tensor:
        """Each critic's value of actions (batch, action_dim): (batch, num_critics)."""
        values: Tensor = self.critics(images, action)[:, :, 0].T
        return values
