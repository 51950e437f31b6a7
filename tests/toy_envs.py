"""Small environments whose every number is known; all are fixed by the seed of a reset."""

from __future__ import annotations

import enum
import os
import random
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

Step = tuple[np.ndarray, float, bool, bool, dict[str, Any]]
Reset = tuple[np.ndarray, dict[str, Any]]


class CountingEnv(gym.Env[np.ndarray, int]):
    """Observes [episode, step]; each episode ends after `length` steps.

    Without `rewards` the reward of step t (from 1) is t, otherwise `rewards[t - 1]`, cyclically.
    """

    def __init__(
        self, length: int = 5, ends_by: str = "termination", rewards: Sequence[float] = ()
    ) -> None:
        self.observation_space = Box(-1.0, 1e6, (2,), np.float32)
        self.action_space = Discrete(2)
        self.length = length
        self.ends_by = ends_by
        self.rewards = tuple(rewards)
        self.episode = -1
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self.episode = 0 if seed is not None else self.episode + 1
        self.t = 0
        return self.observe(), {"episode_id": self.episode}

    def step(self, action: int) -> Step:
        self.t += 1
        reward = self.rewards[(self.t - 1) % len(self.rewards)] if self.rewards else float(self.t)
        over = self.t >= self.length
        terminated = over and self.ends_by == "termination"
        return self.observe(), reward, terminated, over and not terminated, {"t": self.t}

    def observe(self) -> np.ndarray:
        return np.array([self.episode, self.t], np.float32)


class ChainEnv(gym.Env[np.ndarray, int]):
    """One state and reward 1 forever, but for the end after `limit` steps.

    With discount gamma its value is 1 / (1 - gamma) if the limit truncates.
    """

    def __init__(self, limit: int = 10, ends_by: str = "truncation") -> None:
        self.observation_space = Box(0.0, 1.0, (1,), np.float32)
        self.action_space = Discrete(2)
        self.limit = limit
        self.ends_by = ends_by
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self.t = 0
        return np.ones(1, np.float32), {}

    def step(self, action: int) -> Step:
        self.t += 1
        over = self.t >= self.limit
        terminated = over and self.ends_by == "termination"
        return np.ones(1, np.float32), 1.0, terminated, over and not terminated, {}


class TimedChain(ChainEnv):
    """The chain with the time in sight (one-hot), so that a termination can be foreseen."""

    def __init__(self, limit: int = 4) -> None:
        super().__init__(limit, "termination")
        self.observation_space = Box(0.0, 1.0, (limit + 1,), np.float32)

    def reset(self, **kwargs: Any) -> Reset:
        super().reset(**kwargs)
        return np.eye(self.limit + 1, dtype=np.float32)[0], {}

    def step(self, action: int) -> Step:
        _, *rest = super().step(action)
        return np.eye(self.limit + 1, dtype=np.float32)[self.t], *rest


class NaNEnv(CountingEnv):
    """A counting env whose reward or `obs` is NaN from call number `at` after a seeded reset on."""

    def __init__(self, at: int = 3, where: str = "reward", length: int = 5) -> None:
        super().__init__(length)
        self.at = at
        self.where = where
        self.calls = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        self.calls = 0 if seed is not None else self.calls
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> Step:
        obs, reward, terminated, truncated, info = super().step(action)
        self.calls += 1
        if self.calls >= self.at and self.where == "reward":
            reward = float("nan")
        elif self.calls >= self.at:
            obs = np.array([np.nan, self.t], np.float32)
        return obs, reward, terminated, truncated, info


class RaisingEnv(CountingEnv):
    """A counting env that raises at call number `at` of step after a seeded reset; 0: in reset."""

    def __init__(self, at: int = 3, length: int = 5) -> None:
        super().__init__(length)
        self.at = at
        self.calls = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        if self.at == 0:
            raise RuntimeError("the robot fell over")
        self.calls = 0 if seed is not None else self.calls
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> Step:
        self.calls += 1
        if self.calls == self.at:
            raise RuntimeError("the robot fell over")
        return super().step(action)


