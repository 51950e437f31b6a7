"""Replay memory: one ring of rows per environment, each observation stored once.

The successor of a row is the next row of its environment. When an episode ends, the row after it
keeps the last observation (a tail row) and the next episode starts one row later, so no step ever
points into another episode. `docs/decisions/0003-ring-with-tail-rows.md` says why.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from rl_training.data.memory import refuse_if_too_large
from rl_training.data.types import Batch, EnvSpec, Transitions
from rl_training.errors import CheckpointError, UsageError
from rl_training.experiment.config import (
    DEFAULT_BUFFER_SIZE,
    OffPolicyHyperParameters,
    parse_memory,
)


class ReplayBuffer:
    """Uniform replay over the latest `capacity` rows, kept in host memory.

    A finished episode uses one row for its last observation, so the buffer holds at most
    `capacity` transitions. Batches are moved to `device`.
    """

    memory_name = "replay memory"

    def __init__(
        self,
        spec: EnvSpec,
        *,
        capacity: int,
        num_envs: int = 1,
        gamma: float = 0.99,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.num_envs = num_envs
        self.gamma = gamma
        self.device = torch.device(device)
        self._rows = self.rows_per_env(capacity, num_envs)
        slots = self._rows * num_envs
        # Env-major: slot = env * rows + row, so that an episode lies in consecutive memory.
        self._obs = np.zeros((slots, *spec.obs_shape), spec.obs_dtype)
        self._action = np.zeros((slots, *spec.action_shape), spec.action_dtype)
        self._signal = np.zeros((slots, 2), np.float32)  # reward, gamma * (1 - terminated)
        self._valid = np.zeros(slots, np.bool_)
        self._base = np.arange(num_envs) * self._rows
        self._head = self._base + self._rows - 1  # the slot that holds the newest observation
        self._extent = 0  # rows ever written, the largest over environments
        self._rng = np.random.default_rng(seed)
        self._batches: dict[int, _BatchMemory] = {}

    @classmethod
    def build(
        cls,
        spec: EnvSpec,
        hyper: OffPolicyHyperParameters,
        *,
        num_envs: int,
        seed: int,
        device: torch.device,
    ) -> ReplayBuffer:
        """The buffer the hyper-parameters ask for; refused if this machine cannot hold it."""
        if hyper.replay_memory is None:
            capacity = hyper.buffer_size or DEFAULT_BUFFER_SIZE
        else:
            capacity = max(1, parse_memory(hyper.replay_memory) // cls.bytes_per_row(spec))
        refuse_if_too_large(cls.predicted_bytes(spec, capacity, num_envs), capacity)
        return cls(
            spec, capacity=capacity, num_envs=num_envs, gamma=hyper.gamma, seed=seed, device=device
        )

    @staticmethod
    def rows_per_env(capacity: int, num_envs: int) -> int:
        """Rows of one ring; one more than its share, for the newest observation."""
        return math.ceil(capacity / num_envs) + 1

    @staticmethod
    def bytes_per_row(spec: EnvSpec) -> int:
        """Memory of one row of `spec`'s environment."""
        obs = math.prod(spec.obs_shape) * np.dtype(spec.obs_dtype).itemsize
        action = math.prod(spec.action_shape) * np.dtype(spec.action_dtype).itemsize
        return obs + action + 2 * 4 + 1

    @classmethod
    def predicted_bytes(cls, spec: EnvSpec, capacity: int, num_envs: int) -> int:
        """Memory the buffer will take, known before anything is allocated."""
        return cls.rows_per_env(capacity, num_envs) * num_envs * cls.bytes_per_row(spec)

    @property
    def nbytes(self) -> int:
        """Memory the buffer takes."""
        return sum(a.nbytes for a in (self._obs, self._action, self._signal, self._valid))

    def __len__(self) -> int:
        return int(np.count_nonzero(self._valid))

    def add(self, step: Transitions) -> None:
        """Store the valid rows of one vector step, each in its environment's ring."""
        all_valid = np.count_nonzero(step.valid) == self.num_envs
        envs = slice(None) if all_valid else np.flatnonzero(step.valid)
        here = self._head[envs]
        if np.count_nonzero(first := step.first[envs]):
            # A new episode leaves the row with the last observation of the one before it alone.
            here = np.where(first, self._successors(here), here)
            self._obs[here] = step.obs[envs]
        # Elsewhere the row holds the observation already: it was the last step's successor.
        there = self._successors(here)
        self._obs[there] = step.next_obs[envs]
        self._action[here] = step.action[envs]
        self._signal[here, 0] = step.reward[envs]
        self._signal[here, 1] = np.where(step.terminated[envs], 0.0, self.gamma)
        self._valid[here] = True
        self._valid[there] = False
        self._extend(here, there)
        self._head[envs] = there

    def _extend(self, here: np.ndarray, there: np.ndarray) -> None:
        if self._extent < self._rows and len(here):
            newest = int((there % self._rows).max())
            wrapped = np.count_nonzero(there < here)
            self._extent = self._rows if wrapped else max(self._extent, newest + 1)

    def sample(self, batch_size: int) -> Batch:
        """Draw transitions uniformly, with replacement; the next call overwrites the batch."""
        if batch_size not in self._batches:
            self._batches[batch_size] = _BatchMemory(self, batch_size)
        memory, slots = self._batches[batch_size], self._draw(batch_size)
        # `clip` skips a copy that `raise` makes; the slots are in range.
        self._obs.take(slots, 0, memory.obs, "clip")
        self._obs.take(self._successors(slots), 0, memory.next_obs, "clip")
        self._action.take(slots, 0, memory.action, "clip")
        self._signal.take(slots, 0, memory.signal, "clip")
        return memory.batch(slots, self.device)

    def update_priorities(self, slots: np.ndarray, priorities: torch.Tensor) -> None:
        """Uniform replay has no priorities; the call is part of every buffer's interface."""

    def _draw(self, count: int) -> np.ndarray:
        if not self._extent:
            raise UsageError("the replay buffer is empty: add transitions before sampling")
        slots = self._candidates(count)
        # Tail rows and rows not yet written are drawn again: what remains is uniform.
        while np.count_nonzero(valid := self._valid.take(slots)) < count:
            wrong = np.flatnonzero(~valid)
            slots[wrong] = self._candidates(wrong.size)
        return slots

    def _candidates(self, count: int) -> np.ndarray:
        # Scaled floats: faster than drawing integers, and no less uniform below 2**53 slots.
        drawn = (self._rng.random(count) * (self._extent * self.num_envs)).astype(np.int64)
        if self.num_envs == 1 or self._extent == self._rows:
            return drawn
        env, row = np.divmod(drawn, self._extent)
        return env * self._rows + row

    def _successors(self, slots: np.ndarray) -> np.ndarray:
        following = slots + 1
        last = following % self._rows == 0
        if np.count_nonzero(last):
            following[last] -= self._rows
        return following

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on as if never stopped; rows never written are left out."""
        return {
            "rows": self._rows,
            "num_envs": self.num_envs,
            "extent": self._extent,
            "head": self._head.copy(),
            "obs": self._written(self._obs),
            "action": self._written(self._action),
            "signal": self._written(self._signal),
            "valid": self._written(self._valid),
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved buffer of the same shape."""
        for name, mine in (("rows", self._rows), ("num_envs", self.num_envs)):
            if state[name] != mine:
                raise CheckpointError(
                    f"the saved replay buffer has {name} {state[name]}, this one has {mine}; "
                    "resume with the buffer size and num_envs of the saved run"
                )
        self._extent = state["extent"]
        self._head[:] = state["head"]
        self._valid[:] = False
        for name in ("obs", "action", "signal", "valid"):
            self._written_view(getattr(self, f"_{name}"))[:] = state[name]
        self._rng.bit_generator.state = state["rng"]

    def _written(self, array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(self._written_view(array))

    def _written_view(self, array: np.ndarray) -> np.ndarray:
        return array.reshape(self.num_envs, self._rows, *array.shape[1:])[:, : self._extent]


class _BatchMemory:
    """Memory for the batches of one size, used again for each."""

    def __init__(self, buffer: ReplayBuffer, batch_size: int) -> None:
        stores = (buffer._obs, buffer._obs, buffer._action, buffer._signal)
        self.obs, self.next_obs, self.action, self.signal = (
            np.empty((batch_size, *store.shape[1:]), store.dtype) for store in stores
        )
        reward, discount = torch.from_numpy(self.signal).unbind(1)
        self._host = Batch(
            obs=torch.from_numpy(self.obs),
            action=torch.from_numpy(self.action),
            reward=reward,
            next_obs=torch.from_numpy(self.next_obs),
            discount=discount,
            weight=torch.ones(batch_size),
            slots=np.empty(batch_size, np.int64),
        )

    def batch(self, slots: np.ndarray, device: torch.device) -> Batch:
        """What was gathered, on the device."""
        host = self._host._replace(slots=slots)
        if device.type == "cpu":
            return host
        # Pinning copies, so a transfer in flight is not overwritten by the next batch.
        return host._replace(
            **{
                name: getattr(host, name).pin_memory().to(device, non_blocking=True)
                for name in host._fields[:-1]
            }
        )
