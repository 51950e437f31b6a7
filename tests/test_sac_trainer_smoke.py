"""`train_sac` and its relatives write what they promise, on Pendulum and on MuJoCo."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training import SAC, TQC
from rl_training.config.train_config import TrainConfig
from rl_training.errors import ConfigError, IncompatibleEnv
from rl_training.experiment.registry import get_spec, train_config
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.compatibility import check_spaces
from rl_training.runtime.result import TrainingInterrupted
from rl_training.runtime.sac_trainer import train_sac
from rl_training.runtime.tqc_trainer import train_tqc
from rl_training.runtime.training_run import TrainingRun
from rl_training.storage.checkpoints import find_checkpoint
from rl_training.storage.metrics_log import read_metrics
from rl_training.storage.tree import tree_hash
from training import StopAt, final_state, tiny_config

METRICS = ("critic_loss", "q_value_mean", "target_q_mean", "actor_loss", "entropy", "alpha")


@pytest.mark.parametrize(
    ("algo", "train", "kind"), [("sac", train_sac, SAC), ("tqc", train_tqc, TQC)]
)
def test_training_writes_checkpoint_and_metrics(
    algo: str, train: Any, kind: Any, tmp_path: Path
) -> None:
    result = train(tiny_config(algo, tmp_path))
    names = {path.name.split(".")[0] for path in result.run_dir.iterdir()}
    assert names >= {"config", "metadata", "metrics", "checkpoints", "summary", "events"}
    summary = json.loads((result.run_dir / "summary.json").read_text())
    assert (summary["algo"], summary["status"]) == (algo, "finished")
    assert summary["global_step"] == result.global_step == 240
    assert summary["updates"] == result.updates == (240 - 20) // 2
    rows = read_metrics(result.run_dir / "metrics.jsonl")
    logged = [row for row in rows if "train/critic_loss" in row]
    assert [row["global_step"] for row in logged] == [50, 100, 150, 200]
    wanted = (*METRICS, "learning_rate")
    assert all(math.isfinite(row[f"train/{name}"]) for row in logged for name in wanted)
    # Rewards on Pendulum are negative; of actions on [-1, 1] uniform ones have the most entropy.
    assert logged[-1]["train/target_q_mean"] < 0
    assert all(row["train/entropy"] < math.log(2) for row in logged)
    assert 0.9 < logged[-1]["train/alpha"] < 1
    assert find_checkpoint(result.run_dir).info["resume_level"] == "exact"
    assert kind.load(result.run_dir).evaluate(3).returns == result.eval_returns


@pytest.mark.extra("mujoco")
@pytest.mark.parametrize("algo", ["sac", "tqc", "redq"])
def test_stopped_and_resumed_equals_never_stopped_on_mujoco(algo: str, tmp_path: Path) -> None:
    """Episodes of InvertedPendulum end by themselves after a few steps, within a cut or not."""
    config = tiny_config(algo, tmp_path, env_id="InvertedPendulum-v5", num_envs=2)
    straight = train_config(config)
    assert find_checkpoint(straight.run_dir).info["resume_level"] == "exact"
    for cut in (41, 190):
        with pytest.raises(TrainingInterrupted) as interruption:
            train_config(config, callbacks=[StopAt(cut)])
        run_dir = interruption.value.result.run_dir
        train_config(config, resume=run_dir)
        assert final_state(run_dir) == final_state(straight.run_dir), f"cut at {cut}"


@pytest.mark.parametrize("options", [{"layer_norm": True, "dropout": 0.1}, {"alpha": 0.2}])
@pytest.mark.parametrize("algo", ["sac", "tqc", "redq"])
def test_with_options_too_a_resumed_run_equals_one_that_never_stopped(
    algo: str, options: dict[str, Any], tmp_path: Path
) -> None:
    config = tiny_config(algo, tmp_path, algo_kwargs=options)
    straight = train_config(config)
    with pytest.raises(TrainingInterrupted) as interruption:
        train_config(config, callbacks=[StopAt(211)])
    run_dir = interruption.value.result.run_dir
    train_config(config, resume=run_dir)
    assert final_state(run_dir) == final_state(straight.run_dir)
    if "alpha" in options:
        rows = read_metrics(run_dir / "metrics.jsonl")
        alphas = [row["train/alpha"] for row in rows if "train/alpha" in row]
        assert alphas == pytest.approx([0.2] * len(alphas))
        assert alphas


def test_warm_up_plays_uniform_actions_and_learns_nothing(tmp_path: Path) -> None:
    before: list[str] = []

    class Watch(Callback):
        def on_start(self, run: TrainingRun) -> None:
            before.append(tree_hash(run.algorithm.state_dict()["model"]))

    warm_up = {"learning_starts": 240, "buffer_size": 300}
    config = tiny_config("sac", tmp_path, algo_kwargs=warm_up)
    result = train_sac(config, callbacks=[Watch()])
    checkpoint = find_checkpoint(result.run_dir)
    assert result.updates == 0
    assert tree_hash(checkpoint.read("agent")["algorithm"]["model"]) == before[0]
    actions = checkpoint.read("replay")["finished"].whole()["arrays"]["action"].ravel()[:240]
    assert np.abs(actions).max() <= 1  # as the policy gives them; the adapter scales them to ±2
    # Uniform on [-1, 1]: mean 0 and variance 1/3, to four standard errors of 240 draws.
    assert abs(actions.mean()) < 4 / math.sqrt(3 * 240)
    assert abs((actions**2).mean() - 1 / 3) < 4 * math.sqrt(4 / 45 / 240)


def test_what_they_do_not_take_is_refused_before_a_run_begins(tmp_path: Path) -> None:
    with pytest.raises(
        IncompatibleEnv, match="sac takes bounded Box of floats actions; CartPole-v1 has Discrete"
    ):
        train_sac(TrainConfig(algo="sac", env_id="CartPole-v1", output_dir=tmp_path))
    wrong = {"alpha": "none", "dropout": 1.0, "subset_size": 2}
    with pytest.raises(ConfigError) as error:
        train_sac(tiny_config("sac", tmp_path, algo_kwargs=wrong))
    for key in wrong:
        assert f"algo_kwargs.{key}" in str(error.value)
    with pytest.raises(ConfigError, match="dropped_quantiles must be less than num_quantiles, 5"):
        train_tqc(tiny_config("tqc", tmp_path, algo_kwargs={"dropped_quantiles": 5}))
    unbounded = gym.spaces.Box(-np.inf, np.inf, (2,))
    for algo in ("sac", "tqc", "redq"):
        with pytest.raises(IncompatibleEnv, match=r"actions; odd has Box.*would work: ppo"):
            check_spaces(get_spec(algo), "odd", gym.spaces.Box(-1, 1, (3,)), unbounded)
    check_spaces(get_spec("ppo"), "odd", gym.spaces.Box(-1, 1, (3,)), unbounded)
    assert list(tmp_path.iterdir()) == []


class Steady(gym.Env[np.ndarray, np.ndarray]):
    """A reward of 1 at each step, in the only state; episodes end or are cut after five."""

    observation_space = gym.spaces.Box(-1, 1, (1,))
    action_space = gym.spaces.Box(-1, 1, (1,))

    def __init__(self, *, terminates: bool) -> None:
        self.terminates = terminates

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> Any:
        self.steps += 1
        over = self.steps == 5
        ends = over and self.terminates, over and not self.terminates
        return np.zeros(1, np.float32), 1.0, *ends, {}


@pytest.mark.parametrize(("terminates", "value"), [(False, 2.0), (True, 1 / 0.6)])
@pytest.mark.parametrize("algo", ["sac", "tqc", "redq"])
def test_a_cut_episode_bootstraps_and_one_that_ended_does_not(
    algo: str, terminates: bool, value: float, tmp_path: Path
) -> None:
    """Discounted by half, 1 for ever is worth 2; if every fifth step is the last, 1 / 0.6."""
    hyper = {"gamma": 0.5, "alpha": 0.0, "learning_rate": 0.01, "tau": 0.05, "replay_ratio": 2}
    if algo == "tqc":  # of errors within 1 a single quantile is the mean
        hyper |= {"num_quantiles": 1, "dropped_quantiles": 0}
    config = tiny_config(
        algo,
        tmp_path,
        env_id=partial(Steady, terminates=terminates),
        eval_interval=0,
        final_eval_episodes=0,
        algo_kwargs=hyper | {"batch_size": 128, "learning_starts": 60},
    )
    metrics = train_config(config).metrics
    assert metrics["train/q_value_mean"] == pytest.approx(value, abs=0.07)
