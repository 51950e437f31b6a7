"""Networks of images: the convolutions of Mnih et al. (2015) before the layers for vectors.

Each builder takes vectors, images, or observations with parts, and gives the network for vectors
behind what turns the observations into features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from rl_training.data.types import EnvSpec
from rl_training.models.blocks import MLP
from rl_training.models.cnn.encoders import (
    Convolutions,
    NatureCNN,
    NormalizedFeatures,
    PartConvolutions,
    image_encoder,
    init_orthogonal,
)
from rl_training.models.mlp_actor_critic import MLPActorCritic
from rl_training.models.mlp_actor_q_ensemble import MLPActorQEnsemble
from rl_training.models.mlp_categorical_q_network import MLPCategoricalQNetwork
from rl_training.models.mlp_q_network import MLPQNetwork
from rl_training.models.mlp_qr_q_network import MLPQRQNetwork
from rl_training.models.recurrent.actor_critic import PolicyAndValue, RecurrentActorCritic
from rl_training.models.recurrent.core import State
from rl_training.models.recurrent.lstm_q_network import LSTMQNetwork, RecurrentActions

if TYPE_CHECKING:
    from rl_training.config.ppo import PPOConfig

Hyper = TypeVar("Hyper")


class ImageQNetwork(nn.Module):
    """Convolutions, and a Q-network of their features."""

    def __init__(self, convolutions: Convolutions | PartConvolutions, head: Any) -> None:
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
        convolutions = image_encoder(spec)
        self.encoder = NatureCNN(spec.obs_shape, hyper.hidden_sizes, encoder=convolutions)
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


class ImageFeatures(nn.Module):
    """Convolutions, and a small normalised layer after them, as the actor-critics use them."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.convolutions = image_encoder(spec)
        beside = self.convolutions.beside
        self.features = NormalizedFeatures(self.convolutions.size, beside=beside)
        self.size = self.features.size
        init_orthogonal(self)

    def forward(self, images: Tensor) -> Tensor:
        """Features (batch, size)."""
        features: Tensor = self.features(self.convolutions(images))
        return features


class Encoded(nn.Module):
    """A network of vectors, behind an encoder of the observations it is given."""

    def __init__(self, encoder: ImageFeatures, head: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, obs: Tensor, *inputs: Tensor) -> Tensor:
        """The head's outputs for observations, and whatever else it takes."""
        outputs: Tensor = self.head(self.encoder(obs), *inputs)
        return outputs


class EncodedRecurrent(nn.Module):
    """A recurrent network of vectors, behind convolutions that see every step by itself."""

    def __init__(self, convolutions: Convolutions | PartConvolutions, head: Any) -> None:
        super().__init__()
        self.convolutions, self.head = convolutions, head

    @property
    def log_std(self) -> nn.Parameter:
        """The head's, which it has for continuous actions."""
        log_std: nn.Parameter = self.head.log_std
        return log_std

    def initial_state(self, batch_size: int) -> State:
        """The state at the start of an episode."""
        state: State = self.head.initial_state(batch_size)
        return state

    def reset_state(self, state: State, first: Tensor) -> State:
        """The state with the rows forgotten where an episode starts: `first` (batch,)."""
        after: State = self.head.reset_state(state, first)
        return after

    def act(self, obs: Tensor, state: State, first: Tensor) -> RecurrentActions:
        """What the head gives for one step: `obs` (batch, ...)."""
        actions: RecurrentActions = self.head.act(self.convolutions(obs), state, first)
        return actions

    def sequence(self, obs: Tensor, state: State, first: Tensor) -> PolicyAndValue:
        """The head's policy outputs and values along sequences: `obs` (time, batch, ...)."""
        output: PolicyAndValue = self.head.sequence(self._features(obs), state, first)
        return output

    def q_values_sequence(self, obs: Tensor, state: State, first: Tensor) -> tuple[Tensor, State]:
        """The head's Q-values along sequences: `obs` (time, batch, ...)."""
        values: tuple[Tensor, State]
        values = self.head.q_values_sequence(self._features(obs), state, first)
        return values

    def _features(self, obs: Tensor) -> Tensor:
        features: Tensor = self.convolutions(obs.flatten(0, 1))
        return features.reshape(*obs.shape[:2], *features.shape[1:])


def of_features(spec: EnvSpec, size: int) -> EnvSpec:
    """The environment's spec for a network whose input is that number of features."""
    return replace(spec, obs_shape=(size,), obs_dtype="float32", frames=1, parts=())


def _with_convolutions(
    of_vectors: Callable[[EnvSpec, Hyper], nn.Module],
    behind: Callable[[Convolutions | PartConvolutions, nn.Module], nn.Module] = ImageQNetwork,
) -> Callable[[EnvSpec, Hyper], nn.Module]:
    """Builds what `of_vectors` builds, for images with convolutions before it."""

    def build(spec: EnvSpec, hyper: Hyper) -> nn.Module:
        if not spec.has_images:
            return of_vectors(spec, hyper)
        convolutions = image_encoder(spec)
        return behind(convolutions, of_vectors(of_features(spec, convolutions.size), hyper))

    return build


def _with_encoders(
    of_vectors: Callable[[EnvSpec, Hyper], MLPActorQEnsemble],
) -> Callable[[EnvSpec, Hyper], MLPActorQEnsemble]:
    """Builds what `of_vectors` builds, for images with an encoder each for actor and critics."""

    def build(spec: EnvSpec, hyper: Hyper) -> MLPActorQEnsemble:
        if not spec.has_images:
            return of_vectors(spec, hyper)
        actor, critics = ImageFeatures(spec), ImageFeatures(spec)
        heads = of_vectors(of_features(spec, actor.size), hyper)
        return MLPActorQEnsemble(Encoded(actor, heads.actor), Encoded(critics, heads.critics))

    return build


def actor_critic(spec: EnvSpec, hyper: PPOConfig) -> nn.Module:
    """The network of vectors, or of images."""
    if not spec.has_images:
        return MLPActorCritic.build(spec, hyper)
    return ImageActorCritic(spec, hyper)


q_network = _with_convolutions(MLPQNetwork.build)
quantile_network = _with_convolutions(MLPQRQNetwork.build)
categorical_network = _with_convolutions(MLPCategoricalQNetwork.build)
recurrent_q_network = _with_convolutions(LSTMQNetwork.build, EncodedRecurrent)
recurrent_actor_critic = _with_convolutions(RecurrentActorCritic.build, EncodedRecurrent)
actor_q_ensemble = _with_encoders(MLPActorQEnsemble.build)
deterministic_actor_q_ensemble = _with_encoders(MLPActorQEnsemble.build_deterministic)
