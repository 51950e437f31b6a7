"""A multi-layer perceptron that gives a distribution over fixed returns for each action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from rl_training.data.arrays import Array, rows_of, softmax
from rl_training.data.types import EnvSpec
from rl_training.models.blocks import PullBack
from rl_training.models.dueling import action_layers


class MLPCategoricalQNetwork(nn.Module):
    """Logits over `num_atoms` returns that are evenly spaced, the algorithm knows where."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        num_atoms: int = 51,
        hidden_sizes: Sequence[int] = (256, 256),
        *,
        dueling: bool = False,
    ) -> None:
        super().__init__()
        self.layers = action_layers(obs_dim, action_dim, hidden_sizes, num_atoms, dueling)
        self._shape = (-1, action_dim, num_atoms)

    @classmethod
    def build(cls, spec: EnvSpec, hyper: Any) -> MLPCategoricalQNetwork:
        """The network for an environment, as the hyper-parameters size it."""
        sizes = (spec.obs_dim, spec.num_actions, hyper.num_atoms, hyper.hidden_sizes)
        return cls(*sizes, dueling=hyper.dueling)

    def forward(self, obs: Array) -> Array:
        """Logits (batch, action_dim, num_atoms) of observations (batch, obs_dim)."""
        return self.layers.forward(obs).reshape(self._shape)

    def vjp(self, obs: Array) -> tuple[Array, PullBack]:
        """Logits, and the function from their gradient to the parameters' gradients."""
        output, pull_back = self.layers.vjp(obs)
        return output.reshape(self._shape), lambda grad: pull_back(grad.reshape(output.shape))

    def act(self, obs: Array) -> Array:
        """The action of each row with the highest expected return.

        Over evenly spaced returns that is the one with the highest expected number of the return.
        """
        probabilities = softmax(self.forward(obs))
        numbers = rows_of(probabilities[0].T)
        return (probabilities * numbers).sum(-1).argmax(-1)
