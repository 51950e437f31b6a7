"""The managed classes: `from rl_training.api import DQN`."""

from rl_training.exports import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
