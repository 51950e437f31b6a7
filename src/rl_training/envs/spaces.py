"""Converts between Gymnasium's spaces and the arrays the algorithms see.

Observations become float32 vectors (boxes flattened, choices one-hot, dictionaries side by side) or
uint8 images; actions become what the environment takes. `SpaceAdapter` does both for one
environment, with a codec for each of its spaces.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, DTypeLike

from rl_training.data.types import EnvSpec
from rl_training.errors import CheckpointError, EnvError, UsageError

IMAGE_RANK = 3
MAX_CHOICES = 1 << 24
"""Of a discrete space in a checkpoint: more could neither be learned nor held one-hot."""
UNBOUNDED = 1e30
"""A bound this far away, such as the largest float32, is none."""


class SpaceAdapter:
    """Turns an environment's observations into vectors or images, and actions into its own.

    `frames` counts the images that are stacked in an observation, and `masked` says that masks of
    the legal actions come with them.
    """

    def __init__(
        self,
        env_id: str,
        observation: spaces.Space[Any],
        action: spaces.Space[Any],
        *,
        frames: int = 1,
        masked: bool = False,
    ):
        self.observation = observation
        self.action = action
        self._obs_codec = observation_codec(observation)
        self._action_codec = action_codec(action)
        self.spec = EnvSpec(
            env_id=env_id,
            obs_shape=self._obs_codec.shape,
            obs_dtype=self._obs_codec.dtype,
            frames=frames if _is_frame_stack(self._obs_codec.shape, frames) else 1,
            masked=masked,
            **self._action_codec.sizes,
        )

    def encode(self, obs: object) -> np.ndarray:
        """A batch of raw observations as a fresh (batch, *obs_shape) array."""
        return self._obs_codec.encode(obs)

    def encode_one(self, obs: object) -> np.ndarray:
        """One raw observation as an array of the shape `obs_shape`."""
        row: np.ndarray = self._obs_codec.encode(self._obs_codec.batched(obs))[0]
        return row

    def encode_any(self, obs: object) -> tuple[np.ndarray, bool]:
        """One observation or a batch from a user, checked; and whether it was a single one."""
        single = not self._obs_codec.is_batch(obs)
        return self.encode(self._obs_codec.batched(obs) if single else obs), single

    def decode(self, action: np.ndarray) -> np.ndarray:
        """Actions as the environment takes them."""
        return self._action_codec.decode(action)


def _is_frame_stack(shape: Sequence[int], frames: int) -> bool:
    """Whether an observation can be a stack of that many images."""
    return len(shape) == 3 and shape[0] % frames == 0


class ObservationCodec(Protocol):
    """Encodes the observations of one space."""

    shape: tuple[int, ...]
    """Of one encoded observation."""
    dtype: str

    def encode(self, obs: object) -> np.ndarray:
        """A batch as a fresh (batch, *shape) array."""

    def batched(self, obs: object) -> object:
        """One observation as a batch of one."""

    def is_batch(self, obs: object) -> bool:
        """Whether a user's observation is a batch; UsageError if it is neither that nor single."""


def observation_kind(space: spaces.Space[Any]) -> str:
    """`vector` for what becomes a vector, `image`, `other image`, or the space's name.

    An image is uint8 (channels, height, width), and has fewer channels than rows and columns.
    """
    if isinstance(space, spaces.Box) and 0 in space.shape:
        return "empty Box"
    if isinstance(space, spaces.Box):
        if len(space.shape) < IMAGE_RANK:
            return "vector"
        bytes_first = len(space.shape) == IMAGE_RANK and space.dtype == np.uint8
        return "image" if bytes_first and space.shape[0] < min(space.shape[1:]) else "other image"
    if isinstance(space, spaces.Discrete):
        return "vector"
    if isinstance(space, spaces.Dict):
        kinds = {observation_kind(part) for part in space.values()}
        flat = not any(isinstance(part, spaces.Dict) for part in space.values())
        return "vector" if flat and kinds == {"vector"} else "Dict"
    return type(space).__name__


def ordered_keys(space: spaces.Dict) -> list[str]:
    """The keys of a dictionary in the order of the vector: sorted, whatever order it was made in.

    Two Dict spaces that differ only in their order are equal, so the order must not matter.
    """
    return sorted(space.keys(), key=str)


