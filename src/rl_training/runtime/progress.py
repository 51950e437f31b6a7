"""How far a run has come, and how many updates that owes."""

from __future__ import annotations

import time
from collections import deque

from rl_training.data.types import Clock
from rl_training.runtime.update_plan import UpdatePlan
from rl_training.storage.state import Stateful


class Progress(Stateful):
    """Counters in environment transitions; updates owed are an exact function of them.

    With `replay_ratio` r, `floor(r * (env_steps - learning_starts))` updates have been made after
    every vector step, whatever the number of environments.
    """

    state_fields = ("env_steps", "updates")

    def __init__(self, horizon: int, *, learning_starts: int = 0, replay_ratio: float = 1.0):
        self.horizon = horizon
        self.learning_starts = learning_starts
        self.env_steps = 0
        self.updates = 0
        self._plan = UpdatePlan(learning_starts, replay_ratio)

    @property
    def clock(self) -> Clock:
        """The counters that schedules are functions of."""
        return Clock(self.env_steps, self.horizon, self.learning_starts)

    @property
    def finished(self) -> bool:
        """Whether the budget is used up."""
        return self.env_steps >= self.horizon

    def updates_owed(self) -> int:
        """Updates to make now."""
        return self._plan.updates_by(self.env_steps) - self.updates


class Every:
    """Fires when a counter passes a multiple of `interval`; never for interval 0."""

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.passed = 0

    def due(self, env_steps: int) -> bool:
        """Whether a multiple was passed since the last time it fired; fires once for several."""
        if not self.interval or env_steps // self.interval <= self.passed:
            return False
        self.passed = env_steps // self.interval
        return True


class Speed:
    """Steps per second over the last few seconds, so that a forecast follows a change of pace."""

    WINDOW_SECONDS = 5.0

    def __init__(self, env_steps: int = 0) -> None:
        self._marks: deque[tuple[float, int]] = deque([(time.monotonic(), env_steps)])

    def measure(self, env_steps: int) -> float:
        """The speed up to now."""
        now = time.monotonic()
        self._marks.append((now, env_steps))
        while len(self._marks) > 2 and self._marks[1][0] <= now - self.WINDOW_SECONDS:
            self._marks.popleft()
        then, before = self._marks[0]
        return (env_steps - before) / max(now - then, 1e-9)
