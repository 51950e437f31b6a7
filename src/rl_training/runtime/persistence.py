"""What a checkpoint of a run holds, and how a run takes it over."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rl_training.envs.object_values import SnapshotUnavailable
from rl_training.experiment.checkpointing import Checkpoint
from rl_training.runtime.progress import Speed
from rl_training.runtime.seeding import global_generator_state, restore_global_generators

if TYPE_CHECKING:
    from rl_training.runtime.training_run import TrainingRun

logger = logging.getLogger("rl_training")


def checkpoint_parts(run: TrainingRun) -> dict[str, Any]:
    """Everything a run is, by part: what acts, the replay memory, and the loop around them."""
    return {**run.agent.parts(), "replay": run.buffer.state_dict(), "loop": _loop_state(run)}


def checkpoint_info(run: TrainingRun, *, exact: bool) -> dict[str, Any]:
    """What can be known of a checkpoint without reading its parts."""
    return {
        "algo": run.config.algo,
        "env_id": run.agent.adapter.spec.env_id,
        "updates": run.updates,
        "resume_level": run.level,
        "exact": exact,
        "config": run.config.to_plain(),
    }


def restore_run(run: TrainingRun, checkpoint: Checkpoint) -> None:
    """Take over a checkpoint; the global generators come last."""
    run.agent.restore(checkpoint)
    run.buffer.load_state_dict(checkpoint.read("replay"))
    loop = checkpoint.read("loop")
    run.progress.load_state_dict(loop["progress"])
    run.collector.load_state_dict(loop["collector"])
    if loop["envs"] is None:
        run.cut_episodes()
    else:
        run.collector.load_envs(loop["envs"])
    _restore_callbacks(run, loop["callbacks"])
    run.recent_metrics.extend(_unstacked(loop["recent_metrics"]))
    run.extra_values.update(loop["extra_values"])
    run.best_return = loop["best_return"]
    run.elapsed_before = loop["elapsed"]
    run.speed = Speed(run.env_steps)
    run.checkpoint_path, run.saved_at = checkpoint.path, run.env_steps
    restore_global_generators(loop["generators"])


def stacked(recent: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Rows of metrics as one tensor per name."""
    names = recent[-1] if recent else {}
    return {name: torch.stack([metrics[name] for metrics in recent]) for name in names}


def _unstacked(columns: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    rows = zip(*columns.values(), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _loop_state(run: TrainingRun) -> dict[str, Any]:
    return {
        "progress": run.progress.state_dict(),
        "collector": run.collector.state_dict(),
        "envs": _env_state(run),
        "callbacks": [
            [type(callback).__qualname__, state]
            for callback in run.callbacks
            if (state := callback.state_dict())
        ],
        "metrics_log": run.metrics_log.state_dict(),
        "extra_values": dict(run.extra_values),
        "recent_metrics": stacked(run.recent_metrics),
        "best_return": run.best_return,
        "elapsed": run.elapsed,
        "generators": global_generator_state(),
    }


def _env_state(run: TrainingRun) -> Any:
    """The environments' state at level exact; the level falls, audibly, if it is lost."""
    if run.level != "exact":
        return None
    try:
        return run.collector.save_envs()
    except SnapshotUnavailable as error:
        run.level, run.level_reason = "statistical", str(error)
        logger.warning("resume level: now statistical, it was exact (%s)", error)
        return None


def _restore_callbacks(run: TrainingRun, saved: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Give each saved state to the next callback of its class."""
    waiting = list(run.callbacks)
    for name, state in saved:
        taker = next((c for c in waiting if type(c).__qualname__ == name), None)
        if taker is None:
            logger.warning("the checkpoint holds a state of callback %s, not given now", name)
            continue
        waiting.remove(taker)
        taker.load_state_dict(state)
