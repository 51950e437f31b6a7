"""The learning curve of an evidence card as a picture, made from the card alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rl_training.tools.charts import Chart, Rule
from rl_training.tools.curves import chart_of
from rl_training.tools.evidence.card import Card, write_with_parents
from rl_training.tools.plotting import (
    draw_chart,
    draw_note,
    new_figure,
    package_style,
    paper_name,
    picture,
    require_matplotlib,
)
from rl_training.tools.results import results_of_card

BIAS = "q_bias_normalized_mean"
"""What the callback QBias measures; a card that has it shows it below the returns."""

DRAWING = 2
"""Raised when pictures are drawn in another way, so that those of before count as old."""

_SIZE_INCHES = (9.0, 5.4)


def draw_card(card: Card, path: Path) -> None:
    """Write the picture; the same card gives the same bytes with the same matplotlib."""
    require_matplotlib()
    charts = card_charts(card)
    with package_style():
        figure = new_figure(*_SIZE_INCHES)
        frames = figure.subplots(len(charts), squeeze=False, sharex=True)[:, 0]
        for axes, chart in zip(frames, charts, strict=True):
            draw_chart(axes, chart)
        end = max(card.budget, *(seed.steps for seed in card.seeds))
        frames[0].set_xlim(0, end)
        draw_note(figure, charts[0].note)
        content = picture(figure, "png", {"Card": _mark(card)})
    write_with_parents(path, content)


def card_charts(card: Card) -> list[Chart]:
    """The returns, and below them the bias of the critics where it was measured."""
    results = results_of_card(Path(f"{card.config}.json"), card)
    algo, env_id = (card.configuration[key] for key in ("algo", "env_id"))
    title = f"{paper_name(algo)} on {env_id} ({card.config})"
    rules = []
    if card.published is not None:
        figure, steps = card.published.return_mean, card.published.steps
        rules = [Rule(y=figure, label=f"published: {figure:g} after {steps:,} steps")]
    returns = replace(chart_of([results], title=title), rules=tuple(rules))
    metric = f"eval/{BIAS}"
    if metric not in results.metrics:
        return [returns]
    bias = chart_of([results_of_card(results.path, card, metric)])
    labelled = replace(
        bias, title="", y_label="Q bias, in mean returns", rules=(Rule(y=0, label="no bias"),)
    )
    return [replace(returns, x_label=""), labelled]


def is_drawn(card: Card, path: Path) -> bool:
    """Whether the file is the picture of this very card, drawn as it is drawn now."""
    return path.is_file() and _mark(card).encode() in path.read_bytes()


def _mark(card: Card) -> str:
    return f"{card.digest} drawing {DRAWING}"
