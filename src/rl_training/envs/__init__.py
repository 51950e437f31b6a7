"""Environments; importing this registers the `PointPixels` tasks with Gymnasium."""

from rl_training.envs.point_pixels import register
from rl_training.exports import lazy

__all__, __getattr__, __dir__ = lazy(__name__)

register()
