"""The command line, `rl-training`: every command, and which work it calls for.

The work is in `tools` and `runtime`, imported by the command that needs it: torch takes seconds.
"""

from __future__ import annotations

import json
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_training.errors import RLTrainingError, UsageError

if TYPE_CHECKING:
    from rl_training.api.managed import ManagedAlgorithm
    from rl_training.config.loading import LoadedConfig
    from rl_training.config.train_config import TrainConfig

app = typer.Typer(
    name="rl-training",
    help="Train, evaluate, resume and use reinforcement-learning agents.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
evidence = typer.Typer(
    name="evidence",
    help="Show what a configuration reaches, with seeds fixed in advance and all reported.",
    no_args_is_help=True,
)
app.add_typer(evidence)

# Text, not a path: a path does not tell ./dqn/cartpole, a directory, from dqn/cartpole, a name.
RunArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="A run directory, one checkpoint in it, or the name of an agent that comes with the "
        "package, such as dqn/cartpole.",
    ),
]
CheckpointOption = Annotated[str | None, typer.Option("--checkpoint", help="The same as RUN.")]
NameArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="A packaged configuration such as dqn/cartpole, a YAML file, or, with --env, an "
        "algorithm: ppo, or package.module:SPEC.",
    ),
]
ConfigOption = Annotated[
    str | None, typer.Option("--config", help="The same as NAME, for a configuration.")
]
EnvOption = Annotated[
    str | None,
    typer.Option("--env", help="The environment: an id or package.module:Class."),
]
StepsOption = Annotated[
    int | None, typer.Option("--steps", min=1, help="Environment transitions: total_timesteps.")
]
OutputDirOption = Annotated[
    Path | None, typer.Option("--output-dir", help="Where run directories are made.")
]
SeedsOption = Annotated[
    str | None, typer.Option("--seeds", help="Several seeds, such as 0-4 or 0,3,7.")
]
InitFromOption = Annotated[
    str | None,
    typer.Option(
        "--init-from", help="Begin with the weights of this run, checkpoint or packaged agent."
    ),
]
AutoResumeOption = Annotated[
    bool,
    typer.Option(
        "--auto-resume",
        help="Continue the run if it exists, else start it, as --seeds always does.",
    ),
]
SaveConfigOption = Annotated[
    Path | None, typer.Option("--save-config", help="Also write the YAML file of this very run.")
]
ReportOption = Annotated[
    bool, typer.Option("--report", help="Then record a video and write the report.")
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
TrustOption = Annotated[
    bool,
    typer.Option("--trust", help="Use the code that the run's files name; only if you trust them."),
]
EpisodesOption = Annotated[int, typer.Option("--episodes", min=1, help="Episodes to play.")]
MaxStepsOption = Annotated[
    int,
    typer.Option("--max-steps", min=1, help="Limit on environment steps, all episodes together."),
]
EpisodeSeedOption = Annotated[
    int | None,
    typer.Option("--seed", min=0, help="By default, that of the run's evaluations."),
]
OverlayOption = Annotated[
    bool,
    typer.Option(help="Show step, reward, return and learned action values."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
ResultsArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...",
        help="Runs, experiments (train --seeds), directories of them, or cards: dqn/cartpole.",
    ),
]
MetricOption = Annotated[str | None, typer.Option("--metric", help="By default eval/return_mean.")]

CardArgument = Annotated[
    Path, typer.Argument(help="A card: a name such as dqn/cartpole, or a file.")
]
JobsOption = Annotated[int, typer.Option("--jobs", min=1, help="How many seeds run at once.")]
CardsOption = Annotated[
    Path | None, typer.Option("--output", help="Directory of the cards; by default evidence.")
]
RunsOption = Annotated[Path, typer.Option("--runs", help="Where the seeds' runs are kept.")]
FreshOption = Annotated[
    bool, typer.Option("--fresh", help="Discard what is there of these runs, finished seeds too.")
]


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
            typer.echo(f"error: {_message(error)}", err=True)
        raise typer.Exit(getattr(error, "exit_code", 1)) from None


def _message(error: Exception) -> str:
    if isinstance(error, RLTrainingError):
        return str(error)
    return (
        f"{type(error).__name__}: {error}\n"
        "This was not expected; the same command with --debug shows where it happened."
    )


@app.command()
def train(  # noqa: PLR0913, PLR0917 - the options of the command
    name: NameArgument = None,
    config: ConfigOption = None,
    env: EnvOption = None,
    steps: StepsOption = None,
    settings: SetOption = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the run.")] = None,
    output_dir: OutputDirOption = None,
    seeds: SeedsOption = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="With --seeds: how many run at once.")
    ] = None,
    init_from: InitFromOption = None,
    auto_resume: AutoResumeOption = False,
    save_config: SaveConfigOption = None,
    report: ReportOption = False,
    debug: DebugOption = False,
) -> None:
    """Train an agent; with --seeds, one per seed.

    rl-training train dqn/cartpole

    rl-training train ppo --env CartPole-v1 --steps 50000
    """
    with _reported(debug):
        if seed is not None and seeds is not None:
            raise UsageError("give --seed or --seeds, not both")
        if jobs is not None and seeds is None:
            raise UsageError("--jobs goes with --seeds; a single run takes no jobs")
        loaded = _resolve(
            name,
            config,
            env,
            settings,
            total_timesteps=steps,
            seed=seed,
            output_dir=None if output_dir is None else str(output_dir),
            init_from=init_from,
        )
        if seeds is not None and loaded.origins["seed"] == "command line":
            raise UsageError("give --set seed=... or --seeds, not both")
        if save_config is not None:
            from rl_training.tools.show import write_config

            write_config(loaded, save_config)
        _introduce(loaded.config, seeds)
        if seeds is None:
            directory = _train_one(loaded.config, auto_resume=auto_resume)
        else:
            directory = _train_seeds(loaded.config, seeds, jobs or 1)
        if report:
            _write_report(directory, video=seeds is None)


