"""Between Gymnasium's spaces and the arrays the algorithms see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from rl_training.data.types import EnvSpec
from rl_training.envs.actions import action_codec, action_kind
from rl_training.envs.observations import observation_codec, observation_kind, ordered_keys
from rl_training.errors import CheckpointError

__all__ = [
    "SpaceAdapter",
    "action_kind",
    "observation_kind",
    "space_from_plain",
    "space_to_plain",
]


class SpaceAdapter:
    """Turns an environment's observations into vectors or images, and actions into its own.

    `frames` counts the images that are stacked in an observation.
    """

    def __init__(
        self,
        env_id: str,
        observation: spaces.Space[Any],
        action: spaces.Space[Any],
        *,
        frames: int = 1,
    ):
        self.observation = observation
        self.action = action
        self._obs_codec = observation_codec(observation)
        self._action_codec = action_codec(action)
        self.spec = EnvSpec(
            env_id=env_id,
            obs_shape=self._obs_codec.shape,
            obs_dtype=self._obs_codec.dtype,
            frames=frames if _divides(self._obs_codec.shape, frames) else 1,
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


def _divides(shape: Sequence[int], frames: int) -> bool:
    """Whether an observation can be a stack of that many images."""
    return len(shape) == 3 and shape[0] % frames == 0


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
        raise CheckpointError(f"expected a space, found {str(plain)[:80]} ({error!r})") from error


def _space(plain: dict[str, Any]) -> spaces.Space[Any]:
    if plain["type"] == "Discrete":
        # Older Gymnasiums have no other type than int64, and no argument for it.
        other = {} if plain["dtype"] == "int64" else {"dtype": plain["dtype"]}
        return spaces.Discrete(plain["n"], start=plain["start"], **other)
    if plain["type"] == "MultiDiscrete":
        return spaces.MultiDiscrete(plain["nvec"], plain["dtype"], start=plain["start"])
    if plain["type"] == "MultiBinary":
        return spaces.MultiBinary(plain["n"])
    if plain["type"] == "Dict":
        return spaces.Dict([(key, _space(part)) for key, part in plain["spaces"]])
    return spaces.Box(plain["low"], plain["high"], tuple(plain["shape"]), plain["dtype"])
