"""What was done in the environments since the last checkpoint, and what they answered.

A checkpoint carries the transcript of the interval before it, with all that is needed to begin that
interval again. So a resume can replay it and find out whether the environments are what the
checkpoint claims (`runtime.verification`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from rl_training.errors import CheckpointError
from rl_training.storage.tree import StateTree

MAX_TRANSITIONS = 4096
MAX_BYTES = 16 << 20  # in memory; a file holds 4 bytes in place of an observation
MAX_OBS_BYTES = 2048  # of a larger observation, values at equal distances
_KEYS = frozenset({"start", "actions", "observations", "rewards", "ends"})


class Start(NamedTuple):
    """Where an interval begins: in a saved state of the environments, or in new ones from seeds.

    `build_seed` is what the global generators were seeded with when they were built, `generators`
    their state when the interval began, `resetting` the rows that the first step only resets.
    """

    env_steps: int
    build_seed: int
    seeds: list[int]
    envs: StateTree | None
    obs: np.ndarray
    resetting: np.ndarray
    generators: dict[str, Any]


class Trajectory(NamedTuple):
    """What was seen (as digests), done and answered: [time, environment, ...] each.

    `observations` has a row more than the others: what the next step would begin from.
    """

    actions: np.ndarray
    observations: np.ndarray
    rewards: np.ndarray
    ends: np.ndarray

    def first_difference(self, other: Trajectory) -> str:
        """Where another trajectory departs from this one, as far as both go; empty if nowhere."""
        differences = [self._difference(other, name, what) for name, what in _WHAT.items()]
        # Of one step the observation comes first, as it does in time.
        return min(filter(None, differences), default=(0, ""), key=lambda found: found[0])[1]

    def _difference(self, other: Trajectory, name: str, what: str) -> tuple[int, str] | None:
        expected, actual = getattr(self, name), getattr(other, name)
        steps = min(len(expected), len(actual))
        if expected.shape[1:] != actual.shape[1:] or expected.dtype != actual.dtype:
            return 0, f"the {what} has another shape or type"
        # As bytes, in which NaN equals itself.
        rows = [_bytes(array[:steps]) for array in (expected, actual)]
        where = np.argwhere((rows[0] != rows[1]).any(axis=2))
        if not len(where):
            return None
        step, env = map(int, where[0])
        shown = f" ({expected[step, env]}, replayed {actual[step, env]})" if name in _SHOWN else ""
        return step, f"the {what} of environment {env} at vector step {step + 1} differs{shown}"


_WHAT = {
    "observations": "observation",
    "actions": "action",
    "rewards": "reward",
    "ends": "end of the episode",
}
_SHOWN = ("actions", "rewards")


def _bytes(array: np.ndarray) -> np.ndarray:
    """[time, environments, bytes]."""
    flat = np.ascontiguousarray(array).reshape(*array.shape[:2], -1)
    return flat.view(np.uint8)


class Transcript:
    """Keeps the first part of an interval: what was seen, done and answered, in bounded memory."""

    def __init__(self) -> None:
        self.open = False
        self.finished: dict[str, Any] | None = None
        self._start: Start | None = None
        self._length = self._rows = 0
        self._stride = 1

    def begin(self, start: Start | None) -> None:
        """Forget what there is and begin anew; without a start, keep nothing."""
        self._start = start
        self._length = self._rows = 0
        self.open = start is not None
        if start is None:
            self.finished = None

    def add(
        self,
        obs: np.ndarray,
        action: np.ndarray,
        reward: np.ndarray,
        ends: tuple[np.ndarray, np.ndarray],
    ) -> None:
        """Keep one vector step, in about a microsecond if observations are small."""
        if not self._rows:
            self._allocate(obs, action)
        i = self._length
        self._obs[i] = obs if self._stride == 1 else self._thinned(obs)
        self._actions[i], self._rewards[i] = action, reward
        self._terminated[i], self._truncated[i] = ends
        self._length = i + 1
        self.open = self._length < self._rows

    def finish(self, obs: np.ndarray) -> None:
        """Put the interval, with what the next step begins from, into `finished`, as it is saved.

        An interval without a step leaves `finished` as it is.
        """
        trajectory = self.trajectory(obs)
        if self._start is not None and trajectory is not None:
            self.finished = {"start": self._start._asdict(), **trajectory._asdict()}

    def trajectory(self, obs: np.ndarray) -> Trajectory | None:
        """What was kept, given what the next step begins from."""
        if not self._length:
            return None
        seen = list(self._obs[: self._length])
        if self.open:  # otherwise steps were left out between these and `obs`
            seen.append(obs if self._stride == 1 else self._thinned(obs))
        digests = [[crc32(row.tobytes()) for row in step] for step in seen]
        kept = slice(self._length)
        ends = self._terminated[kept] + np.uint8(2) * self._truncated[kept]
        return Trajectory(
            self._actions[kept].copy(),
            np.array(digests, np.uint32).view(np.int32),
            self._rewards[kept].copy(),
            ends.astype(np.uint8),
        )

    def _allocate(self, obs: np.ndarray, action: np.ndarray) -> None:
        per_env = obs.nbytes // len(obs)
        self._stride = -(-per_env // MAX_OBS_BYTES)
        row = obs if self._stride == 1 else self._thinned(obs)
        size = row.nbytes + action.nbytes
        self._rows = max(1, min(MAX_TRANSITIONS // len(obs), MAX_BYTES // size))
        self._obs = np.empty((self._rows, *row.shape), row.dtype)
        self._actions = np.empty((self._rows, *action.shape), action.dtype)
        self._rewards = np.empty((self._rows, len(obs)), np.float32)
        self._terminated = np.empty((self._rows, len(obs)), np.bool_)
        self._truncated = np.empty((self._rows, len(obs)), np.bool_)

    def _thinned(self, obs: np.ndarray) -> np.ndarray:
        return obs.reshape(len(obs), -1)[:, :: self._stride]


def parse_transcript(tree: object, num_envs: int) -> tuple[Start, Trajectory]:
    """What a `Transcript` had `finished`, checked."""
    try:
        if not isinstance(tree, dict) or set(tree) != _KEYS:
            raise TypeError("unknown or missing keys")
        trajectory = Trajectory(*(_array(tree, name) for name in Trajectory._fields))
        start = Start(**tree["start"])
        steps = len(trajectory.rewards)
        _check(steps * num_envs > 0 and trajectory.rewards.shape == (steps, num_envs), "rewards")
        _check(trajectory.rewards.dtype == np.float32, "rewards")
        _check(trajectory.ends.shape == (steps, num_envs), "ends")
        _check(trajectory.actions.shape[:2] == (steps, num_envs), "actions")
        finite = trajectory.actions.dtype.kind != "f" or bool(np.isfinite(trajectory.actions).all())
        _check(trajectory.actions.dtype.kind in "biuf" and finite, "actions")
        _check(trajectory.observations.shape in ((steps, num_envs), (steps + 1, num_envs)), "rows")
        _check(isinstance(start.obs, np.ndarray) and len(start.obs) == num_envs, "obs")
        _check(_array({"r": start.resetting}, "r").shape == (num_envs,), "resetting")
        _check(type(start.env_steps) is type(start.build_seed) is int, "start")
        _check(0 <= start.build_seed < 2**32, "build_seed")
        _check(
            isinstance(start.seeds, list)
            and len(start.seeds) == num_envs
            and all(type(seed) is int and 0 <= seed < 2**31 for seed in start.seeds),
            "seeds",
        )
        _check(isinstance(start.generators, dict), "generators")
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"the transcript of the environments is malformed: {error}"
        ) from error
    return start, trajectory


def _array(tree: Mapping[str, object], name: str) -> np.ndarray:
    value = tree[name]
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{name} is not an array")
    return value


def _check(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(f"unexpected {what}")
