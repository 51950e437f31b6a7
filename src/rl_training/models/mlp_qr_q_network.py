"""A multi-layer perceptron that gives quantiles of the return of each action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl_training.data.arrays import Array
from rl_training.data.types import EnvSpec
from rl_training.models.per_action import PerActionNetwork


class MLPQRQNetwork(PerActionNetwork):
    """Quantiles (batch, action_dim, num_quantiles) at the middles of equal shares, lowest first."""

    vjp = PerActionNetwork.vjp

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        num_quantiles: int = 200,
        hidden_sizes: Sequence[int] = (256, 256),
        *,
        dueling: bool = False,
    ) -> None:
        super().__init__(obs_dim, action_dim, num_quantiles, hidden_sizes, dueling=dueling)

    @classmethod
    def build(cls, spec: EnvSpec, hyper: Any) -> MLPQRQNetwork:
        """The network for an environment, as the hyper-parameters size it."""
        sizes = (spec.num_actions, hyper.num_quantiles, hyper.hidden_sizes)
        return cls(spec.obs_dim, *sizes, dueling=hyper.dueling)

    def act(self, obs: Array) -> Array:
        """The action of each row whose quantiles have the highest mean."""
        return self.forward(obs).mean(-1).argmax(-1)
