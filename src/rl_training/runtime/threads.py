"""How many CPU threads a configuration is worked on with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits

from rl_training.experiment.config import TrainConfig

ONE_THREAD_WORK = 6_000_000
"""Multiplications in a layer's product up to which a second thread costs more than it gives."""


@contextmanager
def threads(config: TrainConfig, saved: int | None = None) -> Iterator[None]:
    """Context with the threads of a complete configuration; the number before is put back.

    They are torch's; NumPy's products take one, for two pools would wait for each other. `saved`
    is the number that a run to be resumed had: `auto` keeps it, so that the numbers come out equal.
    """
    before = torch.get_num_threads()
    wanted = config.threads
    if wanted == "auto":
        wanted = saved or (1 if _work(config) <= ONE_THREAD_WORK else before)
    torch.set_num_threads(wanted)
    try:
        with threadpool_limits(1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


def _work(config: TrainConfig) -> int:
    widest = max(config.algo_kwargs["hidden_sizes"], default=1)
    batch: int = config.algo_kwargs["batch_size"]
    return batch * widest**2
