"""What the command line prints: results and tables."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rl_training.config.loading import packaged_configs
from rl_training.experiment.registry import get_spec
from rl_training.runtime.compatibility import in_plain_words
from rl_training.runtime.result import command_line
from rl_training.runtime.spec_table import all_specs
from rl_training.storage.files import jsonable
from rl_training.storage.runs import list_runs

if TYPE_CHECKING:
    from rl_training.config.train_config import TrainConfig
    from rl_training.experiment.result import ExperimentResult
    from rl_training.runtime.evaluator import Evaluation
    from rl_training.runtime.result import TrainResult


def show_result(result: TrainResult, config: TrainConfig) -> None:
    """The outcome of a run and the commands to try next."""
    from rl_training.runtime.trust import trust_option  # here, as it waits for torch

    run = shlex.quote(str(result.run_dir))
    words = ["--checkpoint", result.run_dir, *trust_option(config)]
    print(f"{result.status} at step {result.global_step:,} in {result.wall_time_s:.1f} s")
    if result.eval_return_mean is None and result.best_eval_return_mean is not None:
        print(f"best evaluation return so far {result.best_eval_return_mean:.2f}")
    elif result.eval_return_mean is not None:
        print(
            f"evaluation return {result.eval_return_mean:.2f} ± {result.eval_return_std:.2f} over "
            f"{len(result.eval_returns)} episodes (best {result.best_eval_return_mean:.2f})"
        )
    print(f"run directory: {run}")
    print("next:")
    if result.status == "interrupted":
        print(f"  {command_line('resume', *words)}")
    print(f"  {command_line('eval', *words)}")
    print(f"  tensorboard --logdir {run}")


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


def show_everything(directory: Path) -> None:
    """Algorithms, packaged configurations and runs."""
    console = _console()
    algorithms = Table("algorithm", "what", "paper", "observations", "actions", title="Algorithms")
    for name, spec in all_specs().items():
        spaces = (in_plain_words(spec.observations), in_plain_words(spec.actions))
        algorithms.add_row(name, spec.title, spec.paper, *spaces)
    console.print(algorithms)
    configs = Table("packaged configurations")
    for name in packaged_configs():
        configs.add_row(name)
    console.print(configs)
    runs = list_runs(directory)
    if not runs:
        print(f"no runs under {directory}")
        return
    table = Table(title=f"Runs under {directory}")
    table.add_column("run", overflow="fold")  # a path cut short is of no use
    for column in ("algorithm", "environment", "seed", "steps", "status", "return"):
        table.add_column(column)
    for run in runs:
        table.add_row(
            Text(str(run.path)),
            Text(run.algo),
            Text(run.env_id),
            "-" if run.seed is None else str(run.seed),
            _number(run.env_steps, 0),
            run.status,
            _number(run.eval_return_mean, 2),
        )
    console.print(table)


def _console() -> Console:
    """A console that cuts nothing short where no terminal limits the width."""
    console = Console()
    if not console.is_terminal:
        console.width = 1_000
    return console


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
