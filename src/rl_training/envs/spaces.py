"""Converts between Gymnasium's spaces and the arrays the algorithms see.

Observations become float32 vectors (boxes flattened, choices one-hot), images with their channels
first, or rows in which the parts of a Dict or Tuple lie side by side; actions become what the
environment takes. `SpaceAdapter` does both for one environment, with a codec for each of its
spaces.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, DTypeLike

from rl_training.data.observations import IMAGE_RANK, Part, laid_out, part_array
from rl_training.data.types import EnvSpec
from rl_training.envs.contract import described
from rl_training.errors import CheckpointError, EnvError, IncompatibleEnv, UsageError

MAX_CHOICES = 1 << 24
"""Of a discrete space in a checkpoint: more could neither be learned nor held one-hot."""
UNBOUNDED = 1e30
"""A bound this far away, such as the largest float32, is none."""


class SpaceAdapter:
    """Turns an environment's observations into vectors, images or rows of parts, and actions back.

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
        self._obs_codec = observation_codec(observation, frames)
        self._action_codec = action_codec(action)
        self.spec = EnvSpec(
            env_id=env_id,
            obs_shape=self._obs_codec.shape,
            obs_dtype=self._obs_codec.dtype,
            frames=self._obs_codec.frames,
            parts=self._obs_codec.parts,
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

    def described(self) -> str:
        """What is learned from, such as `camera: image 3 x 64 x 64, joints: 7 numbers`."""
        return self._obs_codec.described()


class ObservationCodec(Protocol):
    """Encodes the observations of one space."""

    shape: tuple[int, ...]
    """Of one encoded observation."""
    dtype: str
    frames: int
    """Images of several steps that are stacked in an observation, 1 if none are."""
    parts: tuple[Part, ...]
    """Those of a Dict or Tuple."""

    def encode(self, obs: object) -> np.ndarray:
        """A batch as a fresh (batch, *shape) array."""

    def batched(self, obs: object) -> object:
        """One observation as a batch of one."""

    def is_batch(self, obs: object) -> bool:
        """Whether a user's observation is a batch; UsageError if it is neither that nor single."""

    def described(self) -> str:
        """What an observation is, in a few words."""


def observation_kind(space: spaces.Space[Any]) -> str:
    """`vector` for what becomes a vector, `image`, `parts`, or what else a space is.

    `parts` is a Dict or Tuple with an image in it. One with only vectors is a vector, and one with
    a part that no algorithm takes is of the kind of that part.
    """
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        return _leaf_kind(space)
    kinds = [_leaf_kind(leaf) for _, leaf in observation_leaves(space)]
    if not kinds:
        return f"empty {type(space).__name__}"
    if others := [kind for kind in kinds if kind not in ("vector", "image")]:
        return others[0]
    return "parts" if "image" in kinds else "vector"


def _leaf_kind(space: spaces.Space[Any]) -> str:
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        return "vector"
    if not isinstance(space, spaces.Box):
        return type(space).__name__
    if 0 in space.shape:
        return "empty Box"
    if len(space.shape) < IMAGE_RANK:
        return "vector"
    pixels = space.dtype == np.uint8 or (
        space.dtype.kind == "f" and space.low.min() >= 0 and space.high.max() <= 1
    )
    return "image" if pixels and channel_axis(space.shape) is not None else "other image"


def channel_axis(shape: tuple[int, ...]) -> int | None:
    """The axis of an image's channels: before or after height and width, and shorter than both.

    Of a stack of images, which has an axis more at the beginning, it is counted without that one;
    None if it is no image.
    """
    first, middle, last = shape[-IMAGE_RANK:]
    if len(shape) > IMAGE_RANK + 1:
        return None
    if first < min(middle, last):
        return 0
    return 2 if last < min(first, middle) else None


def observation_leaves(space: spaces.Space[Any]) -> list[tuple[tuple[Any, ...], spaces.Space[Any]]]:
    """The parts of a space that have none themselves, each with the keys that lead to it.

    In sorted order, whatever order a Dict was made in: two that differ only in their order are
    equal, so the order must not matter.
    """
    if isinstance(space, spaces.Dict):
        inner: list[tuple[Any, Any]] = [(key, space[key]) for key in ordered_keys(space)]
    elif isinstance(space, spaces.Tuple):
        inner = list(enumerate(space.spaces))
    else:
        return [((), space)]
    return [((key, *path), leaf) for key, part in inner for path, leaf in observation_leaves(part)]


def ordered_keys(space: spaces.Dict) -> list[str]:
    """The keys of a dictionary in the order of its parts."""
    return sorted(space.keys(), key=str)


def observation_codec(space: spaces.Space[Any], frames: int = 1) -> ObservationCodec:
    """The codec of a space whose kind is `vector`, `image` or `parts`."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        leaves = observation_leaves(space)
        return PartsCodec({path: observation_codec(leaf, frames) for path, leaf in leaves})
    if isinstance(space, spaces.Discrete):
        return OneHotCodec((), np.array([space.n]), np.array([space.start]))
    if isinstance(space, spaces.MultiDiscrete):
        return OneHotCodec(space.shape, space.nvec.reshape(-1), space.start.reshape(-1))
    if observation_kind(space) == "image":
        floats = space.dtype is not None and space.dtype.kind == "f"
        return (FloatImageCodec if floats else ImageCodec)(space.shape or (), frames)
    return VectorCodec(space.shape or ())


class VectorCodec:
    """Numbers of one shape, flattened."""

    dtype = "float32"
    frames = 1
    parts: tuple[Part, ...] = ()

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

    def described(self) -> str:
        """How many numbers."""
        return f"{self.shape[0]} number{'s' * (self.shape[0] > 1)}"


class ImageCodec(VectorCodec):
    """uint8 images with their channels first; those of a stack are merged, oldest first."""

    dtype = "uint8"
    words = "image"

    def __init__(self, shape: tuple[int, ...], frames: int = 1) -> None:
        super().__init__(shape)
        self._channels_last = channel_axis(shape) == 2
        stack, image = shape[:-IMAGE_RANK], shape[-IMAGE_RANK:]
        channels, *sides = (image[2], *image[:2]) if self._channels_last else image
        self.shape = (math.prod(stack) * channels, *sides)
        # A stack has a dedicated axis, or all channels of an image of rank three.
        fits = stack == (frames,) if stack else channels % frames == 0
        self.frames = frames if fits else 1

    def encode(self, obs: object) -> np.ndarray:
        """A copy, for environments that reuse their arrays."""
        if self.shape == self._raw_shape:
            return np.array(obs, dtype=self.dtype)
        images = np.asarray(obs, dtype=self.dtype)
        if self._channels_last:
            images = np.moveaxis(images, -1, -IMAGE_RANK)
        return np.array(images, order="C").reshape(-1, *self.shape)

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

    def described(self) -> str:
        """Its shape, and that it was another."""
        stacked = f" of {self.frames} stacked frames" if self.frames > 1 else ""
        changed = "transposed" if self._channels_last else "merged"
        before = (
            "" if self.shape == self._raw_shape else f" ({changed} from {_by(self._raw_shape)})"
        )
        return f"{self.words} {_by(self.shape)}{stacked}{before}"


class FloatImageCodec(ImageCodec):
    """Images of floats in [0, 1]; they stay floats."""

    dtype = "float32"
    words = "float image"

    def is_batch(self, obs: object) -> bool:
        """By its shape; numbers outside [0, 1] are refused."""
        numbers = _numbers(obs)
        if numbers.size and not 0 <= numbers.min() <= numbers.max() <= 1:
            raise UsageError(
                "observation: expected an image of floats from 0 to 1, found numbers from "
                f"{numbers.min():g} to {numbers.max():g}; if they are bytes, divide them by 255"
            )
        return _is_batch(numbers, self._raw_shape)


class OneHotCodec:
    """Choices, each one of n as n numbers of which one is 1, side by side."""

    dtype = "float32"
    frames = 1
    parts: tuple[Part, ...] = ()

    def __init__(self, shape: tuple[int, ...], counts: np.ndarray, starts: np.ndarray) -> None:
        self._raw_shape = shape  # of the choices; () for a single one
        self._counts, self._starts = counts.astype(np.int64), starts.astype(np.int64)
        self._offsets = np.cumsum(self._counts) - self._counts
        self.shape: tuple[int, ...] = (int(counts.sum()),)

    def encode(self, obs: object) -> np.ndarray:
        """A row of zeros and a one per choice."""
        choices = np.asarray(obs, dtype=np.int64)
        choices = choices.reshape(len(choices), -1) - self._starts
        if ((choices < 0) | (choices >= self._counts)).any():  # a negative index would be taken
            raise EnvError(self._out_of_range(obs))
        rows = np.zeros((len(choices), *self.shape), np.float32)
        rows[np.arange(len(choices))[:, None], choices + self._offsets] = 1.0
        return rows

    def batched(self, obs: object) -> object:
        """A list of one."""
        return [obs]

    def is_batch(self, obs: object) -> bool:
        """By its shape; a number that is no choice is refused."""
        numbers = _numbers(obs)
        batch = _is_batch(numbers, self._raw_shape)
        choices = numbers.reshape(-1, len(self._counts))
        whole = choices == np.floor(choices)
        inside = (choices >= self._starts) & (choices < self._starts + self._counts)
        if not (whole & inside).all():
            raise UsageError(self._out_of_range(obs))
        return batch

    def described(self) -> str:
        """How many choices."""
        choices = " and ".join(str(count) for count in self._counts[:4])
        return f"one of {choices}{' and more' * (len(self._counts) > 4)} choices, one-hot"

    def _out_of_range(self, obs: object) -> str:
        ranges = [
            f"{first} to {first + count - 1}"
            for first, count in zip(self._starts, self._counts, strict=True)
        ]
        return f"observation: expected integers from {', '.join(ranges[:4])}, found {str(obs)[:80]}"


class PartsCodec:
    """The parts of a Dict or Tuple in one row, as `laid_out` places them."""

    def __init__(self, codecs: dict[tuple[Any, ...], ObservationCodec]) -> None:
        self._codecs = codecs
        names = ["/".join(str(key) for key in path) for path in codecs]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise IncompatibleEnv(
                f"observation: expected different names for all parts, found two parts {twice!r}; "
                "rename a key"
            )
        parts = [
            Part(name=name, shape=codec.shape, dtype=codec.dtype, frames=codec.frames)
            for name, codec in zip(names, codecs.values(), strict=True)
        ]
        self.parts, length, self.dtype = laid_out(parts)
        self.shape: tuple[int, ...] = (length,)
        self.frames = max(part.frames for part in self.parts)
        self._places = [self._named(name) for name in names]
        self._side_by_side = not any(part.is_image for part in self.parts)

    def _named(self, name: str) -> Part:
        return next(part for part in self.parts if part.name == name)

    def encode(self, obs: object) -> np.ndarray:
        """One row per environment."""
        values = [part.encode(_at(obs, path)) for path, part in self._codecs.items()]
        if self._side_by_side:
            return np.concatenate(values, 1)
        rows = np.zeros((len(values[0]), *self.shape), self.dtype)
        for value, place in zip(values, self._places, strict=True):
            part_array(rows, place)[...] = value
        return rows

    def batched(self, obs: object) -> object:
        """Each part as a batch of one, by its path."""
        return _Batched({path: part.batched(_at(obs, path)) for path, part in self._codecs.items()})

    def is_batch(self, obs: object) -> bool:
        """All parts must agree."""
        for path in self._codecs:
            self._check_keys(obs, path)
        values = {path: _at(obs, path) for path in self._codecs}
        batched = [part.is_batch(values[path]) for path, part in self._codecs.items()]
        if any(batched) != all(batched):
            raise UsageError("observation: some entries are batches and some are not")
        sizes = {len(value) for value in values.values()} if all(batched) else {1}
        if len(sizes) > 1:
            raise UsageError(f"observation: the entries are batches of {sorted(sizes)} rows")
        return all(batched)

    def _check_keys(self, obs: object, path: tuple[Any, ...]) -> None:
        """Refuse an observation whose keys are not those of the space on the way to a part."""
        for depth in range(len(path)):
            before = path[:depth]
            known = dict.fromkeys(p[depth] for p in self._codecs if p[:depth] == before)
            inner, where = _at(obs, before), "".join(f"[{key!r}]" for key in before)
            if isinstance(path[depth], int):
                if not isinstance(inner, (tuple, list)) or len(inner) != len(known):
                    found = described(inner)
                    wanted = f"a tuple of {len(known)}"
                    raise UsageError(f"observation{where}: expected {wanted}, found {found}")
            elif not isinstance(inner, dict) or inner.keys() != known.keys():
                found = str(list(inner)) if isinstance(inner, dict) else type(inner).__name__
                raise UsageError(
                    f"observation{where}: expected the keys {list(known)}, found {found}"
                )

    def described(self) -> str:
        """Each part by its name."""
        words = (part.described() for part in self._codecs.values())
        names = (place.name for place in self._places)
        return ", ".join(f"{name}: {text}" for name, text in zip(names, words, strict=True))


class _Batched(dict[tuple[Any, ...], Any]):
    """Parts of observations by their paths."""


def _at(obs: Any, path: tuple[Any, ...]) -> Any:
    """The part of an observation that its keys lead to."""
    if isinstance(obs, _Batched):
        return obs[path]
    for key in path:
        obs = obs[key]
    return obs


def _by(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


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
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_to_plain(part) for part in space.spaces]}
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
    if kind == "Tuple":
        return spaces.Tuple([_space(part) for part in plain["spaces"]])
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
