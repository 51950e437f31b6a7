"""Where a run begins: at step 0, at a checkpoint, or wherever its directory stands."""

from __future__ import annotations

import logging
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.config.train_config import TrainConfig
from rl_training.errors import RunError, UsageError
from rl_training.runtime.result import TrainResult
from rl_training.runtime.resume import (
    check_same_run,
    checkpoint_to_resume,
    run_directory_of,
    saved_loop,
)
from rl_training.runtime.spec import AlgorithmSpec
from rl_training.storage.checkpoints import Checkpoint, find_checkpoint, has_checkpoint
from rl_training.storage.files import read_json_object
from rl_training.storage.metrics_log import EMPTY_LOG, METRICS_NAME
from rl_training.storage.runs import (
    CHECKPOINTS_DIR_NAME,
    CONFIG_NAME,
    LOCK_NAME,
    SUMMARY_NAME,
    RunLock,
    create_run_directory,
    default_run_name,
    refuse_links,
)

logger = logging.getLogger("rl_training")


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What there is of a run: the directory it goes on in, locked, and its checkpoint.

    `finished` is the result of a run with nothing left to do. Every path is absolute, as an
    environment may change the working directory.
    """

    output_dir: Path
    directory: Path | None = None
    checkpoint: Checkpoint | None = None
    finished: TrainResult | None = None

    def metrics_log(self, until: int) -> dict[str, Any] | None:
        """Where the metrics log stood; None for the log of a new directory.

        If the session before came to its end and this one goes on `until` a later step, the rows
        of the evaluation at that end stay: nothing repeats them.
        """
        if self.directory is None:
            return None
        if self.checkpoint is None:
            return dict(EMPTY_LOG)
        position: dict[str, Any] = saved_loop(self.checkpoint)["metrics_log"]
        steps, summary = self.checkpoint.env_steps, read_json_object(self.directory / SUMMARY_NAME)
        if until > steps and (summary.get("status"), summary.get("global_step")) == (
            "finished",
            steps,
        ):
            with suppress(OSError):
                return {**position, "offset": (self.directory / METRICS_NAME).stat().st_size}
        return position


def find_origin(
    spec: AlgorithmSpec,
    config: TrainConfig,
    stack: ExitStack,
    *,
    resume: str | Path | None,
    auto_resume: bool,
) -> Origin:
    """Where the run begins; a checkpoint in a run directory is chosen once `stack` holds its lock.

    Nothing that a run directory names is used, only compared with `config`, which the caller gives.
    """
    output_dir = Path(config.output_dir).absolute()
    if auto_resume:
        if resume is not None:
            raise UsageError("give resume or auto_resume, not both")
        return _auto_origin(spec, config, stack, output_dir)
    if resume is None:
        return Origin(output_dir=output_dir)
    resume = Path(resume).absolute()
    if (directory := _run_directory_at(resume)) is not None:
        stack.enter_context(RunLock(directory))
    checkpoint = checkpoint_to_resume(resume, config, spec)
    run_directory = run_directory_of(checkpoint)
    refuse_links(run_directory)
    return Origin(output_dir=output_dir, directory=run_directory, checkpoint=checkpoint)


def new_directory(
    spec: AlgorithmSpec, config: TrainConfig, origin: Origin, *, auto_resume: bool
) -> Path:
    """A new run directory; with `auto_resume` the one that the next call will look for."""
    name = _run_name(spec, config, auto_resume=auto_resume)
    return create_run_directory(origin.output_dir, name=name, only=auto_resume)


def _auto_origin(
    spec: AlgorithmSpec, config: TrainConfig, stack: ExitStack, output_dir: Path
) -> Origin:
    directory = output_dir / _run_name(spec, config, auto_resume=True)
    if not directory.exists():
        return Origin(output_dir=output_dir)
    _check_run_directory(directory)
    refuse_links(directory)
    stack.enter_context(RunLock(directory))
    if (finished := _finished(directory, spec, config)) is not None:
        return Origin(output_dir=output_dir, directory=directory, finished=finished)
    if not has_checkpoint(directory):
        return Origin(output_dir=output_dir, directory=directory)
    checkpoint = checkpoint_to_resume(directory, config, spec)
    return Origin(output_dir=output_dir, directory=directory, checkpoint=checkpoint)


def _run_name(spec: AlgorithmSpec, config: TrainConfig, *, auto_resume: bool) -> str:
    env_id = str(config.to_plain()["env_id"])
    default = default_run_name(spec.name, env_id, config.seed, time_stamp=not auto_resume)
    return config.run_name or default


def _check_run_directory(directory: Path) -> None:
    """Refuse a directory outside its parent, or with the files of something else."""
    if directory.resolve().parent != directory.parent.resolve():
        raise RunError(f"{directory} lies outside {directory.parent}: choose another run_name")
    names = {path.name for path in directory.iterdir()} if directory.is_dir() else {""}
    if names and not names & {LOCK_NAME, CONFIG_NAME}:
        raise RunError(f"expected a run in {directory}, found other files: choose another run_name")


def _finished(directory: Path, spec: AlgorithmSpec, config: TrainConfig) -> TrainResult | None:
    """The result of a run that has come to its end; None if this budget leaves it more to do."""
    result = TrainResult.from_summary(read_json_object(directory / SUMMARY_NAME), directory)
    if result is None or result.status != "finished":
        return None
    if config.total_timesteps > result.global_step and result.stop_reason is None:
        return None
    if has_checkpoint(directory):
        check_same_run(find_checkpoint(directory, parts=()), config, spec)
    else:
        logger.warning(
            "%s holds a result and no checkpoint: its configuration was not compared", directory
        )
    return result


def _run_directory_at(path: Path) -> Path | None:
    """The run directory that a path is, or lies in as its checkpoints or one of them."""
    path = path.resolve()
    for checkpoints, directory in ((path, path.parent), (path.parent, path.parent.parent)):
        if checkpoints.name == CHECKPOINTS_DIR_NAME and (directory / CONFIG_NAME).exists():
            return directory
    return path if (path / CONFIG_NAME).exists() else None
