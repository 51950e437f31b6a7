"""Random generators whose state goes into a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rl_training.storage.checks import saved_count, saved_value
from rl_training.storage.generators import set_generator_state
from rl_training.storage.state import Stateful

MAX_ROWS = 1 << 16  # of a vector step: no vector environment steps more at once
BLOCK = 8192  # numbers drawn at once: a call of a generator costs more than the numbers it gives


class NumpyGenerator(Stateful):
    """A NumPy generator whose state goes into a checkpoint."""

    state_fields = ("numpy",)

    def __init__(self, seed: int) -> None:
        self.numpy = np.random.default_rng(seed)


class BlockNoise:
    """Random arrays for one vector step after another, drawn for many steps at once.

    `draw(rng, rows)` gives an array of `rows` rows of `width` numbers; each step takes as many rows
    as it has environments.
    """

    def __init__(
        self, seed: int, draw: Callable[[np.random.Generator, int], np.ndarray], *, width: int
    ) -> None:
        self._draw = draw
        self._rows = max(1, BLOCK // width)
        self._rng = np.random.default_rng(seed)
        self._used = 0
        self._begin(1)

    def take(self, count: int) -> np.ndarray:
        """`count` fresh rows."""
        if self._used + count > len(self._block):
            self._begin(count)
        start, self._used = self._used, self._used + count
        return self._block[start : self._used]

    def _begin(self, count: int) -> None:
        self._before = self._rng.bit_generator.state
        self._block = self._draw(self._rng, max(self._rows, count))
        self._used = 0

    def state_dict(self) -> dict[str, Any]:
        """The generator's state before the block in use, its size, and how much of it was used."""
        return {"rng": self._before, "rows": len(self._block), "used": self._used}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Draw the same block again."""
        rows = saved_count(state, "rows", low=self._rows, high=max(self._rows, MAX_ROWS))
        used = saved_count(state, "used", high=rows)
        set_generator_state(self._rng, saved_value(state, "rng"))
        self._begin(rows)
        self._used = used


def derived_seeds(seed: int, count: int) -> list[int]:
    """Seeds for generators whose numbers shall have nothing to do with each other."""
    return [int(number) for number in np.random.SeedSequence(seed).generate_state(count)]


def normal_noise(seed: int, width: int) -> BlockNoise:
    """Rows of `width` standard normal numbers."""
    return BlockNoise(seed, lambda rng, n: rng.standard_normal((n, width), np.float32), width=width)


def uniform_noise(seed: int, width: int) -> BlockNoise:
    """Rows of `width` numbers from [-1, 1)."""
    return BlockNoise(seed, lambda rng, n: rng.random((n, width), np.float32) * 2 - 1, width=width)
