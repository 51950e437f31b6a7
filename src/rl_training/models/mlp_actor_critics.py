"""A squashed-Gaussian actor beside an ensemble of critics, as SAC, TQC and REDQ use them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.data.arrays import Array, namespace
from rl_training.data.types import EnvSpec
from rl_training.models.blocks import MLP, PullBack
from rl_training.models.ensemble import Backward, EnsembleMLP


class MLPActor(nn.Module):
    """Means and log standard deviations (batch, 2 * action_dim) of actions before squashing."""

    def __init__(self, obs_dim: int, action_dim: int, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.layers = MLP((obs_dim, *hidden_sizes, 2 * action_dim))

    def forward(self, obs: Array) -> Array:
        """Outputs for observations (batch, obs_dim)."""
        return self.layers.forward(obs)

    def vjp(self, obs: Array) -> tuple[Array, PullBack]:
        """Outputs, and the function from their gradient to the parameters' gradients."""
        return self.layers.vjp(obs)


class MLPCritics(nn.Module):
    """Numbers of each critic for observations and actions: (members, batch, outputs)."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        *,
        num_critics: int = 2,
        outputs: int = 1,
    ) -> None:
        super().__init__()
        self.layers = EnsembleMLP(num_critics, (obs_dim + action_dim, *hidden_sizes, outputs))
        self._action = slice(obs_dim, None)

    def forward(self, obs: Array, action: Array, members: Array | None = None) -> Array:
        """Numbers of all critics, or of those chosen."""
        return self.layers.forward(_joined(obs, action), members)

    def vjp(self, obs: Array, action: Array) -> tuple[Array, Backward]:
        """Numbers, and the function from their gradient to the parameters' gradients."""
        return self.layers.vjp(_joined(obs, action))

    def action_vjp(self, obs: Array, action: Array) -> tuple[Array, Backward]:
        """Numbers, and the function from their gradient to the actions' gradient."""
        return self.layers.input_vjp(_joined(obs, action), self._action)


class RegularizedCritics(nn.Module):
    """The same with dropout and layer normalisation before each ReLU (Hiraoka et al., 2022)."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        *,
        num_critics: int = 2,
        outputs: int = 1,
        layer_norm: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        sizes = (obs_dim + action_dim, *hidden_sizes, outputs)
        self.layers = nn.ModuleList(EnsembleMLP(num_critics, pair) for pair in pairwise(sizes))
        self.dropout = dropout
        self.scales, self.shifts = nn.ParameterList(), nn.ParameterList()
        for size in hidden_sizes if layer_norm else ():
            self.scales.append(nn.Parameter(torch.ones(num_critics, 1, size)))
            self.shifts.append(nn.Parameter(torch.zeros(num_critics, 1, size)))

    def forward(self, obs: Tensor, action: Tensor, members: Tensor | None = None) -> Tensor:
        """Numbers of all critics, or of those chosen."""
        x = _joined(obs, action)
        *hidden, last = self.layers
        for depth, layer in enumerate(hidden):
            x = F.dropout(layer(x, members), self.dropout, self.training)
            if self.scales:
                scale, shift = self.scales[depth], self.shifts[depth]
                if members is not None:
                    scale, shift = scale[members], shift[members]
                x = F.layer_norm(x, x.shape[-1:]) * scale + shift
            x = torch.relu(x)
        numbers: Tensor = last(x, members)
        return numbers


class MLPActorCritics(nn.Module):
    """An actor and its critics."""

    def __init__(self, actor: nn.Module, critics: nn.Module) -> None:
        super().__init__()
        self.actor = actor
        self.critics = critics

    @classmethod
    def build(cls, spec: EnvSpec, hyper: Any) -> MLPActorCritics:
        """The networks for an environment, as the hyper-parameters size them."""
        sizes = (spec.obs_dim, spec.action_dim)
        shape: dict[str, Any] = {"num_critics": hyper.num_critics, "outputs": hyper.critic_outputs}
        kind: Any = MLPCritics
        if hyper.layer_norm or hyper.dropout:
            kind = RegularizedCritics
            shape |= {"layer_norm": hyper.layer_norm, "dropout": hyper.dropout}
        model = cls(MLPActor(*sizes, hyper.hidden_sizes), kind(*sizes, hyper.critic_sizes, **shape))
        if hyper.xavier:
            init_xavier(model)
        return model

    def q_values(self, obs: Array, action: Array) -> Array:
        """What each critic expects of actions (batch, action_dim): (batch, num_critics)."""
        return self.critics(obs, action).mean(-1).T


@torch.no_grad()
def init_xavier(model: nn.Module) -> None:
    """Weights uniform within sqrt(6 / (inputs + outputs)), biases zero."""
    for name, parameter in model.named_parameters():
        kind = name.rpartition(".")[2]
        if kind.startswith("weight"):
            parameter.uniform_(-1, 1).mul_(math.sqrt(6 / sum(parameter.shape[-2:])))
        elif kind.startswith("bias"):
            parameter.zero_()


def _joined(obs: Array, action: Array) -> Array:
    return namespace(obs).concatenate([obs, action], 1)
