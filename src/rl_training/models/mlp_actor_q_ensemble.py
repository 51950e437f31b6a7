"""An actor beside an ensemble of Q-critics, as SAC, TQC, REDQ and TD3 use them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.data.types import EnvSpec
from rl_training.models.blocks import MLP, EnsembleMLP

if TYPE_CHECKING:
    from rl_training.config.actor_critic import TD3Config, VectorCriticsConfig


class MLPActor(nn.Module):
    """Means and log standard deviations (batch, 2 * action_dim) of actions before squashing."""

    def __init__(self, obs_dim: int, action_dim: int, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.layers = MLP((obs_dim, *hidden_sizes, 2 * action_dim))

    def forward(self, obs: Tensor) -> Tensor:
        """Outputs for observations (batch, obs_dim)."""
        outputs: Tensor = self.layers(obs)
        return outputs


class MLPDeterministicActor(nn.Module):
    """Actions (batch, action_dim) in [-1, 1]."""

    def __init__(self, obs_dim: int, action_dim: int, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.layers = MLP((obs_dim, *hidden_sizes, action_dim))

    def forward(self, obs: Tensor) -> Tensor:
        """Actions for observations (batch, obs_dim)."""
        return torch.tanh(self.layers(obs))


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

    def forward(self, obs: Tensor, action: Tensor, members: Tensor | None = None) -> Tensor:
        """Numbers of all critics, or of the given members."""
        outputs: Tensor = self.layers(torch.cat([obs, action], 1), members)
        return outputs


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
        """Numbers of all critics, or of the given members."""
        x = torch.cat([obs, action], 1)
        *hidden, last = self.layers
        for depth, layer in enumerate(hidden):
            x = F.dropout(layer(x, members), self.dropout, self.training)
            if self.scales:
                scale, shift = self.scales[depth], self.shifts[depth]
                if members is not None:
                    scale, shift = scale[members], shift[members]
                x = F.layer_norm(x, x.shape[-1:]) * scale + shift
            x = torch.relu(x)
        outputs: Tensor = last(x, members)
        return outputs


def mlp_critics(spec: EnvSpec, hyper: VectorCriticsConfig | TD3Config) -> nn.Module:
    """The critics for an environment, as the hyper-parameters size them."""
    sizes = (spec.obs_dim, spec.action_dim, hyper.critic_sizes)
    count, outputs = hyper.num_critics, hyper.critic_outputs
    if not (hyper.layer_norm or hyper.dropout):
        return MLPCritics(*sizes, num_critics=count, outputs=outputs)
    return RegularizedCritics(
        *sizes,
        num_critics=count,
        outputs=outputs,
        layer_norm=hyper.layer_norm,
        dropout=hyper.dropout,
    )


class MLPActorQEnsemble(nn.Module):
    """An actor and its critics."""

    def __init__(self, actor: nn.Module, critics: nn.Module) -> None:
        super().__init__()
        self.actor = actor
        self.critics = critics

    @classmethod
    def build(cls, spec: EnvSpec, hyper: VectorCriticsConfig) -> MLPActorQEnsemble:
        """The networks for an environment, as the hyper-parameters size them."""
        actor = MLPActor(spec.obs_dim, spec.action_dim, hyper.hidden_sizes)
        model = cls(actor, mlp_critics(spec, hyper))
        if hyper.xavier:
            init_xavier(model)
        return model

    @classmethod
    def build_deterministic(cls, spec: EnvSpec, hyper: TD3Config) -> MLPActorQEnsemble:
        """The networks of a deterministic actor-critic."""
        actor = MLPDeterministicActor(spec.obs_dim, spec.action_dim, hyper.hidden_sizes)
        return cls(actor, mlp_critics(spec, hyper))

    def q_values(self, obs: Tensor, action: Tensor) -> Tensor:
        """Each critic's value of actions (batch, action_dim): (batch, num_critics)."""
        values: Tensor = self.critics(obs, action).mean(-1).T
        return values


@torch.no_grad()
def init_xavier(model: nn.Module) -> None:
    """Weights uniform within sqrt(6 / (inputs + outputs)), biases zero."""
    for name, parameter in model.named_parameters():
        kind = name.rpartition(".")[2]
        if kind.startswith("weight"):
            parameter.uniform_(-1, 1).mul_(math.sqrt(6 / sum(parameter.shape[-2:])))
        elif kind.startswith("bias"):
            parameter.zero_()
