"""The commands `evidence ...`: cards that show what a configuration reaches, made and checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_training.errors import RLTrainingError, RunError

if TYPE_CHECKING:
    from rl_training.experiment.evidence_card import Card
    from rl_training.experiment.evidence_reproduction import Reproduction

CardArgument = Annotated[Path, typer.Argument(help="A card, such as evidence/dqn/cartpole.json.")]
JobsOption = Annotated[int, typer.Option("--jobs", min=1, help="How many seeds run at once.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", help="Directory of the cards [evidence].")
]
RunsOption = Annotated[Path, typer.Option("--runs", help="Where the seeds' runs are kept.")]
FreshOption = Annotated[
    bool, typer.Option("--fresh", help="Discard what is there of these runs, finished seeds too.")
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
Reported = Callable[[bool], AbstractContextManager[None]]


def register_evidence(app: typer.Typer, reported: Reported) -> None:
    """Add the group of commands; `reported` turns errors into words and exit codes."""
    group = typer.Typer(
        name="evidence",
        help="Show what a configuration reaches, with seeds fixed in advance and all reported.",
        no_args_is_help=True,
    )
    for register in (_register_run, _register_run_missing, _register_reproduce, _register_reading):
        register(group, reported)
    app.add_typer(group)


def _register_run(group: typer.Typer, reported: Reported) -> None:
    @group.command("run")
    def run(
        config: Annotated[str, typer.Argument(help="A name such as dqn/cartpole, or a file.")],
        seeds: Annotated[
            str | None, typer.Option("--seeds", help="Such as 0-4; by default the planned ones.")
        ] = None,
        settings: Annotated[
            list[str] | None,
            typer.Option("--set", metavar="KEY=VALUE", help="Set a key; needs --output."),
        ] = None,
        jobs: JobsOption = 1,
        output: OutputOption = None,
        runs: RunsOption = Path("runs"),
        fresh: FreshOption = False,
        debug: DebugOption = False,
    ) -> None:
        """Train the seeds of a card and write it, with its picture.

        Run it again after an interruption: finished seeds are kept,
        interrupted ones resumed. No card is written unless every seed
        finished.
        """
        with reported(debug):
            from rl_training.experiment.evidence import make_card

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
            _show_card(path)


def _register_run_missing(group: typer.Typer, reported: Reported) -> None:
    @group.command("run-missing")
    def run_missing(
        jobs: JobsOption = 1,
        output: OutputOption = None,
        runs: RunsOption = Path("runs"),
        debug: DebugOption = False,
    ) -> None:
        """Make the planned cards that are missing, one after the other."""
        with reported(debug):
            from rl_training.experiment.evidence import make_card, missing_cards
            from rl_training.experiment.evidence_card import CARDS

            missing = missing_cards(output or CARDS)
            typer.echo(f"missing: {', '.join(missing) or 'none'}")
            for name in missing:
                _show_card(make_card(name, jobs=jobs, output=output, runs=runs, report=typer.echo))


def _register_reproduce(group: typer.Typer, reported: Reported) -> None:
    @group.command("reproduce")
    def reproduce_card(
        card: CardArgument,
        seeds: Annotated[
            str | None, typer.Option("--seeds", help="Only these of the card's seeds.")
        ] = None,
        jobs: JobsOption = 1,
        runs: RunsOption = Path("runs"),
        fresh: FreshOption = False,
        debug: DebugOption = False,
    ) -> None:
        """Run a card again; exit code 0 if its figure is reached, 1 if not.

        It passes if the new interquartile mean is at least the low end
        of the card's interval minus the card's tolerance. There is no
        upper bound, because better is no failure.
        """
        with reported(debug):
            from rl_training.experiment.evidence_reproduction import reproduce

            outcome = reproduce(card, seeds, jobs=jobs, runs=runs, fresh=fresh, report=typer.echo)
            _show_reproduction(outcome)
            raise typer.Exit(0 if outcome.passed else 1)


def _register_reading(group: typer.Typer, reported: Reported) -> None:
    @group.command("list")
    def list_cards(output: OutputOption = None, debug: DebugOption = False) -> None:
        """List the cards with their figures, and the planned ones that are missing."""
        with reported(debug):
            _list(output)

    @group.command("plot")
    def plot(card: CardArgument, debug: DebugOption = False) -> None:
        """Draw the picture of a card, beside it."""
        with reported(debug):
            from rl_training.experiment.evidence_card import read_card
            from rl_training.experiment.evidence_picture import draw_card

            path = card.with_suffix(".png")
            draw_card(read_card(card), path)
            typer.echo(f"picture: {path}")


def _list(output: Path | None) -> None:
    from rl_training.experiment.evidence import missing_cards, outdated
    from rl_training.experiment.evidence_card import CARDS, read_card

    folder = output or CARDS
    rows = [["card", "steps", "seeds", "interquartile mean [95 %]", "published", ""]]
    damaged = []
    for path in sorted(folder.glob("*/*.json")):
        try:
            card = read_card(path)
        except RLTrainingError as error:
            damaged.append(str(error))
            continue
        changed = outdated(card)
        state = f"not as packaged now: {changed}" if changed else ""
        row = [card.config, f"{card.budget:,}", str(len(card.seeds))]
        rows.append([*row, _figures(card), _published(card), state])
    rows += [[name, "", "", "missing", "", ""] for name in missing_cards(folder)]
    _show_table(rows)
    if damaged:
        raise RunError("\n".join(damaged))


def _show_card(path: Path) -> None:
    from rl_training.experiment.evidence_card import read_card

    card = read_card(path)
    typer.echo(f"{card.config}: interquartile mean {_figures(card)}")
    typer.echo(f"returns of seeds {card.seed_numbers}: {[round(r, 2) for r in card.returns]}")
    typer.echo(f"published: {_published(card)}")
    typer.echo(f"card: {path}")
    typer.echo(f"picture: {path.with_suffix('.png')}")


def _show_reproduction(outcome: Reproduction) -> None:
    rows = [["seed", "card", "now"]]
    for old, new in zip(outcome.old, outcome.new, strict=True):
        rows.append([str(old.seed), f"{old.return_mean:.2f}", f"{new.return_mean:.2f}"])
    rows.append(["interquartile mean", f"{outcome.expected.iqm:.2f}", f"{outcome.iqm:.2f}"])
    _show_table(rows)
    if outcome.identical:
        typer.echo("every evaluation is equal to the card's to the last bit")
    low = outcome.expected.interval_95[0]
    sign, verdict = (">=", "PASS") if outcome.passed else ("<", "FAIL")
    typer.echo(
        f"{verdict}: {outcome.iqm:.2f} {sign} {outcome.bound:.2f}, the low end of the card's "
        f"interval for these seeds ({low:.2f}) minus its tolerance ({outcome.tolerance:.2f})"
    )


def _show_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())


def _figures(card: Card) -> str:
    low, high = card.figures.interval_95
    return f"{card.figures.iqm:.2f} [{low:.2f}, {high:.2f}]"


def _published(card: Card) -> str:
    if card.published is None:
        return "no published figure known"
    return f"{card.published.return_mean:g} at {card.published.steps:,}"
