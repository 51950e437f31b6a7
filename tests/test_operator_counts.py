"""A guard against slow changes that needs no clock: how many operators a step and an update call.

Small networks spend their time on calls, not on arithmetic, so a count that grows is a run that
gets slower. A count that falls means that the figure below is to be lowered. Figures are those of
the versions in constraints.txt.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from rl_training import Callback
from rl_training.config.train_config import TrainConfig
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.experiment.registry import resolve_config, train_config
from rl_training.fast.accelerate import learns_with_kernels
from rl_training.fast.updates import ArrayViews
from rl_training.runtime.training_run import TrainingRun


class Counts(NamedTuple):
    """What is called in a gradient step, in a vector step (acting and storing) and in sampling."""

    tensor_operators: float
    array_operators: float  # with those behind +, * and the like
    native_calls: float  # of named functions that are not written in Python, whosever they are


# Per algorithm with kernels: a gradient step, a vector step, and sampling. One call of a vector
# step looks at the clock, for checkpoints by time.
FIGURES = {
    ("dqn", "kernels"): (Counts(3, 42, 44), Counts(0, 8, 41), Counts(0, 0, 18)),
    ("qr_dqn", "kernels"): (Counts(3, 84, 101), Counts(0, 10, 50), Counts(0, 0, 18)),
    ("c51", "kernels"): (Counts(3, 74, 76), Counts(0, 14, 46), Counts(0, 0, 18)),
    ("sac", "kernels"): (Counts(29, 93, 231), Counts(0, 31, 47), Counts(0, 0, 18)),
    ("tqc", "kernels"): (Counts(29, 80, 457), Counts(0, 31, 47), Counts(0, 0, 18)),
    ("redq", "kernels"): (Counts(9, 46, 102), Counts(0, 31, 47), Counts(0, 0, 18)),
    ("ppo", "kernels"): (Counts(10.125, 81, 112.875), Counts(0, 9, 50), Counts(0, 0, 0)),
}
STEPS = ("gradient step", "vector step", "sampling")
SLACK = 0.95
ROUNDS = 10  # the least of so many: a step that ends an episode calls more
SOFT_ALGORITHMS = ("sac", "tqc", "redq")
VALUE_BASED: dict[str, Any] = {"hidden_sizes": [64, 64], "epsilon": 0.0, "learning_starts": 20}
SETTINGS: dict[str, dict[str, Any]] = {
    "dqn": VALUE_BASED,
    "qr_dqn": VALUE_BASED | {"num_quantiles": 51},
    "c51": VALUE_BASED | {"num_atoms": 51},
    "ppo": {"hidden_sizes": [64, 64], "num_steps": 128, "batch_size": 64, "epochs": 4},
    **{key: {"hidden_sizes": [64, 64], "learning_starts": 20} for key in SOFT_ALGORITHMS},
}


class CountedArray(np.ndarray):
    """An array that counts the operators called with it and with what comes of it."""

    calls = 0

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any
    ) -> Any:
        CountedArray.calls += 1
        if out is not None:
            options["out"] = tuple(map(uncounted, out))
        return counted(getattr(ufunc, method)(*map(uncounted, inputs), **options))

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        CountedArray.calls += 1
        return super().__array_function__(function, types, args, options)


def counted(x: Any) -> Any:
    return x.view(CountedArray) if isinstance(x, np.ndarray) else x


def uncounted(x: Any) -> Any:
    return x.view(np.ndarray) if isinstance(x, CountedArray) else x


def counted_record(record: Any) -> Any:
    return type(record)(*map(counted, record))


def tensor_operators(call: Callable[[], Any]) -> int:
    """Operators that `call` calls itself, not those that they call in turn."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    events = (event for event in profile.events() or () if event.cpu_parent is None)
    return sum(event.name.startswith("aten::") for event in events)


def array_operators(call: Callable[[], Any]) -> int:
    before = CountedArray.calls
    call()
    return CountedArray.calls - before


