"""A multi-layer perceptron that gives one Q-value per action."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from rl_training.data.arrays import Array
from rl_training.data.types import EnvSpec
from rl_training.experiment.config import HyperParameters
from rl_training.models.blocks import MLP, PullBack


class MLPQNetwork(nn.Module):
    """Q-values of a vector observation; ReLU layers with PyTorch's default initialisation.

    That initialisation draws weights and biases uniformly within 1/sqrt(fan_in), the bound of
    the original DQN.
    """

    def __init__(
        self, obs_dim: int, action_dim: int, hidden_sizes: Sequence[int] = (256, 256)
    ) -> None:
        super().__init__()
        self.layers = MLP((obs_dim, *hidden_sizes, action_dim))

    @classmethod
    def build(cls, spec: EnvSpec, hyper: HyperParameters) -> MLPQNetwork:
        """The network for an environment, as the hyper-parameters size it."""
        return cls(spec.obs_dim, spec.num_actions, hyper.hidden_sizes)

    def forward(self, obs: Array) -> Array:
        """Q-values (batch, action_dim) of observations (batch, obs_dim)."""
        return self.layers.forward(obs)  # not through a module's call, which costs as much again

    def vjp(self, obs: Array) -> tuple[Array, PullBack]:
        """Q-values, and the function from their gradient to the parameters' gradients."""
        return self.layers.vjp(obs)

    def act(self, obs: Array) -> Array:
        """The greedy action of each row."""
        return self.forward(obs).argmax(-1)
