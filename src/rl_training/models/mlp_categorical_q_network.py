"""A multi-layer perceptron that gives a distribution over fixed returns for each action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl_training.data.arrays import Array, rows_of, softmax
from rl_training.data.types import EnvSpec
from rl_training.models.per_action import PerActionNetwork


class MLPCategoricalQNetwork(PerActionNetwork):
    """Logits (batch, action_dim, num_atoms) of evenly spaced returns; the algorithm knows which."""

    vjp = PerActionNetwork.vjp

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        num_atoms: int = 51,
        hidden_sizes: Sequence[int] = (256, 256),
        *,
        dueling: bool = False,
    ) -> None:
        super().__init__(obs_dim, action_dim, num_atoms, hidden_sizes, dueling=dueling)

    @classmethod
    def build(cls, spec: EnvSpec, hyper: Any) -> MLPCategoricalQNetwork:
        """The network for an environment, as the hyper-parameters size it."""
        sizes = (spec.num_actions, hyper.num_atoms, hyper.hidden_sizes)
        return cls(spec.obs_dim, *sizes, dueling=hyper.dueling)

    def act(self, obs: Array) -> Array:
        """The action of each row with the highest expected return.

        Over evenly spaced returns that is the one with the highest expected number of the return.
        """
        probabilities = softmax(self.forward(obs))
        numbers = rows_of(probabilities[0].T)  # 0 to num_atoms - 1, where the probabilities are
        return (probabilities * numbers).sum(-1).argmax(-1)
