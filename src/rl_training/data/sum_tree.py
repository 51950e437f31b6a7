"""Drawing in proportion to weights that change: a binary tree of their sums."""

from __future__ import annotations

import numpy as np


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
