"""`train_redq` writes what it promises: many updates per step, the actor once in so many."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rl_training import REDQ
from rl_training.errors import ConfigError
from rl_training.experiment.registry import resolve_config
from rl_training.runtime.redq_trainer import train_redq
from rl_training.storage.checkpoints import find_checkpoint
from rl_training.storage.metrics_log import read_metrics
from training import tiny_config


def test_train_redq_writes_checkpoint_and_metrics(tmp_path: Path) -> None:
    result = train_redq(tiny_config("redq", tmp_path))
    summary = json.loads((result.run_dir / "summary.json").read_text())
    assert (summary["algo"], summary["status"]) == ("redq", "finished")
    assert summary["updates"] == result.updates == 2 * (240 - 60)
    rows = read_metrics(result.run_dir / "metrics.jsonl")
    assert [row["global_step"] for row in rows if "train/critic_loss" in row] == [100, 150, 200]
    assert [row["global_step"] for row in rows if "eval/return_mean" in row] == [0, 100, 200, 240]
    assert REDQ.load(result.run_dir).evaluate(3).returns == result.eval_returns


@pytest.mark.parametrize(
    ("options", "actor_steps"),
    [({}, 180), ({"policy_delay": 1}, 360), ({"policy_delay": 7}, 51), ({"replay_ratio": 3}, 180)],
)
def test_the_actor_and_alpha_step_once_in_policy_delay_updates(
    options: dict[str, Any], actor_steps: int, tmp_path: Path
) -> None:
    result = train_redq(tiny_config("redq", tmp_path, algo_kwargs=options))
    algorithm = find_checkpoint(result.run_dir).read("agent")["algorithm"]
    assert int(algorithm["critic_optimizer"]["steps"]) == result.updates
    assert int(algorithm["actor_optimizer"]["steps"]) == actor_steps
    assert int(algorithm["temperature"]["optimizer"]["steps"]) == actor_steps


def test_the_packaged_settings_are_the_papers() -> None:
    hyper = resolve_config("redq/hopper").hyper
    assert (hyper.num_critics, hyper.subset_size, hyper.replay_ratio) == (10, 2, 20)
    assert (hyper.effective_policy_delay, hyper.learning_starts) == (20, 5_000)
    assert hyper.target_entropy == -1
    assert (hyper.learning_rate, hyper.tau, hyper.batch_size) == (3e-4, 0.005, 256)


def test_a_subset_larger_than_the_ensemble_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="subset_size must be at most num_critics, 4; found 5"):
        train_redq(tiny_config("redq", tmp_path, algo_kwargs={"subset_size": 5}))
