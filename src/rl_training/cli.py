"""The command line, `rl-training`; torch is imported only by the commands that need it."""

from __future__ import annotations

import json
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer

from rl_training.cli_doctor import register
from rl_training.cli_evidence import register_evidence
from rl_training.errors import RLTrainingError, UsageError

app = typer.Typer(
    name="rl-training",
    help="Train, evaluate, resume and use reinforcement-learning agents.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

CheckpointOption = Annotated[
    Path, typer.Option("--checkpoint", help="A run directory, or one checkpoint in it.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a configuration key; may be repeated."),
]
BestOption = Annotated[bool, typer.Option("--best", help="The best checkpoint, not the latest.")]
DeviceOption = Annotated[
    str | None,
    typer.Option("--device", help="auto, cpu, cuda, cuda:N or mps; by default that of the run."),
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


def main() -> None:
    """Entry point of the console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A path or sign that the terminal's encoding lacks must not end a finished run badly.
            stream.reconfigure(errors="backslashreplace")
    app()


def _version(wanted: bool) -> None:
    if wanted:
        from rl_training import __version__

        typer.echo(f"rl-training {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Train, evaluate, resume and use reinforcement-learning agents."""


@contextmanager
def _reported(debug: bool) -> Iterator[None]:
    """Turn errors into one paragraph and an exit code."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if debug and not hasattr(interrupt, "signal_number"):
            traceback.print_exc()
        raise typer.Exit(128 + getattr(interrupt, "signal_number", signal.SIGINT)) from None
    except typer.Exit:
        raise
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone: nothing to report to it
        raise typer.Exit(1) from None
    except Exception as error:
        if debug:
            traceback.print_exc()
        else:
            typer.echo(f"error: {_worded(error)}", err=True)
        raise typer.Exit(getattr(error, "exit_code", 1)) from None


def _worded(error: Exception) -> str:
    if isinstance(error, RLTrainingError):
        return str(error)
    return (
        f"{type(error).__name__}: {error}\n"
        "This was not expected; the same command with --debug shows where it happened."
    )


@app.command()
def train(
    config: Annotated[
        str, typer.Option("--config", help="A packaged name such as dqn/cartpole, or a YAML file.")
    ],
    settings: SetOption = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the run.")] = None,
    output_dir: Annotated[
        Path | None, typer.Option("--output-dir", help="Where run directories are made.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="Several seeds, such as 0-4 or 0,3,7.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="With --seeds: how many run at once.")
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Train an agent; with --seeds, one per seed."""
    with _reported(debug):
        if seed is not None and seeds is not None:
            raise UsageError("give --seed or --seeds, not both")
        if jobs is not None and seeds is None:
            raise UsageError("--jobs goes with --seeds; a single run takes no jobs")
        from rl_training.experiment.registry import resolve_config

        arguments = {"seed": seed, "output_dir": None if output_dir is None else str(output_dir)}
        overrides = [
            f"{key}={json.dumps(value)}" for key, value in arguments.items() if value is not None
        ]
        loaded = resolve_config(config, overrides=[*(settings or ()), *overrides])
        if seeds is None:
            _train_one(loaded.config, None)
            return
        if loaded.origins["seed"] == "command line":
            raise UsageError("give --set seed=... or --seeds, not both")
        _train_seeds(loaded.config, seeds, jobs or 1)


@app.command("eval")
def evaluate(
    checkpoint: CheckpointOption,
    episodes: Annotated[int, typer.Option("--episodes", min=1, help="Episodes to play.")] = 100,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, help="By default that of the run's own evaluation."),
    ] = None,
    best: BestOption = False,
    device: DeviceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: DebugOption = False,
) -> None:
    """Evaluate a trained agent on environments of its own."""
    with _reported(debug):
        from rl_training.cli_show import show_evaluation

        managed = _load(checkpoint, best, device)
        show_evaluation(managed.config, managed.evaluate(episodes, seed=seed), as_json=as_json)


