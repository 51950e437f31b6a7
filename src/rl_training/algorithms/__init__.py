"""The update classes: `from rl_training.algorithms import DQN`."""

from rl_training.algorithms.base import UpdateResult
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.ppo import PPO

__all__ = ["DQN", "PPO", "UpdateResult"]
