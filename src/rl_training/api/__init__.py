"""The managed classes: `from rl_training.api import DQN`."""

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
from rl_training.api.managed import ManagedAlgorithm

__all__ = [
    "C51",
    "DQN",
    "DRQN",
    "PPO",
    "QRDQN",
    "REDQ",
    "SAC",
    "TQC",
    "DrQ",
    "DrQv2",
    "ManagedAlgorithm",
    "RecurrentPPO",
]
