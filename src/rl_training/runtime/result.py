"""What a run gives back, and what it writes about itself: config, metadata and summary files."""

from __future__ import annotations

import logging
import shlex
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from rl_training.config.loading import dump_yaml
from rl_training.config.train_config import WATCH_KEYS
from rl_training.errors import RLTrainingError, SaveError
from rl_training.storage.files import write_atomic, write_json
from rl_training.storage.runs import (
    CHECKPOINTS_DIR_NAME,
    CONFIG_NAME,
    METADATA_NAME,
    SUMMARY_NAME,
    collect_metadata,
    remove_summary,
    with_session,
)

logger = logging.getLogger("rl_training")

if TYPE_CHECKING:  # an outcome can be named without loading what makes one
    from rl_training.runtime.training_run import TrainingRun
    from rl_training.runtime.verification import Verdict
    from rl_training.storage.checkpoints import Checkpoint

logger = logging.getLogger("rl_training")

# What the last bits of a number depend on. A compiled run may have to go on eagerly.
ROUNDING_KEYS = ("device", "threads", "execution")


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """The outcome of a run; `eval_*` describe the final policy over `eval_returns`.

    They are None and empty if the final policy was not evaluated, whatever came before.
    """

    algo: str
    env_id: str
    seed: int
    status: str
    stop_reason: str | None
    global_step: int
    updates: int
    eval_return_mean: float | None
    eval_return_std: float | None
    eval_returns: tuple[float, ...]
    best_eval_return_mean: float | None
    metrics: dict[str, float]
    steps_per_second: float
    wall_time_s: float
    run_dir: Path
    checkpoint_path: Path | None

    @classmethod
    def from_summary(cls, summary: Mapping[str, Any], run_dir: Path) -> TrainResult | None:
        """The result that a summary.json describes; None if it is none."""
        try:
            found = TypeAdapter(cls).validate_python({**summary, "run_dir": run_dir})
        except ValidationError:
            return None
        path = found.checkpoint_path
        if path is None:
            return found
        if path.parent != Path(CHECKPOINTS_DIR_NAME):  # a file of the run must not lead out of it
            return None
        return replace(found, checkpoint_path=run_dir / path)

    def summary(self) -> dict[str, object]:
        """The run's summary.json."""
        plain = {name: value for name, value in vars(self).items() if name != "run_dir"}
        path = self.checkpoint_path
        return plain | {
            "eval_returns": list(self.eval_returns),
            "eval_episodes": len(self.eval_returns),
            "checkpoint_path": str(path.relative_to(self.run_dir)) if path else None,
        }


class TrainingInterrupted(KeyboardInterrupt):
    """A signal stopped the run after its checkpoint was saved; `result` describes it."""

    def __init__(self, result: TrainResult, signal_number: int) -> None:
        super().__init__(f"interrupted by signal {signal_number} at step {result.global_step}")
        self.result = result
        self.signal_number = signal_number


def command_line(*words: object) -> str:
    """A command of this package as it can be typed here: by the script's path if need be."""
    if shutil.which("rl-training"):
        program = ["rl-training"]
    elif Path(sys.argv[0]).name == "rl-training":
        program = [sys.argv[0]]
    else:
        program = [sys.executable, "-m", "rl_training"]
    return shlex.join([*program, *map(str, words)])


def write_records(
    run: TrainingRun, checkpoint: Checkpoint | None, verification: Verdict | None = None
) -> None:
    """Write config.yaml and metadata.json as a session begins; no older summary stays.

    A resume that is not exact is said to be none, and so is every later checkpoint of the run.
    """
    remove_summary(run.directory)
    configuration = run.config.to_plain()
    write_atomic(run.directory / CONFIG_NAME, dump_yaml(configuration))
    run.metrics_log.describe(dump_yaml(configuration), _hyper_parameters(configuration))
    path = run.directory / METADATA_NAME
    session = collect_metadata(
        command=sys.argv,
        seed=run.config.seed,
        device=str(run.algorithm.device),
        resume_level=run.level,
        extra={
            "algo": run.agent.spec.name,
            "env_id": run.agent.adapter.spec.env_id,
            "resume_level_reason": run.level_reason,
            "replay_bytes": run.buffer.nbytes,
            "execution": run.algorithm.execution,
            **({"init_from": run.start.record()} if run.start is not None else {}),
        },
    )
    resumed = None if checkpoint is None else resume_entry(checkpoint, run, session)
    if resumed is not None and verification is not None:
        resumed["verification"] = verification._asdict()
        resumed["exact"] = resumed["exact"] and verification.verdict != "differs"
    record = with_session(path, session, resumed)
    if run.level == "statistical":  # a run once resumed so stays it
        record |= {"resume_level": run.level, "resume_level_reason": run.level_reason}
    write_json(path, record)
    if resumed is not None:
        run.exact_so_far = resumed["exact"]
        _report_resume(resumed)
    if verification is not None and verification.verdict == "differs":
        run.lower_level(verification.detail)


def _hyper_parameters(configuration: Mapping[str, Any]) -> dict[str, bool | float | str]:
    """The keys that decide what a run learns, one number or text each, with dots as on `--set`."""
    flat: dict[str, bool | float | str] = {}
    for key, value in configuration.items():
        inner = value if isinstance(value, Mapping) else {"": value}
        for name, each in inner.items():
            if key not in WATCH_KEYS and each not in (None, [], {}):
                plain = isinstance(each, bool | float | int | str)
                flat[f"{key}.{name}".rstrip(".")] = each if plain else str(each)
    return flat


