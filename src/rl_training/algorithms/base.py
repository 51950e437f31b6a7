"""What every algorithm is to the loops: something that acts, updates and saves its state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.data.arrays import Array, HostView
from rl_training.data.types import Moment, PolicyState


class UpdateResult(NamedTuple):
    """What an update reports: detached 0-d metrics by name, optimiser steps made, priorities."""

    metrics: dict[str, Tensor]
    gradient_steps: int = 1
    priorities: Array | None = None


class Acting(NamedTuple):
    """Actions of one vector step, a row per environment, and the policy state after it."""

    action: np.ndarray
    state: PolicyState = ()


class Stateful(Protocol):
    """Anything whose state goes into a checkpoint."""

    def state_dict(self) -> dict[str, Any]:
        """The state as nested dictionaries of tensors, arrays and plain values."""

    def load_state_dict(self, state: dict[str, Any], /) -> Any:
        """Take over a saved state."""


class Algorithm(ABC):
    """Base of the algorithms: a device, and `parts` from which the checkpoint is derived.

    A subclass sets `parts` to every stateful thing it owns (networks, optimisers, generators) and
    writes `act` and `update`. `step_functions` names the methods that `compile` may compile: those
    that compute a gradient and leave it in the parameters.
    """

    parts: dict[str, Stateful]
    step_functions: ClassVar[tuple[str, ...]] = ("_gradient",)

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.execution = "eager"
        self.host_view = HostView()
        self.compute_on_host(False)
        self._modules: dict[nn.Module, list[nn.Module]] = {}

    def initial_state(self, num_envs: int) -> PolicyState:  # noqa: ARG002 - feed-forward default
        """The policy state at the start of an episode, for `num_envs` rows."""
        return ()

    @abstractmethod
    def act(
        self,
        obs: np.ndarray,
        state: PolicyState,
        first: np.ndarray,
        moment: Moment,
        *,
        explore: bool,
    ) -> Acting:
        """Choose an action per row; greedy (or mean) unless `explore`."""

    @abstractmethod
    def update(self, batch: Any, moment: Moment) -> UpdateResult:
        """Make one update from a batch."""

    def compute_on_host(self, on_host: bool) -> None:
        """Compute on NumPy arrays, or on tensors."""
        self.on_host = on_host

    def quietly(self) -> AbstractContextManager[Any]:
        """Without a graph of tensors, and without NumPy's warnings of what is checked later."""
        return np.errstate(all="ignore") if self.on_host else torch.no_grad()

    def compile(self) -> None:
        """Run the step functions through `torch.compile` from now on."""
        torch.compiler.reset()  # what earlier runs of the process compiled would count as retries
        for name in self.step_functions:
            setattr(self, name, torch.compile(getattr(self, name)))
        self.compute_on_host(False)
        self.execution = "compiled"

    def schedules(self, moment: Moment) -> dict[str, float]:  # noqa: ARG002 - none by default
        """Scheduled quantities at this moment, for the log."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The state of every part."""
        return {name: dict(part.state_dict()) for name, part in self.parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore every part."""
        for name, part in self.parts.items():
            part.load_state_dict(state[name])

    def networks(self) -> dict[str, nn.Module]:
        """The parts that are networks, by name."""
        return {name: part for name, part in self.parts.items() if isinstance(part, nn.Module)}

    def set_training(self, network: nn.Module, training: bool) -> None:
        """Switch layers such as dropout between acting and learning.

        Writes the flag directly: `nn.Module.train` costs more than a small network's layers.
        """
        if network.training is training:
            return
        if network not in self._modules:
            self._modules[network] = list(network.modules())
        for module in self._modules[network]:
            module.__dict__["training"] = training

    def to_input(self, obs: np.ndarray) -> Array:
        """Host observations as the networks take them: as they are, or on the device."""
        return obs if self.on_host else torch.from_numpy(obs).to(self.device)
