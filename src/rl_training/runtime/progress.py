"""How far a run has come, and how many updates that owes."""

from __future__ import annotations

import time
from collections import deque
from fractions import Fraction

from rl_training.data.types import Clock
from rl_training.storage.state import Stateful


class UpdatePlan:
    """`floor(replay_ratio * (env_steps - learning_starts))` updates, in exact arithmetic."""

    def __init__(self, learning_starts: int, replay_ratio: float) -> None:
        self._learning_starts = learning_starts
        # The decimal a person wrote, not its binary neighbour: 0.1 owes exactly 1 update in 10.
        ratio = Fraction(str(replay_ratio))
        self._updates, self._per_steps = ratio.numerator, ratio.denominator

    def updates_by(self, env_steps: int) -> int:
        """The updates to have been made after `env_steps` transitions."""
        return self._updates * max(0, env_steps - self._learning_starts) // self._per_steps

    @property
    def first_update(self) -> int:
        """The transitions after which the first update is owed."""
        return self._learning_starts - (-self._per_steps // self._updates)  # rounded up


class Progress(Stateful):
    """Counters in environment transitions; updates owed are an exact function of them.

    With `replay_ratio` r, `floor(r * (env_steps - learning_starts))` updates have been made after
    every vector step, whatever the number of environments. A session may end before the planned
    `horizon`, at `stop_at`. Without `random_play` the policy acts from the first step on, though
    nothing is learned before `learning_starts`.
    """

    state_fields = ("env_steps", "updates")
    state_counts = state_fields

    def __init__(
        self,
        horizon: int,
        *,
        learning_starts: int = 0,
        replay_ratio: float = 1.0,
        stop_at: int | None = None,
        random_play: bool = True,
    ) -> None:
        self.horizon = horizon
        self.stop_at = horizon if stop_at is None else min(stop_at, horizon)
        self._random_steps = learning_starts if random_play else 0
        self.env_steps = 0
        self.updates = 0
        self._plan = UpdatePlan(learning_starts, replay_ratio)

    @property
    def clock(self) -> Clock:
        """The counters that schedules are functions of."""
        return Clock(self.env_steps, self.horizon, self._random_steps)

    @property
    def finished(self) -> bool:
        """Whether this session has done its share of the budget."""
        return self.env_steps >= self.stop_at

    @property
    def complete(self) -> bool:
        """Whether the whole budget is used up."""
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
