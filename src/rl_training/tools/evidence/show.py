"""What the commands `evidence ...` print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from rl_training.errors import RLTrainingError, RunError
from rl_training.experiment.statistics import share_interval
from rl_training.tools.evidence.card import Card, card_files, read_card
from rl_training.tools.evidence.make import missing_cards, outdated
from rl_training.tools.evidence.reproduce import SIGNIFICANCE, Reproduction


def show_cards(folder: Path | None = None) -> None:
    """The cards in a folder with their figures, and the planned ones that are missing.

    Without a folder: those that come with the package, and those in `evidence`.
    """
    rows = [["card", "steps", "seeds", "failed", "interquartile mean [95 %]", "published", ""]]
    damaged = []
    for path in card_files(folder).values():
        try:
            card = read_card(path)
        except RLTrainingError as error:
            damaged.append(str(error))
            continue
        changed = outdated(card)
        state = f"not as packaged now: {changed}" if changed else ""
        failed = card.failed()
        row = [card.config, f"{card.budget:,}", str(len(card.seeds))]
        row.append("" if failed is None else str(failed))
        rows.append([*row, _figures(card), _published(card), state])
    rows += [[name, "", "", "", "missing", "", ""] for name in missing_cards(folder)]
    _show_table(rows)
    if damaged:
        raise RunError("\n".join(damaged))


def show_card(path: Path) -> None:
    """The figures of a card that was just made, and its files."""
    card = read_card(path)
    typer.echo(f"{card.config}: interquartile mean {_figures(card)}")
    typer.echo(f"returns of seeds {card.seed_numbers}: {[round(r, 2) for r in card.returns]}")
    if (failed := card.failed()) is not None:
        low, high = share_interval(failed, len(card.seeds))
        typer.echo(
            f"failed, with a return below {card.failure_below:g}: {failed} of {len(card.seeds)} "
            f"seeds ({low:.1%} to {high:.1%})"
        )
    typer.echo(f"published: {_published(card)}")
    typer.echo(f"card: {path}")
    typer.echo(f"picture: {path.with_suffix('.png')}")


def show_reproduction(outcome: Reproduction) -> None:
    """The card's returns beside the new ones, and the verdict."""
    rows = [["seed", "card", "now"]]
    for old, new in zip(outcome.old, outcome.new, strict=True):
        rows.append([str(old.seed), f"{old.return_mean:.2f}", f"{new.return_mean:.2f}"])
    rows.append(["interquartile mean", f"{outcome.expected.iqm:.2f}", f"{outcome.iqm:.2f}"])
    _show_table(rows)
    verdict = "PASS" if outcome.passed else "FAIL"
    if outcome.identical:
        typer.echo(f"{verdict}, by bits: every evaluation is equal to the card's to the last bit")
        return
    reasons = "; ".join(outcome.differences) or "the processor, versions and commit are the card's"
    typer.echo(f"the bits differ ({reasons}), so the distributions of the returns are compared")
    low, sign = outcome.expected.interval_95[0], ">=" if outcome.iqm >= outcome.bound else "<"
    typer.echo(
        f"{verdict}, by distributions: interquartile mean {outcome.iqm:.2f} {sign} "
        f"{outcome.bound:.2f}, the low end of the card's interval for these seeds ({low:.2f}) "
        f"minus its tolerance ({outcome.tolerance:.2f}){_failures(outcome)}"
    )


def _failures(outcome: Reproduction) -> str:
    if not outcome.failed:
        return "" if outcome.failed is None else "; no seed failed"
    sign = ">=" if outcome.failures_by_chance >= SIGNIFICANCE else "<"
    return (
        f"; {outcome.failed} of {len(outcome.new)} seeds failed (as many or more by chance: "
        f"probability {outcome.failures_by_chance:.2g} {sign} {SIGNIFICANCE})"
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
