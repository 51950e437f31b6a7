"""How many threads a run takes, what BLAS is left, and that both are put back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from threadpoolctl import threadpool_info, threadpool_limits
from torch import nn

from rl_training.config.train_config import TrainConfig
from rl_training.experiment.registry import open_checkpoint, resolve_config
from rl_training.experiment.registry import train_config as train
from rl_training.fast.accelerate import learns_with_kernels
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.execution import ONE_THREAD_WORK, threads
from rl_training.runtime.result import TrainingInterrupted, resume_entry
from rl_training.runtime.training_run import TrainingRun
from toy_envs import CountingEnv
from training import StopAt, tiny_config


@pytest.fixture(autouse=True)
def _three_torch_threads() -> Iterator[None]:
    """A number that no rule gives."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


class WideEnv(CountingEnv):
    """A counting env that observes any number of entries."""

    def __init__(self, width: int = 2) -> None:
        super().__init__()
        self.observation_space = Box(-1.0, 1e6, (width,), np.float32)

    def observe(self) -> np.ndarray:
        return np.full(self.observation_space.shape, self.t, np.float32)


class Note(Callback):
    """Notes how many threads a run has, and whether it learns on arrays."""

    def on_start(self, run: TrainingRun) -> None:
        self.found = (torch.get_num_threads(), learns_with_kernels(run.algorithm))


def config_of(batch_size: int, widths: list[int], **changes: Any) -> TrainConfig:
    kwargs = {"batch_size": batch_size, "hidden_sizes": widths, "buffer_size": 100_000}
    kwargs |= changes.pop("algo_kwargs", {})
    values = {"algo": "dqn", "env_id": WideEnv, "algo_kwargs": kwargs}
    quick = {"total_timesteps": 1, "final_eval_episodes": 0, "eval_interval": 0}
    return resolve_config(TrainConfig(**(values | quick | changes))).config


def found(config: TrainConfig, output_dir: Path) -> tuple[int, bool]:
    note = Note()
    run_dir = train(config.with_changes(output_dir=str(output_dir)), callbacks=[note]).run_dir
    assert torch.get_num_threads() == 3
    assert json.loads((run_dir / "metadata.json").read_text())["threads"] == note.found[0]
    assert open_checkpoint(run_dir)[0].info["threads"] == note.found[0]
    return note.found


def used(config: TrainConfig, saved: int | None = None) -> int:
    with threads(config, saved):
        inside = torch.get_num_threads()
    assert torch.get_num_threads() == 3
    return inside


@pytest.mark.parametrize(
    ("batch", "observed", "widths", "expected"),
    [
        (6, 2, [1000, 1000], 1),  # exactly 6,000,000
        (7, 2, [1000, 1000], 3),
        (60_000, 2, [10, 10], 1),  # the same, of 60,000 * 100
        (60_001, 2, [10, 10], 3),  # 6,000,100
        (128, 2, [216, 216], 1),  # 128 * 46,656 = 5,971,968
        (128, 2, [217, 217], 3),  # 128 * 47,089 = 6,027,392
        (128, 2, [64, 217, 64], 1),  # 128 * 64 * 217 = 1,777,664
        (128, 2, [64, 732, 64], 1),  # 128 * 64 * 732 = 5,996,544
        (128, 2, [64, 733, 64], 3),  # 128 * 64 * 733 = 6,004,736
        (6, 10_000, [100], 1),  # the first layer: 6 * 10,000 * 100
        (6, 10_000, [101], 3),
        (64, 2, [], 1),
    ],
)
def test_auto_takes_one_thread_up_to_a_work_and_torchs_number_beyond(
    batch: int, observed: int, widths: list[int], expected: int, tmp_path: Path
) -> None:
    assert ONE_THREAD_WORK == 6_000_000
    config = config_of(batch, widths, env_kwargs={"width": observed})
    assert found(config, tmp_path) == (expected, expected == 1)


def test_the_work_of_an_actor_and_its_critic_is_that_of_their_largest_layer(tmp_path: Path) -> None:
    for batch, expected in ((24, 1), (25, 3)):  # times 250,000
        kwargs = {"batch_size": batch, "hidden_sizes": [500, 500], "num_steps": 50}
        config = tiny_config("ppo", tmp_path, algo_kwargs=kwargs, total_timesteps=1)
        assert found(config, tmp_path) == (expected, expected == 1)


