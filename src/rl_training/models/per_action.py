"""A multi-layer perceptron that gives several numbers for each action."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from rl_training.data.arrays import Array
from rl_training.models.blocks import PullBack
from rl_training.models.dueling import action_layers


class PerActionNetwork(nn.Module):
    """`width` numbers for each action at a vector observation; a subclass says what they mean.

    A subclass that changes nothing about `forward` repeats `vjp` in its body: that is how a network
    says that its gradient is written out.
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        width: int,
        hidden_sizes: Sequence[int],
        *,
        dueling: bool,
    ) -> None:
        super().__init__()
        self.layers = action_layers(obs_dim, action_dim, hidden_sizes, width, dueling)
        self._shape = (-1, action_dim, width)

    def forward(self, obs: Array) -> Array:
        """Numbers (batch, action_dim, width) of observations (batch, obs_dim)."""
        return self.layers.forward(obs).reshape(self._shape)

    def vjp(self, obs: Array) -> tuple[Array, PullBack]:
        """The same, and the function from their gradient to the parameters' gradients."""
        output, pull_back = self.layers.vjp(obs)
        return output.reshape(self._shape), lambda grad: pull_back(grad.reshape(output.shape))
