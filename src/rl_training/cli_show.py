"""What the command line shows: results, tables, and observations read from text."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rl_training.errors import UsageError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_loading import packaged_configs
from rl_training.experiment.experiment_result import ExperimentResult
from rl_training.experiment.files import jsonable
from rl_training.experiment.runs import list_runs
from rl_training.runtime.compatibility import in_plain_words
from rl_training.runtime.evaluator import Evaluation
from rl_training.runtime.result import TrainResult, command_line
from rl_training.runtime.spec import all_specs


def show_result(result: TrainResult) -> None:
    """The outcome of a run and the commands to try next."""
    run = shlex.quote(str(result.run_dir))
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
        print(f"  {command_line('resume', '--checkpoint', result.run_dir)}")
    print(f"  {command_line('eval', '--checkpoint', result.run_dir)}")
    print(f"  tensorboard --logdir {run}")


def show_evaluation(config: TrainConfig, evaluation: Evaluation, *, as_json: bool) -> None:
    """The result of an evaluation, for people or as JSON."""
    if as_json:
        values = {
            "algo": config.algo,
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
            _number(seed.summary.get(key), digits)
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
            f"(95 % interval {low:.2f} to {high:.2f}) over {len(result.returns)} seeds"
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
    found = list_runs(directory)
    if not found:
        print(f"no runs under {directory}")
        return
    runs = Table(title=f"Runs under {directory}")
    runs.add_column("run", overflow="fold")  # a path cut short is of no use
    for column in ("algorithm", "environment", "seed", "steps", "status", "return"):
        runs.add_column(column)
    for run in found:
        runs.add_row(
            Text(str(run.path)),
            Text(run.algo),
            Text(run.env_id),
            "-" if run.seed is None else str(run.seed),
            _number(run.env_steps, 0),
            run.status,
            _number(run.eval_return_mean, 2),
        )
    console.print(runs)


def parse_observation(text: str) -> tuple[Any, Any]:
    """An observation, and what was said of whether it starts an episode, from JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"observation: expected JSON such as [0.1, 0.2] or "
            f'{{"observation": [0.1, 0.2], "episode_start": true}}, found {text.strip()[:80]!r} '
            f"({error})"
        ) from None
    if not isinstance(value, dict):
        return value, None
    if unknown := value.keys() - {"observation", "episode_start"}:
        raise UsageError(
            f"observation: expected the keys observation and episode_start, found "
            f"{sorted(unknown)[0]!r}"
        )
    if "observation" not in value:
        raise UsageError('observation: expected a key "observation", found none')
    return value["observation"], value.get("episode_start")


def input_lines() -> Iterator[str]:
    """The lines of standard input that are not blank."""
    try:
        for line in sys.stdin:
            if line.strip():
                yield line
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input: expected UTF-8 text, found {error.reason}") from None


def _console() -> Console:
    """A console that cuts nothing short where no terminal limits the width."""
    console = Console()
    if not console.is_terminal:
        console.width = 1_000
    return console


def _number(value: Any, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