def _report_resume(entry: Mapping[str, Any]) -> None:
    if changed := entry.get("changed"):
        named = ", ".join(f"{key} {v['from']} (now {v['to']})" for key, v in changed.items())
        logger.warning("not an exact continuation, as the checkpoint was saved with: %s", named)
    if verification := entry.get("verification"):
        logger.info("resume: %s (%s)", verification["verdict"], verification["detail"])


def resume_entry(
    checkpoint: Checkpoint, run: TrainingRun, session: Mapping[str, Any]
) -> dict[str, Any]:
    """What metadata.json says about a resume; `session` is what it says about the new session."""
    from rl_training.runtime.saved_info import saved_info  # here, as it waits for torch

    config, info = run.config, saved_info(checkpoint)
    planned = info.config.get("total_timesteps")
    # The environments of a run at a lower level do not stand where the saved ones did.
    exact = info.exact and run.level in (info.resume_level, "exact")
    entry: dict[str, Any] = {"checkpoint": checkpoint.path.name, "exact": exact}
    if planned != config.total_timesteps:
        # Schedules depend on the planned total: an extension is not an exact continuation.
        entry |= {"exact": False, "extended": {"from": planned, "to": config.total_timesteps}}
    before = {key: getattr(info, key) for key in ROUNDING_KEYS if key in info.model_fields_set}
    before |= info.versions
    now = {**session, **run.versions}
    changed = {
        key: {"from": value, "to": now[key]}
        for key, value in before.items()
        if key in now and now[key] != value
    }
    if changed:
        entry |= {"exact": False, "changed": changed}
    return entry


def write_result(run: TrainingRun) -> TrainResult:
    """The outcome of a run that came to its end or was interrupted, also as summary.json."""
    status = "interrupted" if run.interrupts.received else "finished"
    result = _result(run, status, run.check_finite())
    write_json(run.directory / SUMMARY_NAME, result.summary())
    if status == "finished" and not run.paused:
        with run.save_errors("the end of the run, for TensorBoard"):
            run.metrics_log.finish()
    return result


def failure(run: TrainingRun, error: Exception) -> Exception:
    """The error to raise for one that ended a run, after saving what can be saved.

    What failed outside of learning, such as an environment or a callback, has not touched the
    learner, which is saved. The error tells where, and how to go on if that can succeed; so does
    the log for one that is not of this package.
    """
    try:
        run.finish_saving()
    except Exception as second:  # of two errors the first is the one to tell
        logger.warning("the last checkpoint was not written: %s", second)
    if not isinstance(error, SaveError):
        hint = _recovery_hint(run)
        if isinstance(error, RLTrainingError):
            error = type(error)(f"{str(error).rstrip()}\n{hint}")
        else:
            logger.error("%s ended the run. %s", type(error).__name__, hint)
    with suppress(RLTrainingError):  # of two errors the first is the one to tell
        summary = _result(run, "failed", {}).summary()
        write_json(run.directory / SUMMARY_NAME, summary | {"error": str(error)})
    return error


def _recovery_hint(run: TrainingRun) -> str:
    # Here, as it knows the callbacks.
    from rl_training.runtime.trust import placeholders, trust_option

    where, trouble = f"The run directory is {run.directory}", ""
    try:
        run.save_after_failure()
    except Exception as error:  # a callback may fail again
        trouble = f" (the latest state could not be saved: {error})"
    path, step = run.checkpoint_path, run.saved_at
    if path is None:
        return f"{where}; it holds no checkpoint{trouble}."
    saved = f"{where}; step {step} of the run is saved in {path}{trouble}."
    if not run.env_steps:
        return f"{where}. Nothing has been learned yet: fix the environment and start again."
    if run.diverged:
        return f"{saved} From there it would diverge again: start anew with other settings."
    if any(placeholders(run.config.to_plain())):
        # An object of the caller's, which no command can name.
        return f"{saved} Fix the environment, and go on in Python: load(path, env=...).resume()"
    command = command_line("resume", run.directory, *trust_option(run.config))
    return f"{saved} Fix the environment, and go on with: {command}"


def _result(run: TrainingRun, status: str, metrics: dict[str, float]) -> TrainResult:
    elapsed = run.elapsed
    evaluation = run.last_evaluation if run.last_evaluation_at == run.env_steps else None
    return TrainResult(
        algo=run.agent.spec.name,
        env_id=run.agent.adapter.spec.env_id,
        seed=run.config.seed,
        status=status,
        stop_reason=run.stop_reason,
        global_step=run.env_steps,
        updates=run.updates,
        eval_return_mean=evaluation.mean if evaluation else None,
        eval_return_std=evaluation.std if evaluation else None,
        eval_returns=evaluation.returns if evaluation else (),
        best_eval_return_mean=run.best_return,
        metrics=metrics,
        steps_per_second=run.env_steps / max(elapsed, 1e-9),
        wall_time_s=elapsed,
        run_dir=run.directory,
        checkpoint_path=run.checkpoint_path,
    )