@app.command()
def resume(
    checkpoint: CheckpointOption,
    total_timesteps: Annotated[
        int | None,
        typer.Option("--total-timesteps", min=1, help="A new absolute budget: an extension."),
    ] = None,
    device: DeviceOption = None,
    debug: DebugOption = False,
) -> None:
    """Continue an interrupted run."""
    with _reported(debug):
        found, config = _open(checkpoint, parts=None)
        given = {"total_timesteps": total_timesteps, "device": device}
        changes = {key: value for key, value in given.items() if value is not None}
        if changes:
            config = config.with_changes(**changes)
        _train_one(config, found.path)


@app.command()
def predict(
    checkpoint: CheckpointOption,
    observation: Annotated[
        str | None,
        typer.Option(
            "--observation", help="JSON; without it, one JSON per line of standard input."
        ),
    ] = None,
    best: BestOption = False,
    stochastic: Annotated[
        bool, typer.Option("--stochastic", help="Act as in training, exploring.")
    ] = False,
    explain: Annotated[
        Path | None,
        typer.Option("--explain", help="Draw there what each action promises (report extra)."),
    ] = None,
    device: DeviceOption = None,
    debug: DebugOption = False,
) -> None:
    """Print the action for an observation, as JSON."""
    with _reported(debug):
        from rl_training.cli_predict import check_explain, show_actions

        if explain is not None:
            check_explain(explain, observation)
        managed = _load(checkpoint, best, device)
        show_actions(managed, observation, stochastic=stochastic, explain=explain)


@app.command("list")
def list_all(
    directory: Annotated[Path, typer.Argument(help="Where to look for runs.")] = Path("runs"),
    debug: DebugOption = False,
) -> None:
    """List algorithms, packaged configurations, and the runs under a directory."""
    with _reported(debug):
        from rl_training.cli_show import show_everything

        show_everything(directory)


@app.command()
def config(
    name: Annotated[str, typer.Argument(help="A packaged name such as dqn/cartpole, or a file.")],
    settings: SetOption = None,
    debug: DebugOption = False,
) -> None:
    """Print a complete configuration, with the origin of each value."""
    with _reported(debug):
        from rl_training.experiment.config_loading import describe_config
        from rl_training.experiment.registry import resolve_config

        typer.echo(describe_config(resolve_config(name, overrides=settings or ())), nl=False)


def _train_one(config: Any, checkpoint: Path | None) -> None:
    from rl_training.cli_show import show_result
    from rl_training.experiment.registry import train_config
    from rl_training.runtime.console import ConsoleProgress
    from rl_training.runtime.result import TrainingInterrupted

    console = ConsoleProgress()
    try:
        result = train_config(config, callbacks=[console], resume=checkpoint)
    except TrainingInterrupted as interrupt:
        show_result(interrupt.result)
        raise
    finally:
        console.close()
    show_result(result)


def _train_seeds(config: Any, seeds: str, jobs: int) -> None:
    from rl_training.cli_show import show_experiment
    from rl_training.experiment.manager import (
        ExperimentInterrupted,
        ExperimentManager,
        parse_seeds,
    )

    manager = ExperimentManager(config, parse_seeds(seeds), jobs=jobs, report=typer.echo)
    typer.echo(f"experiment directory: {manager.directory}")
    try:
        result = manager.run()
    except ExperimentInterrupted as interrupt:
        show_experiment(interrupt.result)
        raise
    show_experiment(result)
    if any(seed.status != "finished" for seed in result.seeds):
        raise typer.Exit(1)


def _open(checkpoint: Path, **options: Any) -> Any:
    """The checkpoint and its configuration, after a word about damaged ones."""
    from rl_training.experiment.registry import open_checkpoint

    found, config = open_checkpoint(checkpoint, **options)
    for reason in found.skipped:
        typer.echo(f"passed over a damaged checkpoint: {reason}", err=True)
    return found, config


def _load(checkpoint: Path, best: bool, device: str | None) -> Any:
    from rl_training.api.managed import load_any

    found, _ = _open(checkpoint, best=best)
    return load_any(found.path, device=device)


register(app)
register_evidence(app, _reported)
