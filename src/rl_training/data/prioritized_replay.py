"""Replay in proportion to how wrong the last prediction was (Schaul et al., 2016)."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from rl_training.config.schedule import Schedule, scheduled_value
from rl_training.config.value_based import TransitionValueBasedConfig
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.types import Clock, EnvSpec
from rl_training.errors import CheckpointError, NonFiniteError, UsageError
from rl_training.storage.checks import saved_array, saved_number

SMALLEST_ERROR = 1e-6  # added to each error, so that no transition is lost for good
MOST_CHANGES = 1024  # arrays of slots kept until the tree is used
MOST_TREE_BYTES = 32  # per row: a tree has up to four nodes for each


class OptionallyPrioritized:
    """Builds the prioritised buffer if `hyper.prioritized` says so, and the uniform one if not."""

    memory_name = ReplayBuffer.memory_name

    @staticmethod
    def build(spec: EnvSpec, hyper: TransitionValueBasedConfig, **options: Any) -> ReplayBuffer:
        """The buffer the hyper-parameters ask for."""
        if not hyper.prioritized:
            return ReplayBuffer.build(spec, hyper, **options)
        return PrioritizedReplayBuffer.build(
            spec,
            hyper,
            exponent=hyper.priority_exponent,
            correction=hyper.priority_correction,
            **options,
        )

    @staticmethod
    def needed_bytes(spec: EnvSpec, hyper: TransitionValueBasedConfig, num_envs: int) -> int:
        """Memory of that buffer."""
        kind = PrioritizedReplayBuffer if hyper.prioritized else ReplayBuffer
        return kind.needed_bytes(spec, hyper, num_envs)


class SumTree:
    """Weights, none negative, as the leaves of a tree in which each node is its children's sum.

    Setting and finding take one array operation per level for any number of weights. A node is
    computed from its children alone, so the tree is a function of the weights, to the last bit.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._depth = max(1, (size - 1).bit_length())
        self._leaves = 2**self._depth
        self._nodes = np.zeros(2 * self._leaves)  # the root is 1, and the children of i 2i, 2i + 1

    @property
    def nbytes(self) -> int:
        """Memory of the tree."""
        return self._nodes.nbytes

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._nodes[1])

    @property
    def weights(self) -> np.ndarray:
        """The weights, as a view."""
        return self._nodes[self._leaves : self._leaves + self.size]

    def rebuild(self) -> None:
        """Sum up after `weights` was written to."""
        for level in reversed(range(self._depth)):
            width = 2**level
            self._nodes[width : 2 * width] = self._pairs(np.arange(width, 2 * width))

    def set(self, index: np.ndarray, weights: np.ndarray) -> None:
        """Give some leaves their weights; of an index that comes twice the last counts."""
        nodes = index + self._leaves
        self._nodes[nodes] = weights
        for _ in range(self._depth):
            nodes >>= 1
            self._nodes[nodes] = self._pairs(nodes)

    def _pairs(self, nodes: np.ndarray) -> np.ndarray:
        left = 2 * nodes
        sums: np.ndarray = self._nodes.take(left) + self._nodes.take(left + 1)
        return sums

    def find(self, mass: np.ndarray) -> np.ndarray:
        """The leaf in which each mass from 0 to below `total` falls; never one of weight zero."""
        nodes, rest = np.ones(len(mass), np.int64), mass.copy()
        for _ in range(self._depth):
            nodes <<= 1
            left = self._nodes.take(nodes)
            # Rounding may leave a rest that the right side, empty, cannot hold.
            goes_right = (rest >= left) & (self._nodes.take(nodes + 1) > 0)
            rest -= left * goes_right
            nodes += goes_right
        nodes -= self._leaves
        return nodes


class PrioritizedReplayBuffer(ReplayBuffer):
    """Draws a transition with probability proportional to `(error + 1e-6) ** exponent`.

    A batch is drawn evenly from the sum of the weights, cut into as many parts as the batch has
    rows. New transitions get the highest weight so far. The importance weights of a batch are
    `(1 / probability) ** correction`, divided by the highest of them.
    """

    needs_priorities = True

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

    def _weigh(self, slots: np.ndarray, weight: np.ndarray, clock: Clock | None) -> None:
        correction = self.correction
        if isinstance(correction, Schedule):
            step, horizon = (clock.env_steps, clock.horizon) if clock else (0, 1)
            correction = scheduled_value(correction, step, horizon)
        chances = self._tree.weights[slots]
        weight[:] = (chances / chances.min()) ** -correction

    def update_priorities(self, slots: np.ndarray, priorities: Tensor) -> None:
        """Weigh transitions anew by their errors, none of them negative."""
        errors = priorities.cpu().numpy()
        if (lowest := float(errors.min())) < 0:
            raise UsageError(f"expected priorities of at least 0 from the loss, found {lowest}")
        weights = (errors + SMALLEST_ERROR) ** self.exponent
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
        weights, highest = self._tree.weights, saved_number(state, "highest")
        weights[:] = 0.0
        view = self._written_view(weights)
        view[:] = saved_array(state, "weights", view, low=0.0)
        if not np.isfinite(weights).all() or not np.array_equal(weights > 0, self._valid):
            raise CheckpointError("weights: expected positive ones of transitions alone")
        if highest <= 0:
            raise CheckpointError(f"highest: expected a positive number, found {highest}")
        self._tree.rebuild()
        self._highest = highest
        self._changed.clear()