class RandomWalkEnv(gym.Env[np.ndarray, int]):
    """A noisy walk on a line: plain attributes and `np_random`; ends beyond +-`width`."""

    def __init__(self, width: float = 3.0) -> None:
        self.observation_space = Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = Discrete(2)
        self.width = width
        self.position = 0.0
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self.position = float(self.np_random.uniform(-1, 1))
        self.t = 0
        return self.observe(), {}

    def noise(self) -> float:
        return float(self.np_random.normal())

    def step(self, action: int) -> Step:
        self.t += 1
        self.position += (1 if action else -1) * 0.5 + 0.1 * self.noise()
        over = abs(self.position) > self.width
        return self.observe(), self.position, over, self.t >= 50, {}

    def observe(self) -> np.ndarray:
        return np.array([self.position, self.t], np.float32)


class BufferReusingEnv(CountingEnv):
    """A counting env that returns its one internal array from every reset and step."""

    def __init__(self, length: int = 5, ends_by: str = "termination") -> None:
        super().__init__(length, ends_by)
        self.buffer = np.zeros(2, np.float32)

    def observe(self) -> np.ndarray:
        self.buffer[:] = (self.episode, self.t)
        return self.buffer


# What the snapshot tests need.


class Heading(enum.Enum):
    """A direction."""

    UP = 1
    DOWN = 2


class Cell(NamedTuple):
    """A place."""

    x: int
    y: int


@dataclass
class Monster:
    """Something that moves by itself; the parts refer to each other."""

    cell: Cell
    rng: np.random.Generator
    trail: list[Cell] = field(default_factory=list)
    target: Monster | None = None

    def move(self) -> None:
        shift = int(self.rng.integers(-1, 2))
        self.cell = Cell(self.cell.x + shift, self.cell.y + 1)
        self.trail.append(self.cell)


class Slotted:
    """A counter without an attribute dict."""

    __slots__ = ("count", "unused")

    def __init__(self) -> None:
        self.count = 0


LEVELS = [np.zeros(3), np.ones(3), np.full(3, 2.0)]
"""Constants that an env holds on to but never writes to."""


