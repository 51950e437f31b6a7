"""`python -m rl_training` is `rl-training`."""

from rl_training.cli import main

main()
