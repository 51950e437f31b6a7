"""Training as a function of a spec: check, build, restore, loop, evaluate, save."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from rl_training.config.train_config import TrainConfig, check_hyper_parameters
from rl_training.errors import ConfigError, EnvError, SaveError, UsageError
from rl_training.runtime.assembly import RunPlan, assemble, build, with_action_names
from rl_training.runtime.callbacks import Callback, checked_callbacks, configured_callbacks
from rl_training.runtime.execution import set_execution, threads
from rl_training.runtime.origin import Origin, find_origin, new_directory
from rl_training.runtime.process import EnvCalls, Interrupts, Watchdog, keep_freed_memory
from rl_training.runtime.result import (
    TrainingInterrupted,
    TrainResult,
    failure,
    write_records,
    write_result,
)
from rl_training.runtime.resume import refuse_unserialized, restore_run
from rl_training.runtime.saved_info import saved_info
from rl_training.runtime.spec import AlgorithmSpec
from rl_training.runtime.spec_table import portable_name
from rl_training.runtime.training_run import TrainingRun
from rl_training.runtime.verification import Verdict, verify_resume
from rl_training.runtime.warm_start import begin_with
from rl_training.storage.checkpoints import Checkpoint, set_aside_newer
from rl_training.storage.metrics_log import MetricsLog
from rl_training.storage.runs import CHECKPOINTS_DIR_NAME, RunLock

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
    auto_resume: bool = False,
    stop_at: int | None = None,
) -> TrainResult:
    """Train one agent to the end of its budget and leave a complete run directory.

    With `auto_resume` the directory follows from the configuration, and whatever is there of the
    run is gone on with; a finished one gives its result again. With `stop_at` the session ends
    after that many transitions of the run, which can be resumed. A signal such as SIGINT or SIGTERM
    saves a checkpoint and raises TrainingInterrupted.
    """
    hyper = check_hyper_parameters(spec.hyper, config.algo_kwargs)
    # Store a reference any process can resolve: another one may resume the run.
    config = config.with_changes(
        algo=portable_name(spec) or spec.name, algo_kwargs=hyper.model_dump()
    )
    refuse_unserialized(config)
    callbacks = (*configured_callbacks(config.callbacks), *checked_callbacks(callbacks))
    keep_freed_memory()
    with ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts())
        origin = find_origin(spec, config, stack, resume=resume, auto_resume=auto_resume)
        if origin.finished is not None:
            return origin.finished
        checkpoint = origin.checkpoint
        config = _with_beginning(config, checkpoint)
        plan = RunPlan(
            spec=spec,
            config=config,
            hyper=hyper,
            callbacks=callbacks,
            checkpoint=checkpoint,
            stop_at=stop_at,
        )
        stack.enter_context(threads(config, saved_info(checkpoint).threads if checkpoint else None))
        watchdog = stack.enter_context(_watchdog(interrupts, config))
        components = build(plan, watchdog.calls)
        stack.callback(components.close)
        config = with_action_names(config, components)
        plan = replace(plan, config=config)
        start = None if checkpoint else begin_with(config, components)
        num_envs = components.collector.num_envs
        updates = spec.loop.planned_updates(hyper, config.total_timesteps, num_envs)
        set_execution(components.agent.algorithm, config, hyper.batch_size, updates, checkpoint)
        directory = origin.directory or new_directory(spec, config, origin, auto_resume=auto_resume)
        if origin.directory is None:
            stack.enter_context(RunLock(directory))
        position = origin.metrics_log(stop_at or config.total_timesteps)
        log = stack.enter_context(closing(MetricsLog(directory, resume_from=position)))
        run = assemble(plan, components, directory, log, interrupts)
        run.start = start
        stack.enter_context(run.writer)
        write_records(run, checkpoint, _begin_or_restore(run, origin))
        with watchdog.giving_up_by(partial(_save_and_exit, run)):
            return _run_to_end(run, spec)


def _with_beginning(config: TrainConfig, checkpoint: Checkpoint | None) -> TrainConfig:
    """The configuration with what the run it goes on with began with, which is not read again."""
    if checkpoint is None:
        return config
    saved = saved_info(checkpoint).config
    parts = TrainConfig.model_fields["init_parts"].default
    return config.with_changes(
        init_from=saved.get("init_from"), init_parts=saved.get("init_parts", parts)
    )


def _run_to_end(run: TrainingRun, spec: AlgorithmSpec) -> TrainResult:
    run.interrupts.retake()  # every environment has been built and reset
    _warn_if_nothing_is_learned(run, spec)
    try:
        for callback in run.callbacks:
            callback.on_start(run)
        spec.loop.run(run)
        run.finish_saving()
        interrupted, paused, unsaved = run.interrupts.received is not None, run.paused, None
        if not (interrupted or paused):
            unsaved = _save_last(run)
        # Of a run that goes on, a checkpoint of this very step is the better one: if it was due,
        # episodes were cut for it where they have to be.
        elif run.saved_at != run.env_steps:
            run.save()
        if run.config.final_eval_episodes and not interrupted:
            # In a pause only a measurement: an unbroken run would not keep a best policy here.
            run.evaluate(run.config.final_eval_episodes, keep_best=not paused, final=True)
        if unsaved is not None:
            raise unsaved
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


def _save_last(run: TrainingRun) -> SaveError | None:
    """Save a run at its end; the error, if `on_save_error` lets the run be evaluated first."""
    try:
        run.save()
    except SaveError as error:
        if run.config.on_save_error == "stop":
            raise
        return error
    return None


def _watchdog(interrupts: Interrupts, config: TrainConfig) -> Watchdog:
    give_up = partial(_exit_stuck, config)
    return Watchdog(interrupts, EnvCalls(), seconds=config.env_timeout, give_up=give_up)


def _save_and_exit(run: TrainingRun, number: int) -> None:
    """Save the learner while the main thread is stuck in an environment, and end the process."""
    try:
        print(failure(run, _stuck(run.config, number)), file=sys.stderr, flush=True)
    finally:
        os._exit(128 + number)


def _begin_or_restore(run: TrainingRun, origin: Origin) -> Verdict | None:
    """Put the run where it begins; the verdict on a resume."""
    checkpoint, verdict = origin.checkpoint, None
    if checkpoint is None:
        run.begin_transcript()
    else:
        # First: its environments may share something with the run's, such as spaces of a class.
        verdict = verify_resume(run, checkpoint)
        restore_run(run, checkpoint)
    if origin.directory is None:
        run.checkpoint_path = run.saved_at = None  # this directory holds none yet
        return verdict
    if checkpoint is not None:
        run.writer.continue_from(checkpoint)
    # What is left of a run that begins anew is none of its own, not even a best policy of step 0.
    _set_aside_newer(run, -1 if checkpoint is None else run.env_steps)
    return verdict


def _exit_stuck(config: TrainConfig, number: int) -> None:
    """End a process that is stuck in an environment before or after training."""
    try:
        error = _stuck(config, number)
        print(f"{error}What was learned before is saved.", file=sys.stderr, flush=True)
    finally:
        os._exit(128 + number)


def _stuck(config: TrainConfig, number: int) -> EnvError:
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    stack = "".join(traceback.format_stack(frame)[-4:])
    return EnvError(
        f"{config.to_plain()['env_id']} did not return within {config.env_timeout:g} s "
        f"(env_timeout) after {signal.Signals(number).name}. It is here:\n{stack}"
    )


def _set_aside_newer(run: TrainingRun, env_steps: int) -> None:
    for path in set_aside_newer(run.directory / CHECKPOINTS_DIR_NAME, env_steps=env_steps):
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