def observation_codec(space: spaces.Space[Any]) -> ObservationCodec:
    """The codec of a space whose kind is `vector` or `image`."""
    if isinstance(space, spaces.Dict):
        return DictCodec({key: observation_codec(space[key]) for key in ordered_keys(space)})
    if isinstance(space, spaces.Discrete):
        return OneHotCodec(int(space.n), int(space.start))
    kind = ImageCodec if observation_kind(space) == "image" else VectorCodec
    return kind(space.shape or ())


class VectorCodec:
    """Numbers of one shape, flattened."""

    dtype = "float32"

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._raw_shape = shape
        self.shape: tuple[int, ...] = (math.prod(shape),)

    def encode(self, obs: object) -> np.ndarray:
        """Rows of float32; always a copy, for environments that reuse their arrays."""
        array = np.array(obs, dtype=np.float32)
        return array.reshape(len(array), *self.shape)

    def batched(self, obs: object) -> object:
        """A list of one."""
        return [obs]

    def is_batch(self, obs: object) -> bool:
        """By its shape."""
        return _is_batch(_numbers(obs), self._raw_shape)


class ImageCodec(VectorCodec):
    """uint8 images, unchanged."""

    dtype = "uint8"

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self.shape = shape

    def encode(self, obs: object) -> np.ndarray:
        """A copy, for environments that reuse their arrays."""
        return np.array(obs, dtype=np.uint8)

    def is_batch(self, obs: object) -> bool:
        """By its shape; numbers that do not fit uint8 are refused."""
        numbers = _numbers(obs)
        if numbers.dtype != np.uint8 and not np.array_equal(numbers, numbers.astype(np.uint8)):
            raise UsageError(
                "observation: expected a uint8 image, whole numbers from 0 to 255, found "
                f"numbers from {numbers.min():g} to {numbers.max():g}; if they are scaled, "
                "multiply them by 255 and round"
            )
        return _is_batch(numbers, self._raw_shape)


class OneHotCodec:
    """One of n choices as n numbers, of which one is 1."""

    dtype = "float32"

    def __init__(self, n: int, start: int) -> None:
        self.shape: tuple[int, ...] = (n,)
        self.start = start

    def encode(self, obs: object) -> np.ndarray:
        """A row of zeros and a one per choice."""
        choice = np.asarray(obs, dtype=np.int64) - self.start
        if ((choice < 0) | (choice >= self.shape[0])).any():  # a negative index would be taken
            raise EnvError(self._out_of_range(obs))
        rows = np.zeros((len(choice), *self.shape), np.float32)
        rows[np.arange(len(choice)), choice] = 1.0
        return rows

    def batched(self, obs: object) -> object:
        """A list of one."""
        return [obs]

    def is_batch(self, obs: object) -> bool:
        """By its shape; a number that is no choice is refused."""
        numbers = _numbers(obs)
        whole = numbers == np.floor(numbers)
        inside = (numbers >= self.start) & (numbers < self.start + self.shape[0])
        if not (whole & inside).all():
            raise UsageError(self._out_of_range(obs))
        return _is_batch(numbers, ())

    def _out_of_range(self, obs: object) -> str:
        last = self.start + self.shape[0] - 1
        return f"observation: expected integers from {self.start} to {last}, found {str(obs)[:80]}"


class DictCodec:
    """The vectors of several spaces side by side, in the order of `parts`."""

    dtype = "float32"

    def __init__(self, parts: dict[str, ObservationCodec]) -> None:
        self.parts = parts
        self.shape: tuple[int, ...] = (sum(part.shape[0] for part in parts.values()),)

    def encode(self, obs: Any) -> np.ndarray:
        """One row per environment."""
        return np.concatenate([part.encode(obs[key]) for key, part in self.parts.items()], 1)

    def batched(self, obs: Any) -> object:
        """Each entry as a batch of one."""
        return {key: part.batched(obs[key]) for key, part in self.parts.items()}

    def is_batch(self, obs: object) -> bool:
        """All entries must agree."""
        if not isinstance(obs, dict) or obs.keys() != self.parts.keys():
            found = list(obs) if isinstance(obs, dict) else type(obs).__name__
            raise UsageError(f"observation: expected the keys {list(self.parts)}, found {found}")
        batched = [part.is_batch(obs[key]) for key, part in self.parts.items()]
        if any(batched) != all(batched):
            raise UsageError("observation: some entries are batches and some are not")
        sizes = {len(obs[key]) for key in self.parts} if all(batched) else {1}
        if len(sizes) > 1:
            raise UsageError(f"observation: the entries are batches of {sorted(sizes)} rows")
        return all(batched)


