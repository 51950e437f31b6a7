"""How many CPU threads the tensor and array libraries use while a configuration is at work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits

from rl_training.experiment.config import TrainConfig

ONE_THREAD_WIDTH = 256  # up to this layer width a second thread costs more than it gives


@contextmanager
def threads(config: TrainConfig) -> Iterator[None]:
    """Context with the threads of a complete configuration; the numbers before are put back."""
    before = torch.get_num_threads()
    wanted = config.threads
    if wanted == "auto":
        narrow = max(config.algo_kwargs["hidden_sizes"], default=1) <= ONE_THREAD_WIDTH
        wanted = 1 if narrow else before
    torch.set_num_threads(wanted)
    try:
        with threadpool_limits(wanted, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)
