"""The learning curve of an evidence card as a picture, made from the card alone."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.experiment.statistics import bootstrap_interval, interquartile_mean
from rl_training.tools.evidence.card import Card, SeedRecord, write_with_parents
from rl_training.tools.plotting import (
    BLUE,
    GREY,
    ORANGE,
    draw_grid,
    new_figure,
    paper_name,
    require_matplotlib,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIZE_INCHES = (9.0, 5.4)
BIAS = "q_bias_normalized_mean"
"""What the callback QBias measures; a card that has it shows it below the returns."""


def draw_card(card: Card, path: Path) -> None:
    """Write the picture; the same card gives the same bytes with the same matplotlib."""
    require_matplotlib()
    from matplotlib import style

    with style.context("default"):  # whatever the user's settings are
        figure = new_figure(*_SIZE_INCHES)
        biases = [curve_of(seed, BIAS) for seed in card.seeds if BIAS in seed.measured]
        axes, *more = figure.subplots(2 if biases else 1, squeeze=False, sharex=True)[:, 0]
        curves = [dict(zip(s.curve.steps, s.curve.returns, strict=True)) for s in card.seeds]
        _draw_curves(axes, curves)
        _draw_published(axes, card)
        _draw_frame(axes, card)
        for lower in more:
            _draw_curves(lower, biases)
            _draw_bias_frame(axes, lower)
        content = BytesIO()
        figure.savefig(content, format="png", metadata={"Software": None, "Card": card.digest})
    write_with_parents(path, content.getvalue())


def is_drawn(card: Card, path: Path) -> bool:
    """Whether the file is the picture of this very card, whose digest it carries."""
    return path.is_file() and card.digest.encode() in path.read_bytes()


def curve_of(seed: SeedRecord, name: str) -> dict[int, float]:
    """A measured quantity of a seed, by step."""
    measured = seed.measured[name]
    return dict(zip(measured.steps, measured.values, strict=True))


def _draw_curves(axes: Axes, points: list[dict[int, float]]) -> None:
    """A line per seed and one for all of them."""
    steps = sorted(set.intersection(*map(set, points)))
    rows = [[curve[step] for curve in points] for step in steps]
    for index, curve in enumerate(points):
        label = "each seed" if index == 0 and len(points) > 1 else None
        marker = "o" if len(curve) == 1 else None  # a line through one point is invisible
        axes.plot(
            list(curve),
            list(curve.values()),
            color=BLUE,
            alpha=0.35,
            lw=0.9,
            ms=4,
            marker=marker,
            clip_on=marker is None,
            label=label,
        )
    if steps:
        _draw_middle(axes, steps, rows)


def _draw_published(axes: Axes, card: Card) -> None:
    if card.published is not None:
        label = f"published: {card.published.return_mean:g} after {card.published.steps:,} steps"
        axes.axhline(card.published.return_mean, color=ORANGE, linestyle="--", label=label)


def _draw_middle(axes: Axes, steps: list[int], rows: list[list[float]]) -> None:
    """The figures at the steps that all seeds share, a row of returns for each."""
    label = "the only seed"
    if len(rows[0]) > 1:
        low, high = zip(*(bootstrap_interval(row) for row in rows), strict=True)
        width = 0 if len(steps) > 1 else 8  # of the edge, all there is of a single step
        band = axes.fill_between(steps, low, high, color=BLUE, alpha=0.15, linewidth=width)
        band.set_label("95 % interval")
        label = f"interquartile mean of {len(rows[0])} seeds"
    middle = [interquartile_mean(row) for row in rows]
    axes.plot(steps, middle, "o-", color=BLUE, lw=2.2, ms=4, clip_on=False, label=label)


def _draw_frame(axes: Axes, card: Card) -> None:
    configuration = card.configuration
    title = f"{paper_name(configuration['algo'])} on {configuration['env_id']} ({card.config})"
    axes.set_title(title, loc="left", fontsize=13)
    axes.set_xlabel("environment steps")
    axes.set_ylabel("mean evaluation return")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlim(0, max(card.budget, *(seed.steps for seed in card.seeds)))
    _finish(axes)


def _draw_bias_frame(upper: Axes, axes: Axes) -> None:
    """The frame of the critics' bias below the returns."""
    upper.set_xlabel("")
    axes.set_xlabel("environment steps")
    axes.set_ylabel("Q bias, in mean returns")
    axes.axhline(0, color=GREY, lw=0.8)
    _finish(axes)


def _finish(axes: Axes) -> None:
    draw_grid(axes, "y")
    axes.tick_params(colors=GREY)
    axes.legend(loc="best", frameon=False, fontsize=9, labelcolor=GREY)
