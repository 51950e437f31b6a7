"""How many CPU threads the tensor library uses while a configuration is at work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rl_training.experiment.config import TrainConfig

ONE_THREAD_WIDTH = 256  # up to this layer width a second thread costs more than it gives


@contextmanager
def threads(config: TrainConfig) -> Iterator[None]:
    """Context with the threads of a complete configuration; the number before is put back."""
    before = torch.get_num_threads()
    if config.threads != "auto":
        torch.set_num_threads(config.threads)
    elif max(config.algo_kwargs["hidden_sizes"], default=1) <= ONE_THREAD_WIDTH:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
