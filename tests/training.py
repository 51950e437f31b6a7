"""Small, fast runs that several test modules use."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training.experiment.checkpointing import find_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import resolve_config, train_config
from rl_training.experiment.state_tree import tree_hash
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.spec import all_specs
from rl_training.runtime.training_run import TrainingRun
from toy_envs import RecallEnv

ALGORITHMS = sorted(all_specs())

# The value-based algorithms, and the options each of them has.
FAMILY = ("dqn", "qr_dqn", "c51")
OPTIONS: dict[str, Any] = {"double": True, "dueling": True, "n_step": 3, "prioritized": True}

VALUE_BASED: dict[str, Any] = {
    "hidden_sizes": [16],
    "batch_size": 16,
    "learning_starts": 20,
    "replay_ratio": 0.5,
    "target_update_interval": 25,
    "buffer_size": 150,
}
ATOMS = {"num_atoms": 11, "v_min": 0.0, "v_max": 20.0}

# Those whose updates can compute on arrays, and those that can be compiled; others use torch's
# kernels for sequences or images.
ON_ARRAYS = {"dqn", "qr_dqn", "c51", "ppo", "sac", "tqc", "redq"}
COMPILED = ON_ARRAYS | {"drq"}

SOFT: dict[str, Any] = {
    "hidden_sizes": [16],
    "batch_size": 16,
    "learning_starts": 20,
    "replay_ratio": 0.5,
    "buffer_size": 150,
}

PIXELS: dict[str, Any] = SOFT | {"hidden_sizes": [8], "feature_size": 6, "batch_size": 8}

# An environment each algorithm can take, and settings that make it quick.
TINY: dict[str, dict[str, Any]] = {
    "dqn": {"env_id": "CartPole-v1", "algo_kwargs": VALUE_BASED},
    "qr_dqn": {"env_id": "CartPole-v1", "algo_kwargs": VALUE_BASED | {"num_quantiles": 7}},
    "c51": {"env_id": "CartPole-v1", "algo_kwargs": VALUE_BASED | ATOMS},
    "drqn": {
        "env_id": "CartPole-v1",
        "algo_kwargs": VALUE_BASED
        | {"core_size": 8, "sequence_length": 6, "burn_in": 3, "overlap": 1, "learning_starts": 48},
    },
    "sac": {"env_id": "Pendulum-v1", "algo_kwargs": SOFT},
    "tqc": {
        "env_id": "Pendulum-v1",
        "algo_kwargs": SOFT | {"num_critics": 3, "num_quantiles": 5, "critic_hidden_sizes": [12]},
    },
    "redq": {
        "env_id": "Pendulum-v1",
        "algo_kwargs": SOFT | {"num_critics": 4, "replay_ratio": 2, "learning_starts": 60},
    },
    "drq": {"env_id": "PointPixels-v0", "env_kwargs": {"size": 16}, "algo_kwargs": PIXELS},
    "drqv2": {"env_id": "PointPixels-v0", "env_kwargs": {"size": 16}, "algo_kwargs": PIXELS},
    "ppo": {
        "env_id": "CartPole-v1",
        "normalize_observations": True,
        "normalize_rewards": True,
        "algo_kwargs": {"hidden_sizes": [16], "num_steps": 10, "batch_size": 8, "epochs": 2},
    },
    "recurrent_ppo": {
        "env_id": "CartPole-v1",
        "normalize_observations": True,
        "algo_kwargs": {
            "hidden_sizes": [16],
            "core_size": 8,
            "num_steps": 10,
            "batch_size": 8,
            "sequence_length": 4,
            "epochs": 2,
        },
    },
}


def recalled(algo: str, output_dir: Path, *, hyper: dict[str, Any], **settings: Any) -> float:
    """Mean return on a task that needs a memory, of the final policy; a coin would have 0.5."""
    config = TrainConfig(
        algo=algo,
        env_id=RecallEnv,
        output_dir=str(output_dir),
        eval_interval=0,
        final_eval_episodes=200,
        algo_kwargs={"hidden_sizes": [16], "learning_rate": 1e-2, "gamma": 0.9, **hyper},
        **settings,
    )
    mean = train_config(config).eval_return_mean
    assert mean is not None
    return mean


def compile_without_code(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace but generate no code, which takes most of the time, for all but one of each family."""
    if algo not in ("dqn", "ppo", "sac"):
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))


def updates_due(config: TrainConfig, env_steps: int) -> int:
    """The updates a run of so many transitions owes, counted from the configuration alone."""
    hyper = config.algo_kwargs
    if "replay_ratio" in hyper:
        return int(hyper["replay_ratio"] * (env_steps - hyper["learning_starts"]))
    rollout = hyper["num_steps"] * config.num_envs
    return env_steps // rollout * hyper["epochs"] * -(-rollout // hyper["batch_size"])


def tiny_config(algo: str, output_dir: Path, **changes: Any) -> TrainConfig:
    """A run of 240 steps: long enough to wrap the buffer, sync targets and end episodes."""
    tiny = TINY[algo]
    values: dict[str, Any] = {
        "algo": algo,
        "seed": 3,
        "output_dir": str(output_dir),
        "total_timesteps": 240,
        "eval_interval": 100,
        "eval_episodes": 2,
        "final_eval_episodes": 3,
        "log_interval": 50,
        **{key: value for key, value in tiny.items() if key != "algo_kwargs"},
        "algo_kwargs": tiny["algo_kwargs"] | changes.pop("algo_kwargs", {}),
    }
    return resolve_config(TrainConfig(**(values | changes))).config


class StopAt(Callback):
    """Ends a run as a signal would, at the first boundary at or after a step."""

    def __init__(self, env_steps: int, signal_number: int = 15) -> None:
        self.env_steps = env_steps
        self.signal_number = signal_number

    def on_step(self, run: TrainingRun) -> None:
        if run.env_steps >= self.env_steps:
            run.interrupts.received = self.signal_number


class KeepModel(Callback):
    """Holds on to the trained network."""

    def on_end(self, run: TrainingRun, result: Any) -> None:
        self.model = run.algorithm.networks()["model"]


def final_state(run_dir: Path) -> dict[str, str]:
    """Hashes of everything a run ended with, except clocks and log positions."""
    checkpoint = find_checkpoint(run_dir)
    loop = checkpoint.read("loop")
    kept = {k: v for k, v in loop.items() if k not in ("elapsed", "metrics_log")}
    return {
        "agent": tree_hash(checkpoint.read("agent")),
        "replay": tree_hash(checkpoint.read("replay")),
        "loop": tree_hash(kept),
    }
