"""Networks: `from rl_training.models import MLPQNetwork`."""

from rl_training.exports import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
