"""Environments that keep state where no walk over their attributes would look, or let it act late.

Each is a walk of episodes of 12 steps. `secret` is what the hidden state adds to the reward.
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

import nasty_helper
from toy_envs import Reset, Step

COUNTER = "NASTY_ENVS_COUNTER"


class Nasty(gym.Env[np.ndarray, int]):
    """A walk on a line whose rewards have something added."""

    length = 12

    def __init__(self) -> None:
        self.observation_space = Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = Discrete(2)
        self.t = self.episodes = self.calls = 0
        self.position = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self.t, self.position = 0, float(self.np_random.uniform(-1, 1))
        self.episodes += 1
        self.begin()
        return self.observe(), {}

    def step(self, action: int) -> Step:
        self.t += 1
        self.calls += 1
        self.position += (2 * int(action) - 1) * 0.1
        reward = self.position + float(self.secret())
        return self.observe(), reward, False, self.t >= self.length, {}

    def observe(self) -> np.ndarray:
        return np.array([self.position, self.t], np.float32)

    def begin(self) -> None:
        """At each reset."""

    def secret(self) -> float:
        return 0.0


class ClassCounter(Nasty):
    """Counts its episodes on the class; after the fourth they are worth more."""

    played = 0

    def begin(self) -> None:
        ClassCounter.played += 1

    def secret(self) -> float:
        return float(ClassCounter.played > 4)


LATE_GENERATOR = np.random.default_rng(7)


class ModuleGenerator(Nasty):
    """Draws from a generator of the module from the fourth episode on."""

    since = 4

    def secret(self) -> float:
        return float(LATE_GENERATOR.normal()) if self.episodes >= self.since else 0.0


class LateGenerator(ModuleGenerator):
    """Draws from it only when a run's first checkpoints are long written."""

    since = 10


class NonlocalCounter(Nasty):
    """Counts calls in a variable of a function, which shows after 60."""

    def __init__(self) -> None:
        super().__init__()
        count = 0

        def counted() -> int:
            nonlocal count
            count += 1
            return count

        self.counted = counted

    def secret(self) -> float:
        return float(self.counted() > 60)


class PartialGenerator(Nasty):
    """Draws at every 40th step from a generator that only a partial holds."""

    def __init__(self) -> None:
        super().__init__()
        self.draw = functools.partial(np.random.default_rng(4).normal, 0, 1)

    def secret(self) -> float:
        return float(self.draw()) if self.calls % 40 == 0 else 0.0


class BoundGenerator(Nasty):
    """Draws at every 40th step from a generator that only a bound method holds."""

    def __init__(self) -> None:
        super().__init__()
        self.draws = {"normal": np.random.default_rng(4).normal}

    def secret(self) -> float:
        return float(self.draws["normal"]()) if self.calls % 40 == 0 else 0.0


