"""Random generators of an algorithm's own, whose state goes into its checkpoint."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


class TorchGenerator:
    """A torch generator on the host, whatever the device: its state must load anywhere."""

    def __init__(self, seed: int) -> None:
        self.torch = torch.Generator().manual_seed(seed)

    def state_dict(self) -> dict[str, Any]:
        """The generator's state."""
        return {"state": self.torch.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the generator."""
        self.torch.set_state(state["state"])


class NumpyGenerator:
    """A NumPy generator."""

    def __init__(self, seed: int) -> None:
        self.numpy = np.random.default_rng(seed)

    def state_dict(self) -> dict[str, Any]:
        """The generator's state."""
        return {"state": self.numpy.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the generator."""
        self.numpy.bit_generator.state = state["state"]
