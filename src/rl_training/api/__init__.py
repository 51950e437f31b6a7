"""The managed classes: `from rl_training.api import DQN`."""

from rl_training.api.algorithms import DQN, PPO
from rl_training.api.managed import ManagedAlgorithm

__all__ = ["DQN", "PPO", "ManagedAlgorithm"]
