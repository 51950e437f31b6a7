"""`train_drqv2` writes what it promises."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from rl_training import DrQv2
from rl_training.experiment.registry import resolve_config
from rl_training.runtime.drqv2_trainer import train_drqv2
from rl_training.storage.checkpoints import find_checkpoint
from rl_training.storage.metrics_log import read_metrics
from training import tiny_config


def test_train_drqv2_writes_checkpoint_and_metrics(tmp_path: Path) -> None:
    schedule = {"initial": 1.0, "final": 0.2, "fraction": 0.5}
    result = train_drqv2(tiny_config("drqv2", tmp_path, algo_kwargs={"noise": schedule}))
    summary = json.loads((result.run_dir / "summary.json").read_text())
    assert (summary["algo"], summary["status"]) == ("drqv2", "finished")
    assert summary["updates"] == result.updates == (140 - 20) // 2
    rows = read_metrics(result.run_dir / "metrics.jsonl")
    logged = [row for row in rows if "train/critic_loss" in row]
    assert [row["global_step"] for row in logged] == [50, 100]
    names = ("critic_loss", "q_value_mean", "target_q_mean", "actor_loss")
    assert all(math.isfinite(row[f"train/{name}"]) for row in logged for name in names)
    noise = [row["train/noise"] for row in logged]
    assert noise == pytest.approx([1 - 0.8 * 50 / 70, 0.2], abs=0.02)
    algorithm = find_checkpoint(result.run_dir).read("agent")["algorithm"]
    for name in ("encoder", "actor", "critic"):
        assert int(algorithm[f"{name}_optimizer"]["steps"]) == result.updates
    assert DrQv2.load(result.run_dir).evaluate(3).returns == result.eval_returns


def test_the_defaults_are_the_papers() -> None:
    hyper = resolve_config({"algo": "drqv2", "env_id": "PointPixels-v0"}).hyper
    assert (hyper.n_step, hyper.replay_ratio, hyper.batch_size, hyper.tau) == (3, 0.5, 256, 0.01)
    assert (hyper.learning_rate, hyper.noise_clip, hyper.pad) == (1e-4, 0.3, 4)
    assert (hyper.noise.initial, hyper.noise.final, hyper.learning_starts) == (1.0, 0.1, 2_000)
    assert (hyper.hidden_sizes, hyper.feature_size, hyper.encoder) == ((1024, 1024), 50, "drq")
