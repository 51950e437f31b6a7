"""Recurrent networks: `from rl_training.models.recurrent import LSTMQNetwork`."""

from rl_training.exports import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
