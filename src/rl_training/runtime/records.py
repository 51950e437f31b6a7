"""What a run writes about itself: config.yaml, metadata.json and summary.json."""

from __future__ import annotations

import sys
from contextlib import suppress

from rl_training.errors import EnvError, NonFiniteError, RLTrainingError, SaveError
from rl_training.experiment.checkpointing import Checkpoint
from rl_training.experiment.config_loading import dump_yaml
from rl_training.experiment.files import write_atomic, write_json
from rl_training.experiment.run_metadata import collect_metadata, with_session
from rl_training.experiment.runs import METADATA_NAME, SUMMARY_NAME, remove_summary
from rl_training.runtime.result import TrainResult, command_line
from rl_training.runtime.resuming import resume_entry
from rl_training.runtime.training_run import TrainingRun


def write_records(run: TrainingRun, checkpoint: Checkpoint | None) -> None:
    """Write config.yaml and metadata.json as a session begins; no older summary stays."""
    remove_summary(run.directory)
    write_atomic(run.directory / "config.yaml", dump_yaml(run.config.to_plain()))
    path = run.directory / METADATA_NAME
    session = collect_metadata(
        command=sys.argv,
        seed=run.config.seed,
        device=str(run.algorithm.device),
        resume_level=run.level,
        extra={
            "algo": run.config.algo,
            "env_id": run.agent.adapter.spec.env_id,
            "resume_level_reason": run.level_reason,
            "replay_bytes": run.buffer.nbytes,
            "execution": run.algorithm.execution,
        },
    )
    resumed = None if checkpoint is None else resume_entry(checkpoint, run.config, session)
    write_json(path, with_session(path, session, resumed))


def write_result(run: TrainingRun) -> TrainResult:
    """The outcome of a run that came to its end or was interrupted, also as summary.json."""
    status = "interrupted" if run.interrupts.received else "finished"
    result = _result(run, status, run.check_finite())
    write_json(run.directory / SUMMARY_NAME, result.summary())
    return result


def failure(run: TrainingRun, error: Exception) -> Exception:
    """The error to raise for one that ended a run, after saving what can be saved.

    An environment that failed has not touched the learner, which is saved; its error then tells
    where, and how to go on.
    """
    if isinstance(error, EnvError | NonFiniteError):
        error = type(error)(f"{str(error).rstrip()}\n{_what_is_left(run)}")
    with suppress(RLTrainingError):  # of two errors the first is the one to tell
        summary = _result(run, "failed", {}).summary()
        write_json(run.directory / SUMMARY_NAME, summary | {"error": str(error)})
    return error


def _what_is_left(run: TrainingRun) -> str:
    where, trouble = f"The run directory is {run.directory}", ""
    try:
        run.save_after_failure()
    except SaveError as error:
        trouble = f" (the latest state could not be saved: {error})"
    path, step = run.checkpoint_path, run.saved_at
    if path is None:
        return f"{where}; it holds no checkpoint{trouble}."
    command = command_line("resume", "--checkpoint", run.directory)
    return f"{where}; step {step} of the run is saved in {path}{trouble}. Go on with: {command}"


def _result(run: TrainingRun, status: str, metrics: dict[str, float]) -> TrainResult:
    elapsed = run.elapsed
    evaluation = run.last_evaluation if run.last_evaluation_at == run.env_steps else None
    return TrainResult(
        algo=run.config.algo,
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
