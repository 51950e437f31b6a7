"""Replay in proportion to how wrong the last prediction was (Schaul et al., 2016)."""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_training.data.arrays import Array, on_host
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.sum_tree import SumTree
from rl_training.data.types import EnvSpec, Moment
from rl_training.errors import NonFiniteError
from rl_training.experiment.config import Schedule, scheduled_value

SMALLEST_ERROR = 1e-6  # added to each error, so that no transition is lost for good
MOST_CHANGES = 1024  # arrays of slots kept until the tree is used
MOST_TREE_BYTES = 32  # per row: a tree has up to four nodes for each


def replay_buffer(spec: EnvSpec, hyper: Any, **options: Any) -> ReplayBuffer:
    """The buffer the hyper-parameters of a value-based algorithm ask for."""
    if not hyper.prioritized:
        return ReplayBuffer.build(spec, hyper, **options)
    return PrioritizedReplayBuffer.build(
        spec,
        hyper,
        exponent=hyper.priority_exponent,
        correction=hyper.priority_correction,
        **options,
    )


class PrioritizedReplayBuffer(ReplayBuffer):
    """Draws a transition with probability proportional to `(error + 1e-6) ** exponent`.

    A batch is drawn evenly from the sum of the weights, cut into as many parts as the batch has
    rows. New transitions get the highest weight so far. The importance weights of a batch are
    `(1 / probability) ** correction`, divided by the highest of them.
    """

    def __init__(
        self,
        spec: EnvSpec,
        *,
        capacity: int,
        exponent: float = 0.6,
        correction: float | Schedule = 0.4,
        **options: Any,
    ) -> None:
        super().__init__(spec, capacity=capacity, **options)
        self.exponent, self.correction = exponent, correction
        self._tree = SumTree(len(self._valid))
        self._highest = 1.0
        self._changed: list[np.ndarray] = []  # slots written to since the tree was used

    @staticmethod
    def bytes_per_row(spec: EnvSpec) -> int:
        """Memory of one row, with its part of the tree."""
        return ReplayBuffer.bytes_per_row(spec) + MOST_TREE_BYTES

    @property
    def nbytes(self) -> int:
        """Memory the buffer takes."""
        return super().nbytes + self._tree.nbytes

    def _changed_at(self, slots: np.ndarray) -> None:
        self._changed.append(slots.copy())  # it may be a view of what changes
        if len(self._changed) > MOST_CHANGES:
            self._weigh_new()

    def _weigh_new(self) -> None:
        """Give what was stored the highest weight, and what was overwritten none."""
        if self._changed:
            slots = np.concatenate(self._changed)
            self._tree.set(slots, self._valid[slots] * self._highest)
            self._changed.clear()

    def _draw(self, count: int) -> np.ndarray:
        self._refuse_if_empty()
        self._weigh_new()
        mass = (np.arange(count) + self._rng.random(count)) * (self._tree.total / count)
        return self._tree.find(mass)

    def _weigh(self, slots: np.ndarray, weight: np.ndarray, moment: Moment | None) -> None:
        correction = self.correction
        if isinstance(correction, Schedule):
            step, horizon = (moment.env_steps, moment.horizon) if moment else (0, 1)
            correction = scheduled_value(correction, step, horizon)
        chances = self._tree.weights[slots]
        weight[:] = (chances / chances.min()) ** -correction

    def update_priorities(self, slots: np.ndarray, priorities: Array) -> None:
        """Weigh transitions anew by their errors, none of them negative."""
        weights = (on_host(priorities) + SMALLEST_ERROR) ** self.exponent
        highest = float(weights.max())
        if not np.isfinite(highest):
            raise NonFiniteError(
                "a temporal-difference error is not finite, so its transition has no priority. A "
                "smaller learning rate, gradient clipping (max_grad_norm) or smaller rewards "
                "usually help."
            )
        self._tree.set(slots, weights * self._valid[slots])  # some may be overwritten by now
        self._highest = max(self._highest, highest)

    def state_dict(self) -> dict[str, Any]:
        """With the weights."""
        self._weigh_new()
        weights = self._written(self._tree.weights)
        return super().state_dict() | {"weights": weights, "highest": self._highest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved buffer of the same shape."""
        super().load_state_dict(state)
        self._tree.weights[:] = 0.0
        self._written_view(self._tree.weights)[:] = state["weights"]
        self._tree.rebuild()
        self._highest = state["highest"]
        self._changed.clear()
