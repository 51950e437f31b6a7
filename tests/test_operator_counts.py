"""A guard against slow changes that needs no clock: how many operators a step and an update call.

Small networks spend their time on calls, not on arithmetic, so a count that grows is a run that
gets slower. A count that falls means that the figure below is to be lowered.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training import Callback
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import resolve_config, train_config
from rl_training.runtime.training_run import TrainingRun

# Per algorithm: tensor operators of a gradient step, those of a vector step (acting and storing),
# and calls into compiled code of a vector step, NumPy's and Gymnasium's among them.
FIGURES = {"dqn": (0, 0, 0), "ppo": (0, 0, 0)}
ROUNDS = 20  # the least of so many: a step that ends an episode calls more
SETTINGS = {
    "dqn": {"hidden_sizes": [64, 64], "epsilon": 0.0, "learning_starts": 20},
    "ppo": {"hidden_sizes": [64, 64], "num_steps": 128, "batch_size": 64},
}


def operators(call: Callable[[], Any]) -> int:
    """Operators that `call` calls itself, not those that they call in turn."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    events = (event for event in profile.events() or () if event.cpu_parent is None)
    return sum(event.name.startswith("aten::") for event in events)


def native_calls(call: Callable[[], Any]) -> int:
    """Calls of functions that are not written in Python."""
    count = 0

    def watch(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "c_call"

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


class Counting(Callback):
    """Counts in the middle of a run, where everything is set up, then ends it."""

    def __init__(self) -> None:
        self.update_calls = 0

    def on_start(self, run: TrainingRun) -> None:
        self.update = run.algorithm.update
        run.algorithm.update = self.watched  # type: ignore[method-assign]

    def watched(self, *arguments: Any) -> Any:
        results: list[Any] = []
        self.update_calls += 1
        if self.update_calls < 3:
            return self.update(*arguments)
        counted = operators(lambda: results.append(self.update(*arguments)))
        self.per_update = counted / results[0].gradient_steps
        return results[0]

    def on_step(self, run: TrainingRun) -> None:
        if self.update_calls < 3:
            return

        def step() -> None:
            run.buffer.add(run.collector.step(run.explore))

        step()
        self.per_step = min(operators(step) for _ in range(ROUNDS))
        self.native = min(native_calls(step) for _ in range(ROUNDS))
        run.stop("counted")


@pytest.mark.parametrize("algo", FIGURES)
def test_no_more_operators_than_before(algo: str, tmp_path: Path) -> None:
    counting = Counting()
    config = TrainConfig(
        algo=algo,
        env_id="CartPole-v1",
        output_dir=str(tmp_path),
        total_timesteps=1000,
        eval_interval=0,
        final_eval_episodes=0,
        algo_kwargs=SETTINGS[algo],
    )
    train_config(resolve_config(config).config, callbacks=[counting])
    found = (counting.per_update, counting.per_step, counting.native)
    assert found == FIGURES[algo]
