"""A multi-layer perceptron that gives one Q-value per action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from rl_training.data.types import EnvSpec
from rl_training.models.blocks import q_layers

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rl_training.config.value_based import ActionLayerOptions, TransitionValueBasedConfig


class MLPQNetwork(nn.Module):
    """Q-values of a vector observation; ReLU layers with PyTorch's default initialisation.

    That initialisation draws weights and biases uniformly within 1/sqrt(fan_in), the bound of
    the original DQN.
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int] = (256, 256),
        **options: Unpack[ActionLayerOptions],
    ) -> None:
        super().__init__()
        self.layers = q_layers(obs_dim, action_dim, hidden_sizes, **options)

    @classmethod
    def build(cls, spec: EnvSpec, hyper: TransitionValueBasedConfig) -> MLPQNetwork:
        """The network for an environment, as the hyper-parameters size it."""
        sizes = (spec.obs_dim, spec.num_actions, hyper.hidden_sizes)
        return cls(*sizes, **hyper.layer_options())

    def forward(self, obs: Tensor) -> Tensor:
        """Q-values (batch, action_dim) of observations (batch, obs_dim)."""
        q_values: Tensor = self.layers(obs)
        return q_values

    def act(self, obs: Tensor) -> Tensor:
        """The greedy action of each row."""
        return self.forward(obs).argmax(-1)
