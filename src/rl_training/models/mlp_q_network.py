"""A multi-layer perceptron that gives one Q-value per action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from rl_training.data.arrays import Array
from rl_training.data.types import EnvSpec
from rl_training.models.blocks import PullBack
from rl_training.models.dueling import action_layers


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
        *,
        dueling: bool = False,
    ) -> None:
        super().__init__()
        self.layers = action_layers(obs_dim, action_dim, hidden_sizes, 1, dueling)

    @classmethod
    def build(cls, spec: EnvSpec, hyper: Any) -> MLPQNetwork:
        """The network for an environment, as the hyper-parameters size it."""
        return cls(spec.obs_dim, spec.num_actions, hyper.hidden_sizes, dueling=hyper.dueling)

    def forward(self, obs: Array) -> Array:
        """Q-values (batch, action_dim) of observations (batch, obs_dim)."""
        return self.layers.forward(obs)  # not through a module's call, which costs as much again

    def vjp(self, obs: Array) -> tuple[Array, PullBack]:
        """Q-values, and the function from their gradient to the parameters' gradients."""
        return self.layers.vjp(obs)

    def act(self, obs: Array) -> Array:
        """The greedy action of each row."""
        return self.forward(obs).argmax(-1)
