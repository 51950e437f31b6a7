"""Training as a function of a spec: check, build, restore, loop, evaluate, save."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from rl_training.config.train_config import TrainConfig, check_hyper_parameters
from rl_training.errors import ConfigError, UsageError
from rl_training.runtime.assembly import RunPlan, assemble, build
from rl_training.runtime.callbacks import Callback, configured_callbacks
from rl_training.runtime.execution import set_execution, threads
from rl_training.runtime.process import Interrupts, keep_freed_memory
from rl_training.runtime.result import (
    TrainingInterrupted,
    TrainResult,
    failure,
    write_records,
    write_result,
)
from rl_training.runtime.resume import (
    checkpoint_to_resume,
    refuse_unserialized,
    restore_run,
    run_directory_of,
    saved_loop,
)
from rl_training.runtime.saved_info import saved_info
from rl_training.runtime.spec import AlgorithmSpec
from rl_training.runtime.spec_table import portable_name
from rl_training.runtime.training_run import TrainingRun
from rl_training.storage.checkpoints import set_aside_newer
from rl_training.storage.metrics_log import MetricsLog
from rl_training.storage.runs import RunLock, create_run_directory, default_run_name, refuse_links

logger = logging.getLogger("rl_training")


def train_one_of(
    specs: Sequence[AlgorithmSpec],
    config: TrainConfig,
    *,
    callbacks: Sequence[Callback] = (),
    resume: str | Path | None = None,
) -> TrainResult:
    """Train the one of the specs that the configuration names."""
    if not isinstance(config, TrainConfig):
        raise UsageError(
            f"config: expected a TrainConfig, found {config!r}; a packaged name or a file is "
            "trained by the algorithm's class: from_config(name).learn()"
        )
    for spec in specs:
        if config.algo in (spec.name, portable_name(spec)):
            return train(spec, config, callbacks=callbacks, resume=resume)
    names = " or ".join(spec.name for spec in specs)
    raise ConfigError(f"algo: expected {names}, found {config.algo!r}")


def train(
    spec: AlgorithmSpec,
    config: TrainConfig,
    *,
    callbacks: Sequence[Callback] = (),
    resume: str | Path | None = None,
) -> TrainResult:
    """Train one agent to the end of its budget and leave a complete run directory.

    A signal such as SIGINT or SIGTERM saves a checkpoint and raises TrainingInterrupted.
    """
    hyper = check_hyper_parameters(spec.hyper, config.algo_kwargs)
    # Store a reference any process can resolve: another one may resume the run.
    config = config.with_changes(
        algo=portable_name(spec) or spec.name, algo_kwargs=hyper.model_dump()
    )
    refuse_unserialized(config)
    callbacks = (*configured_callbacks(config.callbacks), *_checked_callbacks(callbacks))
    keep_freed_memory()
    checkpoint = None if resume is None else checkpoint_to_resume(resume, config, spec)
    plan = RunPlan(
        spec=spec, config=config, hyper=hyper, callbacks=callbacks, checkpoint=checkpoint
    )
    with ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts())
        stack.enter_context(threads(config, saved_info(checkpoint).threads if checkpoint else None))
        components = build(plan)
        stack.callback(components.close)
        num_envs = components.collector.num_envs
        updates = spec.loop.planned_updates(hyper, config.total_timesteps, num_envs)
        set_execution(components.agent.algorithm, config, hyper.batch_size, updates, checkpoint)
        run_directory = run_directory_of(checkpoint) if checkpoint else None
        refuse_links(run_directory)
        directory = run_directory or _new_directory(spec, config)
        stack.enter_context(RunLock(directory))
        saved_log = saved_loop(checkpoint)["metrics_log"] if checkpoint and run_directory else None
        log = stack.enter_context(closing(MetricsLog(directory, resume_from=saved_log)))
        run = assemble(plan, components, directory, log, interrupts)
        if checkpoint is not None:
            restore_run(run, checkpoint)
            if run_directory is None:
                run.checkpoint_path = run.saved_at = None  # this directory holds none yet
            else:
                _set_aside_newer(run)
        write_records(run, checkpoint)
        return _run_to_end(run, spec)


def _run_to_end(run: TrainingRun, spec: AlgorithmSpec) -> TrainResult:
    _warn_if_nothing_is_learned(run, spec)
    try:
        for callback in run.callbacks:
            callback.on_start(run)
        spec.loop.run(run)
        if not run.interrupts.received:
            run.save()
            if run.config.final_eval_episodes:
                run.evaluate(run.config.final_eval_episodes)
        elif run.saved_at != run.env_steps:
            run.save()
        result = write_result(run)
    except Exception as error:
        reported = failure(run, error)
        if reported is error:
            raise
        raise reported from error
    for callback in run.callbacks:
        callback.on_end(run, result)
    if run.interrupts.received:
        raise TrainingInterrupted(result, run.interrupts.received)
    return result


def _set_aside_newer(run: TrainingRun) -> None:
    for path in set_aside_newer(run.directory / "checkpoints", env_steps=run.env_steps):
        logger.warning("a checkpoint newer than the resumed one was moved to %s", path)


def _warn_if_nothing_is_learned(run: TrainingRun, spec: AlgorithmSpec) -> None:
    """Say so if the budget ends before the first update."""
    first = spec.loop.first_update(run.hyper, run.collector.num_envs)
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


def _new_directory(spec: AlgorithmSpec, config: TrainConfig) -> Path:
    name = config.run_name or default_run_name(
        spec.name, str(config.to_plain()["env_id"]), config.seed
    )
    return create_run_directory(Path(config.output_dir), name=name)
