"""Observations in rows of rings; of stacked images each is stored once."""

from __future__ import annotations

import numpy as np

from rl_training.data.types import EnvSpec
from rl_training.errors import EnvError


class ObservationStore:
    """The observations of a replay buffer, by slot.

    A slot holds an observation, or the newest image of one that stacks the images of several steps;
    the older ones are in the slots before it, in the same ring of `rows` slots.
    """

    def __init__(self, spec: EnvSpec, slots: int, rows: int) -> None:
        self.spec = spec
        self.array = np.zeros((slots, *spec.frame_shape), spec.obs_dtype)
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
        self.array.take(slots, 0, out, "clip")

    def last_user(self, slots: np.ndarray) -> np.ndarray:
        """The slots whose observations have their oldest image in these."""
        return slots if self.spec.frames == 1 else self._shifted(slots, self.spec.frames - 1)

    def check_stacks(self, obs: np.ndarray, following: np.ndarray) -> None:
        """Refuse observations that are not each other's images and one more."""
        kept = self.spec.frame_shape[0]
        if self.spec.frames > 1 and not np.array_equal(obs[:, kept:], following[:, :-kept]):
            raise EnvError(
                f"{self.spec.env_id}: expected observations of {self.spec.frames} stacked images, "
                "of which each step adds one, found others; a wrapper after the stacking changes "
                "them: put it before"
            )

    def _shifted(self, slots: np.ndarray, by: int | np.ndarray) -> np.ndarray:
        """The slots so many rows later in their rings, or earlier."""
        env, row = np.divmod(slots, self._rows)
        shifted: np.ndarray = env * self._rows + (row + by) % self._rows
        return shifted
