"""Networks of images: `from rl_training.models.cnn import NatureCNN`."""

from rl_training.exports import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
