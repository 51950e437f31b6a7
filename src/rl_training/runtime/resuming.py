"""What a resumed run must agree with, and where it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpointing import Checkpoint
from rl_training.experiment.config import TrainConfig, is_placeholder

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
        "device",
        "threads",
    }
)


def check_same_run(checkpoint: Checkpoint, config: TrainConfig) -> None:
    """Refuse to continue a run with a configuration that would compute something else."""
    if not checkpoint.has("loop"):
        raise CheckpointError(
            f"{checkpoint.path} holds a policy without its training state, so it can be evaluated "
            "but not resumed; resume from the run directory or a step_* checkpoint"
        )
    saved, given = _flat(checkpoint.info["config"]), _flat(config.to_plain())
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


def home_of(checkpoint: Checkpoint) -> Path | None:
    """The run directory a checkpoint lies in; None if it was copied out of one."""
    home = checkpoint.path.parent.parent
    inside = checkpoint.path.parent.name == "checkpoints" and (home / "config.yaml").exists()
    return home if inside else None


def resume_history(
    metadata_path: Path, checkpoint: Checkpoint, config: TrainConfig
) -> list[dict[str, Any]]:
    """Every resume of the run so far, this one included."""
    try:
        earlier = json.loads(metadata_path.read_text()).get("resumed_from", [])
    except (OSError, ValueError):
        earlier = []
    planned = checkpoint.info["config"]["total_timesteps"]
    entry = {"checkpoint": checkpoint.path.name, "exact": checkpoint.info["exact"]}
    if planned != config.total_timesteps:
        # Schedules depend on the planned total: an extension is not an exact continuation.
        entry |= {"exact": False, "extended": {"from": planned, "to": config.total_timesteps}}
    return [*earlier, entry]


def _flat(plain: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in plain.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
