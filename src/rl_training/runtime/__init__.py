"""What runs: `from rl_training.runtime import Collector, Evaluator`."""

from rl_training.exports import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
