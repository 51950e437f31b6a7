"""Triangular peg solitaire, a puzzle in which most actions are illegal."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

PEG_ID = "PegSolitaire-v0"

_SIDE = 320  # pixels of an image
_BOARD, _PEG, _HOLE = (58, 45, 36), (236, 180, 92), (28, 21, 17)
_DIRECTIONS = ((0, 1), (1, 0), (1, 1), (0, -1), (-1, 0), (-1, -1))


def register() -> None:
    """Make the puzzle known to Gymnasium by its id, once."""
    if PEG_ID not in gym.registry:
        gym.register(PEG_ID, f"{__name__}:{PegSolitaire.__qualname__}")


class PegSolitaire(gym.Env[np.ndarray, np.int64]):
    """Pegs on a triangle of holes; a peg jumps over a neighbour, which is taken off the board.

    A board of five rows has 15 holes and 36 jumps, of which about three are legal at a time. All
    holes but one, drawn at each reset, have a peg at first. Observations have a 1 for each hole
    with a peg. A jump earns 1, so that leaving a single peg earns 13, which is possible from every
    start. The episode ends when no jump is left, or with an illegal one, which changes and earns
    nothing. `info["action_mask"]` has the legal jumps.
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 2}  # noqa: RUF012 - as Gymnasium has it

    def __init__(self, rows: int = 5, render_mode: str | None = None) -> None:
        if not 3 <= rows <= 10:
            raise ValueError(f"rows: expected from 3 to 10, found {rows}")
        self.rows, self.render_mode = rows, render_mode
        self._start, self._over, self._landing = np.array(_jumps(rows)).T
        holes = rows * (rows + 1) // 2
        self.observation_space = Box(0.0, 1.0, (holes,), np.float32)
        self.action_space = Discrete(len(self._start))
        self.pegs = np.ones(holes, np.bool_)

    @property
    def action_names(self) -> list[str]:
        """The jumps by the numbers of their holes, which are counted from the top."""
        jumps = zip(self._start, self._over, self._landing, strict=True)
        return [f"{start} over {over} to {landing}" for start, over, landing in jumps]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """All pegs but one."""
        super().reset(seed=seed, options=options)
        self.pegs[:] = True
        while not self._with_hole(int(self.np_random.integers(len(self.pegs)))).any():
            pass  # on a board of three or four rows nothing can jump into the middle
        return self._observation(), self._info()

    def step(self, action: np.int64 | int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Jump, if that is legal."""
        legal = bool(self.legal()[action])
        if legal:
            self.pegs[[self._start[action], self._over[action]]] = False
            self.pegs[self._landing[action]] = True
        over = not legal or not self.legal().any()
        return self._observation(), float(legal), over, False, self._info()

    def legal(self) -> np.ndarray:
        """Which jumps are possible: a peg, a peg beside it and then an empty hole."""
        pegs = self.pegs
        possible: np.ndarray = pegs[self._start] & pegs[self._over] & ~pegs[self._landing]
        return possible

    def render(self) -> Any:
        """The triangle: as text, with a dot for an empty hole, or as an image."""
        if self.render_mode == "rgb_array":
            return self._image()
        lines, first = [], 0
        for row in range(self.rows):
            marks = ("o" if peg else "." for peg in self.pegs[first : first + row + 1])
            lines.append(" " * (self.rows - 1 - row) + " ".join(marks))
            first += row + 1
        return "\n".join(lines)

    def _image(self) -> np.ndarray:
        image = np.full((_SIDE, _SIDE, 3), _BOARD, np.uint8)
        spacing = _SIDE / (self.rows + 1)
        y, x = np.mgrid[:_SIDE, :_SIDE]
        hole = 0
        for row in range(self.rows):
            for column in range(row + 1):
                across = _SIDE / 2 + (column - row / 2) * spacing
                distance = np.hypot(y - (row + 1) * spacing, x - across)
                peg = self.pegs[hole]
                image[distance < (0.38 if peg else 0.18) * spacing] = _PEG if peg else _HOLE
                hole += 1
        return image

    def _with_hole(self, hole: int) -> np.ndarray:
        self.pegs[:] = True
        self.pegs[hole] = False
        return self.legal()

    def _observation(self) -> np.ndarray:
        return self.pegs.astype(np.float32)

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self.legal().astype(np.int8)}


def _jumps(rows: int) -> list[tuple[int, int, int]]:
    """The holes where a jump starts, what it goes over, and where it ends, by their numbers."""
    places = [(row, column) for row in range(rows) for column in range(row + 1)]
    number = {place: index for index, place in enumerate(places)}
    found = []
    for row, column in places:
        for down, right in _DIRECTIONS:
            over, landing = (row + down, column + right), (row + 2 * down, column + 2 * right)
            if landing in number:
                found.append((number[row, column], number[over], number[landing]))
    return found