@pytest.mark.parametrize(("batch", "expected"), [(12, 1), (13, 3)])
def test_the_work_of_a_convolution_counts_the_places_of_its_filters(
    batch: int, expected: int, tmp_path: Path
) -> None:
    # On images of 40 x 40 the first has 3 * 32 * 8 * 8 weights at 9 * 9 places: 497,664.
    kwargs = {"batch_size": batch, "encoder": "nature", "learning_starts": 20}
    config = tiny_config(
        "drq", tmp_path, algo_kwargs=kwargs, env_kwargs={"size": 40}, total_timesteps=1
    )
    assert found(config, tmp_path)[0] == expected


def one_layer(env_spec: Any, hyper: Any) -> nn.Module:
    return nn.Linear(2, 2)


def test_auto_leaves_a_network_of_the_users_own_torchs_number(tmp_path: Path) -> None:
    config = config_of(64, [64], algo_kwargs={"network": one_layer})
    assert found(config, tmp_path) == (3, False)
    assert found(config.with_changes(threads=1), tmp_path) == (1, False)


def test_a_large_network_learns_on_arrays_where_torch_has_one_thread(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    note = Note()
    train(config_of(7, [1000, 1000], output_dir=str(tmp_path)), callbacks=[note])
    assert note.found == (1, True)


@pytest.mark.parametrize("widths", [[64], [1000, 1000]])
@pytest.mark.parametrize("wanted", [1, 2, 5])
def test_a_number_that_is_given_is_taken_and_recorded_whatever_the_network(
    wanted: int, widths: list[int], tmp_path: Path
) -> None:
    assert found(config_of(7, widths, threads=wanted), tmp_path) == (wanted, wanted == 1)


def test_a_number_is_taken_as_it_is_and_auto_keeps_a_saved_one() -> None:
    config = config_of(64, [64])
    assert used(config.with_changes(threads=2)) == 2
    assert used(config.with_changes(threads=2), saved=5) == 2
    assert used(config, saved=2) == 2
    assert used(config, saved=1) == 1
    assert used(config) == 1


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
    entries = json.loads((run_dir / "metadata.json").read_text())["resumed_from"]
    assert [entry.pop("verification")["verdict"] for entry in entries] == ["verified"] * 2
    assert entries == [
        {"checkpoint": "step_000000000060", "exact": True},
        {
            "checkpoint": "step_000000000120",
            "exact": False,
            "changed": {"threads": {"from": 2, "to": 1}},
        },
    ]


def test_a_resumed_run_keeps_one_thread_for_what_would_now_get_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, note = tiny_config("dqn", tmp_path), Note()
    with pytest.raises(TrainingInterrupted) as stopped:
        train(config, callbacks=[StopAt(60)])
    monkeypatch.setattr("rl_training.runtime.execution.ONE_THREAD_WORK", 1)
    train(config, resume=stopped.value.result.run_dir, callbacks=[note])
    assert note.found == (1, True)


def test_a_resume_on_another_device_is_not_exact(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path, total_timesteps=40, threads=2)
    run_dir = train(config).run_dir
    checkpoint = open_checkpoint(run_dir)[0]
    assert checkpoint.info["device"] == "cpu"
    session = json.loads((run_dir / "metadata.json").read_text())
    run: Any = SimpleNamespace(config=config, versions=checkpoint.info["versions"], level="exact")
    assert resume_entry(checkpoint, run, session) == {
        "checkpoint": "step_000000000040",
        "exact": True,
    }
    moved = resume_entry(checkpoint, run, session | {"device": "cuda:0", "threads": 4})
    assert moved == {
        "checkpoint": "step_000000000040",
        "exact": False,
        "changed": {"device": {"from": "cpu", "to": "cuda:0"}, "threads": {"from": 2, "to": 4}},
    }


def test_a_checkpoint_that_says_nothing_of_threads_is_judged_by_what_it_says(
    tmp_path: Path,
) -> None:
    config = tiny_config("dqn", tmp_path, total_timesteps=40)
    checkpoint = open_checkpoint(train(config).run_dir)[0]
    unsaid = ("threads", "device", "execution", "versions")
    silent = {key: value for key, value in checkpoint.info.items() if key not in unsaid}
    session = {"device": "cpu", "threads": 7, "execution": "eager"}
    run: Any = SimpleNamespace(config=config, versions=checkpoint.info["versions"], level="exact")
    entry = resume_entry(replace(checkpoint, info=silent), run, session)
    assert entry == {"checkpoint": "step_000000000040", "exact": True}
