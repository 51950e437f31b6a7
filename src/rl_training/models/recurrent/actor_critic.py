"""A recurrent policy and its value, as recurrent PPO uses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from rl_training.data.types import EnvSpec
from rl_training.models.blocks import MLP
from rl_training.models.recurrent.core import CoreKind, RecurrentCore, State, reset_state

if TYPE_CHECKING:
    from rl_training.config.ppo import RecurrentPPOConfig


class Memory(nn.Module):
    """Tanh layers, then a recurrent one; orthogonal initialisation and zero biases."""

    def __init__(
        self, obs_dim: int, hidden_sizes: Sequence[int], core: CoreKind, core_size: int
    ) -> None:
        super().__init__()
        sizes = (obs_dim, *hidden_sizes)
        self.encoder = MLP(sizes, activation="tanh", activate_last=True) if hidden_sizes else None
        if self.encoder is not None:
            self.encoder.init_orthogonal(last_gain=2**0.5)
        self.core = RecurrentCore(sizes[-1], core_size, core)
        for name, parameter in self.core.layer.named_parameters():
            nn.init.orthogonal_(parameter) if "weight" in name else nn.init.zeros_(parameter)

    def forward(self, obs: Tensor, state: State, first: Tensor) -> Tensor:
        """Features (time, batch, core_size)."""
        if self.encoder is not None:
            obs = self.encoder(obs.flatten(0, 1)).unflatten(0, obs.shape[:2])
        return self.core.outputs(obs, state, first)

    def act(self, obs: Tensor, state: State, first: Tensor) -> State:
        """The state after one step, whose first part is the features."""
        features = obs if self.encoder is None else self.encoder(obs)
        after: State = self.core(features.unsqueeze(0), state, first.unsqueeze(0))[1]
        return after


class PolicyAndValue(NamedTuple):
    """Policy outputs (time, batch, outputs) and values (time, batch)."""

    policy: Tensor
    value: Tensor


class RecurrentActorCritic(nn.Module):
    """Policy outputs and values of vector observations and what was seen before them.

    Policy and value have separate recurrent layers or share one. Sequences are (time, batch, ...);
    states are tuples of (batch, core_size), the policy's parts first. For continuous actions
    `log_std` is one learned number per dimension.
    """

    def __init__(
        self,
        obs_dim: int,
        policy_outputs: int,
        hidden_sizes: Sequence[int] = (64,),
        *,
        core: CoreKind = "lstm",
        core_size: int = 128,
        shared_core: bool = False,
        log_std_init: float | None = None,
    ) -> None:
        super().__init__()
        shape = (obs_dim, hidden_sizes, core, core_size)
        self.memories = nn.ModuleList(Memory(*shape) for _ in range(1 if shared_core else 2))
        self.actor = MLP((core_size, policy_outputs))
        self.critic = MLP((core_size, 1))
        self.actor.init_orthogonal(last_gain=0.01)
        self.critic.init_orthogonal(last_gain=1.0)
        if log_std_init is not None:
            self.log_std = nn.Parameter(torch.full((policy_outputs,), log_std_init))

    @classmethod
    def build(cls, spec: EnvSpec, hyper: RecurrentPPOConfig) -> RecurrentActorCritic:
        """The network for an environment, as the hyper-parameters size it."""
        return cls(
            spec.obs_dim,
            spec.policy_outputs,
            hyper.hidden_sizes,
            core=hyper.core,
            core_size=hyper.core_size,
            shared_core=hyper.shared_core,
            log_std_init=hyper.log_std_init if spec.action_kind == "continuous" else None,
        )

    def initial_state(self, batch_size: int) -> State:
        """The state at the start of an episode."""
        memories: list[Any] = list(self.memories)
        states = (memory.core.initial_state(batch_size) for memory in memories)
        return tuple(part for state in states for part in state)

    def reset_state(self, state: State, first: Tensor) -> State:
        """The state with the rows forgotten where an episode starts: `first` (batch,)."""
        return reset_state(state, first)

    def sequence(self, obs: Tensor, state: State, first: Tensor) -> PolicyAndValue:
        """Policy outputs and values along sequences: `obs` (time, batch, obs_dim)."""
        features = [memory(obs, mine, first) for memory, mine in self._split(state)]
        policy = self.actor(features[0].flatten(0, 1)).unflatten(0, obs.shape[:2])
        value = self.critic(features[-1].flatten(0, 1)).reshape(obs.shape[:2])
        return PolicyAndValue(policy, value)

    def act(self, obs: Tensor, state: State, first: Tensor) -> tuple[Tensor, State]:
        """Policy outputs (batch, outputs) and the state after one step: `obs` (batch, obs_dim)."""
        after = [memory.act(obs, mine, first) for memory, mine in self._split(state)]
        policy: Tensor = self.actor(after[0][0])
        return policy, tuple(part for parts in after for part in parts)

    def _split(self, state: Sequence[Any]) -> list[tuple[Any, Any]]:
        """Each memory with its parts of the state."""
        memories = list(self.memories)
        each = len(state) // len(memories)
        return [(memory, state[each * k : each * (k + 1)]) for k, memory in enumerate(memories)]
