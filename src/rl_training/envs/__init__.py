"""Environments; importing this registers those of the package with Gymnasium."""

from rl_training.envs import peg_solitaire, point_pixels
from rl_training.exports import lazy

__all__, __getattr__, __dir__ = lazy(__name__)

point_pixels.register()
peg_solitaire.register()
