"""Training as a function of a spec: check, build, restore, loop, evaluate, save."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Protocol

import torch

from rl_training.errors import ConfigError, UsageError
from rl_training.experiment.checkpointing import Checkpoint, find_checkpoint, set_aside_newer
from rl_training.experiment.config import HyperParameters, TrainConfig, check_hyper_parameters
from rl_training.experiment.config_loading import dump_yaml
from rl_training.experiment.files import write_atomic, write_json
from rl_training.experiment.logging import MetricsLog
from rl_training.experiment.runs import (
    RunLock,
    collect_metadata,
    create_run_directory,
    default_run_name,
)
from rl_training.runtime.assembly import RunPlan, assemble, build
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.interrupts import Interrupts
from rl_training.runtime.persistence import restore_run
from rl_training.runtime.result import TrainingInterrupted, TrainResult
from rl_training.runtime.resuming import check_same_run, home_of, resume_history
from rl_training.runtime.spec import AlgorithmSpec
from rl_training.runtime.training_run import TrainingRun

logger = logging.getLogger("rl_training")

ONE_THREAD_WIDTH = 256  # up to this layer width a second thread costs more than it gives


class Train(Protocol):
    """A training function such as `train_dqn`."""

    def __call__(
        self,
        config: TrainConfig,
        *,
        callbacks: Sequence[Callback] = (),
        resume: str | Path | None = None,
    ) -> TrainResult:
        """Train as `config` says; `resume` continues a run from its directory or a checkpoint."""


def trainer(*specs: AlgorithmSpec) -> Train:
    """The training function of some specs; `config.algo` names the one it takes."""
    by_name = {spec.name: spec for spec in specs}

    def train_one(
        config: TrainConfig,
        *,
        callbacks: Sequence[Callback] = (),
        resume: str | Path | None = None,
    ) -> TrainResult:
        if config.algo not in by_name:
            raise ConfigError(f"algo: expected {' or '.join(by_name)}, found {config.algo!r}")
        return train(by_name[config.algo], config, callbacks=callbacks, resume=resume)

    train_one.__name__ = train_one.__qualname__ = f"train_{specs[0].name}"
    train_one.__doc__ = f"Train {' or '.join(by_name)} as the configuration says."
    return train_one


def train(
    spec: AlgorithmSpec,
    config: TrainConfig,
    *,
    callbacks: Sequence[Callback] = (),
    resume: str | Path | None = None,
) -> TrainResult:
    """Train one agent to the end of its budget and leave a complete run directory.

    A SIGINT or SIGTERM saves a checkpoint and raises TrainingInterrupted.
    """
    hyper = check_hyper_parameters(spec.hyper, config.algo_kwargs)
    config = config.with_changes(algo_kwargs=hyper.model_dump())
    callbacks = _checked_callbacks(callbacks)
    plan = RunPlan(spec=spec, config=config, hyper=hyper, callbacks=callbacks)
    checkpoint = None if resume is None else find_checkpoint(Path(resume))
    if checkpoint is not None:
        check_same_run(checkpoint, config)
    with ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts())
        stack.enter_context(_threads(config, hyper))
        parts = build(plan)
        stack.callback(parts.close)
        home = home_of(checkpoint) if checkpoint else None
        directory = home or _new_directory(config)
        stack.enter_context(RunLock(directory))
        saved_log = checkpoint.read("loop")["metrics_log"] if checkpoint and home else None
        log = stack.enter_context(closing(MetricsLog(directory, resume_from=saved_log)))
        run = assemble(plan, parts, directory, log, interrupts)
        if checkpoint is not None:
            restore_run(run, checkpoint)
        if checkpoint is not None and home is not None:
            for path in set_aside_newer(checkpoint.path.parent, env_steps=run.env_steps):
                logger.warning("a checkpoint newer than the resumed one was moved to %s", path)
        _write_records(run, checkpoint)
        return _drive(run, spec)


def _drive(run: TrainingRun, spec: AlgorithmSpec) -> TrainResult:
    for callback in run.callbacks:
        callback.on_start(run)
    spec.loop(run)
    if not run.interrupts.received:
        run.save()
        if run.config.final_eval_episodes:
            run.evaluate(run.config.final_eval_episodes)
    elif run.saved_at != run.env_steps:
        run.save()
    result = _result(run)
    write_json(run.directory / "summary.json", result.summary())
    for callback in run.callbacks:
        callback.on_end(run, result)
    if run.interrupts.received:
        raise TrainingInterrupted(result, run.interrupts.received)
    return result


def _checked_callbacks(callbacks: object) -> Sequence[Callback]:
    if isinstance(callbacks, Sequence) and all(isinstance(c, Callback) for c in callbacks):
        return callbacks
    raise UsageError(
        f"callbacks: expected a list of Callback objects such as [MyCallback()], found {callbacks}"
    )


def _new_directory(config: TrainConfig) -> Path:
    name = config.run_name or default_run_name(
        config.algo, str(config.to_plain()["env_id"]), config.seed
    )
    return create_run_directory(Path(config.output_dir), name=name)


def _write_records(run: TrainingRun, checkpoint: Checkpoint | None) -> None:
    """config.yaml and metadata.json."""
    write_atomic(run.directory / "config.yaml", dump_yaml(run.config.to_plain()))
    path = run.directory / "metadata.json"
    metadata = collect_metadata(
        command=sys.argv,
        seed=run.config.seed,
        device=str(run.algorithm.device),
        resume_level=run.level,
        extra={
            "algo": run.config.algo,
            "env_id": run.agent.adapter.spec.env_id,
            "resume_level_reason": run.level_reason,
            "replay_bytes": run.buffer.nbytes,
        },
    )
    if checkpoint is not None:
        metadata["resumed_from"] = resume_history(path, checkpoint, run.config)
    write_json(path, metadata)


def _result(run: TrainingRun) -> TrainResult:
    evaluation, elapsed = run.last_evaluation, run.elapsed
    return TrainResult(
        algo=run.config.algo,
        env_id=run.agent.adapter.spec.env_id,
        seed=run.config.seed,
        status="interrupted" if run.interrupts.received else "finished",
        stop_reason=run.stop_reason,
        global_step=run.env_steps,
        updates=run.updates,
        eval_return_mean=evaluation.mean if evaluation else None,
        eval_return_std=evaluation.std if evaluation else None,
        eval_returns=evaluation.returns if evaluation else (),
        best_eval_return_mean=run.best_return,
        metrics=run.check_finite(),
        steps_per_second=run.env_steps / max(elapsed, 1e-9),
        wall_time_s=elapsed,
        run_dir=run.directory,
        checkpoint_path=run.checkpoint_path,
    )


@contextmanager
def _threads(config: TrainConfig, hyper: HyperParameters) -> Iterator[None]:
    before = torch.get_num_threads()
    if config.threads != "auto":
        torch.set_num_threads(config.threads)
    elif max(hyper.hidden_sizes, default=1) <= ONE_THREAD_WIDTH:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
