"""What an algorithm is to the rest of the package: one frozen record per algorithm."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from torch import nn

from rl_training.algorithms.base import Algorithm
from rl_training.data.types import EnvSpec
from rl_training.experiment.config import HyperParameters

if TYPE_CHECKING:
    from rl_training.runtime.training_run import TrainingRun


@dataclass(frozen=True, kw_only=True)
class AlgorithmSpec:
    """An algorithm's name, paper, components and the spaces it takes.

    Training, resuming, loading, evaluation, prediction, the command line, the documentation's
    table and the conformance tests are functions of this record.
    """

    name: str
    title: str
    paper: str
    hyper: type[HyperParameters]
    model: Callable[[EnvSpec, Any], nn.Module]
    algorithm: Callable[..., Algorithm]
    buffer: Callable[..., Any]
    loop: Callable[[TrainingRun], None]
    observations: frozenset[str]
    actions: frozenset[str]
    normalizes_rewards: bool = False


@cache
def all_specs() -> dict[str, AlgorithmSpec]:
    """Every algorithm by name: the specs declared in this package's `*_trainer` modules."""
    package = importlib.import_module("rl_training.runtime")
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    modules = (
        importlib.import_module(f"rl_training.runtime.{name}")
        for name in names
        if name.endswith("_trainer")
    )
    return {spec.name: spec for spec in _declared(modules)}


def _declared(modules: Iterable[Any]) -> Iterable[AlgorithmSpec]:
    for module in modules:
        yield from (value for value in vars(module).values() if isinstance(value, AlgorithmSpec))
