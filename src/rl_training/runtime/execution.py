"""Whether a run's gradient steps are compiled, and whether one thread is enough for them."""

from __future__ import annotations

import logging
import math
import os
import warnings
from pathlib import Path
from typing import Any

import torch

from rl_training.algorithms.base import Algorithm
from rl_training.experiment.checkpointing import Checkpoint
from rl_training.experiment.config import (
    COMPILE_FROM_UPDATES,
    OnPolicyHyperParameters,
    TrainConfig,
)
from rl_training.runtime.threads import add_threads_for

logger = logging.getLogger("rl_training")


def set_execution(
    algorithm: Algorithm,
    config: TrainConfig,
    hyper: Any,
    num_envs: int,
    checkpoint: Checkpoint | None,
) -> None:
    """Compile the algorithm's gradient steps if the run is to; a resumed run stays as it was.

    `threads: auto` is settled first. Without a working compiler the run is eager, and says so.
    """
    if config.threads == "auto" and not (checkpoint and checkpoint.info.get("threads")):
        add_threads_for(algorithm, hyper.batch_size)
    wanted = checkpoint.info.get("execution", "eager") if checkpoint else config.execution
    if wanted == "auto":
        long = planned_updates(hyper, config.total_timesteps, num_envs) >= COMPILE_FROM_UPDATES
        # Compiled steps take tensors; what learns on arrays is faster without.
        compiles = algorithm.step_functions and not algorithm.learns_on_host
        wanted = "compiled" if long and compiles else "eager"
    if wanted == "eager":
        return
    if not algorithm.step_functions:
        name = type(algorithm).__name__
        logger.warning("execution: eager, for the kernels %s learns with are not compiled", name)
        return
    trouble = _compiler_trouble(algorithm.device)
    if trouble is None:
        algorithm.compile()
    else:
        logger.warning("execution: eager, for torch.compile does not work here (%s)", trouble)


def planned_updates(hyper: Any, total_timesteps: int, num_envs: int) -> int:
    """Gradient steps in the whole run, were no update cut short."""
    if isinstance(hyper, OnPolicyHyperParameters):
        rollout = hyper.num_steps * num_envs
        minibatches = math.ceil(rollout / hyper.batch_size)
        return total_timesteps // rollout * hyper.epochs * minibatches
    learning = max(0, total_timesteps - hyper.learning_starts)
    return int(hyper.replay_ratio * learning)


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
