"""What a checkpoint of a run holds, what a resumed run must agree with, and how it goes on."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rl_training.config.base import is_placeholder, plain, untrusted_name
from rl_training.config.hyper_parameters import HyperParameters
from rl_training.config.train_config import WATCH_KEYS, TrainConfig
from rl_training.envs.snapshots.classes import SnapshotUnavailable
from rl_training.errors import CheckpointError, ConfigError, UsageError
from rl_training.runtime.progress import Speed
from rl_training.runtime.saved_info import saved_info
from rl_training.runtime.seeding import global_generator_state, restore_global_generators
from rl_training.runtime.spec import AlgorithmSpec
from rl_training.runtime.spec_table import saved_algorithm
from rl_training.runtime.trust import passed_by, placeholders, refuse_untrusted
from rl_training.storage.checkpoints import Checkpoint, find_checkpoint, loading_part
from rl_training.storage.manifest import MANIFEST_NAME, damaged
from rl_training.storage.runs import CHECKPOINTS_DIR_NAME, CONFIG_NAME

if TYPE_CHECKING:
    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.training_run import TrainingRun

logger = logging.getLogger("rl_training")

# Keys that say how a run is watched, kept and ended, not what it computes.
FREE_KEYS = WATCH_KEYS | frozenset(
    {
        "total_timesteps",
        "init_from",
        "init_parts",
        "final_eval_episodes",
        "eval_env",
        "eval_episodes",
        "max_eval_steps",
        "callbacks",
        "device",
        "threads",
    }
)

_LOOP_PARTS = ("run", "callbacks", "metrics_log", "envs", "generators")

ENVIRONMENT_KEYS = ("env_id", "env_kwargs", "eval_env", "eval_env_kwargs", "wrappers")


def checkpoint_parts(run: TrainingRun, *, with_envs: bool = True) -> dict[str, Any]:
    """Everything a run is, by part: what acts, the replay memory, and the loop around them."""
    loop = {
        "run": run.state_dict(),
        "callbacks": _callback_states(run.callbacks),
        "metrics_log": run.metrics_log.state_dict(),
        "envs": _env_state(run) if with_envs else None,
        "generators": global_generator_state(),
    }
    parts = {**run.agent.parts(), "replay": run.buffer.state_dict(), "loop": loop}
    if with_envs and (transcript := run.collector.finished_transcript()) is not None:
        parts["transcript"] = transcript
    if loop["envs"] is not None:
        run.begin_transcript(loop["envs"])
    return parts


def checkpoint_info(run: TrainingRun, *, exact: bool) -> dict[str, Any]:
    """What can be known of a checkpoint without reading its parts."""
    return {
        **saved_algorithm(run.agent.spec),
        "env_id": run.agent.adapter.spec.env_id,
        "updates": run.updates,
        "stop_at": run.progress.stop_at,
        "resume_level": run.level,
        "exact": exact,
        "execution": run.algorithm.execution,
        "device": str(run.algorithm.device),
        "threads": torch.get_num_threads(),
        # By default it is what memory allowed. A rollout, or a custom buffer, has none.
        "replay_capacity": getattr(run.buffer, "capacity", None),
        "versions": dict(run.versions),
        "config": run.config.to_plain(),
    }


def restore_run(run: TrainingRun, checkpoint: Checkpoint) -> None:
    """Take over a checkpoint; the global generators come last.

    Whatever does not fit is a CheckpointError that names the part.
    """
    run.agent.restore(checkpoint)
    replay = checkpoint.read("replay")
    with loading_part(checkpoint, "replay"):
        run.buffer.load_state_dict(_mapping(replay))
    loop = saved_loop(checkpoint)
    with loading_part(checkpoint, "loop.run"):
        run.load_state_dict(loop["run"])
        _check_progress(run, checkpoint)
    if loop["envs"] is None:
        run.cut_episodes()
    else:
        with loading_part(checkpoint, "loop.envs"):
            run.collector.load_envs(loop["envs"])
    with loading_part(checkpoint, "loop.callbacks"):
        _restore_callbacks(run.callbacks, _mapping(loop["callbacks"]))
    run.best_return = _best_so_far(run, checkpoint)
    run.speed = Speed(run.env_steps)
    run.checkpoint_path, run.saved_at = checkpoint.path, run.env_steps
    with loading_part(checkpoint, "loop.generators"):
        restore_global_generators(_mapping(loop["generators"]))
    run.begin_transcript(loop["envs"])


def _check_progress(run: TrainingRun, checkpoint: Checkpoint) -> None:
    """Counters that no run can have would make the next step owe any number of updates."""
    progress = run.progress
    if progress.env_steps != checkpoint.env_steps:
        raise CheckpointError(
            f"progress.env_steps: expected {checkpoint.env_steps} as in the manifest, found "
            f"{progress.env_steps}"
        )
    if run.owes_updates:
        raise CheckpointError(
            f"progress.updates: found {progress.updates}, {progress.updates_owed()} away from what "
            "the replay ratio asks for"
        )


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise CheckpointError(f"expected a dict with text as keys, found {type(value).__name__}")
    return value


def saved_loop(checkpoint: Checkpoint) -> dict[str, Any]:
    """The part `loop` of a checkpoint, with everything that `checkpoint_parts` puts into it."""
    loop = checkpoint.read("loop")
    if not isinstance(loop, dict) or set(loop) != set(_LOOP_PARTS):
        raise CheckpointError(
            f"{checkpoint.path}: expected a loop of {', '.join(_LOOP_PARTS)}, found "
            f"{', '.join(map(str, loop)) if isinstance(loop, dict) else type(loop).__name__}; "
            "resume with the version of rl-training that wrote it"
        )
    return loop


def checkpoint_to_resume(path: str | Path, config: TrainConfig, spec: AlgorithmSpec) -> Checkpoint:
    """The newest whole checkpoint at `path`, if `config` continues its run."""
    checkpoint = located(find_checkpoint(Path(path)))
    report_skipped(checkpoint)
    check_same_run(checkpoint, config, spec)
    return checkpoint


def report_skipped(checkpoint: Checkpoint) -> None:
    """Log the newer checkpoints that were passed over."""
    for reason in checkpoint.skipped:
        logger.warning("passed over a damaged checkpoint: %s", reason)


def check_same_run(checkpoint: Checkpoint, config: TrainConfig, spec: AlgorithmSpec) -> None:
    """Refuse to continue a run with a configuration that would compute something else."""
    if not checkpoint.has("loop"):
        raise CheckpointError(
            f"{checkpoint.path} holds a policy without its training state, so it can be evaluated "
            "but not resumed; resume from the run directory or a step_* checkpoint, or begin a new "
            "run with it: init_from"
        )
    info = saved_info(checkpoint)
    saved = _flat(_completed(checkpoint, info.config, spec.hyper))
    given = _flat(config.to_plain())
    # By its name: the same algorithm may have been moved to another module.
    saved["algo"], given["algo"] = info.algo, spec.name
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
    # Environments that step together may end a run a few transitions past its budget.
    if total < done and total != saved["total_timesteps"]:
        raise UsageError(
            f"total_timesteps: expected at least the {done} steps that are done already, found "
            f"{total}; it is the budget of the whole run, not what to add to it"
        )


def located(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint by a path that shows where it lies, also if it was given from inside."""
    if checkpoint.path.parent.name == CHECKPOINTS_DIR_NAME:
        return checkpoint
    return replace(checkpoint, path=checkpoint.path.resolve())


