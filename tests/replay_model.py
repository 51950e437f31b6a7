"""The obvious replay memory, in plain lists, and random sequences of what is done to one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from hypothesis import strategies as st

from rl_training.data.types import Transitions
from test_replay_buffer import steps


@dataclass
class Row:
    """A transition from observation `obs` to `obs + 1` with `obs` as its reward."""

    obs: float
    discount: float
    weight: float


class PlainReplay:
    """A list of rows per environment, oldest first; None is a tail or the newest observation."""

    def __init__(self, rows: int, num_envs: int, *, n_step: int, exponent: float) -> None:
        self.rows, self.n_step, self.exponent = rows, n_step, exponent
        self.rings: list[list[Row | None]] = [[] for _ in range(num_envs)]
        self.highest = 1.0

    def add(self, env: int, obs: float, discount: float, *, first: bool) -> None:
        ring = self.rings[env]
        if ring and not first:
            ring.pop()  # the newest observation is where this step begins
        ring += [Row(obs, discount, self.highest), None]
        del ring[: max(0, len(ring) - self.rows)]

    def content(self) -> dict[float, Row]:
        return {row.obs: row for ring in self.rings for row in ring if row is not None}

    def samples(self) -> dict[float, tuple[float, float, float]]:
        """Of each observation: the summed reward, the discount and what to bootstrap from."""
        found = {}
        for ring in self.rings:
            for start, row in enumerate(ring):
                if row is None:
                    continue
                total, factor, last = 0.0, 1.0, row
                for step in ring[start : start + self.n_step]:
                    if step is None:
                        break
                    total, factor, last = total + factor * step.obs, factor * step.discount, step
                found[row.obs] = (total, factor, last.obs + 1)
        return found

    def weigh(self, observations: list[float], errors: list[float]) -> None:
        content = self.content()
        for obs, error in zip(observations, errors, strict=True):
            content[obs].weight = (error + 1e-6) ** self.exponent
            self.highest = max(self.highest, content[obs].weight)


class Step(NamedTuple):
    """One vector step, and what is done after it."""

    transitions: Transitions
    added: list[tuple[int, float, float, bool]]  # environment, observation, discount, first
    saves: bool
    learns: bool
    errors: list[float]


BATCH = 8
MOST_ENVS = 3
SEQUENCES = st.integers(1, 30).flatmap(
    lambda count: st.binary(min_size=count * (1 + MOST_ENVS), max_size=count * (1 + MOST_ENVS))
)
"""A byte for what is done after each step, and one for what happens in each environment."""


def played(sequence: bytes, num_envs: int, gamma: float) -> Iterator[Step]:
    """Episodes that terminate, that are cut, and rows in which an environment only resets."""
    fresh, current = [True] * num_envs, [1000.0 * env for env in range(num_envs)]
    for start in range(0, len(sequence), 1 + MOST_ENVS):
        rows, added = [], []
        for env in range(num_envs):
            event = sequence[start + 1 + env] % 8
            valid, terminated = event != 7, event == 5
            obs, first = current[env], fresh[env]
            rows.append((obs, obs + 1, first, terminated, valid) if valid else NOTHING)
            if valid:
                added.append((env, obs, 0.0 if terminated else gamma, first))
                fresh[env] = event in (5, 6)
                current[env] = obs + (10 if fresh[env] else 1)
        after = sequence[start]
        errors = [((after // 8 + 7 * row) % 32) / 8 for row in range(BATCH)]
        yield Step(steps(rows), added, after % 8 == 7, after % 8 in (4, 5, 6), errors)


NOTHING = (-5.0, -6.0, False, False, False)
