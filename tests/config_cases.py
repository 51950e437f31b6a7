"""Wrong values for every field of a configuration model, derived from the field's type.

`assert_refuses_wrong_values` tries them all on any model. `ToyConfig` and the functions below it
serve the tests of configuration.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import pytest
from pydantic import BaseModel, Field, model_validator
from pydantic.fields import FieldInfo
from typing_extensions import Self

from rl_training.config.base import check
from rl_training.config.hyper_parameters import HyperParameters, OffPolicyHyperParameters
from rl_training.config.loading import LoadedConfig, load_config
from rl_training.config.schedule import (
    LearningRate,
    Probability,
    Schedule,
    Scheduled,
    ScheduleRange,
    bounded_schedule,
)
from rl_training.config.train_config import TrainConfig
from rl_training.config.value_based import DQNConfig
from rl_training.errors import ConfigError


class Case(NamedTuple):
    """A wrong value of a key, and words that its refusal must contain."""

    key: str
    value: Any
    words: tuple[str, ...]


@dataclass(frozen=True)
class Arm:
    """One type a field takes, with the constraints on it."""

    type: Any
    marks: tuple[Any, ...]

    @property
    def kind(self) -> str:
        origin = get_origin(self.type) or self.type
        names = {int: "integer", float: "number", str: "text", bool: "bool", tuple: "list"}
        more = {list: "list", dict: "mapping", type(None): "null", Literal: "choice", Any: "any"}
        if isinstance(origin, type) and issubclass(origin, BaseModel):
            return "mapping"
        return {**names, **more}.get(origin, "other")


def assert_refuses_wrong_values(
    model: type[BaseModel],
    check: Callable[[dict[str, Any]], object],
    *,
    valid: Mapping[str, Any] = MappingProxyType({}),
    prefix: str = "",
) -> None:
    """`check` takes the valid values, and refuses each wrong value of each key, naming its path.

    A failure lists every value that was taken, or refused in other words, with its key.
    """
    check(dict(valid))
    cases = list(wrong_values(model, prefix))
    assert len(cases) > 4 * len(model.model_fields)
    failures = []
    for case in cases:
        message = _refusal_of(check, {**valid, case.key: case.value})
        if not all(words in message for words in case.words):
            answer = message or "it was taken"
            failures.append(f"{case.key} = {case.value!r:.80}: wanted {case.words}; {answer}")
    assert not failures, f"{model.__name__}:\n" + "\n".join(failures)


def wrong_values(model: type[BaseModel], prefix: str) -> Iterator[Case]:
    """Every wrong value of each field, and each field's name with a letter missing."""
    for name, field in model.model_fields.items():
        typo = name[:2] + name[3:] if len(name) > 3 else name + "x"
        yield Case(typo, 1, (f"unknown key '{prefix}{typo}'", f"did you mean '{prefix}{name}'"))
        for path, value in _wrong_values(name, field):
            yield Case(name, value, (f"{prefix}{path}: expected", "found"))


def _refusal_of(check: Callable[[dict[str, Any]], object], values: dict[str, Any]) -> str:
    try:
        check(values)
    except ConfigError as error:
        return str(error)
    return ""


def unbounded_fields(model: type[BaseModel]) -> list[str]:
    """The numeric fields that lack a lower or an upper bound."""
    missing = []
    for name, field in model.model_fields.items():
        for arm in _number_arms(_arms(field.annotation, tuple(field.metadata))):
            low, high = _bounds(arm)
            if low is None or high is None:
                missing.append(name)
    return missing


def _wrong_values(name: str, field: FieldInfo) -> Iterator[tuple[str, Any]]:
    """Wrong values of a field, each with the path that its refusal names."""
    arms = list(_arms(field.annotation, tuple(field.metadata)))
    for value in _wrong_kinds(arms):
        yield name, value
    for arm in arms:
        if arm.kind in ("integer", "number"):
            scheduled = any(isinstance(mark, ScheduleRange) for mark in arm.marks)
            low = _bounds(arm)[0][0]
            for value in _wrong_numbers(arm):
                yield name, value
                if scheduled and value != low:  # a schedule may end at an open bound
                    yield f"{name}.initial", {"initial": value, "final": 0.5}
                    yield f"{name}.final", {"initial": 0.5, "final": value}
        elif arm.kind == "list":
            for item in _arms(get_args(arm.type)[0], ()):
                for value in _wrong_numbers(item) if item.kind == "integer" else ():
                    yield f"{name}[1]", [_bounds(item)[0][0], value]


