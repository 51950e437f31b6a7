"""Small, fast runs that several test modules use."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training.config.train_config import TrainConfig
from rl_training.experiment.registry import get_spec, train_config
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.spec_table import packaged_specs
from rl_training.runtime.training_run import TrainingRun
from rl_training.testing import StopAt, final_state, short_config
from toy_envs import RecallEnv

__all__ = ["ALGORITHMS", "StopAt", "final_state", "tiny_config"]

ALGORITHMS = sorted(packaged_specs())

# The value-based algorithms, and the options each of them has.
FAMILY = ("dqn", "qr_dqn", "c51")
OPTIONS: dict[str, Any] = {
    "double": True,
    "dueling": True,
    "n_step": 3,
    "prioritized": True,
    "layer_norm": True,
}

VALUE_BASED: dict[str, Any] = {
    "hidden_sizes": [16],
    "batch_size": 16,
    "learning_starts": 20,
    "replay_ratio": 0.5,
    "target_update_interval": 25,
    "buffer_size": 150,
}
ATOMS = {"num_atoms": 11, "v_min": 0.0, "v_max": 20.0}

# Those whose losses have kernels, and those that can be compiled; others use torch's kernels for
# sequences or images.
WITH_KERNELS = {"dqn", "qr_dqn", "c51", "ppo", "sac", "tqc", "redq"}
COMPILED = WITH_KERNELS | {"drq", "td3"}
ONE_OF_EACH_FAMILY = ("dqn", "drqn", "sac", "drq", "ppo")

SOFT: dict[str, Any] = {
    "hidden_sizes": [16],
    "batch_size": 16,
    "learning_starts": 20,
    "replay_ratio": 0.5,
    "buffer_size": 150,
}

# A gradient step through convolutions takes ten times as long as one of the others.
PIXELS: dict[str, Any] = {
    "env_id": "PointPixels-v0",
    "env_kwargs": {"size": 16},
    "total_timesteps": 140,
    "algo_kwargs": SOFT
    | {"hidden_sizes": [8], "feature_size": 6, "batch_size": 8, "buffer_size": 90},
}

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
    "td3": {"env_id": "Pendulum-v1", "algo_kwargs": SOFT},
    "drq": PIXELS,
    "drqv2": PIXELS,
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


class Crash(Callback):
    """Ends a run as a power cut would, with an error for which nothing more is saved."""

    def __init__(self, env_steps: int, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.env_steps, self.error = env_steps, error

    def on_step(self, run: TrainingRun) -> None:
        if run.env_steps >= self.env_steps:
            run.finish_saving()
            raise self.error


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


def compile_without_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let compiling trace the losses and their gradients alone: generating code takes long."""
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
    return short_config(get_spec(algo), TINY[algo], output_dir, **changes)


class KeepModel(Callback):
    """Holds on to the trained network."""

    def on_end(self, run: TrainingRun, result: Any) -> None:
        self.model = run.algorithm.networks()["model"]
