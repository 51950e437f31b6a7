"""A comparison as one figure: learning curves, performance profile, probability of improvement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rl_training.experiment.statistics import Estimate
from rl_training.tools.charts import Chart, Curve
from rl_training.tools.comparison import EVERY_TASK, Aggregate, Comparison, Pair, Profile
from rl_training.tools.curves import RETURN, chart_of
from rl_training.tools.plotting import (
    GREY,
    PALETTE,
    draw_chart,
    draw_grid,
    draw_note,
    new_figure,
    own_style,
    picture,
    require_matplotlib,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _ROW_HEIGHT = 15.0, 4.6
_NOTE = "bands and bars: 95 % bootstrap intervals over seeds"


def comparison_picture(comparison: Comparison, kind: str) -> bytes:
    """The figure as the content of a png, svg or pdf file: a row of three panels for each task."""
    require_matplotlib()
    rows = len(comparison.tasks) + (comparison.aggregate is not None)
    with own_style():
        figure = new_figure(_WIDTH, _ROW_HEIGHT * rows)
        panels = figure.subplots(rows, 3, squeeze=False, width_ratios=(3, 2, 2))
        what = "final return" if comparison.metric == RETURN else comparison.metric
        for (curves, profile, improvement), task in zip(panels, comparison.tasks, strict=False):
            results = [group for group in comparison.results if group.task == task.task]
            draw_chart(curves, chart_of(results, title=task.task))
            _draw_profile(profile, task.profiles, what)
            _draw_improvement(improvement, task.pairs)
        if comparison.aggregate is not None:
            scores, profile, improvement = panels[-1]
            _draw_scores(scores, comparison.aggregate)
            _draw_profile(profile, comparison.aggregate.profiles, "score")
            _draw_improvement(improvement, comparison.aggregate.pairs)
        draw_note(figure, _NOTE)
        return picture(figure, kind)


def _draw_profile(axes: Axes, profiles: Sequence[Profile], what: str) -> None:
    """The share of seeds above each level, in the colours of the curves."""
    curves = tuple(
        Curve(label=each.name, x=each.levels, y=each.share, low=each.low, high=each.high)
        for each in profiles
    )
    title, y_label = "performance profile", f"share of seeds with a higher {what}"
    chart = Chart(title=title, x_label=what, y_label=y_label, curves=curves)
    draw_chart(axes, chart, legend=False, dots=False)
    low, high = profiles[0].levels[0], profiles[0].levels[-1]
    margin = 0.02 * (high - low) or 1.0
    axes.set_xlim(low - margin, high + margin)
    axes.set_ylim(-0.02, 1.05)


def _draw_improvement(axes: Axes, pairs: Sequence[Pair]) -> None:
    """A dot for each pair with its interval; where that crosses one half, neither is better."""
    axes.axvline(0.5, color=GREY, linestyle="--", lw=1.2)
    names = [pair.name for pair in pairs]
    _draw_bars(axes, names, [pair.improvement for pair in pairs], first_colour=1)
    axes.set_xlim(-0.03, 1.03)
    axes.set_title("probability of improvement", loc="left", fontsize=13)
    if pairs:
        axes.set_xlabel(f"over {pairs[0].reference}", parse_math=False)
    if not pairs:
        axes.text(0.5, 0, "nothing to compare with", ha="center", va="bottom", color=GREY)


def _draw_scores(axes: Axes, aggregate: Aggregate) -> None:
    _draw_bars(axes, aggregate.names, aggregate.scores)
    axes.set_title(f"{EVERY_TASK}: interquartile mean of scores", loc="left", fontsize=13)
    axes.set_xlim(-0.03, 1.03)


def _draw_bars(
    axes: Axes, texts: Sequence[str], figures: Sequence[Estimate], *, first_colour: int = 0
) -> None:
    """Figures with their intervals, one below the other, each under its name."""
    for at, (text, (value, low, high)) in enumerate(zip(texts, figures, strict=True)):
        colour = PALETTE[(at + first_colour) % len(PALETTE)]
        axes.plot((low, high), (at, at), color=colour, lw=5, alpha=0.35, solid_capstyle="butt")
        axes.plot([value], [at], "o", color=colour, ms=7, clip_on=False)
        axes.text(0.0, at - 0.14, f"{value:.2f}  {text}", fontsize=9, parse_math=False)
    axes.set_ylim(max(len(texts), 1) - 0.4, -0.6)
    axes.set_yticks([])
    draw_grid(axes, "x")
    axes.spines["left"].set_visible(False)
    axes.tick_params(colors=GREY)
