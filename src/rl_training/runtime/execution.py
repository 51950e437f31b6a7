"""How a run computes: with how many threads, compiled or eager, and with kernels or without."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import torch
from threadpoolctl import threadpool_limits

from rl_training.algorithms.base import Algorithm
from rl_training.config.train_config import COMPILE_FROM_UPDATES, TrainConfig
from rl_training.fast.accelerate import accelerate, has_loss_kernels
from rl_training.models.cnn.encoders import Convolutions
from rl_training.runtime.saved_info import saved_info
from rl_training.storage.checkpoints import Checkpoint

logger = logging.getLogger("rl_training")

ONE_THREAD_WORK = 6_000_000
"""Multiplications in a layer's product up to which a second thread costs more than it gives."""

_threads_before: ContextVar[int] = ContextVar("the number of threads before `threads` changed it")


@contextmanager
def threads(config: TrainConfig, saved: int | None = None) -> Iterator[None]:
    """Context with the threads of a complete configuration; the number before is put back.

    They are torch's; NumPy's products take one, for two pools would wait for each other. `saved`
    is the number that a run to be resumed had: `auto` keeps it, so that the numbers come out equal.
    Of a custom network `auto` knows nothing, and changes nothing.
    """
    before = torch.get_num_threads()
    wanted = config.threads
    if wanted == "auto":
        wanted = saved or (1 if config.algo_kwargs["network"] is None else before)
    torch.set_num_threads(wanted)
    token = _threads_before.set(before)
    try:
        with threadpool_limits(1, user_api="blas"):
            yield
    finally:
        _threads_before.reset(token)
        torch.set_num_threads(before)


def set_execution(
    algorithm: Algorithm,
    config: TrainConfig,
    batch_size: int,
    planned_updates: int,
    checkpoint: Checkpoint | None,
) -> None:
    """Compile the algorithm's losses, or use kernels; a resumed run stays what it was.

    `threads: auto` is settled first. Without a working compiler the run is eager, and says so.
    """
    saved = saved_info(checkpoint) if checkpoint else None
    if config.threads == "auto" and not (saved and saved.threads):
        _add_threads_for(algorithm, batch_size)
    wanted = saved.execution if saved else config.execution
    if wanted == "auto":
        long = planned_updates >= COMPILE_FROM_UPDATES
        compiles = algorithm.compiles and not algorithm.reads_names()
        compiles = compiles and not has_loss_kernels(algorithm)  # these are faster
        wanted = "compiled" if long and compiles else "eager"
    if wanted == "compiled":
        _compile(algorithm)
    accelerate(algorithm)


def _add_threads_for(algorithm: Algorithm, batch_size: int) -> None:
    """Put the number before `threads` back if one thread is too little for the networks' layers."""
    networks = algorithm.networks().values()
    work = max(p.numel() for network in networks for p in network.parameters())
    modules = (module for network in networks for module in network.modules())
    work = max([work, *(module.work for module in modules if isinstance(module, Convolutions))])
    if batch_size * work > ONE_THREAD_WORK:
        torch.set_num_threads(_threads_before.get())


def _compile(algorithm: Algorithm) -> None:
    if not algorithm.compiles:
        name = type(algorithm).__name__
        logger.warning("execution: eager; torch.compile does not speed up %s", name)
        return
    if algorithm.reads_names():
        logger.warning("execution: eager; a network that reads parts by name is not compiled")
        return
    reason = _compiler_error(algorithm.device)
    if reason is None:
        algorithm.compile()
    else:
        logger.warning("execution: eager, for torch.compile does not work here (%s)", reason)


def _compiler_error(device: torch.device) -> str | None:
    """Why a small function cannot be compiled, in one line; None if it can."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    # Where a second start finds what the first one compiled; the default is lost at a reboot.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(cache) / "rl_training" / "inductor"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.compile(lambda x: x * 2 + 1)(torch.ones(8, device=device))
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return (lines or [type(error).__name__])[0][:200]
    return None
