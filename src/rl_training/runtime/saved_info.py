"""What the manifest of a checkpoint says about its run, as a checked, typed record."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from rl_training.config.base import ConfigModel
from rl_training.config.types import MAX_STEPS
from rl_training.storage.checkpoints import Checkpoint
from rl_training.storage.manifest import MANIFEST_NAME, damaged


class SavedInfo(ConfigModel):
    """What `checkpoint_info` wrote; keys of a later version are left alone."""

    model_config = ConfigDict(extra="ignore")

    algo: str = Field(min_length=1, max_length=500)
    algo_path: str | None = Field(None, max_length=1000)
    env_id: str = Field(min_length=1, max_length=1000)
    updates: int = Field(ge=0, le=1000 * MAX_STEPS)
    stop_at: int | None = Field(None, ge=1, le=MAX_STEPS)
    resume_level: str = Field(max_length=100)
    exact: bool
    config: dict[str, Any]
    execution: Literal["eager", "compiled"] = "eager"
    device: str | None = Field(None, max_length=100)
    threads: int | None = Field(None, ge=1, le=1024)
    replay_capacity: int | None = Field(None, ge=1, le=10**10)
    versions: dict[str, str] = Field(default_factory=dict, max_length=1000)
    eval_return_mean: float | None = None


def saved_info(checkpoint: Checkpoint) -> SavedInfo:
    """The record in the checkpoint's manifest; CheckpointError names the field that is wrong."""
    try:
        return SavedInfo.model_validate(dict(checkpoint.info))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, ("info", *first["loc"])))
        path = checkpoint.path / MANIFEST_NAME
        raise damaged(path, f"{where}: {first['msg']}, found {first['input']!r:.80}") from error