def native_calls(call: Callable[[], Any]) -> int:
    count = -1  # the call that ends the watch is not one of them
    before = sys.getprofile()

    def watch(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "c_call"

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(before)
    return count


COUNTERS = (tensor_operators, array_operators, native_calls)  # as in Counts


class Counting(Callback):
    """Counts in the middle of a run, where everything is set up, then ends it."""

    def __init__(self, kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kernels, self.monkeypatch = kernels, monkeypatch
        self.updates = 0
        self.per_update: list[float] = []

    def on_start(self, run: TrainingRun) -> None:
        assert learns_with_kernels(run.algorithm) == self.kernels
        self.algorithm: Any
        self.algorithm, self.update = run.algorithm, run.algorithm.update
        run.algorithm.update = self.watched  # type: ignore[method-assign]

    def watched(self, *arguments: Any) -> Any:
        """One kind of count per update, from the third on."""
        self.updates += 1
        if self.updates < 3 or len(self.per_update) == len(COUNTERS):
            return self.update(*arguments)
        counter, results = COUNTERS[len(self.per_update)], []
        with self.monkeypatch.context() as patch:
            if counter is array_operators and self.kernels:
                self._count_arrays(patch)
            calls = counter(lambda: results.append(self.update(*arguments)))
        self.per_update.append(calls / results[0].gradient_steps)
        return results[0]

    def _count_arrays(self, patch: pytest.MonkeyPatch) -> None:
        """Give the kernels arrays that count: a batch, or a rollout's samples."""
        views = ArrayViews.of
        patch.setattr(ArrayViews, "of", lambda self, record: counted_record(views(self, record)))
        if hasattr(self.algorithm, "samples"):
            samples = self.algorithm.samples
            patch.setattr(
                self.algorithm, "samples", lambda rollout: counted_record(samples(rollout))
            )

    def on_step(self, run: TrainingRun) -> None:
        if len(self.per_update) < len(COUNTERS):
            return

        def step() -> None:
            run.buffer.add(run.collector.step(run.explore))

        def least(counter: Callable[[Callable[[], Any]], int]) -> int:
            counts = []
            for _ in range(ROUNDS):
                if counter is array_operators:
                    run.collector._obs = counted(run.collector._obs)
                counts.append(counter(step))
            return min(counts)

        step()
        self.per_step = [least(counter) for counter in COUNTERS]
        self.per_sample = [0, 0, 0]
        if isinstance(run.buffer, ReplayBuffer):
            sample = partial(run.buffer.sample, run.hyper.batch_size)
            self.per_sample = [min(counter(sample) for _ in range(ROUNDS)) for counter in COUNTERS]
        run.stop("counted")


@pytest.mark.parametrize(("algo", "way"), FIGURES)
def test_no_more_operators_than_before(
    algo: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "autograd":
        monkeypatch.setattr("rl_training.runtime.execution.accelerate", lambda _: None)
    counting = Counting(way == "kernels", monkeypatch)
    config = TrainConfig(
        algo=algo,
        env_id="Pendulum-v1" if algo in SOFT_ALGORITHMS else "CartPole-v1",
        output_dir=str(tmp_path),
        total_timesteps=1000,
        eval_interval=0,
        final_eval_episodes=0,
        algo_kwargs=SETTINGS[algo],
        threads=1,
    )
    train_config(resolve_config(config).config, callbacks=[counting])
    found = [Counts(*x) for x in (counting.per_update, counting.per_step, counting.per_sample)]
    rows = [
        (f"{what}, {name}: found {count}, figure {figure}", count, figure)
        for what, mine, figures in zip(STEPS, found, FIGURES[algo, way], strict=True)
        for name, count, figure in zip(Counts._fields, mine, figures, strict=True)
    ]
    more = [text for text, count, figure in rows if count > figure]
    assert not more, "more calls than before, which makes runs slower"
    fewer = [text for text, count, figure in rows if count < SLACK * figure]
    assert not fewer, "fewer calls than before: well done; lower these figures to keep it so"


@pytest.mark.parametrize("counter", COUNTERS)
def test_the_counters_count(counter: Callable[[Callable[[], Any]], int]) -> None:
    tensor, array = torch.ones(2), np.ones(2).view(CountedArray)
    does: dict[Any, Callable[[], Any]] = {
        tensor_operators: lambda: (tensor + tensor).exp_(),
        array_operators: lambda: np.exp(array + array),
        native_calls: lambda: (len("a"), "a".upper()),
    }
    assert counter(does[counter]) == 2
    assert counter(lambda: None) == 0
