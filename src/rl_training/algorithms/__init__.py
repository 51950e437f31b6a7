"""Update classes, configurations and losses: `from rl_training.algorithms import DQN`."""

from rl_training.exports import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