def _wrong_kinds(arms: list[Arm]) -> Iterator[Any]:
    kinds = {arm.kind for arm in arms}
    kinds |= {"integer"} if "number" in kinds else set()
    candidates = {
        "text": "3",
        "integer": 3,
        "number": 1.9,
        "bool": True,
        "list": [object()],
        "mapping": {"zz": object()},
        "null": None,
        "object": object(),
    }
    for kind, value in candidates.items():
        if kind not in kinds and not ("any" in kinds and kind == "text"):
            yield value


def _wrong_numbers(arm: Arm) -> Iterator[Any]:
    (low, open_low), (high, open_high) = _bounds(arm)
    yield from (math.nan, math.inf, -math.inf, True, "0.5", 10**400)
    if arm.kind == "integer":
        yield from (1.9, low - 1, high + 1, -(10**30), 2.0 * high)
        return
    yield from (math.nextafter(low, -math.inf), math.nextafter(high, math.inf))
    if open_low:
        yield low
    if open_high:
        yield high


def _number_arms(arms: Iterator[Arm]) -> Iterator[Arm]:
    for arm in arms:
        if arm.kind in ("integer", "number"):
            yield arm
        elif arm.kind == "list":
            yield from _number_arms(_arms(get_args(arm.type)[0], ()))


def _arms(annotation: Any, marks: tuple[Any, ...]) -> Iterator[Arm]:
    origin = get_origin(annotation)
    if origin is Annotated:
        base, *more = get_args(annotation)
        for mark in more:
            marks = (*marks, *(mark.metadata if isinstance(mark, FieldInfo) else [mark]))
        yield from _arms(base, marks)
    elif origin in (Union, types.UnionType):
        for inner in get_args(annotation):
            yield from _arms(inner, marks)
    else:
        yield Arm(annotation, marks)


def _bounds(arm: Arm) -> tuple[Any, Any]:
    low = high = None
    for mark in arm.marks:
        if isinstance(mark, ScheduleRange):
            return (mark.low, mark.open_low), (mark.high, False)
        for name in ("ge", "gt"):
            low = (getattr(mark, name), name == "gt") if hasattr(mark, name) else low
        for name in ("le", "lt"):
            high = (getattr(mark, name), name == "lt") if hasattr(mark, name) else high
    return low, high


MINIMAL = {"algo": "toy", "env_id": "CartPole-v1"}


class ToyConfig(OffPolicyHyperParameters):
    """Stands for an algorithm's model: every kind of field there is."""

    learning_rate: LearningRate = 5e-4
    epsilon: Probability = Schedule(initial=1.0, final=0.05, fraction=0.1)
    temperature: Annotated[Scheduled, bounded_schedule(-2, 5)] = 0.0
    double: bool = True
    loss: Literal["huber", "mse"] = "huber"
    max_grad_norm: float | None = Field(10.0, gt=0, lt=1e6)
    target_update_interval: int = Field(500, ge=1, le=10**12)
    num_critics: int = Field(2, ge=1, le=100)
    subset_size: int = Field(2, ge=1, le=100)

    @model_validator(mode="after")
    def _subset_fits(self) -> Self:
        check(self.subset_size <= self.num_critics, "subset_size must not exceed num_critics")
        return self


def models(name: str) -> type[HyperParameters]:
    known: dict[str, type[HyperParameters]] = {
        "toy": ToyConfig,
        "plain": HyperParameters,
        "dqn": DQNConfig,
    }
    if name not in known:
        raise ConfigError(f"unknown algorithm '{name}'; known are {', '.join(known)}")
    return known[name]


def load(source: Any = None, *overrides: str, **arguments: Any) -> LoadedConfig:
    return load_config(source, overrides=overrides, arguments=arguments, hyper_model=models)


def refusal(source: Any = None, *overrides: str, **arguments: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(source, *overrides, **arguments)
    return str(caught.value).splitlines()


def python_refusal(**values: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**values)
    return str(caught.value).splitlines()


def toy_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "toy.yaml"
    path.write_text(text, encoding="utf-8")
    return path
