"""Observations as the models take them.

Float32 vectors (boxes flattened, choices one-hot, dictionaries side by side), or images of bytes.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from rl_training.errors import EnvError, UsageError

IMAGE_RANK = 3


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

    An image is (channels, height, width) of bytes, and has fewer channels than rows and columns.
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
    kind = ImageCodec if observation_kind(space) == "image" else BoxCodec
    return kind(space.shape or ())


class BoxCodec:
    """Numbers of one shape, flattened."""

    dtype = "float32"

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._given = shape
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
        return _is_batch(_numbers(obs), self._given)


class ImageCodec(BoxCodec):
    """Images of bytes, unchanged."""

    dtype = "uint8"

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self.shape = shape

    def encode(self, obs: object) -> np.ndarray:
        """A copy, for environments that reuse their arrays."""
        return np.array(obs, dtype=np.uint8)

    def is_batch(self, obs: object) -> bool:
        """By its shape; numbers that are no bytes are refused."""
        numbers = _numbers(obs)
        if numbers.dtype != np.uint8 and not np.array_equal(numbers, numbers.astype(np.uint8)):
            raise UsageError(
                "observation: expected an image of bytes, whole numbers from 0 to 255, found "
                f"numbers from {numbers.min():g} to {numbers.max():g}; if they are scaled, "
                "multiply them by 255 and round"
            )
        return _is_batch(numbers, self._given)


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
            raise EnvError(self._no_choice(obs))
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
            raise UsageError(self._no_choice(obs))
        return _is_batch(numbers, ())

    def _no_choice(self, obs: object) -> str:
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
