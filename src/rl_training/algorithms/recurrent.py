"""What algorithms with a memory share: its size, and acting with it."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from rl_training.algorithms.base import Algorithm
from rl_training.data.types import PolicyState
from rl_training.experiment.config import HyperParameters


class RecurrentConfig(HyperParameters):
    """Hyper-parameters of a recurrent layer."""

    core: Literal["lstm", "gru"] = Field("lstm", description="the recurrent layer")
    core_size: int = Field(128, ge=1, le=65_536, description="width of the recurrent layer")

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """Sizes of the parts of the policy state."""
        return (self.core_size,) * (2 if self.core == "lstm" else 1)


class Recurrent(Algorithm):
    """Acts with a memory: arrays with a row per environment, on the host between steps.

    A network whose own class has `act_on_arrays` acts there too, on a CPU. Sequences are learned
    from with torch's kernels.
    """

    model: Any
    step_functions = ()  # the compiler would leave the kernels of sequences as they are

    def use_arrays(self, network: nn.Module) -> None:
        """Act on NumPy arrays if the network can, and if its memory is the host's."""
        self.acts_on_host = self.device.type == "cpu" and "act_on_arrays" in vars(type(network))

    def initial_state(self, num_envs: int) -> PolicyState:
        """The memory at the start of an episode."""
        return on_host(self.model.initial_state(num_envs))

    def output_and_state(
        self, obs: np.ndarray, state: PolicyState, first: np.ndarray
    ) -> tuple[np.ndarray, PolicyState]:
        """What the network gives for one step, and the memory after it."""
        if self.acts_on_host:
            with np.errstate(all="ignore"):
                output, after = self.model.act_on_arrays(obs, state, first)
            return output, after
        rows, starts = on_device((obs, first), self.device)
        with torch.no_grad():
            found = self.model.act(rows, on_device(state, self.device), starts)
        return found[0].cpu().numpy(), on_host(found[-1])


def on_device(state: PolicyState, device: torch.device) -> tuple[Tensor, ...]:
    """A policy state as the model takes it."""
    return tuple(torch.from_numpy(part).to(device) for part in state)


def on_host(state: tuple[Tensor, ...]) -> PolicyState:
    """A policy state as collector, buffers and users see it."""
    return tuple(part.cpu().numpy() for part in state)
