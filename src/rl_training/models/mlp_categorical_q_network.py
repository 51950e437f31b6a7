"""A multi-layer perceptron that gives a distribution over fixed returns for each action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rl_training.data.types import EnvSpec
from rl_training.models.blocks import ActionDistributions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rl_training.config.value_based import ActionLayerOptions, C51Config


class MLPCategoricalQNetwork(ActionDistributions):
    """Logits (batch, action_dim, num_atoms) of evenly spaced returns; the algorithm knows which."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        num_atoms: int = 51,
        hidden_sizes: Sequence[int] = (256, 256),
        **options: Unpack[ActionLayerOptions],
    ) -> None:
        super().__init__(obs_dim, action_dim, num_atoms, hidden_sizes, **options)

    @classmethod
    def build(cls, spec: EnvSpec, hyper: C51Config) -> MLPCategoricalQNetwork:
        """The network for an environment, as the hyper-parameters size it."""
        sizes = (spec.num_actions, hyper.num_atoms, hyper.hidden_sizes)
        return cls(spec.obs_dim, *sizes, **hyper.layer_options())

    def act(self, obs: Tensor) -> Tensor:
        """The action of each row with the highest expected return.

        Over evenly spaced returns that is the one with the highest expected number of the return.
        """
        probabilities = self.forward(obs).softmax(-1)
        numbers = torch.arange(self.shape[1], device=probabilities.device)
        return (probabilities * numbers).sum(-1).argmax(-1)
