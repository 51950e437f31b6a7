"""`train_ppo` learns what it should, in every kind of space, and resumes exactly."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rl_training import TrainConfig
from rl_training.experiment.registry import train_config
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.result import TrainingInterrupted
from rl_training.storage.metrics_log import read_metrics
from toy_envs import ChainEnv, TimedChain
from training import KeepModel, StopAt, final_state, tiny_config

GAMMA = 0.8


def chain_config(env: Any, num_envs: int, tmp_path: Path) -> TrainConfig:
    return TrainConfig(
        algo="ppo",
        env_id=env,
        num_envs=num_envs,
        output_dir=tmp_path,
        total_timesteps=3_000,
        eval_interval=0,
        final_eval_episodes=0,
        algo_kwargs={
            "gamma": GAMMA,
            "hidden_sizes": [32],
            "learning_rate": {"initial": 1e-2, "final": 1e-3},
            # 30 is no multiple of 4: rollouts end within episodes.
            "num_steps": 30 // num_envs,
            "batch_size": 30,
            "epochs": 8,
            "max_grad_norm": None,
        },
    )


def value_model(env: Any, num_envs: int, tmp_path: Path) -> Any:
    keep = KeepModel()
    train_ppo(chain_config(env, num_envs, tmp_path), callbacks=[keep])
    return keep.model


@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_time_limit_that_truncates_bootstraps(num_envs: int, tmp_path: Path) -> None:
    model = value_model(partial(ChainEnv, 4, "truncation"), num_envs, tmp_path)
    value = model.value(torch.ones(1, 1)).item()
    assert value == pytest.approx(1 / (1 - GAMMA), abs=0.15)  # 5, not the finite sum 2.952


def test_it_bootstraps_also_where_resets_take_a_step_of_their_own(tmp_path: Path) -> None:
    makers = [partial(ChainEnv, 4, "truncation")] * 3
    venv = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP)
    value = value_model(venv, 3, tmp_path).value(torch.ones(1, 1)).item()
    venv.close()
    assert value == pytest.approx(1 / (1 - GAMMA), abs=0.15)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_limit_that_terminates_ends_the_sum(num_envs: int, tmp_path: Path) -> None:
    model = value_model(partial(TimedChain, 4), num_envs, tmp_path)
    values = model.value(torch.eye(5)[:4]).detach()
    # One step before the end 1, then 1 + 0.8, 1 + 0.8 + 0.64, and 2.952 at the start.
    expected = [sum(GAMMA**k for k in range(left)) for left in (4, 3, 2, 1)]
    np.testing.assert_allclose(values.numpy(), expected, atol=0.15)


class Target(gym.Env[np.ndarray, np.ndarray]):
    """Rewards an action near 0.7 in env scale, in a box from -2 to 2."""

    def __init__(self) -> None:
        self.observation_space = Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = Box(-2.0, 2.0, (1,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        return np.zeros(1, np.float32), -float(np.abs(action[0] - 0.7)), True, False, {}


def tiny(tmp_path: Path, **changes: Any) -> TrainConfig:
    """A run of 240 steps with rollouts of 40 transitions."""
    values: dict[str, Any] = {
        "algo": "ppo",
        "env_id": "CartPole-v1",
        "num_envs": 2,
        "seed": 3,
        "output_dir": tmp_path,
        "total_timesteps": 240,
        "eval_interval": 100,
        "eval_episodes": 2,
        "final_eval_episodes": 3,
        "log_interval": 50,
        "normalize_observations": True,
        "normalize_rewards": True,
        "algo_kwargs": {"num_steps": 20, "batch_size": 16, "epochs": 2, "hidden_sizes": [16]},
    }
    values["algo_kwargs"] |= changes.pop("algo_kwargs", {})
    return TrainConfig(**(values | changes))


def test_a_continuous_action_is_learned_in_the_scale_of_the_environment(tmp_path: Path) -> None:
    config = tiny(
        tmp_path,
        env_id=Target,
        total_timesteps=4_000,
        eval_interval=0,
        normalize_observations=False,
        normalize_rewards=False,
        algo_kwargs={"learning_rate": 1e-2, "num_steps": 50, "batch_size": 50, "epochs": 5},
    )
    result = train_ppo(config)
    assert result.eval_return_mean == pytest.approx(0.0, abs=0.2)  # -0.7 to begin with


def test_train_ppo_counts_updates_and_logs_its_metrics(tmp_path: Path) -> None:
    result = train_ppo(tiny(tmp_path))
    # 6 rollouts of 40 rows: 3 minibatches in each of 2 epochs.
    assert result.updates == 6 * 3 * 2
    assert result.global_step == 240
    rows = [r for r in read_metrics(result.run_dir / "metrics.jsonl") if "train/loss" in r]
    names = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
    for row in rows:
        for name in (*names, "explained_variance"):
            assert np.isfinite(row[f"train/{name}"])
    assert [row["global_step"] for row in rows] == [50, 100, 150, 200]


@pytest.mark.parametrize("cut", [14, 80, 130, 222])
def test_stopped_and_resumed_equals_never_stopped(cut: int, tmp_path: Path) -> None:
    """In the middle of the first and of later rollouts, and between two (80)."""
    config = tiny(tmp_path)
    straight = final_state(train_ppo(config).run_dir)
    with pytest.raises(TrainingInterrupted) as interruption:
        train_ppo(config, callbacks=[StopAt(cut)])
    run_dir = interruption.value.result.run_dir
    assert interruption.value.result.global_step == cut
    train_ppo(config, resume=run_dir)
    assert final_state(run_dir) == straight


def make_next_step() -> SyncVectorEnv:
    makers = [partial(ChainEnv, 3, "termination"), partial(ChainEnv, 5, "truncation")]
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP)


@pytest.mark.parametrize("algo", ["ppo", "recurrent_ppo"])
@pytest.mark.parametrize("env", ["Pendulum-v1", make_next_step])
def test_resume_is_exact_with_continuous_actions_and_with_resets_of_their_own(
    env: Any, algo: str, tmp_path: Path
) -> None:
    evaluated = {} if isinstance(env, str) else {"eval_interval": 0, "final_eval_episodes": 0}
    config = tiny_config(algo, tmp_path, env_id=env, num_envs=2, **evaluated)
    straight = final_state(train_config(config).run_dir)
    with pytest.raises(TrainingInterrupted) as interruption:
        train_config(config, callbacks=[StopAt(105)])
    run_dir = interruption.value.result.run_dir
    train_config(config, resume=run_dir)
    assert final_state(run_dir) == straight


def test_without_its_generators_a_resumed_run_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: the comparison above can fail."""
    from rl_training.data.generators import NumpyGenerator

    config = tiny(tmp_path)
    straight = final_state(train_ppo(config).run_dir)
    with pytest.raises(TrainingInterrupted) as interruption:
        train_ppo(config, callbacks=[StopAt(100)])
    run_dir = interruption.value.result.run_dir
    monkeypatch.setattr(NumpyGenerator, "load_state_dict", lambda self, state: None)
    train_ppo(config, resume=run_dir)
    assert final_state(run_dir)["agent"] != straight["agent"]


def test_a_rollout_of_one_step_is_enough(tmp_path: Path) -> None:
    config = tiny(
        tmp_path,
        num_envs=1,
        total_timesteps=20,
        eval_interval=0,
        final_eval_episodes=0,
        algo_kwargs={"num_steps": 1},
    )
    assert train_ppo(config).updates == 20 * 2


def test_a_fresh_process_evaluates_with_the_saved_statistics_episode_by_episode(
    tmp_path: Path,
) -> None:
    config = TrainConfig(
        algo="ppo",
        env_id="Pendulum-v1",
        output_dir=tmp_path,
        total_timesteps=400,
        eval_interval=0,
        final_eval_episodes=4,
        normalize_observations=True,
        normalize_rewards=True,
        algo_kwargs={"hidden_sizes": [16], "num_steps": 50, "batch_size": 25},
    )
    result = train_ppo(config)
    command = ["eval", "--checkpoint", str(result.run_dir), "--episodes", "4", "--json"]
    answer = subprocess.run(
        [sys.executable, "-m", "rl_training", *command], capture_output=True, text=True, check=True
    )
    assert json.loads(answer.stdout)["returns"] == list(result.eval_returns)
    assert len(set(result.eval_returns)) == 4
