"""What a resumed run must agree with, and where it goes on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError, ConfigError, UsageError
from rl_training.experiment.checkpointing import Checkpoint, find_checkpoint
from rl_training.experiment.config import HyperParameters, TrainConfig, is_placeholder
from rl_training.experiment.config_base import plain

logger = logging.getLogger("rl_training")

# Keys that say how a run is watched, kept and ended, not what it computes.
FREE_KEYS = frozenset(
    {
        "total_timesteps",
        "output_dir",
        "run_name",
        "final_eval_episodes",
        "keep_checkpoints",
        "log_interval",
        "eval_interval",
        "eval_episodes",
        "callbacks",
        "device",
        "threads",
    }
)

# What the last bits of a number depend on. A compiled run may have to go on eagerly.
LAST_BITS = ("device", "threads", "execution")


def checkpoint_to_resume(
    path: str | Path, config: TrainConfig, hyper: type[HyperParameters]
) -> Checkpoint:
    """The newest whole checkpoint at `path`, if `config` continues its run."""
    checkpoint = located(find_checkpoint(Path(path)))
    report_skipped(checkpoint)
    check_same_run(checkpoint, config, hyper)
    return checkpoint


def report_skipped(checkpoint: Checkpoint) -> None:
    """Log the newer checkpoints that were passed over."""
    for reason in checkpoint.skipped:
        logger.warning("passed over a damaged checkpoint: %s", reason)


def check_same_run(
    checkpoint: Checkpoint, config: TrainConfig, hyper: type[HyperParameters]
) -> None:
    """Refuse to continue a run with a configuration that would compute something else."""
    if not checkpoint.has("loop"):
        raise CheckpointError(
            f"{checkpoint.path} holds a policy without its training state, so it can be evaluated "
            "but not resumed; resume from the run directory or a step_* checkpoint"
        )
    saved, given = _flat(_completed(checkpoint.info["config"], hyper)), _flat(config.to_plain())
    differing = [
        f"{key}: saved {saved.get(key)!r}, given {given.get(key)!r}"
        for key in sorted(saved.keys() | given.keys())
        if saved.get(key) != given.get(key)
        and key.split(".")[0] not in FREE_KEYS
        and not is_placeholder(str(saved.get(key)))
    ]
    if differing:
        raise ConfigError(
            "a resumed run keeps the configuration it was started with; these keys differ:\n  "
            + "\n  ".join(differing)
        )
    total, done = config.total_timesteps, checkpoint.env_steps
    # Environments that step together may end a run a few transitions past its own budget.
    if total < done and total != saved["total_timesteps"]:
        raise UsageError(
            f"total_timesteps: expected at least the {done} steps that are done already, found "
            f"{total}; it is the budget of the whole run, not what to add to it"
        )


def _completed(saved: dict[str, Any], hyper: type[HyperParameters]) -> dict[str, Any]:
    """A saved configuration with the defaults of the keys that came after it."""
    defaults = {
        name: plain(field.get_default(call_default_factory=True))
        for name, field in TrainConfig.model_fields.items()
        if not field.is_required()
    }
    keys = hyper().to_plain() | saved["algo_kwargs"]
    return defaults | saved | {"algo_kwargs": keys}


def located(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint by a path that shows where it lies, also if it was given from inside."""
    if checkpoint.path.parent.name == "checkpoints":
        return checkpoint
    return replace(checkpoint, path=checkpoint.path.resolve())


def home_of(checkpoint: Checkpoint) -> Path | None:
    """The run directory a `located` checkpoint lies in; None if it was copied out of one."""
    home = checkpoint.path.parent.parent
    inside = checkpoint.path.parent.name == "checkpoints" and (home / "config.yaml").exists()
    return home if inside else None


def resume_entry(
    checkpoint: Checkpoint, config: TrainConfig, session: Mapping[str, Any]
) -> dict[str, Any]:
    """What metadata.json says about a resume; `session` is what it says about the new session."""
    planned = checkpoint.info["config"]["total_timesteps"]
    entry = {"checkpoint": checkpoint.path.name, "exact": checkpoint.info["exact"]}
    if planned != config.total_timesteps:
        # Schedules depend on the planned total: an extension is not an exact continuation.
        entry |= {"exact": False, "extended": {"from": planned, "to": config.total_timesteps}}
    changed = {
        key: {"from": checkpoint.info[key], "to": session[key]}
        for key in LAST_BITS
        if key in checkpoint.info and key in session and checkpoint.info[key] != session[key]
    }
    if changed:
        entry |= {"exact": False, "changed": changed}
    return entry


def _flat(plain: dict[str, Any] | list[Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in plain.items() if isinstance(plain, dict) else enumerate(plain):
        if isinstance(value, dict | list):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
