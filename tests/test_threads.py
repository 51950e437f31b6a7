"""How many threads a run takes, what BLAS is left, and that both are put back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import open_checkpoint, resolve_config
from rl_training.experiment.registry import train_config as train
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.result import TrainingInterrupted
from rl_training.runtime.threads import ONE_THREAD_WORK, threads
from rl_training.runtime.training_run import TrainingRun
from training import StopAt, tiny_config


@pytest.fixture(autouse=True)
def _three_torch_threads() -> Iterator[None]:
    """A number that no rule gives."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def config_of(batch_size: int, widths: list[int], **changes: Any) -> TrainConfig:
    kwargs = {"batch_size": batch_size, "hidden_sizes": widths, "buffer_size": 100_000}
    values = {"algo": "dqn", "env_id": "CartPole-v1", "algo_kwargs": kwargs}
    return resolve_config(TrainConfig(**(values | changes))).config


def used(config: TrainConfig, saved: int | None = None) -> int:
    with threads(config, saved):
        inside = torch.get_num_threads()
    assert torch.get_num_threads() == 3
    return inside


@pytest.mark.parametrize(
    ("batch", "widths", "expected"),
    [
        (6, [1000], 1),  # exactly 6,000,000
        (60_000, [10], 1),  # the same, of 60,000 * 100
        (60_001, [10], 3),  # 6,000,100
        (128, [216], 1),  # 128 * 46,656 = 5,971,968
        (128, [217], 3),  # 128 * 47,089 = 6,027,392
        (128, [64, 217, 64], 3),  # the widest counts
        (64, [64, 64], 1),
        (64, [], 1),
    ],
)
def test_auto_takes_one_thread_up_to_a_work_and_torchs_number_beyond(
    batch: int, widths: list[int], expected: int
) -> None:
    assert ONE_THREAD_WORK == 6_000_000
    assert used(config_of(batch, widths)) == expected


def test_a_number_is_taken_as_it_is_and_auto_keeps_a_saved_one() -> None:
    small, large = config_of(64, [64]), config_of(7, [1000])
    assert used(small.with_changes(threads=2)) == 2
    assert used(small.with_changes(threads=2), saved=5) == 2
    assert used(small, saved=2) == 2
    assert used(large, saved=1) == 1


def test_numpys_products_take_one_thread_and_its_number_is_put_back() -> None:
    def blas() -> set[int]:
        np.ones((2, 2)) @ np.ones((2, 2))
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    for wanted in ("auto", 2):
        with threadpool_limits(2, user_api="blas"):
            assert blas() == {2}
            with threads(config_of(64, [64], threads=wanted)):
                assert blas() == {1}
            assert blas() == {2}


def fails(config: TrainConfig) -> None:
    with threads(config):
        raise KeyError("inside")


def test_an_error_inside_puts_both_back() -> None:
    with pytest.raises(KeyError):
        fails(config_of(64, [64], threads=2))
    assert torch.get_num_threads() == 3


class Note(Callback):
    """Notes how many threads a run has, and whether it learns on arrays."""

    def on_start(self, run: TrainingRun) -> None:
        self.found = (torch.get_num_threads(), run.algorithm.learns_on_host)


def test_a_resumed_run_keeps_the_number_of_threads_it_had(tmp_path: Path) -> None:
    config, first, second, third = tiny_config("dqn", tmp_path, threads=2), Note(), Note(), Note()
    with pytest.raises(TrainingInterrupted) as stopped:
        train(config, callbacks=[first, StopAt(60)])
    run_dir = stopped.value.result.run_dir
    assert open_checkpoint(run_dir)[0].info["threads"] == 2
    with pytest.raises(TrainingInterrupted):
        train(config.with_changes(threads="auto"), resume=run_dir, callbacks=[second, StopAt(120)])
    train(config.with_changes(threads=1), resume=run_dir, callbacks=[third])  # unless it is said
    assert (first.found, second.found, third.found) == ((2, False), (2, False), (1, True))
    assert torch.get_num_threads() == 3
