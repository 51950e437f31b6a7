"""How many updates a number of environment transitions owes."""

from __future__ import annotations

from fractions import Fraction


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
