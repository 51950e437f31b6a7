"""Replay and rollout buffers and their batches: `from rl_training.data import ReplayBuffer`."""

from rl_training.exports import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
