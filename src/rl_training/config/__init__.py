"""Typed configurations: `from rl_training.config import TrainConfig, Schedule`; no torch."""

from rl_training.exports import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
