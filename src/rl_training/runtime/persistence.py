"""What a checkpoint of a run holds, and how a run takes it over."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from rl_training.envs.object_values import SnapshotUnavailable
from rl_training.errors import CheckpointError
from rl_training.experiment.checkpointing import Checkpoint, find_checkpoint
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.progress import Speed
from rl_training.runtime.seeding import global_generator_state, restore_global_generators

if TYPE_CHECKING:
    from rl_training.runtime.training_run import TrainingRun

logger = logging.getLogger("rl_training")


def checkpoint_parts(run: TrainingRun, *, with_envs: bool = True) -> dict[str, Any]:
    """Everything a run is, by part: what acts, the replay memory, and the loop around them."""
    loop = _loop_state(run) | {"envs": _env_state(run) if with_envs else None}
    return {**run.agent.parts(), "replay": run.buffer.state_dict(), "loop": loop}


def checkpoint_info(run: TrainingRun, *, exact: bool) -> dict[str, Any]:
    """What can be known of a checkpoint without reading its parts."""
    return {
        "algo": run.config.algo,
        "env_id": run.agent.adapter.spec.env_id,
        "updates": run.updates,
        "resume_level": run.level,
        "exact": exact,
        "execution": run.algorithm.execution,
        "device": str(run.algorithm.device),
        "threads": torch.get_num_threads(),
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
    run.recent_metrics.load_state_dict(loop["recent_metrics"], run.algorithm.device)
    run.extra_values.update(loop["extra_values"])
    run.best_return = _best_so_far(run, checkpoint, loop["best_return"])
    run.elapsed_before = loop["elapsed"]
    run.speed = Speed(run.env_steps)
    run.checkpoint_path, run.saved_at = checkpoint.path, run.env_steps
    restore_global_generators(loop["generators"])


def _best_so_far(run: TrainingRun, checkpoint: Checkpoint, saved: float | None) -> float | None:
    """The best return known, also from an evaluation made after the checkpoint was written."""
    try:
        best = find_checkpoint(checkpoint.path.parent, best=True, parts=())
    except CheckpointError:
        return saved
    found: float | None = best.info.get("eval_return_mean")
    if found is None or best.env_steps > run.env_steps:
        return saved
    return found if saved is None else max(saved, found)


def _loop_state(run: TrainingRun) -> dict[str, Any]:
    return {
        "progress": run.progress.state_dict(),
        "collector": run.collector.state_dict(),
        "callbacks": {
            name: state
            for name, callback in _named(run.callbacks).items()
            if (state := callback.state_dict())
        },
        "metrics_log": run.metrics_log.state_dict(),
        "extra_values": dict(run.extra_values),
        "recent_metrics": run.recent_metrics.state_dict(),
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
        run.lower_level(str(error))
        return None


def _named(callbacks: Sequence[Callback]) -> dict[str, Callback]:
    """Callbacks by class and, among those of one class, by their order."""
    seen: Counter[str] = Counter()
    named: dict[str, Callback] = {}
    for callback in callbacks:
        name = f"{type(callback).__module__}.{type(callback).__qualname__}"
        named[f"{name}#{seen[name]}"] = callback
        seen[name] += 1
    return named


def _restore_callbacks(run: TrainingRun, saved: dict[str, dict[str, Any]]) -> None:
    named = _named(run.callbacks)
    for name, state in saved.items():
        if name in named:
            named[name].load_state_dict(state)
        else:
            logger.warning("the checkpoint holds a state of callback %s, not given now", name)
