"""Environments; importing this tells Gymnasium of the package's own (`rl_training.envs:ID`)."""

from rl_training.envs.registration import register

register()
