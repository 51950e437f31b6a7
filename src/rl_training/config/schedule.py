"""Values that change over a run: pure functions of the steps done and the steps planned."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias, TypeGuard

from pydantic import Field, GetCoreSchemaHandler, ValidationError, model_validator
from pydantic_core import (
    CoreSchema,
    ErrorDetails,
    InitErrorDetails,
    PydanticCustomError,
    core_schema,
)
from typing_extensions import Self

from rl_training.config.base import ConfigModel, check
from rl_training.config.messages import Expectation, KeyPath

_MAX_VALUE = 1e9


class Schedule(ConfigModel):
    """A value that moves from `initial` to `final`, then stays there."""

    initial: float = Field(ge=-_MAX_VALUE, le=_MAX_VALUE, description="value at the start")
    final: float | None = Field(
        None,
        ge=-_MAX_VALUE,
        le=_MAX_VALUE,
        description="value at the end; required unless the kind is constant",
    )
    kind: Literal["linear", "cosine", "exponential", "constant"] = Field(
        "linear", description="how the value moves"
    )
    fraction: float = Field(
        1.0, gt=0, le=1, description="share of the planned run over which the value moves"
    )

    @model_validator(mode="after")
    def _check_final(self) -> Self:
        if self.kind == "constant":
            same = self.final is None or self.final == self.initial
            check(same, "a constant schedule has no final value other than its initial one")
            return self
        check(self.final is not None, f"a {self.kind} schedule needs a final value")
        if self.kind == "exponential":
            positive = self.initial > 0 and self._last > 0
            check(positive, "an exponential schedule needs initial and final above 0")
        return self

    def at(self, env_steps: int, horizon: int) -> float:
        """The value after `env_steps` transitions of a run planned for `horizon` of them."""
        moving = self.fraction * horizon
        if env_steps >= moving:
            return self._last
        if env_steps <= 0 or self.kind == "constant":
            return self.initial
        progress = env_steps / moving
        if self.kind == "exponential":
            return math.exp(
                (1 - progress) * math.log(self.initial) + progress * math.log(self._last)
            )
        if self.kind == "cosine":
            progress = 0.5 * (1 - math.cos(math.pi * progress))
        return self.initial + (self._last - self.initial) * progress

    @property
    def _last(self) -> float:
        return self.initial if self.final is None else self.final


Scheduled: TypeAlias = float | Schedule
"""A number, or a schedule of one."""


@dataclass(frozen=True)
class ScheduleRange(Expectation):
    """The range of a `Scheduled` field, also for both ends of a schedule."""

    low: float
    high: float
    open_low: bool

    def at(self, rest: KeyPath) -> str | None:
        """The words for the field, or for an end of its schedule."""
        if not rest:
            return f"{self._words(ends_at_low=False)}, or a schedule of such numbers"
        if rest[0] in ("initial", "final"):
            return self._words(ends_at_low=rest[0] == "final")
        return None

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        del source, handler  # a union would put its members' names into the error's path
        return core_schema.no_info_plain_validator_function(self._take)

    def _take(self, value: object) -> Scheduled:
        if not isinstance(value, Mapping):
            if not self._holds(value, ends_at_low=False):
                raise _outside()
            return float(value)
        wrong = [
            InitErrorDetails(type=_outside(), loc=(end,), input=value[end])
            for end in ("initial", "final")
            if value.get(end) is not None
            and not self._holds(value[end], ends_at_low=end == "final")
        ]
        try:
            schedule = Schedule.model_validate(value)
        except ValidationError as error:
            wrong += [_raisable(detail) for detail in error.errors(include_url=False)]
        if wrong:
            raise ValidationError.from_exception_data("Schedule", wrong)
        return schedule

    def _holds(self, value: object, *, ends_at_low: bool) -> TypeGuard[float]:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        above = self.low < value or (value == self.low and (ends_at_low or not self.open_low))
        return above and value <= self.high

    def _words(self, *, ends_at_low: bool) -> str:
        if self.open_low and not ends_at_low:
            return f"a number above {self.low:g} and at most {self.high:g}"
        return f"a number from {self.low:g} to {self.high:g}"


def bounded_schedule(low: float, high: float, *, open_low: bool = False) -> ScheduleRange:
    """The range of a field, as in `Annotated[Scheduled, bounded_schedule(0, 1)]`.

    With `open_low`, only the end of a schedule may equal `low`.
    """
    return ScheduleRange(low, high, open_low)


LearningRate: TypeAlias = Annotated[Scheduled, bounded_schedule(0, 1, open_low=True)]
"""A step size in (0, 1], or a schedule that may end at 0."""

Probability: TypeAlias = Annotated[Scheduled, bounded_schedule(0, 1)]
"""A number in [0, 1], or a schedule of one."""


def scheduled_value(value: Scheduled, env_steps: int, horizon: int) -> float:
    """The value of a number or a schedule after `env_steps` of a run of `horizon` steps."""
    return value.at(env_steps, horizon) if isinstance(value, Schedule) else value


def _outside() -> PydanticCustomError:
    return PydanticCustomError("out_of_range", "a number out of range")


def _raisable(detail: ErrorDetails) -> InitErrorDetails:
    """The error as pydantic takes it for raising: pydantic's kinds by name, ours as an object."""
    kind = detail["type"]
    return InitErrorDetails(
        type=_outside() if kind == "wrong_kind" else kind,
        loc=detail["loc"],
        input=detail["input"],
        ctx=detail.get("ctx", {}),
    )