class ZooEnv(RandomWalkEnv):
    """Keeps its state in every kind of attribute the walk knows, shared and cyclic ones too."""

    def __init__(self) -> None:
        super().__init__()
        self.python_random = random.Random(0)
        self.legacy = np.random.RandomState(0)
        self.counter = Slotted()
        self.grid = np.zeros((2, 3))
        self.row = self.grid[0]
        self.namespace = SimpleNamespace(depth=1)
        self.move_functions = {0: self.noise, 1: self.noise}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        result = super().reset(seed=seed, options=options)
        if seed is not None:
            self.python_random.seed(seed)
            self.legacy.seed(seed)
        self.monsters = [Monster(Cell(0, 0), self.np_random)]
        self.monsters[0].target = self.monsters[0]
        self.favourite = self.monsters[0]
        self.history: deque[Any] = deque(maxlen=3)
        self.visits: Counter[int] = Counter()
        self.lists: defaultdict[int, list[Any]] = defaultdict(list)
        self.seen: set[int] = set()
        self.heading = Heading.UP
        self.level = LEVELS[0]
        self.counter.count = 0
        self.grid[:] = 0
        self.namespace.depth = 1
        return result

    def noise(self) -> float:
        for monster in self.monsters:
            monster.move()
        if self.t % 4 == 0:
            self.monsters.append(Monster(Cell(self.t, 0), self.np_random, target=self.monsters[0]))
            self.favourite = self.monsters[-1]
            self.level = LEVELS[(self.t // 4) % 3]
        self.heading = Heading.DOWN if self.heading is Heading.UP else Heading.UP
        self.history.append((self.t, self.heading))
        self.visits[self.t % 3] += 1
        self.lists[self.t % 2].append(self.t)
        self.seen.add(self.t)
        self.counter.count += 1
        self.row += 1.0  # a view of the grid
        self.namespace.depth += 1
        parts = [
            float(self.np_random.normal()),
            self.python_random.random(),
            float(self.legacy.random()),
            self.grid.sum(),
            self.counter.count,
            self.level.sum(),
            self.favourite.cell.x + len(self.favourite.trail),
            sum(self.visits.values()) + len(self.lists[0]) + len(self.seen),
            self.heading.value + sum(t for t, _ in self.history),
            self.namespace.depth,
        ]
        return float(np.sin(np.sum(parts)))


class OwnStateEnv(RandomWalkEnv):
    """Offers its own state, and has something that cannot be saved besides."""

    def __init__(self) -> None:
        super().__init__()
        self.handle = open(os.devnull)  # noqa: SIM115

    def get_state(self) -> dict[str, Any]:
        return {"position": self.position, "t": self.t}

    def set_state(self, state: dict[str, Any]) -> None:
        self.position, self.t = state["position"], state["t"]

    def close(self) -> None:
        self.handle.close()


class FileEnv(RandomWalkEnv):
    """Holds an open file."""

    def __init__(self, path: str | Path = os.devnull) -> None:
        super().__init__()
        self.log = open(path)  # noqa: SIM115

    def close(self) -> None:
        self.log.close()


class GeneratorEnv(RandomWalkEnv):
    """Draws its noise from a Python generator."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        result = super().reset(seed=seed, options=options)
        self.stream = self.noises()
        return result

    def noises(self) -> Iterator[float]:
        while True:
            yield float(self.np_random.normal())

    def noise(self) -> float:
        return next(self.stream)


class GlobalRandomEnv(RandomWalkEnv):
    """Draws its noise from the generators that all code shares."""

    def noise(self) -> float:
        return random.random() + float(np.random.random())


_HIDDEN = {"count": 0}


class HiddenStateEnv(RandomWalkEnv):
    """Keeps count at module level, out of sight of a walk over its attributes; reset clears it."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        _HIDDEN["count"] = 0
        return super().reset(seed=seed, options=options)

    def noise(self) -> float:
        _HIDDEN["count"] += 1
        return float(_HIDDEN["count"])


class ClosureEnv(RandomWalkEnv):
    """Starts each of its long episodes from a generator that only a function can see."""

    def __init__(self) -> None:
        super().__init__(width=1000.0)
        generators = [np.random.default_rng(0)]

        def draw(seed: int | None) -> float:
            if seed is not None:
                generators[0] = np.random.default_rng(seed)
            return float(generators[0].random())

        self.draw = draw

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed, options=options)
        self.position = self.draw(seed)
        return self.observe(), {}


class SetOrderEnv(RandomWalkEnv):
    """Draws from a set, in the order in which it happens to be iterated."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        self.cells = {(x, 7 * x) for x in range(12)}
        return super().reset(seed=seed, options=options)

    def noise(self) -> float:
        cells = list(self.cells)
        return float(cells[self.np_random.integers(len(cells))][0])


class LeakyEnv(FileEnv):
    """Cannot be saved, and something of one episode is left in the next, whatever the seed."""

    def __init__(self) -> None:
        super().__init__()
        self.warmth = 0.0

    def noise(self) -> float:
        self.warmth += 0.01
        return self.warmth


class DoubleReward(gym.RewardWrapper[np.ndarray, int]):
    """A wrapper of one's own."""

    def __init__(self, env: gym.Env[np.ndarray, int], factor: float = 2.0) -> None:
        super().__init__(env)
        self.factor = factor

    def reward(self, reward: Any) -> float:
        return self.factor * float(reward)


def make_counting(length: int = 5) -> CountingEnv:
    """A function that builds an env."""
    return CountingEnv(length)


def make_nothing() -> str:
    """A function that does not."""
    return "no environment"


gym.register(id="ToyCounting-v0", entry_point=CountingEnv, max_episode_steps=3)


class RecallEnv(gym.Env[np.ndarray, int]):
    """Shows a cue, then nothing for four steps, then asks which of the two it was."""

    def __init__(self) -> None:
        self.observation_space = Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = Discrete(2)
        self.cue = self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self.cue, self.t = int(self.np_random.integers(2)), 0
        return np.array([2 * self.cue - 1, 0], np.float32), {}

    def step(self, action: int) -> Step:
        self.t += 1
        asked, over = self.t == 5, self.t == 6
        right = float(over and action == self.cue)
        return np.array([0, asked], np.float32), right, over, False, {}


class GlowEnv(gym.Env[np.ndarray, np.ndarray]):
    """Grey images, ten to an episode; the action that names the brightness, -1 to 1, earns 1."""

    def __init__(self, size: int = 36) -> None:
        self.observation_space = Box(0, 255, (1, size, size), np.uint8)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)
        self.glow, self.t = 0.0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action: np.ndarray) -> Step:
        self.t += 1
        reward = 1.0 - abs(self.glow - float(action[0]))
        return self.observe(), reward, False, self.t == 10, {}

    def observe(self) -> np.ndarray:
        self.glow = float(self.np_random.uniform(-1, 1))
        level = round((self.glow + 1) * 127.5)
        return np.full(self.observation_space.shape, level, np.uint8)
