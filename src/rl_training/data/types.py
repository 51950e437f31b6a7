"""The plain values that pass between the parts: what a step, a batch and an environment are.

And the check of shapes with which losses begin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_training.data.observations import IMAGE_RANK, Part, named

PolicyState = tuple[np.ndarray, ...]
"""What a policy carries from step to step; a feed-forward policy carries `()`."""


@dataclass(frozen=True, kw_only=True)
class EnvSpec:
    """The shapes and sizes of an environment, as a model needs them; no Gymnasium types.

    `obs_shape` is the shape a model sees: a vector's length, or (channels, height, width) of an
    image. If images of several steps are stacked along the channels, oldest first, `frames` counts
    them. An observation of several `parts`, of a Dict or Tuple, is one row that has them all. If
    there are bytes among them, it is a row of bytes, in which float32 numbers take four each, and
    numbers come before images. `action_kind` is `discrete` (then
    `num_actions` counts the choices), `continuous` (then `action_dim` numbers in [-1, 1]),
    `multi_discrete` (then `action_sizes` counts the choices of each part) or `multi_binary` (then
    `action_dim` switches). If it is `masked`, a mask of its legal choices comes with every
    observation.
    """

    env_id: str
    obs_shape: tuple[int, ...]
    obs_dtype: str = "float32"
    frames: int = 1
    parts: tuple[Part, ...] = ()
    action_kind: str
    num_actions: int = 0
    action_dim: int = 0
    action_sizes: tuple[int, ...] = ()
    masked: bool = False

    @property
    def obs_dim(self) -> int:
        """Length of the flattened observation."""
        return math.prod(self.obs_shape)

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """Shape of what one step adds to an observation: all of it, or the newest image."""
        if self.frames == 1:
            return self.obs_shape
        if self.parts:
            return (self.obs_shape[0] - sum(_older(part) for part in self.parts),)
        return self.obs_shape[0] // self.frames, *self.obs_shape[1:]

    @property
    def named_actions(self) -> int:
        """How many names tell the actions: of the choices, or of the dimensions."""
        return self.num_actions or self.action_dim

    @property
    def has_images(self) -> bool:
        """Whether an observation is an image, or one of its parts is."""
        return len(self.obs_shape) == IMAGE_RANK or any(part.is_image for part in self.parts)

    @property
    def vector_dim(self) -> int:
        """Numbers of an observation that are not those of an image."""
        if not self.parts:
            return 0 if self.has_images else self.obs_dim
        return sum(math.prod(part.shape) for part in self.parts if not part.is_image)

    @property
    def float_bytes(self) -> int:
        """Bytes at the beginning of a row of bytes that are float32 numbers."""
        if self.obs_dtype != "uint8":
            return 0
        return max((part.stop for part in self.parts if part.dtype == "float32"), default=0)

    def part(self, name: str) -> Part:
        """The part of that name."""
        for part in self.parts:
            if part.name == name:
                return part
        raise KeyError(f"{name}: expected one of {', '.join(part.name for part in self.parts)}")

    def named(self, rows: Tensor) -> Tensor:
        """Encoded observations as a network is given them: parts go by their names."""
        return named(rows, self.parts)

    def floats(self, rows: np.ndarray) -> np.ndarray:
        """A view of the float32 numbers of encoded observations [..., row]; of bytes, none."""
        if self.obs_dtype == "float32":
            return rows
        return rows[..., : self.float_bytes].view(np.float32) if self.parts else rows[..., :0]

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of one stored action."""
        return () if self.action_kind == "discrete" else (self.action_dim,)

    @property
    def policy_outputs(self) -> int:
        """Numbers a policy network gives: logits of the choices, or means."""
        return self.num_actions or sum(self.action_sizes) or self.action_dim

    @property
    def maskable(self) -> bool:
        """Whether an action is made of choices of which some can be illegal."""
        return self.action_kind in ("discrete", "multi_discrete")

    @property
    def mask_bytes(self) -> int:
        """Memory of one stored mask, a bit for each choice; 0 without masks."""
        return -(-self.policy_outputs // 8) if self.masked else 0

    @property
    def action_dtype(self) -> str:
        """Type of a stored action."""
        return "float32" if self.action_kind == "continuous" else "int64"

    @property
    def max_discrete_action(self) -> np.ndarray | int | None:
        """The highest discrete action, or that of each part of one; None if continuous."""
        if self.action_kind == "multi_discrete":
            return np.array(self.action_sizes) - 1
        return {"discrete": self.num_actions - 1, "multi_binary": 1}.get(self.action_kind)


def _older(part: Part) -> int:
    """What the older images stacked in a part take of a row."""
    return (part.stop - part.start) // part.frames * (part.frames - 1)


class Clock(NamedTuple):
    """Where a run stands: what schedules, warm-up and intervals are functions of.

    `horizon` is the run's planned total of environment transitions (`total_timesteps`), not an
    episode's.
    """

    env_steps: int
    horizon: int
    learning_starts: int = 0

    @property
    def warming_up(self) -> bool:
        """Whether the run still collects random experience and does not learn."""
        return self.env_steps < self.learning_starts


class Transitions(NamedTuple):
    """One vector step as the collector hands it over, a row per environment.

    `next_obs` is the true successor, also at the end of an episode. Rows with `valid` False are
    autoreset rows, not transitions; nothing in them may be stored. `first` marks rows whose `obs`
    starts an episode. `state` is the policy state before the step, of before the reset if it
    starts an episode, and `next_state` the one after it. `legal` and `next_legal` are the masks of
    the two observations, true for legal choices, if the environment gives any; after a termination
    every choice counts as legal, as none is made.
    """

    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_obs: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    first: np.ndarray
    valid: np.ndarray
    state: PolicyState = ()
    next_state: PolicyState = ()
    legal: np.ndarray | None = None
    next_legal: np.ndarray | None = None


class Batch(NamedTuple):
    """Sampled transitions, ready for a loss: `reward + discount * value(next_obs)` is the target.

    `discount` is `gamma**k * (1 - terminated)` with k the number of rewards summed in `reward`.
    `weight` is one unless the buffer says otherwise. `slots` name the rows, for priorities.
    `legal` and `next_legal` [B, A] are the masks of `obs` and `next_obs`; None if the environment
    gives none.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    discount: Tensor
    weight: Tensor
    slots: np.ndarray
    legal: Tensor | None = None
    next_legal: Tensor | None = None


class SequenceBatch(NamedTuple):
    """Sampled sequences, time first: T rows [T, B, ...] to learn from, some after context rows.

    `obs`, `first` and `legal` have a row more, the successor of the last. Rows with `mask` False
    are context or padding and count for nothing. `first` marks rows that start an episode. `state`
    is the policy state before row 0, each part [B, ...], as it was when the sequence was played.
    `legal` has the masks of `obs`, or is None if the environment gives none.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    first: Tensor
    mask: Tensor
    state: tuple[Tensor, ...]
    legal: Tensor | None = None

    def from_row(self, row: int, state: tuple[Tensor, ...]) -> SequenceBatch:
        """What is left of it from a row on, and the state before that row."""
        return self._replace(**{name: x[row:] for name, x in self._rows().items()}, state=state)

    def to(self, device: torch.device) -> SequenceBatch:
        """The same on a device."""
        moved = {name: x.to(device, non_blocking=True) for name, x in self._rows().items()}
        state = tuple(part.to(device, non_blocking=True) for part in self.state)
        return self._replace(**moved, state=state)

    def _rows(self) -> dict[str, Tensor]:
        """The fields that have a row for each step."""
        return {name: x for name, x in self._asdict().items() if isinstance(x, Tensor)}


class Rollout(NamedTuple):
    """The vector steps between two on-policy updates, time first: [T, N, ...].

    `ended` marks the last row of an episode, however it ended. Rows that ended without terminating,
    and the newest row of each environment, have a successor that is not the next row: its
    observation is in `bootstrap_obs`, and `bootstrap_rows` gives the flat index t * N + n. The
    policy states before rows and after the rows to bootstrap have all their parts in one row of
    numbers; a feed-forward policy has none. `legal` [T, N, A] has the masks of `obs`, if the
    environment gives any.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    terminated: Tensor
    ended: Tensor
    first: Tensor
    valid: Tensor
    bootstrap_rows: Tensor
    bootstrap_obs: Tensor
    state: Tensor | None = None
    bootstrap_state: Tensor | None = None
    legal: Tensor | None = None


def expect_shapes(pattern: str, *tensors: Tensor) -> None:
    """Check ranks and that equal letters mean equal sizes, e.g. `expect_shapes("B A, B", q, r)`.

    A number stands for itself. A silent broadcast is the most expensive bug in this field.
    """
    if not torch.compiler.is_compiling():
        _check_shapes(pattern, tuple([tensor.shape for tensor in tensors]))


@lru_cache(maxsize=1024)  # the same few shapes come back at every update
def _check_shapes(pattern: str, shapes: tuple[torch.Size, ...]) -> None:
    sizes: dict[str, int] = {}
    for position, (names, shape) in enumerate(zip(pattern.split(","), shapes, strict=True)):
        letters = names.split()
        if len(letters) != len(shape):
            raise ValueError(f"argument {position}: expected [{names.strip()}], found {(*shape,)}")
        for letter, size in zip(letters, shape, strict=True):
            if sizes.setdefault(letter, int(letter) if letter.isdigit() else size) != size:
                known = "" if letter.isdigit() else f" with {letter} = {sizes[letter]}"
                raise ValueError(
                    f"argument {position}: expected [{names.strip()}]{known}, found {(*shape,)}"
                )
