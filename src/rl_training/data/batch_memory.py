"""Memory for sampled batches, used again and again."""

from __future__ import annotations

import numpy as np
import torch

from rl_training.data.types import Batch, EnvSpec


class BatchMemory:
    """Memory for the batches of one size, used again for each."""

    def __init__(self, batch_size: int, spec: EnvSpec) -> None:
        self.obs = np.empty((batch_size, *spec.obs_shape), spec.obs_dtype)
        self.next_obs = np.empty_like(self.obs)
        self.action = np.empty((batch_size, *spec.action_shape), spec.action_dtype)
        self.slots = np.empty(batch_size, np.int64)
        self.reward, self.discount, self.weight = np.ones((3, batch_size), np.float32)
        self._host = Batch(
            obs=torch.from_numpy(self.obs),
            action=torch.from_numpy(self.action),
            reward=torch.from_numpy(self.reward),
            next_obs=torch.from_numpy(self.next_obs),
            discount=torch.from_numpy(self.discount),
            weight=torch.from_numpy(self.weight),
            slots=self.slots,
        )

    def batch(self, device: torch.device) -> Batch:
        """What was gathered, on the device."""
        if device.type == "cpu":
            return self._host
        tensors = {name: getattr(self._host, name) for name in Batch._fields[:-1]}
        if device.type == "cuda":
            # Pinning copies, so a transfer in flight is not overwritten by the next batch.
            tensors = {name: x.pin_memory() for name, x in tensors.items()}
        moved = {
            name: x.to(device, non_blocking=device.type == "cuda") for name, x in tensors.items()
        }
        return self._host._replace(**moved)
