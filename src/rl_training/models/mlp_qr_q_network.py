"""A multi-layer perceptron that gives quantiles of the return of each action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from rl_training.data.types import EnvSpec
from rl_training.models.blocks import ActionDistributions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rl_training.config.value_based import ActionLayerOptions, QRDQNConfig


class MLPQRQNetwork(ActionDistributions):
    """Quantiles (batch, action_dim, num_quantiles) at the middles of equal shares, lowest first."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        num_quantiles: int = 200,
        hidden_sizes: Sequence[int] = (256, 256),
        **options: Unpack[ActionLayerOptions],
    ) -> None:
        super().__init__(obs_dim, action_dim, num_quantiles, hidden_sizes, **options)

    @classmethod
    def build(cls, spec: EnvSpec, hyper: QRDQNConfig) -> MLPQRQNetwork:
        """The network for an environment, as the hyper-parameters size it."""
        sizes = (spec.num_actions, hyper.num_quantiles, hyper.hidden_sizes)
        return cls(spec.obs_dim, *sizes, **hyper.layer_options())

    def act(self, obs: Tensor) -> Tensor:
        """The action of each row whose quantiles have the highest mean."""
        return self.forward(obs).mean(-1).argmax(-1)
