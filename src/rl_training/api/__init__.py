"""The managed classes: `from rl_training.api import DQN`."""

from rl_training.api.algorithms import C51, DQN, DRQN, PPO, QRDQN, RecurrentPPO
from rl_training.api.managed import ManagedAlgorithm

__all__ = ["C51", "DQN", "DRQN", "PPO", "QRDQN", "ManagedAlgorithm", "RecurrentPPO"]