@app.command("eval")
def evaluate(  # noqa: PLR0913, PLR0917 - the options of the command
    run: RunArgument = None,
    checkpoint: CheckpointOption = None,
    episodes: Annotated[int, typer.Option("--episodes", min=1, help="Episodes to play.")] = 100,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, help="By default, that of the run's evaluations."),
    ] = None,
    best: BestOption = False,
    device: DeviceOption = None,
    trust: TrustOption = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Evaluate a trained agent on dedicated environments."""
    with _reported(debug):
        from rl_training.tools.show import show_evaluation

        managed = _load(_run(run, checkpoint), best, device, trust)
        show_evaluation(managed.config, managed.evaluate(episodes, seed=seed), as_json=as_json)


@app.command()
def resume(
    run: RunArgument = None,
    checkpoint: CheckpointOption = None,
    total_timesteps: Annotated[
        int | None,
        typer.Option("--total-timesteps", min=1, help="A new absolute budget: an extension."),
    ] = None,
    device: DeviceOption = None,
    trust: TrustOption = False,
    debug: DebugOption = False,
) -> None:
    """Continue an interrupted run."""
    with _reported(debug):
        path = _run(run, checkpoint)
        typer.echo(f"opening {path}", err=True)
        from rl_training.experiment.registry import open_checkpoint

        _, config = open_checkpoint(path, trust=trust)
        given = {"total_timesteps": total_timesteps, "device": device}
        changes = {key: value for key, value in given.items() if value is not None}
        if changes:
            config = config.with_changes(**changes)
        _train_one(config, resume=path)  # chosen there, where the run is locked


@app.command("verify-resume")
def verify_resume(
    name: NameArgument = None,
    config: ConfigOption = None,
    env: EnvOption = None,
    settings: SetOption = None,
    steps: Annotated[
        int, typer.Option("--steps", min=40, help="Transitions of the run that is compared.")
    ] = 2_000,
    debug: DebugOption = False,
) -> None:
    """Try whether resuming is exact in a configuration's environments.

    Trains a short run, continues it from each of its checkpoints in
    new processes, and compares to the bit. Exit code 0 if all is the
    same, 1 if not.
    """
    with _reported(debug):
        loaded = _resolve(name, config, env, settings)
        from rl_training.tools.verify_resume import show_comparison

        raise typer.Exit(0 if show_comparison(loaded.config, steps, typer.echo) else 1)


@app.command()
def predict(  # noqa: PLR0913, PLR0917 - the options of the command
    run: RunArgument = None,
    checkpoint: CheckpointOption = None,
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
        typer.Option(
            "--explain", help="Explain the action: draw it to this file, or print it with -."
        ),
    ] = None,
    device: DeviceOption = None,
    trust: TrustOption = False,
    debug: DebugOption = False,
) -> None:
    """Print the action for an observation, as JSON."""
    with _reported(debug):
        from rl_training.tools.predict import check_explain, show_actions

        if explain is not None:
            check_explain(explain, observation)
        managed = _load(_run(run, checkpoint), best, device, trust)
        show_actions(managed, observation, stochastic=stochastic, explain=explain)


@app.command()
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Runs, experiments of several seeds, or cards."),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The page; by default report.html in the directory of RUN."),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    debug: DebugOption = False,
) -> None:
    """Write an HTML report of a run, or of several side by side.

    One self-contained file with figures, curves, settings and history,
    which can be sent by mail.
    """
    with _reported(debug):
        from rl_training.storage.runs import printable
        from rl_training.tools.report.write import show_in_browser, write_report

        page = write_report(runs, out)
        where = printable(page, longest=1_000)
        typer.echo(f"report: {where} ({page.stat().st_size / 1000:.0f} kB)")
        if show and not show_in_browser(page):
            typer.echo(f"no browser here: open {page.resolve().as_uri()} in one")


@app.command("list")
def list_all(
    directory: Annotated[Path, typer.Argument(help="Where to look for runs.")] = Path("runs"),
    debug: DebugOption = False,
) -> None:
    """List algorithms, packaged configurations, and the runs under a directory."""
    with _reported(debug):
        from rl_training.tools.show import show_everything

        show_everything(directory)


@app.command()
def runs(
    directory: Annotated[Path, typer.Argument(help="Where to look for runs.")] = Path("runs"),
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show the runs under a directory, the newest first: status, steps, return, age.

    A run is running, finished, interrupted (it saved and can be
    resumed), failed (by an error) or killed (without a word).
    """
    with _reported(debug):
        from rl_training.tools.show import show_runs

        show_runs(directory, as_json=as_json)


