"""Replay of sequences: chunks of episodes with the policy's state at their start.

A chunk has `burn_in` rows of context, then `sequence_length` rows to learn from, then the
successor of the last one. The rows to learn from follow each other through an episode, and none of
them lies in a second chunk unless `overlap` says so. Before an episode's first row, and after its
last one, a chunk is padded; `mask` is set for rows to learn from alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from typing_extensions import Self

from rl_training.config.types import parse_memory
from rl_training.config.value_based import DRQNConfig
from rl_training.data.masks import check_stored, packed, unpacked
from rl_training.data.memory import (
    default_capacity,
    refuse_if_too_large,
    refuse_if_too_small,
    report_held,
)
from rl_training.data.types import Clock, EnvSpec, SequenceBatch, Transitions
from rl_training.errors import CheckpointError, ConfigError, UsageError
from rl_training.storage.checks import check_bounds, saved_array, saved_count, saved_value
from rl_training.storage.generators import set_generator_state
from rl_training.storage.rows import RowLog, Rows


class RecurrentReplayBuffer:
    """Uniform replay over the latest chunks, kept in host memory; batches go to `device`.

    `capacity` counts transitions and is what there is room for at most: a chunk in which an episode
    ends takes as much as a full one, and with `overlap` rows are kept twice. `state` of a chunk is
    the policy's before its first row, all its parts in one row of numbers.
    """

    memory_name = "replay memory"

    def __init__(  # noqa: PLR0913 - the numbers that shape it, by name
        self,
        spec: EnvSpec,
        *,
        capacity: int,
        sequence_length: int,
        burn_in: int = 0,
        overlap: int = 0,
        state_sizes: Sequence[int],
        num_envs: int = 1,
        gamma: float = 0.99,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        if not (burn_in >= 0 and 0 <= overlap < sequence_length):
            raise UsageError(
                "expected burn_in and overlap from 0 on and overlap below sequence_length, found "
                f"burn_in {burn_in}, overlap {overlap}, sequence_length {sequence_length}"
            )
        self.spec, self.capacity = spec, capacity
        self.burn_in, self.rows = burn_in, burn_in + sequence_length
        self.stride = sequence_length - overlap  # from one chunk of an episode to the next
        self.num_envs = num_envs
        self.gamma = gamma
        self.device = torch.device(device)
        self._state_sizes = tuple(state_sizes)
        self._chunks = self._room(spec, chunks_for(capacity, sequence_length))
        self._log = self._new_log()
        # Of each environment, the chunk being put together; with the state before every row, for
        # the next chunk starts at one of them.
        self._pending = self._room(spec, num_envs)
        self._pending["state"] = np.zeros((num_envs, self.rows, sum(state_sizes)), np.float32)
        self._filled = np.full(num_envs, burn_in)  # rows, padding before the episode included
        self._unsaved = np.zeros(num_envs, np.int64)  # rows that are in no stored chunk yet
        self._stored = 0  # chunks, those overwritten since included
        self._rng = np.random.default_rng(seed)

    def _room(self, spec: EnvSpec, count: int) -> dict[str, np.ndarray]:
        rows = self.rows
        room = {
            "obs": np.zeros((count, rows + 1, *spec.obs_shape), spec.obs_dtype),
            "action": np.zeros((count, rows, *spec.action_shape), spec.action_dtype),
            "reward": np.zeros((count, rows), np.float32),
            "discount": np.zeros((count, rows), np.float32),
            "first": np.zeros((count, rows + 1), np.bool_),
            "mask": np.zeros((count, rows), np.bool_),
            "state": np.zeros((count, sum(self._state_sizes)), np.float32),
        }
        if spec.masked:
            room["illegal"] = np.zeros((count, rows + 1, spec.mask_bytes), np.uint8)
        return room

    @classmethod
    def build(
        cls, spec: EnvSpec, hyper: DRQNConfig, *, num_envs: int, seed: int, device: torch.device
    ) -> Self:
        """The buffer the hyper-parameters ask for; refused if this machine cannot hold it."""
        if hyper.learning_starts < num_envs * hyper.sequence_length:
            raise ConfigError(
                "algo_kwargs.learning_starts: the first update needs a finished sequence; expected "
                f"at least num_envs * sequence_length = {num_envs * hyper.sequence_length}, found "
                f"{hyper.learning_starts}"
            )
        capacity = cls.capacity_for(spec, hyper, num_envs)
        report_held(capacity, hyper)
        refuse_if_too_large(cls.predicted_bytes(spec, hyper, capacity, num_envs), capacity)
        return cls(
            spec,
            capacity=capacity,
            sequence_length=hyper.sequence_length,
            burn_in=hyper.burn_in,
            overlap=hyper.overlap,
            state_sizes=hyper.state_sizes,
            num_envs=num_envs,
            gamma=hyper.gamma,
            seed=seed,
            device=device,
        )

    @classmethod
    def capacity_for(cls, spec: EnvSpec, hyper: DRQNConfig, num_envs: int) -> int:
        """Transitions the hyper-parameters ask for, whichever way they say it."""
        if hyper.buffer_size is not None:
            return hyper.buffer_size
        if hyper.replay_memory is None:
            return default_capacity(
                hyper.default_buffer_size,
                lambda size: cls.predicted_bytes(spec, hyper, size, num_envs),
            )
        given, chunk = parse_memory(hyper.replay_memory), bytes_per_chunk(spec, hyper)
        refuse_if_too_small(given, chunk, "a sequence")
        return given // chunk * hyper.sequence_length

    @classmethod
    def needed_bytes(cls, spec: EnvSpec, hyper: DRQNConfig, num_envs: int) -> int:
        """Memory of the buffer the hyper-parameters ask for."""
        capacity = cls.capacity_for(spec, hyper, num_envs)
        return cls.predicted_bytes(spec, hyper, capacity, num_envs)

    @staticmethod
    def predicted_bytes(spec: EnvSpec, hyper: DRQNConfig, capacity: int, num_envs: int) -> int:
        """Memory the buffer will take, known before anything is allocated."""
        chunks = chunks_for(capacity, hyper.sequence_length)
        states = 4 * sum(hyper.state_sizes) * (hyper.burn_in + hyper.sequence_length - 1)
        return (chunks + num_envs) * bytes_per_chunk(spec, hyper) + num_envs * states

    @property
    def nbytes(self) -> int:
        """Memory the buffer takes."""
        return sum(x.nbytes for rows in (self._chunks, self._pending) for x in rows.values())

    def __len__(self) -> int:
        return int(np.count_nonzero(self._chunks["mask"][: self._count]))

    def add(self, step: Transitions) -> None:
        """Append the valid rows of one vector step to their environments' chunks."""
        envs = np.flatnonzero(step.valid)
        for env in envs[step.first[envs]]:
            self._begin(env)
        here, pending = self._filled[envs], self._pending
        pending["obs"][envs, here] = step.obs[envs]
        pending["obs"][envs, here + 1] = step.next_obs[envs]
        pending["action"][envs, here] = step.action[envs]
        pending["reward"][envs, here] = step.reward[envs]
        pending["discount"][envs, here] = self.gamma * ~step.terminated[envs]
        pending["first"][envs, here] = first = step.first[envs]
        pending["mask"][envs, here] = True
        state = np.concatenate([part[envs] for part in step.state], 1)
        pending["state"][envs, here] = np.where(first[:, None], np.float32(0), state)
        if self.spec.masked:
            pending["illegal"][envs, here] = packed(step.legal, envs)
            pending["illegal"][envs, here + 1] = packed(step.next_legal, envs)
        self._filled[envs] += 1
        self._unsaved[envs] += 1
        ended = (step.terminated | step.truncated)[envs]
        for env in envs[ended | (self._filled[envs] == self.rows)]:
            self._store(env)

    def _begin(self, env: int) -> None:
        """Start a new episode; what is left of one that was cut without an end is kept."""
        if self._unsaved[env]:
            self._store(env)
        for rows in self._pending.values():
            rows[env] = 0
        self._filled[env] = self.burn_in

    def _store(self, env: int) -> None:
        """Keep the chunk as it stands, in place of the oldest, and go on behind it."""
        room = len(self._chunks["mask"])
        if self._log.held:  # a checkpoint is being written
            self._log.wait_until_free(np.array([self._stored + 1 - room]))
        head = self._stored % room
        for name, stored in self._chunks.items():
            rows = self._pending[name][env]
            stored[head] = rows[0] if name == "state" else rows
        self._chunks["mask"][head, : self.burn_in] = False
        self._unsaved[env] = 0
        self._stored += 1
        if self._filled[env] == self.rows:
            for rows in self._pending.values():
                kept = rows[env, self.stride :].copy()
                rows[env] = 0
                rows[env, : len(kept)] = kept
            self._filled[env] -= self.stride

    def sample(self, batch_size: int, clock: Clock | None = None) -> SequenceBatch:  # noqa: ARG002
        """Draw chunks with replacement, as tensors (time, batch, ...)."""
        if not self._count:
            raise UsageError("the replay buffer is empty: a sequence has to be finished first")
        drawn = self._rng.integers(self._count, size=batch_size)
        fields: dict[str, Any] = {
            name: torch.from_numpy(rows[drawn])
            for name, rows in self._chunks.items()
            if name != "illegal"
        }
        if self.spec.masked:
            legal = unpacked(self._chunks["illegal"][drawn], self.spec.policy_outputs)
            fields["legal"] = torch.from_numpy(legal)
        parts = fields.pop("state").split(self._state_sizes, dim=1)
        fields = {name: x.transpose(0, 1).contiguous() for name, x in fields.items()}
        fields["obs"] = self.spec.named(fields["obs"])
        batch = SequenceBatch(**fields, state=parts)
        return batch if self.device.type == "cpu" else batch.to(self.device)

    @property
    def _count(self) -> int:
        """Chunks there are."""
        return min(self._stored, len(self._chunks["mask"]))

    def _new_log(self) -> RowLog:
        return RowLog(self._chunks, rings=1, capacity=len(self._chunks["mask"]))

    @property
    def _shape(self) -> dict[str, int]:
        """What a saved buffer must have in common with this one."""
        return {
            "rows": self.rows,
            "burn_in": self.burn_in,
            "stride": self.stride,
            "num_envs": self.num_envs,
            "state_size": sum(self._state_sizes),
            "room": len(self._chunks["mask"]),
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on as if never stopped, half-built chunks included."""
        return {
            **self._shape,
            "chunks": Rows(self._log, np.array([self._stored])),
            "stored": self._stored,
            "pending": {name: rows.copy() for name, rows in self._pending.items()},
            "filled": self._filled.copy(),
            "unsaved": self._unsaved.copy(),
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved buffer of the same shape."""
        self._load_chunks(state, self._shape)
        pending = saved_value(state, "pending")
        for name, rows in self._pending.items():
            rows[:] = saved_array(pending, name, rows)
        self._check_choices(self._pending)
        high = self.rows - 1  # a chunk that is full is stored at once
        self._filled[:] = saved_array(state, "filled", self._filled, low=0, high=high)
        self._unsaved[:] = saved_array(state, "unsaved", self._unsaved, low=0, high=high)
        set_generator_state(self._rng, saved_value(state, "rng"))

    def take_over(self, state: dict[str, Any]) -> None:
        """Begin with the chunks of another run, whatever its number of environments."""
        self._load_chunks(state, {k: v for k, v in self._shape.items() if k != "num_envs"})
        discount = self._chunks["discount"]
        other = (discount != 0) & (discount != np.float32(self.gamma))
        if other.any():
            discount[other] = self.gamma
            self._log = self._new_log()  # what was saved of the chunks has the other run's gamma

    def _load_chunks(self, state: dict[str, Any], shape: dict[str, int]) -> None:
        for name, number in shape.items():
            if (saved := saved_value(state, name)) != number:
                raise CheckpointError(
                    f"the saved replay buffer has {name} {saved!r:.20}, this one has {number}; "
                    "resume with the network, sequences, buffer size and num_envs of the saved run"
                )
        stored = saved_count(state, "stored")
        self._log = self._new_log()  # what was saved of the chunks before is not theirs any more
        self._log.load(saved_value(state, "chunks"), np.array([stored]))
        self._stored = stored
        self._check_choices(self._chunks)

    def _check_choices(self, rows: dict[str, np.ndarray]) -> None:
        if (last := self.spec.max_discrete_action) is not None:
            check_bounds("action", rows["action"], low=0, high=last)
            if self.spec.masked:
                check_stored(self.spec, rows["illegal"])


def chunks_for(capacity: int, sequence_length: int) -> int:
    """The number of chunks that hold the given number of transitions."""
    return math.ceil(capacity / sequence_length)


def bytes_per_chunk(spec: EnvSpec, hyper: DRQNConfig) -> int:
    """Memory of one chunk."""
    rows = hyper.burn_in + hyper.sequence_length
    obs = math.prod(spec.obs_shape) * np.dtype(spec.obs_dtype).itemsize
    obs += 1 + spec.mask_bytes  # with its first and its mask
    action = math.prod(spec.action_shape) * np.dtype(spec.action_dtype).itemsize
    return int((rows + 1) * obs + rows * (action + 2 * 4 + 1) + 4 * sum(hyper.state_sizes))
