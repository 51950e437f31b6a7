"""Training as a function of a spec: check, build, restore, loop, evaluate, save."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol

from rl_training.errors import ConfigError, UsageError
from rl_training.experiment.checkpointing import set_aside_newer
from rl_training.experiment.config import TrainConfig, check_hyper_parameters
from rl_training.experiment.logging import MetricsLog
from rl_training.experiment.runs import RunLock, create_run_directory, default_run_name
from rl_training.runtime.assembly import RunPlan, assemble, build
from rl_training.runtime.callback_names import named_callbacks
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.execution import set_execution
from rl_training.runtime.host_memory import keep_freed_memory
from rl_training.runtime.interrupts import Interrupts
from rl_training.runtime.lost_objects import refuse_lost_objects
from rl_training.runtime.persistence import restore_run
from rl_training.runtime.records import failure, write_records, write_result
from rl_training.runtime.result import TrainingInterrupted, TrainResult
from rl_training.runtime.resuming import checkpoint_to_resume, home_of
from rl_training.runtime.spec import AlgorithmSpec
from rl_training.runtime.threads import threads
from rl_training.runtime.training_run import TrainingRun

logger = logging.getLogger("rl_training")


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
        if not isinstance(config, TrainConfig):
            raise UsageError(
                f"config: expected a TrainConfig, found {config!r}; a packaged name or a file is "
                "trained by the algorithm's class: from_config(name).learn()"
            )
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
    callbacks = (*named_callbacks(config.callbacks), *_checked_callbacks(callbacks))
    plan = RunPlan(spec=spec, config=config, hyper=hyper, callbacks=callbacks)
    refuse_lost_objects(config)
    keep_freed_memory()
    checkpoint = None if resume is None else checkpoint_to_resume(resume, config, spec.hyper)
    with ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts())
        stack.enter_context(threads(config, checkpoint.info.get("threads") if checkpoint else None))
        parts = build(plan)
        stack.callback(parts.close)
        num_envs = parts.collector.num_envs
        set_execution(parts.agent.algorithm, config, hyper, num_envs, checkpoint)
        home = home_of(checkpoint) if checkpoint else None
        directory = home or _new_directory(config)
        stack.enter_context(RunLock(directory))
        saved_log = checkpoint.read("loop")["metrics_log"] if checkpoint and home else None
        log = stack.enter_context(closing(MetricsLog(directory, resume_from=saved_log)))
        run = assemble(plan, parts, directory, log, interrupts)
        if checkpoint is not None:
            restore_run(run, checkpoint)
            if home is None:
                run.checkpoint_path = run.saved_at = None  # this directory holds none yet
            else:
                _set_aside_newer(run)
        write_records(run, checkpoint)
        return _drive(run, spec)


def _drive(run: TrainingRun, spec: AlgorithmSpec) -> TrainResult:
    _warn_if_nothing_is_learned(run)
    try:
        for callback in run.callbacks:
            callback.on_start(run)
        spec.loop(run)
        if not run.interrupts.received:
            run.save()
            if run.config.final_eval_episodes:
                run.evaluate(run.config.final_eval_episodes)
        elif run.saved_at != run.env_steps:
            run.save()
        result = write_result(run)
    except Exception as error:
        told = failure(run, error)
        if told is error:
            raise
        raise told from error
    for callback in run.callbacks:
        callback.on_end(run, result)
    if run.interrupts.received:
        raise TrainingInterrupted(result, run.interrupts.received)
    return result


def _set_aside_newer(run: TrainingRun) -> None:
    for path in set_aside_newer(run.directory / "checkpoints", env_steps=run.env_steps):
        logger.warning("a checkpoint newer than the resumed one was moved to %s", path)


def _warn_if_nothing_is_learned(run: TrainingRun) -> None:
    """Say so if the budget ends before the first update."""
    first = max(
        getattr(run.hyper, "learning_starts", -1) + 1,
        getattr(run.hyper, "num_steps", 0) * run.collector.num_envs,
    )
    if first > run.progress.horizon and not run.progress.finished:
        logger.warning(
            "nothing will be learned: the first update would follow step %d, and total_timesteps "
            "is %d",
            first,
            run.progress.horizon,
        )


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
