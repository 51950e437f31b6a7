"""How many CPU threads a configuration is worked on with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from threadpoolctl import threadpool_limits

from rl_training.algorithms.base import Algorithm
from rl_training.config.train_config import TrainConfig
from rl_training.models.cnn.encoders import Convolutions

ONE_THREAD_WORK = 6_000_000
"""Multiplications in a layer's product up to which a second thread costs more than it gives."""

_torchs_own: ContextVar[int] = ContextVar("the number of threads before `threads` changed it")


@contextmanager
def threads(config: TrainConfig, saved: int | None = None) -> Iterator[None]:
    """Context with the threads of a complete configuration; the number before is put back.

    They are torch's; NumPy's products take one, for two pools would wait for each other. `saved`
    is the number that a run to be resumed had: `auto` keeps it, so that the numbers come out equal.
    Of a network of the user's own `auto` knows nothing, and changes nothing.
    """
    before = torch.get_num_threads()
    wanted = config.threads
    if wanted == "auto":
        wanted = saved or (1 if config.algo_kwargs["network"] is None else before)
    torch.set_num_threads(wanted)
    token = _torchs_own.set(before)
    try:
        with threadpool_limits(1, user_api="blas"):
            yield
    finally:
        _torchs_own.reset(token)
        torch.set_num_threads(before)


def add_threads_for(algorithm: Algorithm, batch_size: int) -> None:
    """Put the number before `threads` back if one thread is too little for the networks' layers."""
    networks = algorithm.networks().values()
    work = max(p.numel() for network in networks for p in network.parameters())
    modules = (module for network in networks for module in network.modules())
    work = max([work, *(module.work for module in modules if isinstance(module, Convolutions))])
    if batch_size * work > ONE_THREAD_WORK:
        torch.set_num_threads(_torchs_own.get())
