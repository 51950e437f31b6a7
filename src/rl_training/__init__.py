"""Reinforcement-learning training that is right, fast, proven and safe to leave running.

from rl_training import DQN

agent = DQN.from_config("dqn/cartpole", seed=1)
agent.learn(progress=True)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_training.api.algorithms import (
        C51,
        DQN,
        DRQN,
        PPO,
        QRDQN,
        REDQ,
        SAC,
        TQC,
        DrQ,
        DrQv2,
        RecurrentPPO,
    )
    from rl_training.errors import RLTrainingError
    from rl_training.experiment.config import TrainConfig
    from rl_training.experiment.manager import ExperimentManager
    from rl_training.runtime.callbacks import Callback, StopOnReturn
    from rl_training.runtime.dqn_trainer import train_dqn
    from rl_training.runtime.drq_trainer import train_drq
    from rl_training.runtime.drqn_trainer import train_drqn
    from rl_training.runtime.drqv2_trainer import train_drqv2
    from rl_training.runtime.ppo_trainer import train_ppo
    from rl_training.runtime.q_bias import QBias
    from rl_training.runtime.recurrent_ppo_trainer import train_recurrent_ppo
    from rl_training.runtime.redq_trainer import train_redq
    from rl_training.runtime.result import TrainingInterrupted, TrainResult
    from rl_training.runtime.sac_trainer import train_sac
    from rl_training.runtime.tqc_trainer import train_tqc

__version__ = "0.1.0"

__all__ = [
    "C51",
    "DQN",
    "DRQN",
    "PPO",
    "QRDQN",
    "REDQ",
    "SAC",
    "TQC",
    "Callback",
    "DrQ",
    "DrQv2",
    "ExperimentManager",
    "QBias",
    "RLTrainingError",
    "RecurrentPPO",
    "StopOnReturn",
    "TrainConfig",
    "TrainResult",
    "TrainingInterrupted",
    "train_dqn",
    "train_drq",
    "train_drqn",
    "train_drqv2",
    "train_ppo",
    "train_recurrent_ppo",
    "train_redq",
    "train_sac",
    "train_tqc",
]

# Loaded on first use, so that `rl-training --help` does not wait for torch.
_HOMES = {
    "C51": "api.algorithms",
    "DQN": "api.algorithms",
    "DRQN": "api.algorithms",
    "PPO": "api.algorithms",
    "QRDQN": "api.algorithms",
    "DrQ": "api.algorithms",
    "DrQv2": "api.algorithms",
    "REDQ": "api.algorithms",
    "SAC": "api.algorithms",
    "TQC": "api.algorithms",
    "Callback": "runtime.callbacks",
    "ExperimentManager": "experiment.manager",
    "RLTrainingError": "errors",
    "RecurrentPPO": "api.algorithms",
    "QBias": "runtime.q_bias",
    "StopOnReturn": "runtime.callbacks",
    "TrainConfig": "experiment.config",
    "TrainResult": "runtime.result",
    "TrainingInterrupted": "runtime.result",
    "train_dqn": "runtime.dqn_trainer",
    "train_drq": "runtime.drq_trainer",
    "train_drqn": "runtime.drqn_trainer",
    "train_drqv2": "runtime.drqv2_trainer",
    "train_ppo": "runtime.ppo_trainer",
    "train_recurrent_ppo": "runtime.recurrent_ppo_trainer",
    "train_redq": "runtime.redq_trainer",
    "train_sac": "runtime.sac_trainer",
    "train_tqc": "runtime.tqc_trainer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