@app.command()
def plot(
    paths: ResultsArgument,
    metric: MetricOption = None,
    x: Annotated[str, typer.Option("--x", help="steps, or time: seconds.")] = "steps",
    smooth: Annotated[
        int | None,
        typer.Option("--smooth", min=1, max=100_000, help="Moving average over N points."),
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="By default the task.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="A .png, .svg, .pdf or .html file.")
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Draw learning curves of runs, experiments and cards into a file.

    rl-training plot runs/dqn-CartPole-v1-seeds-58d6 ppo/cartpole

    The line is the interquartile mean over seeds, the band its 95 %
    bootstrap interval, where there are 4 seeds or more.
    """
    with _reported(debug):
        from rl_training.tools.plot import axis_of, plot

        path = plot(paths, metric=metric, x=axis_of(x), smooth=smooth, title=title, out=out)
        typer.echo(f"picture: {path}")


@app.command()
def compare(
    paths: ResultsArgument,
    metric: MetricOption = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            "--threshold", help="Count the steps to this value; by default, the lowest mean."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="A .png, .svg or .pdf file.")] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Compare experiments and cards with the first: a table, a figure, a verdict.

    rl-training compare runs/dqn-CartPole-v1-seeds-58d6 ppo/cartpole

    Interquartile means of the final returns and their differences,
    probabilities of improvement and steps to a threshold, with 95 %
    bootstrap intervals, and a figure.
    """
    with _reported(debug):
        from rl_training.tools.comparison_output import compare_paths

        compare_paths(paths, metric=metric, threshold=threshold, out=out, as_json=as_json)


@app.command()
def video(  # noqa: PLR0913, PLR0917 - the options of the command
    run: RunArgument = None,
    checkpoint: CheckpointOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="A .mp4 (video extra), .webp or .gif file; by default in the run."
        ),
    ] = None,
    episodes: EpisodesOption = 1,
    max_steps: MaxStepsOption = 3_000,
    seed: EpisodeSeedOption = None,
    overlay: OverlayOption = True,
    best: BestOption = False,
    device: DeviceOption = None,
    trust: TrustOption = False,
    debug: DebugOption = False,
) -> None:
    """Record episodes of a trained agent.

    rl-training video dqn/cartpole --out agent.mp4
    """
    with _reported(debug):
        from rl_training.tools.frames import Playback
        from rl_training.tools.video import check_target, show_video

        if out is not None:
            check_target(out)
        source = _run(run, checkpoint)
        playback = Playback(episodes, seed, max_steps, overlay)
        show_video(_load(source, best, device, trust), source, out, playback)


