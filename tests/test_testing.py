"""The conformance checks find the mistakes they are for: an algorithm with each of them fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training import testing
from rl_training.algorithms.dqn import DQN
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.runtime import spec_table
from rl_training.runtime.dqn_trainer import DQN_SPEC
from rl_training.runtime.spec import AlgorithmSpec
from training import TINY

CONFIG = TINY["dqn"]


@pytest.fixture(autouse=True)
def _own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec_table, "_known", {})


def faulty(algorithm: type[DQN] = DQN, **changes: Any) -> AlgorithmSpec:
    return replace(DQN_SPEC, name="faulty", algorithm=algorithm, **changes)


def refused(check: testing.Check, spec: AlgorithmSpec, directory: Path, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check(spec, CONFIG, directory)


class Idle(DQN):
    def update(self, batch: Any, clock: Any) -> Any:
        weights = [p.detach().clone() for p in self.model.parameters()]
        result = super().update(batch, clock)
        with torch.no_grad():
            for parameter, weight in zip(self.model.parameters(), weights, strict=True):
                parameter.copy_(weight)
        return result


class Meddling(DQN):
    def update(self, batch: Any, clock: Any) -> Any:
        result = super().update(batch, clock)
        batch.reward.add_(1)
        return result


class Reporting(DQN):
    metric: Any = None

    def update(self, batch: Any, clock: Any) -> Any:
        result = super().update(batch, clock)
        return result._replace(metrics={**result.metrics, "extra": self.metric})


class Attached(Reporting):
    metric = torch.ones((), requires_grad=True)


class Listed(Reporting):
    metric = torch.ones(3)


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (Idle, "an update changed no weight of a network"),
        (Meddling, "the update changed the batch's reward"),
        (Attached, "the metric extra is not detached"),
        (Listed, r"the metric extra has the shape \(3,\)"),
    ],
)
def test_an_update_that_is_none_is_found(
    algorithm: type[DQN], message: str, tmp_path: Path
) -> None:
    refused(testing.updates_learn, faulty(algorithm), tmp_path, message)


class Fickle(DQN):
    """Acts at random where it should be greedy, from a generator that nobody seeds or saves."""

    generator = np.random.default_rng()

    def act(self, obs: Any, *arguments: Any, explore: bool) -> Any:
        acted = super().act(obs, *arguments, explore=explore)
        return acted._replace(action=self.generator.integers(0, 2, len(obs)))


def test_greedy_acting_that_is_random_is_found(tmp_path: Path) -> None:
    refused(testing.acting_is_valid, faulty(Fickle), tmp_path, "greedy actions differ")


def test_randomness_without_a_seed_is_found(tmp_path: Path) -> None:
    refused(testing.seeds_decide, faulty(Fickle), tmp_path, "the same seed gave another agent")


class Watched(DQN):
    """Learns something from being evaluated."""

    def act(self, obs: Any, *arguments: Any, explore: bool) -> Any:
        if not explore:
            with torch.no_grad():
                next(self.model.parameters()).add_(0.01)
        return super().act(obs, *arguments, explore=explore)


def test_an_evaluation_that_changes_the_agent_is_found(tmp_path: Path) -> None:
    refused(testing.seeds_decide, faulty(Watched), tmp_path, "evaluating, logging or saving")


def test_updates_that_are_not_those_planned_are_found(tmp_path: Path) -> None:
    loop = replace(DQN_SPEC.loop, planned_updates=lambda *_: 7)
    message = "expected 7 updates with 1 environments, found 110"
    refused(testing.environments_are_counted, faulty(loop=loop), tmp_path, message)


class EndsAllAlike(ReplayBuffer):
    def add(self, step: Any) -> None:
        super().add(step._replace(terminated=step.terminated | step.truncated))


class EndsNever(ReplayBuffer):
    def add(self, step: Any) -> None:
        super().add(step._replace(terminated=np.zeros_like(step.terminated)))


@pytest.mark.parametrize("buffer", [EndsAllAlike, EndsNever])
def test_ends_of_episodes_that_are_confused_are_found(
    buffer: type[ReplayBuffer], tmp_path: Path
) -> None:
    message = "terminated and truncated episodes taught the same"
    refused(testing.ends_are_told_apart, faulty(buffer=buffer), tmp_path, message)


class Forgetful(DQN):
    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"model": type(self).blank}

    def __init__(self, model: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(model, *arguments, **options)
        if not hasattr(type(self), "blank"):
            type(self).blank = {name: torch.zeros_like(p) for name, p in model.state_dict().items()}

    blank: Mapping[str, Any]


def test_weights_that_are_not_saved_are_found(tmp_path: Path) -> None:
    refused(testing.loading_agrees, faulty(Forgetful), tmp_path, "has other weights")


def test_all_checks_in_one_call_name_the_one_that_fails() -> None:
    with pytest.raises(AssertionError, match=r"^updates_learn: an update changed no weight"):
        testing.check_conformance(faulty(Idle), CONFIG)