def _numbers(obs: object) -> np.ndarray:
    """An observation as numbers that float32 can hold."""
    try:
        array = np.asarray(obs)
    except ValueError:
        raise UsageError(
            f"observation: expected numbers in lists of equal length, found {str(obs)[:80]}"
        ) from None
    if array.size and array.dtype.kind not in "biuf":
        raise UsageError(f"observation: expected numbers, found {str(obs)[:80]}")
    if not (np.abs(array) <= np.finfo(np.float32).max).all():
        raise UsageError(
            "observation: expected finite numbers, found NaN, infinity or one too large for float32"
        )
    return array


def _is_batch(array: np.ndarray, shape: tuple[int, ...]) -> bool:
    if array.shape == shape:
        return False
    if array.ndim == len(shape) + 1 and array.shape[1:] == shape:
        return True
    raise UsageError(
        f"observation: expected shape {shape}, or (n, *{shape}) for a batch, found {array.shape}"
    )


class ActionCodec(Protocol):
    """Decodes the actions of one space."""

    sizes: dict[str, Any]

    def decode(self, action: np.ndarray) -> np.ndarray:
        """A batch of actions, as the environment takes them."""


def action_kind(space: spaces.Space[Any]) -> str:
    """`discrete`, `continuous`, `unbounded`, `multi_discrete`, `multi_binary`, or the space's name.

    `unbounded` is a continuous space in which some number has no bound on some side, and
    `continuous_array` a bounded one of another shape than a vector's.
    """
    if isinstance(space, spaces.Discrete):
        return "discrete"
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        if not math.prod(space.shape):
            return "empty Box"
        bounds = np.abs(np.stack([space.low, space.high]).astype(np.float64))
        shaped = "continuous" if len(space.shape) == 1 else "continuous_array"
        return shaped if (bounds < UNBOUNDED).all() else "unbounded"
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return "multi_discrete"
    if isinstance(space, spaces.MultiBinary) and len(space.shape) == 1:
        return "multi_binary"
    return type(space).__name__


