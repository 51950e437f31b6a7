"""What the command line prints: results and tables."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import sys
import textwrap
import time
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rl_training.config.loading import dump_yaml, given_values, packaged_configs
from rl_training.data.memory import format_duration
from rl_training.errors import UsageError
from rl_training.experiment.registry import get_spec
from rl_training.runtime.compatibility import in_plain_words
from rl_training.runtime.result import command_line
from rl_training.runtime.spec_table import all_specs
from rl_training.storage.files import jsonable, write_atomic
from rl_training.storage.runs import RunInfo, list_runs, printable

if TYPE_CHECKING:
    from rl_training.config.loading import LoadedConfig
    from rl_training.config.train_config import TrainConfig
    from rl_training.experiment.result import ExperimentResult
    from rl_training.runtime.evaluator import Evaluation
    from rl_training.runtime.result import TrainResult

WIDTH = 80
"""Columns of a terminal that is as wide as terminals used to be."""


def show_result(result: TrainResult, config: TrainConfig) -> None:
    """The outcome of a run and the commands to try next."""
    from rl_training.runtime.trust import trust_option  # here, as it waits for torch

    run = shlex.quote(str(result.run_dir))
    words = [result.run_dir, *trust_option(config)]
    print(f"{result.status} at step {result.global_step:,} in {result.wall_time_s:.1f} s")
    if result.eval_return_mean is None and result.best_eval_return_mean is not None:
        print(f"best evaluation return so far {result.best_eval_return_mean:.2f}")
    elif result.eval_return_mean is not None:
        best = result.best_eval_return_mean  # over fewer episodes: a point of the curve
        print(
            f"evaluation return {result.eval_return_mean:.2f} ± {result.eval_return_std:.2f} over "
            f"{len(result.eval_returns)} episodes"
            + ("" if best is None else f" (best on the curve {best:.2f})")
        )
    print(f"run directory: {run}")
    print("next:")
    if result.status == "interrupted":
        print(f"  {command_line('resume', *words)}")
    print(f"  {command_line('eval', *words)}")
    print(f"  {tensorboard_hint(result.run_dir)}")
    _show_how_to_see(result.run_dir)


def _show_how_to_see(directory: Path) -> None:
    """The closing line of a run: the command that opens a page about it."""
    print(f"see it: {command_line('report', directory, '--open')}")


def write_config(loaded: LoadedConfig, path: Path) -> None:
    """Write what was given for a run as a configuration of its own; an existing file is kept."""
    if path.exists():
        raise UsageError(f"--save-config: {path} exists already: choose another name")
    write_atomic(path, dump_yaml(given_values(loaded)))
    print(f"configuration: {shlex.quote(str(path))}")


def show_evaluation(config: TrainConfig, evaluation: Evaluation, *, as_json: bool) -> None:
    """The returns of an evaluation, for people or as JSON."""
    if as_json:
        values = {
            "algo": get_spec(config.algo).name,
            "env_id": config.to_plain()["env_id"],
            "eval_return_mean": evaluation.mean,
            "eval_return_std": evaluation.std,
            "eval_episodes": len(evaluation.returns),
            **vars(evaluation),
        }
        print(json.dumps(jsonable(values)))
        return
    print(
        f"return {evaluation.mean:.2f} ± {evaluation.std:.2f} over {len(evaluation.returns)} "
        f"episodes (lowest {min(evaluation.returns):.2f}, highest {max(evaluation.returns):.2f}, "
        f"seed {evaluation.seed})"
    )


def show_experiment(result: ExperimentResult) -> None:
    """A row per seed, then the figures over them."""
    console = _console()
    table = Table("seed", "status", "return", "± over episodes", "steps", "seconds")
    for seed in result.seeds:
        cells = [
            _number(seed.number(key), digits)
            for key, digits in (
                ("eval_return_mean", 2),
                ("eval_return_std", 2),
                ("global_step", 0),
                ("wall_time_s", 1),
            )
        ]
        table.add_row(str(seed.seed), seed.status, *cells)
    console.print(table)
    if figures := result.figures():
        low, high = figures["interval_95"]
        print(
            f"mean {figures['mean']:.2f}, interquartile mean {figures['interquartile_mean']:.2f} "
            f"(95 % interval {low:.2f} to {high:.2f}) {result.coverage}"
        )
    print(f"experiment directory: {shlex.quote(str(result.directory))}")
    if any(seed.status != "finished" for seed in result.seeds):
        print("next: the same command again runs what is left")
    _show_how_to_see(result.directory)


def show_everything(directory: Path) -> None:
    """Algorithms, packaged configurations and runs, in lines of at most 80 characters."""
    print("algorithms")
    for name, spec in all_specs().items():
        spaces = (in_plain_words(spec.observations), in_plain_words(spec.actions))
        texts = (
            f"{spec.title} ({spec.paper})",
            "observations: " + spaces[0],
            "actions: " + spaces[1],
        )
        _print_wrapped(f"  {name:<15}", " " * 17, texts[0])
        for text in texts[1:]:
            _print_wrapped(" " * 17, " " * 19, text)
    print("packaged configurations")
    for algo, names in groupby(packaged_configs(), key=lambda name: name.partition("/")[0]):
        _print_wrapped("  ", " " * (len(algo) + 3), " ".join(names))
    runs = list_runs(directory)
    if not runs:
        print(f"no runs under {printable(directory)}")
        return
    print(f"runs under {printable(directory)}")
    _print_runs(runs, directory)


def show_runs(directory: Path, *, as_json: bool) -> None:
    """The runs under a directory, the newest first, as a table or as JSON."""
    if not directory.is_dir():
        raise UsageError(f"expected a directory with runs, found none at {printable(directory)}")
    runs = sorted(list_runs(directory), key=lambda run: run.started_at or 0.0, reverse=True)
    if as_json:
        now = time.time()
        rows = [vars(run) | {"path": str(run.path), "age_s": _age(run, now)} for run in runs]
        print(json.dumps(jsonable(rows)))
    elif runs:
        _print_runs(runs, directory)
    else:
        print(f"no runs under {printable(directory)}")


def _print_runs(runs: list[RunInfo], directory: Path) -> None:
    now = time.time()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("status")
    table.add_column("algorithm")
    table.add_column("environment", overflow="fold")
    for column in ("steps", "return", "age"):
        table.add_column(column, justify="right")
    table.add_column("run", overflow="fold")  # a path cut short is of no use
    for run in runs:
        age, path = _age(run, now), os.path.relpath(run.path, directory)
        table.add_row(
            run.status,
            Text(run.algo),
            Text(run.env_id),
            _number(run.env_steps, 0),
            _return(run),
            "-" if age is None else format_duration(age),
            Text(printable(path, longest=1_000)),
        )
    _console().print(table)


def _return(run: RunInfo) -> str:
    """The evaluation return or, before the first evaluation, that of training, marked as such."""
    if run.eval_return_mean is None and run.train_return_mean is not None:
        return f"training {run.train_return_mean:,.1f}"
    return _number(run.eval_return_mean, 1)


def _age(run: RunInfo, now: float) -> float | None:
    """Seconds since the run began; None if that is not known, or not yet."""
    return None if run.started_at is None or run.started_at > now else now - run.started_at


def tensorboard_hint(run: Path) -> str:
    """A command that shows the curves of a run where this process runs, or how to get one."""
    beside = Path(sys.executable).with_name("tensorboard")
    if shutil.which("tensorboard"):
        program = ["tensorboard"]
    elif importlib.util.find_spec("tensorboard") is None:
        return shlex.join([sys.executable, "-m", "pip", "install", "tensorboard"])
    else:
        program = [str(beside)] if beside.exists() else [sys.executable, "-m", "tensorboard.main"]
    return shlex.join([*program, "--logdir", str(run)])


def _print_wrapped(first: str, rest: str, text: str) -> None:
    print(
        textwrap.fill(
            text,
            WIDTH,
            initial_indent=first,
            subsequent_indent=rest,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def _console() -> Console:
    """A console that cuts nothing short where no terminal limits the width."""
    console = Console()
    if not console.is_terminal:
        console.width = 1_000
    return console


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
