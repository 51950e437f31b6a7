"""Whether a run's gradient steps are compiled, and whether one thread is enough for them."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path

import torch

from rl_training.algorithms.base import Algorithm
from rl_training.config.train_config import COMPILE_FROM_UPDATES, TrainConfig
from rl_training.fast.accelerate import accelerate, has_loss_kernels
from rl_training.runtime.threads import add_threads_for
from rl_training.storage.checkpoints import Checkpoint

logger = logging.getLogger("rl_training")


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
    if config.threads == "auto" and not (checkpoint and checkpoint.info.get("threads")):
        add_threads_for(algorithm, batch_size)
    wanted = checkpoint.info.get("execution", "eager") if checkpoint else config.execution
    if wanted == "auto":
        long = planned_updates >= COMPILE_FROM_UPDATES
        compiles = algorithm.compiles and not has_loss_kernels(algorithm)  # these are faster
        wanted = "compiled" if long and compiles else "eager"
    if wanted == "compiled":
        _compile(algorithm)
    accelerate(algorithm)


def _compile(algorithm: Algorithm) -> None:
    if not algorithm.compiles:
        name = type(algorithm).__name__
        logger.warning("execution: eager, for the kernels %s learns with are not compiled", name)
        return
    trouble = _compiler_trouble(algorithm.device)
    if trouble is None:
        algorithm.compile()
    else:
        logger.warning("execution: eager, for torch.compile does not work here (%s)", trouble)


def _compiler_trouble(device: torch.device) -> str | None:
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
