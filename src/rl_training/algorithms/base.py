"""What every algorithm is to the loops: something that acts, updates and saves its state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.gradients import Vjp, uncompiled, writes_out_its_gradient
from rl_training.data.arrays import Array, HostView, Rows
from rl_training.data.types import Moment, PolicyState


class UpdateResult(NamedTuple):
    """What an update reports: detached 0-d metrics by name, optimiser steps made, priorities."""

    metrics: Mapping[str, Tensor]
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
    `vjp` to `vjp_of` its network, and writes `act` and `update`. `step_functions` names the methods
    that `compile` may compile: those that compute a gradient and leave it in the parameters. `vjps`
    names what these call to get one.
    """

    parts: dict[str, Stateful]
    vjp: Vjp
    step_functions: ClassVar[tuple[str, ...]] = ("_gradient",)
    vjps: ClassVar[tuple[str, ...]] = ("vjp",)

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.execution = "eager"
        self.acts_on_host = self.learns_on_host = False  # on NumPy arrays
        self.host_view = HostView()
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

    def use_arrays(self, network: nn.Module) -> None:
        """Compute on NumPy arrays if the network can, and if its memory is the host's.

        Updates do so only with one thread: several belong to torch, which shares out its products.
        """
        self.acts_on_host = self.device.type == "cpu" and writes_out_its_gradient(network)
        self.learns_on_host = self.acts_on_host and torch.get_num_threads() == 1

    def quietly(self) -> AbstractContextManager[Any]:
        """Without a graph of tensors, or without NumPy's warnings of what is checked later."""
        return np.errstate(all="ignore") if self.learns_on_host else torch.no_grad()

    def to_learn_from(self, rows: Rows) -> Rows:
        """A batch or rollout as the update takes it."""
        return self.host_view.of(rows) if self.learns_on_host else rows

    def compile(self) -> None:
        """Run the step functions through `torch.compile` from now on."""
        torch.compiler.reset()  # what earlier runs of the process compiled would count as retries
        for name in self.vjps:
            setattr(self, name, uncompiled(getattr(self, name)))
        for name in self.step_functions:
            setattr(self, name, torch.compile(getattr(self, name)))
        self.execution, self.learns_on_host = "compiled", False

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

    def output(self, network: Callable[[Array], Array], obs: np.ndarray) -> np.ndarray:
        """What a network gives for host observations, as an array."""
        array: np.ndarray
        if self.acts_on_host:
            with np.errstate(all="ignore"):
                array = network(obs)
        else:
            with torch.no_grad():
                tensor = network(torch.from_numpy(obs).to(self.device))
            array = tensor.detach().cpu().numpy()
        return array