class Forgetful(Nasty):
    """Its get_state forgets the heat, which melts something after 50 steps."""

    def __init__(self) -> None:
        super().__init__()
        self.simulator = threading.Lock()
        self.heat = 0

    def get_state(self) -> dict[str, Any]:
        return {"t": self.t, "position": self.position, "episodes": self.episodes}

    def set_state(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def secret(self) -> float:
        self.heat += 1
        return float(self.heat > 50)


def rolled() -> int:
    rolled.calls += 1  # type: ignore[attr-defined]
    return int(rolled.calls)  # type: ignore[attr-defined]


rolled.calls = 0  # type: ignore[attr-defined]


class FunctionAttribute(Nasty):
    """Counts calls in an attribute of a function of the module."""

    def secret(self) -> float:
        return float(rolled() > 500)


class MutableDefault(Nasty):
    """Counts calls in the default value of an argument."""

    def secret(self, seen: list[int] = []) -> float:  # noqa: B006 - the point of it
        seen.append(1)
        return float(len(seen) > 500)


TICKETS = itertools.count()


class ModuleIterator(Nasty):
    """Draws a number at each reset, from an iterator of the module."""

    def begin(self) -> None:
        self.ticket = next(TICKETS)

    def secret(self) -> float:
        return float(self.ticket > 40)


_late: np.random.Generator | None = None


class LazyGlobal(Nasty):
    """Makes a generator of the module when it is first needed."""

    def secret(self) -> float:
        global _late
        if self.episodes > 2 and _late is None:
            _late = np.random.default_rng(3)
        return float(_late.normal()) if _late is not None else 0.0


class ClassGenerator(Nasty):
    """All instances draw from one generator of the class, at every 30th step."""

    generator = np.random.default_rng(5)

    def secret(self) -> float:
        return float(self.generator.normal()) if self.calls % 30 == 0 else 0.0


class Weather:
    """An object that all environments share."""

    def __init__(self) -> None:
        self.days = 0


WEATHER = Weather()


class SharedObject(Nasty):
    """Ages an object of the module at each reset."""

    def begin(self) -> None:
        WEATHER.days += 1

    def secret(self) -> float:
        return float(WEATHER.days > 40)


class HelperModule(Nasty):
    """Calls a function of another module, which counts."""

    def secret(self) -> float:
        return float(nasty_helper.counted() > 500)


class CachedTerrain(Nasty):
    """Keeps what it drew in a cache that is not part of any environment."""

    @functools.cache  # noqa: B019 - the point of it
    def cell(self, place: int) -> float:
        return float(self.np_random.normal())

    def secret(self) -> float:
        return self.cell(round(self.position * 10))


class Cycle(Nasty):
    """Takes its rewards from an iterator, made anew at each reset."""

    def begin(self) -> None:
        self.rewards = itertools.cycle([1.0, 2.0, 4.0])

    def secret(self) -> float:
        return next(self.rewards)


class HiddenIterator(Nasty):
    """Takes its rewards from a Python generator that only a function holds."""

    def begin(self) -> None:
        numbers = (float(number) for number in itertools.count(3))

        def draw() -> float:
            return next(numbers)

        self.draw = draw

    def secret(self) -> float:
        return self.draw()


class GlobalLate(Nasty):
    """Draws from NumPy's global generator from the third episode on."""

    def secret(self) -> float:
        return float(np.random.random()) if self.episodes > 2 else 0.0


class ClassSpaces(Nasty):
    """Its spaces belong to the class, and it draws from one of them."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Discrete(7)

    def __init__(self) -> None:
        self.t = self.episodes = self.calls = 0
        self.position = 0.0

    def secret(self) -> float:
        return float(self.action_space.sample()) if self.t == 7 else 0.0


class EnvironCounter(Nasty):
    """Counts its steps in `os.environ`."""

    def secret(self) -> float:
        os.environ[COUNTER] = str(int(os.environ.get(COUNTER, "0")) + 1)
        return float(int(os.environ[COUNTER]) % 7)


class ProcessCounter(Nasty):
    """Its rewards tell how many processes have used it, from a file: nothing here can see that.

    In one process everything agrees, so it claims to be exact, and is not.
    """

    def __init__(self, note: str) -> None:
        super().__init__()
        self.note = note
        if str(os.getpid()) not in self.processes():
            with open(note, "a") as file:
                file.write(f"{os.getpid()} ")

    def processes(self) -> list[str]:
        with open(self.note) as file:
            return file.read().split()

    def secret(self) -> float:
        return float(self.processes().index(str(os.getpid())))


class ConstructorCounter(Nasty):
    """Counts its instances on the class; later ones are worth more."""

    built = 0

    def __init__(self) -> None:
        super().__init__()
        ConstructorCounter.built += 1
        self.number = ConstructorCounter.built

    def secret(self) -> float:
        return float(self.number > 6)


def _factory() -> Callable[[], Nasty]:
    shared = 0

    class Counted(Nasty):
        def begin(self) -> None:
            nonlocal shared
            shared += 1

        def secret(self) -> float:
            return float(shared > 40)

    return Counted


FactoryCounter = _factory()
"""Counts its episodes in a variable of the function that made the class."""


class Steps(Nasty):
    """Walks through a Python generator that lives for an episode."""

    def begin(self) -> None:
        self.walk = self.places()

    def places(self) -> Iterator[float]:
        while True:
            yield float(self.np_random.normal())

    def secret(self) -> float:
        return next(self.walk)


# The level each of them deserves in one process: state that is saved is exact, state that a new
# environment and a seed bring back is boundary, and global state is neither.
LEVELS = {
    "NonlocalCounter": "exact",
    "PartialGenerator": "exact",
    "BoundGenerator": "exact",
    "Forgetful": "exact",
    "LateGenerator": "exact",  # until it draws
    "ClassSpaces": "boundary",
    "Cycle": "boundary",
    "HiddenIterator": "boundary",
    "Steps": "boundary",
    "CachedTerrain": "boundary",
    "ClassCounter": "statistical",
    "ModuleGenerator": "statistical",
    "FunctionAttribute": "statistical",
    "MutableDefault": "statistical",
    "ModuleIterator": "statistical",
    "LazyGlobal": "statistical",
    "SharedObject": "statistical",
    "HelperModule": "statistical",
    "FactoryCounter": "statistical",
    "ClassGenerator": "statistical",
    "ConstructorCounter": "statistical",
    "GlobalLate": "statistical",
}