def run_directory_of(checkpoint: Checkpoint) -> Path | None:
    """The run directory a `located` checkpoint lies in; None if it was copied out of one."""
    checkpoints = checkpoint.path.parent
    run_directory = checkpoints.parent
    inside = checkpoints.name == CHECKPOINTS_DIR_NAME and (run_directory / CONFIG_NAME).exists()
    return run_directory if inside else None


def refuse_unserialized(config: TrainConfig, *keys: str) -> None:
    """Refuse a configuration with a placeholder at one of these keys (any, if none is named)."""
    values = {key: getattr(config, key) for key in keys or type(config).model_fields}
    missing = [
        f"{key}: this run was given an object here ({text}), which no file can hold; in Python, "
        f"pass it again: load(path, {passed_by(key)}=...)"
        for key, text in placeholders(values)
        if untrusted_name(text) is None
    ]
    if missing:
        raise ConfigError("\n".join(missing))
    refuse_untrusted(values)


def _env_state(run: TrainingRun) -> Any:
    """The environments' state at level exact; the level falls, audibly, if it is lost."""
    if run.level != "exact":
        return None
    try:
        return run.collector.save_envs()
    except SnapshotUnavailable as error:
        run.lower_level(str(error))
        return None


def _callback_states(callbacks: Sequence[Callback]) -> dict[str, dict[str, Any]]:
    states = {name: callback.state_dict() for name, callback in _named(callbacks).items()}
    return {name: state for name, state in states.items() if state}


def _restore_callbacks(callbacks: Sequence[Callback], saved: dict[str, Any]) -> None:
    named = _named(callbacks)
    for name, state in saved.items():
        if name in named:
            named[name].load_state_dict(_mapping(state))
        else:
            logger.warning("the checkpoint holds a state of callback %s, not given now", name)


def _named(callbacks: Sequence[Callback]) -> dict[str, Callback]:
    """Callbacks by class and, among those of one class, by their order."""
    count: Counter[str] = Counter()
    named: dict[str, Callback] = {}
    for callback in callbacks:
        name = f"{type(callback).__module__}.{type(callback).__qualname__}"
        named[f"{name}#{count[name]}"] = callback
        count[name] += 1
    return named


def _best_so_far(run: TrainingRun, checkpoint: Checkpoint) -> float | None:
    """The best return known, also from an evaluation made after the checkpoint was written."""
    saved = run.best_return
    try:
        best = find_checkpoint(checkpoint.path.parent, best=True, parts=())
        found = saved_info(best).eval_return_mean
    except CheckpointError:
        return saved
    if found is None or best.env_steps > run.env_steps:
        return saved
    return found if saved is None else max(saved, found)


def _completed(
    checkpoint: Checkpoint, saved: dict[str, Any], hyper: type[HyperParameters]
) -> dict[str, Any]:
    """A saved configuration with the defaults of the keys that came after it."""
    if not isinstance(saved.get("algo_kwargs"), dict):
        raise damaged(
            checkpoint.path / MANIFEST_NAME, "info.config: its algo_kwargs are no mapping"
        )
    defaults = {
        name: plain(field.get_default(call_default_factory=True))
        for name, field in TrainConfig.model_fields.items()
        if not field.is_required()
    }
    keys = hyper().to_plain() | saved["algo_kwargs"]
    return defaults | saved | {"algo_kwargs": keys}


def _flat(plain: dict[str, Any] | list[Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in plain.items() if isinstance(plain, dict) else enumerate(plain):
        if isinstance(value, dict | list):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
