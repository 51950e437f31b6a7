"""The algorithms by name, and what can be done with a name: train, load, resume."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpointing import Checkpoint, find_checkpoint
from rl_training.experiment.config import HyperParameters, TrainConfig, check_hyper_parameters
from rl_training.experiment.config_loading import LoadedConfig, load_config
from rl_training.runtime.agent import (
    ACTING_PARTS,
    Agent,
    build_agent,
    resolve_device,
    saved_adapter,
)
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.result import TrainResult
from rl_training.runtime.resuming import home_of, located
from rl_training.runtime.spec import AlgorithmSpec, all_specs
from rl_training.runtime.threads import threads
from rl_training.runtime.train import train

logger = logging.getLogger("rl_training")


def get_spec(name: str) -> AlgorithmSpec:
    """The algorithm of that name."""
    specs = all_specs()
    if name not in specs:
        near = difflib.get_close_matches(name, specs, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"algo: expected one of {', '.join(specs)}, found {name!r}{hint}")
    return specs[name]


def hyper_model(name: str) -> type[HyperParameters]:
    """The hyper-parameter model of that algorithm."""
    return get_spec(name).hyper


def resolve_config(
    source: str | Path | Mapping[str, Any] | TrainConfig | None,
    *,
    overrides: Sequence[str] = (),
    arguments: Mapping[str, Any] | None = None,
) -> LoadedConfig:
    """A complete configuration from a file, packaged name or mapping, with what overrides it."""
    return load_config(source, overrides=overrides, arguments=arguments, hyper_model=hyper_model)


def train_config(
    config: TrainConfig,
    *,
    callbacks: Sequence[Callback] = (),
    resume: str | Path | None = None,
) -> TrainResult:
    """Train with the algorithm the configuration names."""
    return train(get_spec(config.algo), config, callbacks=callbacks, resume=resume)


def open_checkpoint(
    path: str | Path,
    *,
    best: bool = False,
    algo: str | None = None,
    parts: Collection[str] | None = ACTING_PARTS,
) -> tuple[Checkpoint, TrainConfig]:
    """A checkpoint and its configuration; `algo` refuses any other algorithm's.

    Acting needs only small parts, so only those are verified; None verifies the replay too. The
    budget is the one the run directory plans, which may be an extension since the checkpoint.
    """
    checkpoint = located(find_checkpoint(Path(path), best=best, parts=parts))
    found = checkpoint.info["algo"]
    if algo is not None and found != algo:
        raise CheckpointError(
            f"{checkpoint.path} was trained with {found}, not {algo}; load it with the class or "
            f"command for {found}"
        )
    config = resolve_config(checkpoint.info["config"]).config
    total = _planned_total(checkpoint)
    if total is not None and total >= checkpoint.env_steps:
        config = config.with_changes(total_timesteps=total)
    return checkpoint, config


def load_agent(checkpoint: Checkpoint, config: TrainConfig) -> Agent:
    """The agent a checkpoint holds, built for the spaces it was saved with.

    It acts on the CPU where the device of its training is missing.
    """
    spec = get_spec(config.algo)
    hyper = check_hyper_parameters(spec.hyper, config.algo_kwargs)
    try:
        resolve_device(config.device)
    except ConfigError as error:
        logger.warning("%s; the agent acts on the CPU", error)
        config = config.with_changes(device="cpu")
    with threads(config):
        agent = build_agent(spec, config, hyper, saved_adapter(checkpoint))
        agent.restore(checkpoint)
    agent.set_progress(checkpoint.env_steps, config.total_timesteps)
    return agent


def _planned_total(checkpoint: Checkpoint) -> int | None:
    home = home_of(checkpoint)
    if home is None:
        return None
    try:
        return resolve_config(home / "config.yaml").config.total_timesteps
    except ConfigError as error:
        logger.warning("the configuration of the checkpoint is used: %s", error)
        return None
