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
        # The same memory seen by torch, which gathers rows faster.
        self._obs_rows = torch.from_numpy(self._obs)
        self._action_rows = torch.from_numpy(self._action)
        self._signal_rows = torch.from_numpy(self._signal)
        self._base = np.arange(num_envs) * self._rows
        self._head = np.zeros(num_envs, np.int64)  # the row the next transition goes to
        self._started = np.zeros(num_envs, np.bool_)
        self._extent = 0  # rows ever written, the largest over environments
        self._rng = np.random.default_rng(seed)

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
        envs = np.flatnonzero(step.valid)
        # A new episode leaves the row with the last observation of the one before it alone.
        after_tail = step.first[envs] & self._started[envs]
        rows = (self._head[envs] + after_tail) % self._rows
        following = (rows + 1) % self._rows
        here, there = self._base[envs] + rows, self._base[envs] + following
        self._obs[here] = step.obs[envs]
        self._obs[there] = step.next_obs[envs]
        self._action[here] = step.action[envs]
        self._signal[here, 0] = step.reward[envs]
        self._signal[here, 1] = self.gamma * (1.0 - step.terminated[envs])
        self._valid[here] = True
        self._valid[there] = False
        self._head[envs] = following
        self._started[envs] = True
        if self._extent < self._rows and len(rows):
            wrapped = (following < rows).any()
            self._extent = self._rows if wrapped else max(self._extent, int(following.max()) + 1)

    def sample(self, batch_size: int) -> Batch:
        """Draw transitions uniformly, with replacement."""
        slots = self._draw(batch_size)
        here = torch.from_numpy(slots)
        there = torch.from_numpy(self._successors(slots))
        reward, discount = self._signal_rows.index_select(0, here).unbind(1)
        return Batch(
            obs=self._to_device(self._obs_rows.index_select(0, here)),
            action=self._to_device(self._action_rows.index_select(0, here)),
            reward=self._to_device(reward),
            next_obs=self._to_device(self._obs_rows.index_select(0, there)),
            discount=self._to_device(discount),
            weight=torch.ones(batch_size, device=self.device),
            slots=slots,
        )

    def update_priorities(self, slots: np.ndarray, priorities: torch.Tensor) -> None:
        """Uniform replay has no priorities; the call is part of every buffer's interface."""

    def _draw(self, count: int) -> np.ndarray:
        if not self._started.any():
            raise UsageError("the replay buffer is empty: add transitions before sampling")
        slots = self._candidates(count)
        # Tail rows and rows not yet written are drawn again: what remains is uniform.
        while (wrong := np.flatnonzero(~self._valid[slots])).size:
            slots[wrong] = self._candidates(wrong.size)
        return slots

    def _candidates(self, count: int) -> np.ndarray:
        drawn = self._rng.integers(0, self._extent * self.num_envs, count)
        if self.num_envs == 1 or self._extent == self._rows:
            return drawn
        env, row = np.divmod(drawn, self._extent)
        return env * self._rows + row

    def _successors(self, slots: np.ndarray) -> np.ndarray:
        following = slots + 1
        following[following % self._rows == 0] -= self._rows
        return following

    def _to_device(self, rows: torch.Tensor) -> torch.Tensor:
        if self.device.type == "cpu":
            return rows
        return rows.pin_memory().to(self.device, non_blocking=True)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on as if never stopped; rows never written are left out."""
        return {
            "rows": self._rows,
            "num_envs": self.num_envs,
            "extent": self._extent,
            "head": self._head.copy(),
            "started": self._started.copy(),
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
        self._started[:] = state["started"]
        self._valid[:] = False
        for name in ("obs", "action", "signal", "valid"):
            self._written_view(getattr(self, f"_{name}"))[:] = state[name]
        self._rng.bit_generator.state = state["rng"]

    def _written(self, array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(self._written_view(array))

    def _written_view(self, array: np.ndarray) -> np.ndarray:
        return array.reshape(self.num_envs, self._rows, *array.shape[1:])[:, : self._extent]
