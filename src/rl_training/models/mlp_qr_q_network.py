"""A multi-layer perceptron that gives quantiles of the return of each action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from rl_training.data.types import EnvSpec
from rl_training.models.blocks import action_layers

if TYPE_CHECKING:
    from rl_training.config.value_based import QRDQNConfig


class MLPQRQNetwork(nn.Module):
    """Quantiles (batch, action_dim, num_quantiles) at the middles of equal shares, lowest first."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        num_quantiles: int = 200,
        hidden_sizes: Sequence[int] = (256, 256),
        *,
        dueling: bool = False,
        noisy: bool = False,
    ) -> None:
        super().__init__()
        self.layers = action_layers(
            obs_dim, action_dim, hidden_sizes, num_quantiles, dueling=dueling, noisy=noisy
        )
        self.shape = (action_dim, num_quantiles)

    @classmethod
    def build(cls, spec: EnvSpec, hyper: QRDQNConfig) -> MLPQRQNetwork:
        """The network for an environment, as the hyper-parameters size it."""
        sizes = (spec.num_actions, hyper.num_quantiles, hyper.hidden_sizes)
        return cls(spec.obs_dim, *sizes, dueling=hyper.dueling, noisy=hyper.noisy)

    def forward(self, obs: Tensor) -> Tensor:
        """Quantiles of observations (batch, obs_dim)."""
        quantiles: Tensor = self.layers(obs).unflatten(1, self.shape)
        return quantiles

    def act(self, obs: Tensor) -> Tensor:
        """The action of each row whose quantiles have the highest mean."""
        return self.forward(obs).mean(-1).argmax(-1)
