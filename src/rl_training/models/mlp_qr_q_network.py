"""A multi-layer perceptron that gives quantiles of the return of each action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from rl_training.data.arrays import Array
from rl_training.data.types import EnvSpec
from rl_training.models.blocks import PullBack
from rl_training.models.dueling import action_layers


class MLPQRQNetwork(nn.Module):
    """Quantiles at the middles of equal shares, lowest share first, of a vector observation."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        num_quantiles: int = 200,
        hidden_sizes: Sequence[int] = (256, 256),
        *,
        dueling: bool = False,
    ) -> None:
        super().__init__()
        self.layers = action_layers(obs_dim, action_dim, hidden_sizes, num_quantiles, dueling)
        self._shape = (-1, action_dim, num_quantiles)

    @classmethod
    def build(cls, spec: EnvSpec, hyper: Any) -> MLPQRQNetwork:
        """The network for an environment, as the hyper-parameters size it."""
        sizes = (spec.num_actions, hyper.num_quantiles, hyper.hidden_sizes)
        return cls(spec.obs_dim, *sizes, dueling=hyper.dueling)

    def forward(self, obs: Array) -> Array:
        """Quantiles (batch, action_dim, num_quantiles) of observations (batch, obs_dim)."""
        return self.layers.forward(obs).reshape(self._shape)

    def vjp(self, obs: Array) -> tuple[Array, PullBack]:
        """Quantiles, and the function from their gradient to the parameters' gradients."""
        output, pull_back = self.layers.vjp(obs)
        return output.reshape(self._shape), lambda grad: pull_back(grad.reshape(output.shape))

    def act(self, obs: Array) -> Array:
        """The action of each row whose quantiles have the highest mean."""
        return self.forward(obs).mean(-1).argmax(-1)
