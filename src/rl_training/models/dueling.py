"""A stream for the value of a state and one for the advantages of its actions."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from rl_training.data.arrays import Array
from rl_training.models.blocks import MLP, PullBack


class DuelingMLP(nn.Module):
    """`width` numbers per action: value + advantage - mean advantage (Wang et al., 2016, Eq. 9).

    All hidden layers but the last are shared; each stream has a last one of its own. Gives
    (batch, action_dim * width), as an `MLP` of that output size does.
    """

    def __init__(
        self, obs_dim: int, action_dim: int, hidden_sizes: Sequence[int], width: int = 1
    ) -> None:
        super().__init__()
        *shared, last = (obs_dim, *hidden_sizes)
        self.trunk = MLP(shared, features=True) if len(shared) > 1 else None
        self.value = MLP((shared[-1], last, width))
        self.advantage = MLP((shared[-1], last, action_dim * width))
        self._shape = (-1, action_dim, width)

    def forward(self, x: Array) -> Array:
        """Outputs (batch, action_dim * width)."""
        if self.trunk is not None:
            x = self.trunk.forward(x)
        return self._joined(self.value.forward(x), self.advantage.forward(x))

    def vjp(self, x: Array) -> tuple[Array, PullBack]:
        """Outputs, and the function from their gradient to the parameters' gradients."""
        to_trunk = None
        if self.trunk is not None:
            x, to_trunk = self.trunk.vjp(x)
        value, to_value = self.value.vjp(x, to_input=True)
        advantage, to_advantage = self.advantage.vjp(x, to_input=True)

        def pull_back(grad: Array) -> None:
            by_action = grad.reshape(self._shape)
            by_value = by_action.sum(1)
            by_advantage = by_action - by_value[:, None] / self._shape[1]
            by_features = to_advantage(by_advantage.reshape(grad.shape)) + to_value(by_value)
            if to_trunk is not None:
                to_trunk(by_features)

        return self._joined(value, advantage), pull_back

    def _joined(self, value: Array, advantage: Array) -> Array:
        by_action = advantage.reshape(self._shape)
        mean = by_action.sum(1) / self._shape[1]
        return (by_action + (value - mean)[:, None]).reshape(advantage.shape)


def action_layers(
    obs_dim: int, action_dim: int, hidden_sizes: Sequence[int], width: int, dueling: bool
) -> MLP | DuelingMLP:
    """Layers that give `width` numbers for each action, flat: (batch, action_dim * width)."""
    if dueling:
        return DuelingMLP(obs_dim, action_dim, hidden_sizes, width)
    return MLP((obs_dim, *hidden_sizes, action_dim * width))
