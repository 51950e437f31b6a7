"""Replay memory: one ring of rows per environment, each observation stored once.

The successor of a row is the next row of its environment. When an episode ends, the row after it
keeps the last observation (a tail row) and the next episode starts one row later, so no step ever
points into another episode. `docs/decisions/0003-ring-with-tail-rows.md` says why.

Of stacked images a row keeps the newest alone; an episode begins with a row for each older one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self

from rl_training.config.hyper_parameters import TransitionHyperParameters
from rl_training.config.types import parse_memory
from rl_training.data.masks import check_stored, packed, unpacked
from rl_training.data.memory import (
    default_capacity,
    refuse_if_too_large,
    refuse_if_too_small,
    report_held,
)
from rl_training.data.types import Batch, Clock, EnvSpec, Transitions
from rl_training.errors import CheckpointError, EnvError, UsageError
from rl_training.storage.checks import check_bounds, saved_array, saved_count, saved_value
from rl_training.storage.generators import set_generator_state
from rl_training.storage.rows import RowLog, Rows


def zeros(shape: tuple[int, ...], dtype: str) -> Tensor:
    """A tensor of zeros whose memory the system gives only where something is written."""
    return torch.from_numpy(np.zeros(shape, dtype))  # torch.zeros would write all of it


class ReplayBuffer:
    """Uniform replay over the latest `capacity` rows, kept in host memory.

    An episode has a row more than steps, and n - 1 more with stacks of n images, so the buffer
    holds at most `capacity` transitions. Batches are moved to `device`.
    """

    memory_name = "replay memory"
    needs_priorities = False

    def __init__(
        self,
        spec: EnvSpec,
        *,
        capacity: int,
        num_envs: int = 1,
        gamma: float = 0.99,
        n_step: int = 1,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.spec = spec
        self.capacity = capacity
        self.num_envs = num_envs
        self.gamma = gamma
        self.n_step = n_step
        self.device = torch.device(device)
        self._rows = self.rows_per_env(capacity, num_envs, spec.frames)
        slots = self._rows * num_envs
        # Env-major: slot = env * rows + row, so that an episode lies in consecutive memory.
        store = PartsStore if spec.parts and spec.frames > 1 else ObservationStore
        self._observations = store(spec, slots, self._rows)
        self.storage = {
            "obs": self._observations.tensor,
            "action": zeros((slots, *spec.action_shape), spec.action_dtype),
            "reward": zeros((slots,), "float32"),
            "discount": zeros((slots,), "float32"),  # gamma * (1 - terminated)
            "valid": zeros((slots,), "bool"),
        }
        if spec.masked:  # beside its observation, in the same slot
            self.storage["illegal"] = zeros((slots, spec.mask_bytes), "uint8")
        # The same memory as arrays: NumPy writes and gathers few rows in half of torch's time.
        self._arrays = arrays = {name: tensor.numpy() for name, tensor in self.storage.items()}
        self._obs, self._action, self._reward = (arrays[x] for x in ("obs", "action", "reward"))
        self._discount, self._valid = arrays["discount"], arrays["valid"]
        self._illegal = arrays.get("illegal")
        self._log = self._new_log()
        self._base = np.arange(num_envs) * self._rows
        self._end = self._base + self._rows
        self._head = self._end - 1  # the slot that holds the newest observation
        self._laps = np.full(num_envs, -1)  # how often each ring has begun again
        self._wrapped = False  # whether a ring has begun again from its first row
        self._empty = True
        self._rng = np.random.default_rng(seed)
        self._batches: dict[int, BatchMemory] = {}

    @classmethod
    def build(
        cls,
        spec: EnvSpec,
        hyper: TransitionHyperParameters,
        *,
        num_envs: int,
        seed: int,
        device: torch.device,
        **options: Any,
    ) -> Self:
        """The buffer the hyper-parameters ask for; refused if this machine cannot hold it."""
        capacity = cls.capacity_for(spec, hyper, num_envs)
        report_held(capacity, hyper)
        refuse_if_too_large(cls.predicted_bytes(spec, capacity, num_envs), capacity)
        return cls(
            spec,
            capacity=capacity,
            num_envs=num_envs,
            gamma=hyper.gamma,
            n_step=hyper.n_step,
            seed=seed,
            device=device,
            **options,
        )

    @classmethod
    def capacity_for(cls, spec: EnvSpec, hyper: TransitionHyperParameters, num_envs: int) -> int:
        """Transitions the hyper-parameters ask for, whichever way they say it."""
        if hyper.buffer_size is not None:
            return hyper.buffer_size
        if hyper.replay_memory is None:
            return default_capacity(
                hyper.default_buffer_size, lambda size: cls.predicted_bytes(spec, size, num_envs)
            )
        given, smallest = parse_memory(hyper.replay_memory), cls.predicted_bytes(spec, 1, num_envs)
        refuse_if_too_small(given, smallest, "a transition of each environment")
        return (given // cls.bytes_per_row(spec) // num_envs - spec.frames) * num_envs

    @classmethod
    def needed_bytes(cls, spec: EnvSpec, hyper: TransitionHyperParameters, num_envs: int) -> int:
        """Memory of the buffer the hyper-parameters ask for."""
        return cls.predicted_bytes(spec, cls.capacity_for(spec, hyper, num_envs), num_envs)

    @staticmethod
    def rows_per_env(capacity: int, num_envs: int, frames: int = 1) -> int:
        """Rows of one ring: its share, and those of the newest observation."""
        return math.ceil(capacity / num_envs) + frames

    @staticmethod
    def bytes_per_row(spec: EnvSpec) -> int:
        """Memory of one row of `spec`'s environment."""
        obs = math.prod(spec.frame_shape) * np.dtype(spec.obs_dtype).itemsize
        action = math.prod(spec.action_shape) * np.dtype(spec.action_dtype).itemsize
        return obs + action + 2 * 4 + 1 + spec.mask_bytes

    @classmethod
    def predicted_bytes(cls, spec: EnvSpec, capacity: int, num_envs: int) -> int:
        """Memory the buffer will take, known before anything is allocated."""
        rows = cls.rows_per_env(capacity, num_envs, spec.frames) * num_envs
        return rows * cls.bytes_per_row(spec)

    @property
    def nbytes(self) -> int:
        """Memory the buffer takes."""
        return sum(tensor.nbytes for tensor in self.storage.values())

    def __len__(self) -> int:
        return int(np.count_nonzero(self._valid))

    def add(self, step: Transitions) -> None:
        """Store the valid rows of one vector step, each in its environment's ring."""
        count = np.count_nonzero(step.valid)
        if not count:
            return
        if self._log.held:  # a checkpoint is being written
            self._log.wait_until_free(self._position + 2 * self.spec.frames + 1 - self._rows)
        envs = slice(None) if count == self.num_envs else np.flatnonzero(step.valid)
        here = self._head[envs]
        if np.count_nonzero(first := step.first[envs]) or self._empty:
            here = self._begin(here, first | self._empty, step, envs)
        # Elsewhere the row holds the observation already: it was the last step's successor.
        there, next_obs = self._after(here, envs), step.next_obs[envs]
        self._observations.check_stacks(step.obs[envs], next_obs)
        self._obs[there] = self._observations.frame(next_obs, -1)
        if self._illegal is not None:
            self._illegal[there] = packed(step.next_legal, envs)
        self._action[here] = step.action[envs]
        self._reward[here] = step.reward[envs]
        self._discount[here] = self.gamma
        if np.count_nonzero(terminated := step.terminated[envs]):
            self._discount[here[terminated]] = 0.0
        self._valid[here] = True
        self._changed_at(here)
        self._overwritten(there)
        self._head[envs] = there  # which `here` may be a view of

    def _begin(
        self, here: np.ndarray, begins: np.ndarray, step: Transitions, envs: slice | np.ndarray
    ) -> np.ndarray:
        """Write the first observations of episodes, which leave the last of those before alone."""
        rows = np.flatnonzero(begins)
        owners, newest = np.arange(self.num_envs)[envs][rows], here[rows]
        obs = step.obs[owners]
        for number in range(self.spec.frames):
            newest = self._after(newest, owners)
            self._obs[newest] = self._observations.frame(obs, number)
            self._overwritten(newest)
        if self._illegal is not None:
            self._illegal[newest] = packed(step.legal, owners)
        here = here.copy()
        here[rows] = newest
        return here

    def _overwritten(self, slots: np.ndarray) -> None:
        """Transitions end whose observation these rows were part of, if only as an older image."""
        self._valid[slots] = False
        self._changed_at(slots)
        if self.spec.frames > 1:
            self._valid[last := self._observations.last_user(slots)] = False
            self._changed_at(last)

    def _changed_at(self, slots: np.ndarray) -> None:
        """A hook: there is a transition in these slots now, or none any more."""

    def _after(self, slots: np.ndarray, envs: slice | np.ndarray) -> np.ndarray:
        """The slot after each newest one, within its ring."""
        successors = slots + 1
        ended = successors == self._end[envs]
        if np.count_nonzero(ended):
            successors[ended] -= self._rows
            self._laps[np.arange(self.num_envs)[envs][ended]] += 1
            self._wrapped = self._wrapped or not self._empty
        self._empty = False
        return successors

    @property
    def _extent(self) -> int:
        """Rows ever written, the largest number over environments."""
        if self._empty:
            return 0
        return self._rows if self._wrapped else int((self._head - self._base).max()) + 1

    def sample(self, batch_size: int, clock: Clock | None = None) -> Batch:
        """Draw transitions with replacement; the next call overwrites the batch."""
        if batch_size not in self._batches:
            self._batches[batch_size] = BatchMemory(batch_size, self.spec)
        memory, slots = self._batches[batch_size], self._draw(batch_size)
        memory.slots[:] = slots
        self._observations.gather(slots, memory.obs)
        self._action.take(slots, 0, memory.action, "clip")
        self._reward.take(slots, 0, memory.reward, "clip")
        self._discount.take(slots, 0, memory.discount, "clip")
        successors = self._sum_rewards(slots, memory.reward, memory.discount)
        self._observations.gather(successors, memory.next_obs)
        if self._illegal is not None:
            choices = self.spec.policy_outputs
            memory.legal[:] = unpacked(self._illegal[slots], choices)
            memory.next_legal[:] = unpacked(self._illegal[successors], choices)
        self._weigh(slots, memory.weight, clock)
        return memory.batch(self.device)

    def _sum_rewards(
        self, slots: np.ndarray, reward: np.ndarray, discount: np.ndarray
    ) -> np.ndarray:
        """Add the rewards of the steps after the first, up to `n_step`; gives the last successors.

        A row that is not valid ends the sum: the tail of an episode, or the newest observation.
        """
        successors = self._successors(slots)
        for _ in range(self.n_step - 1):
            goes_on = self._valid.take(successors)
            reward += discount * self._reward.take(successors) * goes_on
            discount *= np.where(goes_on, self._discount.take(successors), np.float32(1))
            successors = np.where(goes_on, self._successors(successors), successors)
        return successors

    def _weigh(self, slots: np.ndarray, weight: np.ndarray, clock: Clock | None) -> None:
        """A hook: write the importance weights of the slots; they are all one here."""

    def update_priorities(self, slots: np.ndarray, priorities: Tensor) -> None:
        """Uniform replay has no priorities; the call is part of every buffer's interface."""

    def _draw(self, count: int) -> np.ndarray:
        """Slots of transitions, here uniformly."""
        self._refuse_if_empty()
        extent = self._extent
        slots = self._candidates(count, extent)
        # Tail rows and rows not yet written are drawn again: what remains is uniform.
        while np.count_nonzero(valid := self._valid.take(slots)) < count:
            wrong = np.flatnonzero(~valid)
            slots[wrong] = self._candidates(wrong.size, extent)
        return slots

    def _refuse_if_empty(self) -> None:
        if self._empty:
            raise UsageError("the replay buffer is empty: add transitions before sampling")

    def _candidates(self, count: int, extent: int) -> np.ndarray:
        # Scaled floats: faster than drawing integers, and no less uniform below 2**53 slots.
        drawn = (self._rng.random(count) * (extent * self.num_envs)).astype(np.int64)
        if self.num_envs == 1 or extent == self._rows:
            return drawn
        env, row = np.divmod(drawn, extent)
        return env * self._rows + row

    def _successors(self, slots: np.ndarray) -> np.ndarray:
        successors = slots + 1
        if self._wrapped:
            successors[successors % self._rows == 0] -= self._rows
        return successors

    @property
    def _position(self) -> np.ndarray:
        """By ring, the number of the row at its head, counted from the first ever written."""
        position: np.ndarray = self._laps * self._rows + self._head - self._base
        return position

    def _new_log(self) -> RowLog:
        # The observations of the oldest rows have lost an image to the newest.
        fading = {"valid": self.spec.frames - 1}
        return RowLog(self._arrays, rings=self.num_envs, capacity=self._rows - 1, fading=fading)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on as if never stopped; rows never written are left out.

        All rows are finished but those at the heads, which wait for their action.
        """
        position = self._position
        return {
            "rows": self._rows,
            "num_envs": self.num_envs,
            "extent": self._extent,
            "position": position,
            "finished": Rows(self._log, np.maximum(position, 0)),
            "newest": {name: array[self._head] for name, array in self._arrays.items()},
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved buffer of the same shape."""
        for name, mine in (("rows", self._rows), ("num_envs", self.num_envs)):
            if (saved := saved_value(state, name)) != mine:
                raise CheckpointError(
                    f"the saved replay buffer has {name} {saved!r:.20}, this one has {mine}; "
                    "resume with the buffer size and num_envs of the saved run"
                )
        extent = saved_count(state, "extent", high=self._rows)
        position = saved_array(state, "position", self._position, low=-1, high=2**62)
        self._empty, self._wrapped = (extent == rows for rows in (0, self._rows))
        self._laps, row = np.divmod(position, self._rows)
        self._head[:] = self._base + row
        if self._extent != extent or self._empty != bool((position < 0).all()):
            raise CheckpointError(f"extent: expected as many rows as position says, found {extent}")
        self._valid[:] = False
        self._log = self._new_log()  # what was saved of the rows before is not theirs any more
        self._log.load(saved_value(state, "finished"), np.maximum(position, 0))
        newest = saved_value(state, "newest")
        for name, array in self._arrays.items():
            array[self._head] = saved_array(newest, name, array[self._head])
        if (last := self.spec.max_discrete_action) is not None:
            check_bounds("action", self._action, low=0, high=last)
        if self._illegal is not None:
            check_stored(self.spec, self._illegal)
        if not (self._empty or self._valid.any()):  # nothing could ever be drawn from it
            raise CheckpointError("valid: expected a transition among the rows, found none")
        set_generator_state(self._rng, saved_value(state, "rng"))

    def take_over(self, state: dict[str, Any]) -> None:
        """Begin with the transitions of another run, whatever its size and number of environments.

        In rings of another shape they are stored anew, the oldest episodes first, and a subclass
        treats them as new.
        """
        if (saved_value(state, "rows"), saved_value(state, "num_envs")) == (
            self._rows,
            self.num_envs,
        ):
            self.load_state_dict(state)
            other = self._valid & (self._discount != 0) & (self._discount != np.float32(self.gamma))
            if other.any():
                self._discount[other] = self.gamma
                self._log = self._new_log()  # what was saved of the rows has the other run's gamma
            return
        source = self._other(state)
        lanes: list[list[np.ndarray]] = [[] for _ in range(self.num_envs)]
        filled = np.zeros(self.num_envs, np.int64)
        for piece in source._pieces(max(100, self._rows // 8)):
            lanes[lane := int(filled.argmin())].append(piece)
            filled[lane] += len(piece)
        slots = np.zeros((int(filled.max()), self.num_envs), np.int64)
        first, valid = np.zeros((2, *slots.shape), np.bool_)
        for lane, pieces in enumerate(lanes):
            for piece, end in zip(pieces, np.cumsum([len(piece) for piece in pieces]), strict=True):
                slots[end - len(piece) : end, lane] = piece
                first[end - len(piece), lane] = True
            valid[: filled[lane], lane] = True
        for row in range(len(slots)):
            self.add(source._transitions(slots[row], first[row], valid[row]))

    def _other(self, state: dict[str, Any]) -> ReplayBuffer:
        """A buffer of the shape of a saved one, with what it holds."""
        rows = saved_count(state, "rows", low=self.spec.frames + 1)
        num_envs = saved_count(state, "num_envs", low=1)
        written = saved_count(state, "extent", high=rows) * num_envs
        refuse_if_too_large(ReplayBuffer.predicted_bytes(self.spec, written, num_envs), written)
        capacity = (rows - self.spec.frames) * num_envs
        other = ReplayBuffer(self.spec, capacity=capacity, num_envs=num_envs)
        other.load_state_dict(state)
        return other

    def _pieces(self, longest: int) -> list[np.ndarray]:
        """Slots of consecutive transitions, of an episode each; older ones first."""
        found: list[tuple[int, np.ndarray]] = []
        for base, position in zip(self._base.tolist(), self._position.tolist(), strict=True):
            numbers = np.arange(max(position + 1 - self._rows, 0), position + 1)
            numbers = numbers[self._valid[base + numbers % self._rows]]
            for episode in np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1):
                for begin in range(0, len(episode), longest):
                    piece = episode[begin : begin + longest]
                    found.append((position - int(piece[-1]), base + piece % self._rows))
        return [slots for _, slots in sorted(found, key=lambda item: -item[0])]

    def _transitions(self, slots: np.ndarray, first: np.ndarray, valid: np.ndarray) -> Transitions:
        """What is in the slots, a row each, as it was added."""
        obs = np.zeros((len(slots), *self.spec.obs_shape), self.spec.obs_dtype)
        next_obs, successors = np.zeros_like(obs), self._successors(slots)
        self._observations.gather(slots, obs)
        self._observations.gather(successors, next_obs)
        masks: dict[str, Any] = {}
        if self._illegal is not None:
            for name, where in (("legal", slots), ("next_legal", successors)):
                masks[name] = unpacked(self._illegal[where], self.spec.policy_outputs)
        return Transitions(
            obs=obs,
            action=self._action[slots],
            reward=self._reward[slots],
            next_obs=next_obs,
            terminated=self._discount[slots] == 0,
            truncated=np.zeros(len(slots), np.bool_),
            first=first,
            valid=valid,
            **masks,
        )

    def _written(self, array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(self._written_view(array))

    def _written_view(self, array: np.ndarray) -> np.ndarray:
        return array.reshape(self.num_envs, self._rows, *array.shape[1:])[:, : self._extent]


class ObservationStore:
    """The observations of a replay buffer, by slot.

    A slot holds an observation, or the newest image of one that stacks the images of several steps;
    the older ones are in the slots before it, in the same ring of `rows` slots.
    """

    def __init__(self, spec: EnvSpec, slots: int, rows: int) -> None:
        self.spec = spec
        self.tensor = zeros((slots, *spec.frame_shape), spec.obs_dtype)
        self._array = self.tensor.numpy()
        self._rows = rows
        self._older = np.arange(1 - spec.frames, 1)

    def frame(self, obs: np.ndarray, number: int) -> np.ndarray:
        """One of the images stacked in observations [B, ...], or all there is of them."""
        if self.spec.frames == 1:
            return obs
        return obs.reshape(len(obs), self.spec.frames, *self.spec.frame_shape)[:, number]

    def gather(self, slots: np.ndarray, out: np.ndarray) -> None:
        """Write the observations of some slots into `out`."""
        if self.spec.frames > 1:
            slots = self._shifted(slots[:, None], self._older).reshape(-1)
            out = out.reshape(len(slots), *self.spec.frame_shape)
        # `clip` skips a copy that `raise` makes; the slots are in range.
        self._array.take(slots, 0, out, "clip")

    def last_user(self, slots: np.ndarray) -> np.ndarray:
        """The slots whose observations have their oldest image in these."""
        return slots if self.spec.frames == 1 else self._shifted(slots, self.spec.frames - 1)

    def check_stacks(self, obs: np.ndarray, next_obs: np.ndarray) -> None:
        """Refuse observations that are not each other's images and one more."""
        kept = self.spec.frame_shape[0]
        if self.spec.frames > 1 and not np.array_equal(obs[:, kept:], next_obs[:, :-kept]):
            raise self._no_stack()

    def _no_stack(self) -> EnvError:
        return EnvError(
            f"{self.spec.env_id}: expected observations of {self.spec.frames} stacked images, "
            "of which each step adds one, found others; a wrapper after the stacking changes "
            "them: put it before"
        )

    def _shifted(self, slots: np.ndarray, by: int | np.ndarray) -> np.ndarray:
        """The slots `by` rows later in their rings, or earlier if it is negative."""
        env, row = np.divmod(slots, self._rows)
        shifted: np.ndarray = env * self._rows + (row + by) % self._rows
        return shifted


class PartsStore(ObservationStore):
    """The same for rows of several parts, some of which stack the images of several steps.

    Of those a slot holds the newest image, of the others all there is.
    """

    def __init__(self, spec: EnvSpec, slots: int, rows: int) -> None:
        super().__init__(spec, slots, rows)
        self._pieces: list[tuple[slice, slice, int]] = []  # of a row, of a slot, and its images
        stop = 0
        for part in spec.parts:
            start, stop = stop, stop + (part.stop - part.start) // part.frames
            self._pieces.append((part.slice, slice(start, stop), part.frames))

    def frame(self, obs: np.ndarray, number: int) -> np.ndarray:
        """What a slot holds of observations [B, row], with one of the images of each stack."""
        rows = np.zeros((len(obs), *self.spec.frame_shape), obs.dtype)
        for whole, kept, frames in self._pieces:
            images = obs[:, whole].reshape(len(obs), frames, -1)
            rows[:, kept] = images[:, number] if frames > 1 else images[:, 0]
        return rows

    def gather(self, slots: np.ndarray, out: np.ndarray) -> None:
        """Write the observations of some slots into `out`."""
        stacks = self._shifted(slots[:, None], self._older)
        for whole, kept, frames in self._pieces:
            index = stacks if frames > 1 else slots
            out[:, whole] = self._array[index, kept].reshape(len(slots), -1)

    def check_stacks(self, obs: np.ndarray, next_obs: np.ndarray) -> None:
        """Refuse observations whose stacks are not each other's images and one more."""
        for whole, kept, frames in self._pieces:
            size = kept.stop - kept.start
            before, after = obs[:, whole], next_obs[:, whole]
            if frames > 1 and not np.array_equal(before[:, size:], after[:, :-size]):
                raise self._no_stack()


class BatchMemory:
    """Memory for the batches of one size, used again for each."""

    def __init__(self, batch_size: int, spec: EnvSpec) -> None:
        self.obs = np.zeros((batch_size, *spec.obs_shape), spec.obs_dtype)
        self.next_obs = np.zeros_like(self.obs)
        self.action = np.empty((batch_size, *spec.action_shape), spec.action_dtype)
        self.slots = np.empty(batch_size, np.int64)
        self.reward, self.discount, self.weight = np.ones((3, batch_size), np.float32)
        masks: dict[str, Tensor] = {}
        if spec.masked:
            self.legal, self.next_legal = np.ones((2, batch_size, spec.policy_outputs), np.bool_)
            masks["legal"] = torch.from_numpy(self.legal)
            masks["next_legal"] = torch.from_numpy(self.next_legal)
        self._host = Batch(
            obs=spec.named(torch.from_numpy(self.obs)),
            action=torch.from_numpy(self.action),
            reward=torch.from_numpy(self.reward),
            next_obs=spec.named(torch.from_numpy(self.next_obs)),
            discount=torch.from_numpy(self.discount),
            weight=torch.from_numpy(self.weight),
            slots=self.slots,
            **masks,
        )

    def batch(self, device: torch.device) -> Batch:
        """What was gathered, on the device."""
        if device.type == "cpu":
            return self._host
        fields = self._host._asdict().items()
        tensors: dict[str, Any] = {name: x for name, x in fields if isinstance(x, Tensor)}
        if device.type == "cuda":
            # Pinning copies, so a transfer in flight is not overwritten by the next batch.
            tensors = {name: x.pin_memory() for name, x in tensors.items()}
        moved = {
            name: x.to(device, non_blocking=device.type == "cuda") for name, x in tensors.items()
        }
        return self._host._replace(**moved)