def action_codec(space: spaces.Space[Any]) -> ActionCodec:
    """The codec of a space whose kind is in `spec.ACTIONS`."""
    if isinstance(space, spaces.Discrete):
        sizes: dict[str, Any] = {"num_actions": int(space.n)}
        return DiscreteActionCodec("discrete", sizes, int(space.start), space.dtype)
    if isinstance(space, spaces.MultiDiscrete):
        parts = tuple(int(n) for n in space.nvec)
        sizes = {"action_sizes": parts, "action_dim": len(parts)}
        return DiscreteActionCodec("multi_discrete", sizes, space.start, space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return DiscreteActionCodec(
            "multi_binary", {"action_dim": int(space.shape[0])}, 0, space.dtype
        )
    assert isinstance(space, spaces.Box), space
    return BoxActionCodec(space)


class DiscreteActionCodec:
    """Choices counted from zero, shifted to where the environment starts counting."""

    def __init__(
        self, kind: str, sizes: dict[str, Any], start: ArrayLike, dtype: DTypeLike
    ) -> None:
        self.sizes = {"action_kind": kind, **sizes}
        self._start = np.asarray(start, dtype)
        self._shifts = bool(self._start.any())
        self._dtype = np.dtype(dtype)

    def decode(self, action: np.ndarray) -> np.ndarray:
        """Shifted choices in the space's type."""
        choices = action.astype(self._dtype, copy=False)
        return choices + self._start if self._shifts else choices


class BoxActionCodec:
    """Numbers in [-1, 1], scaled to the bounds and clipped; unbounded ones pass unchanged.

    Where only one side is bounded, -1 (or 1) is that bound and the other end is 2 away from it.
    """

    def __init__(self, space: spaces.Box) -> None:
        self.sizes = {"action_kind": "continuous", "action_dim": math.prod(space.shape)}
        self._shape, self._dtype = space.shape, space.dtype
        low, high = (bound.reshape(-1).astype(np.float64) for bound in (space.low, space.high))
        self._low, self._high = low, high
        below, above = np.abs(low) < UNBOUNDED, np.abs(high) < UNBOUNDED
        near = np.where(below, low, np.where(above, high - 2.0, -1.0))
        far = np.where(above, high, near + 2.0)
        self._center, self._scale = (near + far) / 2, (far - near) / 2

    def decode(self, action: np.ndarray) -> np.ndarray:
        """Actions within the box."""
        scaled = np.clip(action * self._scale + self._center, self._low, self._high)
        return scaled.astype(self._dtype).reshape(len(action), *self._shape)


def space_to_plain(space: spaces.Space[Any]) -> dict[str, Any]:
    """A space as plain values and arrays, for a checkpoint; a Dict in the order of its vector."""
    dtype = str(space.dtype)
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": dtype}
    if isinstance(space, spaces.MultiDiscrete):
        return {"type": "MultiDiscrete", "nvec": space.nvec, "start": space.start, "dtype": dtype}
    if isinstance(space, spaces.MultiBinary):
        # Gymnasium tells MultiBinary(3) from MultiBinary([3]).
        n = space.n if isinstance(space.n, int) else list(space.n)
        return {"type": "MultiBinary", "n": n}
    if isinstance(space, spaces.Dict):
        parts = [[key, space_to_plain(space[key])] for key in ordered_keys(space)]
        return {"type": "Dict", "spaces": parts}
    assert isinstance(space, spaces.Box), space
    shape = list(space.shape)
    return {"type": "Box", "shape": shape, "low": space.low, "high": space.high, "dtype": dtype}


def space_from_plain(plain: dict[str, Any]) -> spaces.Space[Any]:
    """The space that `space_to_plain` wrote; CheckpointError for anything else."""
    try:
        return _space(plain)
    except Exception as error:  # Gymnasium checks its arguments by assertions, among others
        raise CheckpointError(
            f"expected a space, found {str(plain)[:80]} ({error!r:.200})"
        ) from error


def _space(plain: dict[str, Any]) -> spaces.Space[Any]:
    kind = plain["type"]
    if kind == "Discrete":
        # Older Gymnasiums have no other type than int64, and no argument for it.
        other = {} if plain["dtype"] == "int64" else {"dtype": plain["dtype"]}
        return spaces.Discrete(_choices(plain["n"]), start=_whole(plain["start"]), **other)
    if kind == "MultiDiscrete":
        choices, start = _array(plain["nvec"]), _array(plain["start"])
        _choices(int(choices.sum()))
        return spaces.MultiDiscrete(choices, plain["dtype"], start=start)
    if kind == "MultiBinary":
        n = plain["n"]
        _choices(math.prod(n) if isinstance(n, list) else n)
        return spaces.MultiBinary(n)
    if kind == "Dict":
        return spaces.Dict([(_text(key), _space(part)) for key, part in plain["spaces"]])
    if kind != "Box":
        raise ValueError(f"there is no space {kind!r:.40}")
    low, high, shape = _array(plain["low"]), _array(plain["high"]), tuple(plain["shape"])
    if not low.shape == high.shape == shape:  # a number for all would let a shape claim any memory
        raise ValueError(f"bounds of {low.shape} and {high.shape} for the shape {shape}")
    if np.isnan(low).any() or np.isnan(high).any():
        raise ValueError("bounds that are no numbers")
    return spaces.Box(low, high, shape, plain["dtype"])


def _choices(value: object) -> int:
    if not 1 <= _whole(value) <= MAX_CHOICES:
        raise ValueError(f"expected 1 to {MAX_CHOICES} choices, found {value}")
    return _whole(value)


def _whole(value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"expected a whole number, found {value!r:.40}")
    return value


def _array(value: object) -> np.ndarray:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
        raise ValueError(f"expected an array of numbers, found {value!r:.40}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, found {value!r:.40}")
    return value