@app.command()
def watch(  # noqa: PLR0913, PLR0917 - the options of the command
    run: RunArgument = None,
    checkpoint: CheckpointOption = None,
    episodes: EpisodesOption = 3,
    max_steps: MaxStepsOption = 3_000,
    seed: EpisodeSeedOption = None,
    overlay: OverlayOption = True,
    best: BestOption = False,
    device: DeviceOption = None,
    trust: TrustOption = False,
    debug: DebugOption = False,
) -> None:
    """Watch a trained agent in a window; without a display, write a video.

    rl-training watch dqn/cartpole
    """
    with _reported(debug):
        from rl_training.tools.frames import Playback
        from rl_training.tools.watch import watch_or_record

        source = _run(run, checkpoint)
        playback = Playback(episodes, seed, max_steps, overlay)
        watch_or_record(_load(source, best, device, trust), source, playback)


@app.command()
def zoo(as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """List the trained agents that come with the package, with their returns."""
    with _reported(debug):
        from rl_training.tools.zoo import show_zoo

        show_zoo(as_json=as_json)


@app.command()
def config(
    name: NameArgument = None,
    env: EnvOption = None,
    steps: StepsOption = None,
    settings: SetOption = None,
    debug: DebugOption = False,
) -> None:
    """Print a complete configuration, with the origin of each value."""
    with _reported(debug):
        from rl_training.config.loading import describe_config

        loaded = _resolve(name, None, env, settings, total_timesteps=steps)
        typer.echo(describe_config(loaded), nl=False)


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="The algorithm's name, such as my_algo.")],
    like: Annotated[
        str, typer.Option("--like", help="What to begin with: dqn, sac or ppo.")
    ] = "dqn",
    directory: Annotated[
        Path, typer.Option("--directory", help="Where the files are written.")
    ] = Path(),
    debug: DebugOption = False,
) -> None:
    """Write the files of a new algorithm: its code, a configuration, a test."""
    with _reported(debug):
        from rl_training.tools.new_algorithm import show_next, write_algorithm

        show_next(write_algorithm(name, like, directory))


