"""Actions as an environment takes them, from what a policy gives."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, DTypeLike

UNBOUNDED = 1e30
"""A bound this far away, such as the largest float32, is none."""


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
    """The codec of a space with one of the four kinds."""
    if isinstance(space, spaces.Discrete):
        sizes: dict[str, Any] = {"num_actions": int(space.n)}
        return ChoiceCodec("discrete", sizes, int(space.start), space.dtype)
    if isinstance(space, spaces.MultiDiscrete):
        parts = tuple(int(n) for n in space.nvec)
        sizes = {"action_sizes": parts, "action_dim": len(parts)}
        return ChoiceCodec("multi_discrete", sizes, space.start, space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return ChoiceCodec("multi_binary", {"action_dim": int(space.shape[0])}, 0, space.dtype)
    assert isinstance(space, spaces.Box), space
    return BoxCodec(space)


class ChoiceCodec:
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


class BoxCodec:
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
