"""What the command line shows: results, tables, and observations read from text."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rl_training.errors import UsageError
from rl_training.experiment.config_loading import packaged_configs
from rl_training.experiment.manager import ExperimentResult
from rl_training.experiment.runs import list_runs
from rl_training.runtime.compatibility import in_plain_words
from rl_training.runtime.result import TrainResult
from rl_training.runtime.spec import all_specs


def show_result(result: TrainResult) -> None:
    """The outcome of a run and the commands to try next."""
    run = shlex.quote(str(result.run_dir))
    print(f"{result.status} at step {result.global_step:,} in {result.wall_time_s:.1f} s")
    if result.eval_return_mean is not None:
        print(
            f"evaluation return {result.eval_return_mean:.2f} ± {result.eval_return_std:.2f} over "
            f"{len(result.eval_returns)} episodes (best {result.best_eval_return_mean:.2f})"
        )
    print(f"run directory: {run}")
    print("next:")
    if result.status == "interrupted":
        print(f"  rl-training resume --checkpoint {run}")
    print(f"  rl-training eval --checkpoint {run}")
    print(f"  tensorboard --logdir {run}")


def show_experiment(result: ExperimentResult) -> None:
    """A row per seed, then the figures over them."""
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
    Console().print(table)
    if figures := result.figures():
        low, high = figures["interval_95"]
        print(
            f"mean {figures['mean']:.2f}, interquartile mean {figures['interquartile_mean']:.2f} "
            f"(95 % interval {low:.2f} to {high:.2f}) over {len(result.returns)} seeds"
        )
    print(f"experiment directory: {result.directory}")


def show_everything(directory: Path) -> None:
    """Algorithms, packaged configurations and runs."""
    console = Console()
    algorithms = Table("algorithm", "what", "paper", "observations", "actions", title="Algorithms")
    for name, spec in all_specs().items():
        spaces = (in_plain_words(spec.observations), in_plain_words(spec.actions))
        algorithms.add_row(name, spec.title, spec.paper, *spaces)
    console.print(algorithms)
    configs = Table("name", title="Packaged configurations")
    for name in packaged_configs():
        configs.add_row(name)
    console.print(configs)
    runs = Table("run", "algorithm", "environment", "seed", "steps", "status", "return")
    runs.title = f"Runs under {directory}"
    for run in list_runs(directory):
        runs.add_row(
            str(run.path),
            str(run.algo),
            str(run.env_id),
            str(run.seed),
            _number(run.env_steps, 0),
            run.status,
            _number(run.eval_return_mean, 2),
        )
    console.print(runs)


def parse_observation(text: str) -> tuple[Any, bool | None]:
    """An observation, and whether it starts an episode, from JSON."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(
            f"observation: expected JSON such as [0.1, 0.2] or "
            f'{{"observation": [0.1, 0.2], "episode_start": true}}, found {text.strip()[:80]!r} '
            f"({error})"
        ) from None
    if not isinstance(value, dict):
        return value, None
    if unknown := value.keys() - {"observation", "episode_start"}:
        raise UsageError(f"observation: unknown key {sorted(unknown)[0]!r}")
    if "observation" not in value:
        raise UsageError('observation: expected a key "observation", found none')
    return value["observation"], value.get("episode_start")


def _number(value: Any, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