@app.command()
def doctor(
    env: Annotated[
        str | None,
        typer.Option("--env", help="Check this environment: an id or package.module:Class."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="With --env: env_kwargs.x=..., wrappers=[...]."
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds", min=0.01, max=3600, help="With --env: time to take; by default 3."
        ),
    ] = None,
    algo: Annotated[
        list[str] | None,
        typer.Option("--algo", help="With --env: this algorithm too, package.module:SPEC."),
    ] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show versions, devices and extras; with --env, check an environment."""
    with _reported(debug):
        if env is not None:
            from rl_training.tools.doctor.environment import DEFAULT_SECONDS, examine_environment

            passed = examine_environment(
                env,
                settings or (),
                algorithms=algo or (),
                seconds=seconds or DEFAULT_SECONDS,
                as_json=as_json,
            )
        elif settings or algo or seconds is not None:
            raise UsageError("--set, --algo and --seconds go with --env; name an environment")
        else:
            from rl_training.tools.doctor.machine import examine_machine

            passed = examine_machine(as_json=as_json)
        raise typer.Exit(0 if passed else 1)


@evidence.command("run")
def run_evidence(
    config: Annotated[str, typer.Argument(help="A name such as dqn/cartpole, or a file.")],
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="Such as 0-4; by default the planned ones.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set a key; needs --output."),
    ] = None,
    jobs: JobsOption = 1,
    output: CardsOption = None,
    runs: RunsOption = Path("runs"),
    fresh: FreshOption = False,
    debug: DebugOption = False,
) -> None:
    """Train the seeds of a card and write it, with its picture.

    Run it again after an interruption: finished seeds are kept,
    interrupted ones resumed. No card is written unless every seed
    finished.
    """
    with _reported(debug):
        from rl_training.tools.evidence.make import make_card
        from rl_training.tools.evidence.show import show_card

        path = make_card(
            config,
            seeds,
            settings or (),
            jobs=jobs,
            output=output,
            runs=runs,
            fresh=fresh,
            report=typer.echo,
        )
        show_card(path)


@evidence.command("run-missing")
def run_missing_evidence(
    jobs: JobsOption = 1,
    output: CardsOption = None,
    runs: RunsOption = Path("runs"),
    debug: DebugOption = False,
) -> None:
    """Make the planned cards that are missing, one after the other."""
    with _reported(debug):
        from rl_training.tools.evidence.make import make_card, missing_cards
        from rl_training.tools.evidence.show import show_card

        missing = missing_cards(output)
        typer.echo(f"missing: {', '.join(missing) or 'none'}")
        for name in missing:
            show_card(make_card(name, jobs=jobs, output=output, runs=runs, report=typer.echo))


@evidence.command("reproduce")
def reproduce_evidence(
    card: CardArgument,
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="Only these of the card's seeds.")
    ] = None,
    jobs: JobsOption = 1,
    runs: RunsOption = Path("runs"),
    fresh: FreshOption = False,
    trust: TrustOption = False,
    debug: DebugOption = False,
) -> None:
    """Run a card again; exit code 0 if its figure is reached, 1 if not.

    It passes if the new interquartile mean is at least the low end
    of the card's interval minus the card's tolerance. There is no
    upper bound, because better is no failure.
    """
    with _reported(debug):
        from rl_training.tools.evidence.card import find_card
        from rl_training.tools.evidence.reproduce import reproduce
        from rl_training.tools.evidence.show import show_reproduction

        path = find_card(card)
        outcome = reproduce(
            path, seeds, jobs=jobs, runs=runs, fresh=fresh, trust=trust, report=typer.echo
        )
        show_reproduction(outcome)
        raise typer.Exit(0 if outcome.passed else 1)


@evidence.command("policy")
def write_policy_of_card(
    card: Annotated[str, typer.Argument(help="A card's name such as dqn/cartpole.")],
    output: Annotated[
        Path | None, typer.Option("--output", help="Directory of the policies; by default zoo.")
    ] = None,
    runs: RunsOption = Path("runs"),
    debug: DebugOption = False,
) -> None:
    """Write the policy of a card's median seed, trained first if need be."""
    with _reported(debug):
        from rl_training.tools.zoo import make_policy

        make_policy(card, runs=runs, output=output, report=typer.echo)


@evidence.command("list")
def list_evidence(output: CardsOption = None, debug: DebugOption = False) -> None:
    """List the cards with their figures, and the planned ones that are missing."""
    with _reported(debug):
        from rl_training.tools.evidence.show import show_cards

        show_cards(output)


@evidence.command("plot")
def plot_evidence(card: CardArgument, debug: DebugOption = False) -> None:
    """Draw the picture of a card: beside its file, or of a name in evidence."""
    with _reported(debug):
        from rl_training.tools.evidence.card import CARDS, find_card, read_card
        from rl_training.tools.evidence.plot import draw_card

        file = find_card(card)
        # A packaged card may lie in site-packages, where nothing should be written.
        path = card.with_suffix(".png") if file == card else CARDS / f"{card}.png"
        draw_card(read_card(file), path)
        typer.echo(f"picture: {path}")


def _resolve(
    name: str | None,
    config: str | None,
    env: str | None,
    settings: list[str] | None,
    **arguments: object,
) -> LoadedConfig:
    """The configuration of a command, in which an option counts more than `--set`."""
    from rl_training.experiment.registry import resolve_command

    if name is not None and config is not None:
        raise UsageError(
            f"give a configuration or an algorithm, not both: found {name} and --config {config}; "
            "--set algo=... changes the algorithm of a configuration"
        )
    overrides = [
        f"{key}={json.dumps(value)}" for key, value in arguments.items() if value is not None
    ]
    return resolve_command(name or config, env, [*(settings or ()), *overrides])


def _run(run: str | None, checkpoint: str | None) -> Path:
    """The run or the packaged agent that a command names, in one of two ways."""
    if run is not None and checkpoint is not None:
        raise UsageError(f"give one run, not both {run} and --checkpoint {checkpoint}")
    name = run or checkpoint
    if name is None:
        raise UsageError("expected a run directory, found none; `rl-training runs` lists them")
    from rl_training.runtime.zoo import find_agent

    return find_agent(name)


def _introduce(config: TrainConfig, seeds: str | None) -> None:
    """The first line, printed before torch is imported, which takes seconds."""
    from rl_training.experiment.registry import get_spec

    which = f"seed {config.seed}" if seeds is None else f"seeds {seeds}"
    typer.echo(f"{get_spec(config.algo).name} on {config.env_id}, {which}", err=True)


def _train_one(
    config: TrainConfig, *, resume: Path | None = None, auto_resume: bool = False
) -> Path:
    from rl_training.experiment.registry import train_config
    from rl_training.runtime.console import ConsoleProgress
    from rl_training.runtime.result import TrainingInterrupted
    from rl_training.tools.show import show_result

    console = ConsoleProgress(introduced=resume is None)
    try:
        result = train_config(config, callbacks=[console], resume=resume, auto_resume=auto_resume)
    except TrainingInterrupted as interrupt:
        show_result(interrupt.result, config)
        raise
    finally:
        console.close()
    show_result(result, config)
    return result.run_dir


def _train_seeds(config: TrainConfig, seeds: str, jobs: int) -> Path:
    from rl_training.experiment.manager import (
        ExperimentInterrupted,
        ExperimentManager,
        parse_seeds,
    )
    from rl_training.tools.seed_progress import SeedTable
    from rl_training.tools.show import show_experiment

    table = SeedTable(config.total_timesteps)
    manager = ExperimentManager(
        config, parse_seeds(seeds), jobs=jobs, report=table.say, watch=table.show
    )
    table.say(f"experiment directory: {manager.directory}")
    try:
        with table:
            result = manager.run()
    except ExperimentInterrupted as interrupt:
        show_experiment(interrupt.result)
        raise
    show_experiment(result)
    if any(seed.status != "finished" for seed in result.seeds):
        raise typer.Exit(1)
    return result.directory


def _write_report(directory: Path, *, video: bool) -> None:
    """The report of what this command has trained, whose code is the user's own."""
    from rl_training.tools.frames import Playback
    from rl_training.tools.report.write import write_report
    from rl_training.tools.video import show_video

    if video:
        try:
            show_video(_load(directory, False, None, True), directory, None, Playback())
        except UsageError as error:  # no picture of the environment, or no package to draw with
            typer.echo(f"without a video: {error}", err=True)
    typer.echo(f"report: {write_report([directory])}")


def _load(path: Path, best: bool, device: str | None, trust: bool) -> ManagedAlgorithm:
    from rl_training.api.managed import load

    return load(path, best=best, device=device, trust=trust)
