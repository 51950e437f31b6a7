"""Between Gymnasium's spaces and the arrays the algorithms see."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from rl_training.data.types import EnvSpec
from rl_training.errors import IncompatibleEnv


def observation_kind(space: spaces.Space[Any]) -> str:
    """`vector` for what an algorithm on vectors can take, otherwise the space's own name."""
    if isinstance(space, spaces.Box):
        return "vector" if len(space.shape) <= 2 else "image"
    return type(space).__name__


def action_kind(space: spaces.Space[Any]) -> str:
    """`discrete`, `continuous`, or the space's own name."""
    if isinstance(space, spaces.Discrete):
        return "discrete"
    return "continuous" if isinstance(space, spaces.Box) else type(space).__name__


class SpaceAdapter:
    """Turns an environment's observations into float32 vectors, and actions into its own."""

    def __init__(self, env_id: str, observation: spaces.Space[Any], action: spaces.Space[Any]):
        self.observation = observation
        self.action = action
        self.spec = EnvSpec(
            env_id=env_id,
            obs_shape=(math.prod(observation.shape or ()),),
            action_kind=action_kind(action),
            num_actions=int(action.n) if isinstance(action, spaces.Discrete) else 0,
        )
        self._start = int(action.start) if isinstance(action, spaces.Discrete) else 0

    def encode(self, obs: Any) -> np.ndarray:
        """A batch of raw observations as a fresh (batch, obs_dim) float32 array."""
        array = np.array(obs, dtype=np.float32)
        return array.reshape(len(array), -1)

    def decode(self, action: np.ndarray) -> np.ndarray:
        """Actions as the environment numbers them."""
        return action + self._start if self._start else action

    def is_batch(self, obs: Any) -> bool:
        """Whether `obs` has a leading batch dimension; refuses a shape that is neither."""
        shape, expected = np.shape(obs), self.observation.shape or ()
        if shape == expected:
            return False
        if shape[1:] == expected and len(shape) == len(expected) + 1:
            return True
        raise IncompatibleEnv(
            f"expected one observation of shape {expected} or a batch (n, *{expected}) for "
            f"{self.spec.env_id}, found shape {shape}"
        )

    def describe(self) -> dict[str, str]:
        """The two spaces in Gymnasium's words, to compare a checkpoint with an environment."""
        return {"observation_space": str(self.observation), "action_space": str(self.action)}


def space_to_plain(space: spaces.Space[Any]) -> dict[str, Any]:
    """A space as plain values and arrays, for a checkpoint."""
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.Box):
        bounds = {"low": space.low, "high": space.high, "dtype": str(space.dtype)}
        return {"type": "Box", "shape": list(space.shape), **bounds}
    raise IncompatibleEnv(f"{space} cannot be saved in a checkpoint")


def space_from_plain(plain: dict[str, Any]) -> spaces.Space[Any]:
    """The space that `space_to_plain` wrote."""
    if plain["type"] == "Discrete":
        return spaces.Discrete(plain["n"], start=plain["start"])
    return spaces.Box(plain["low"], plain["high"], tuple(plain["shape"]), plain["dtype"])
