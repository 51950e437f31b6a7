"""The picture of an explanation: a row for each choice, or for each dimension of an action."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rl_training.tools.explain import (
    ActionReturns,
    ChoiceProbabilities,
    Explanation,
    Spread,
    best_along,
    value_lines,
)
from rl_training.tools.plotting import BLUE, GREY, ORANGE, draw_grid, new_figure, paper_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ROWS = 24
MOST_DIMENSIONS = 8
_WIDTH_INCHES = 9.0
_HEIGHT = 0.8  # of a bar, in rows
_OTHER_ACTION, _GREEDY_ROW = "#8fa3b8", "#eaf1f9"
_HEADINGS = {
    "values": "Q-value",
    "quantiles": "quantiles of the return: the denser, the more probable",
    "atoms": "probability of each return, on one scale for all actions",
}
_CLOSE = 0.5
"""Values whose spread is a smaller part of their size than this are shown without the zero."""


def draw(explanation: Explanation) -> Figure:
    """The figure; of very many actions only the best are shown."""
    expected = explanation.expected
    if isinstance(expected, Spread):
        figure = _draw_spread(explanation, expected)
    else:
        figure = _draw_choices(explanation, expected)
    title = (
        f"{paper_name(explanation.algo)} on {explanation.env_id}, step {explanation.env_steps:,}"
    )
    figure.suptitle(title, fontsize=13, parse_math=False)
    below = "\n".join([explanation.where, *value_lines(expected)])
    figure.axes[0].set_title(below, fontsize=9, color=GREY, parse_math=False, loc="left")
    return figure


def _draw_choices(
    explanation: Explanation, expected: ActionReturns | ChoiceProbabilities
) -> Figure:
    count = len(explanation.actions)
    returns = isinstance(expected, ActionReturns)
    order = expected.q_values if isinstance(expected, ActionReturns) else expected.probabilities
    kept = np.sort(np.argsort(-order, kind="stable")[:MOST_ROWS])
    row_height = float(np.clip(4.5 / len(kept), 0.36, 1.1))
    figure = new_figure(_WIDTH_INCHES, 2.1 + row_height * len(kept))
    axes = figure.add_subplot()
    what = "best" if returns else "likeliest"
    axes.set_ylabel(
        "action" if len(kept) == count else f"action, the {what} {len(kept)} of {count}"
    )
    greedy = np.flatnonzero(np.isin(kept, explanation.greedy))
    names = [explanation.actions[index] for index in kept]
    if isinstance(expected, ActionReturns):
        expected = expected._replace(
            returns=expected.returns[kept].astype(float),
            probabilities=expected.probabilities[kept].astype(float),
            q_values=expected.q_values[kept].astype(float),
        )
        _draw_returns(axes, expected, int(greedy[0]))
        best = expected.q_values[greedy[0]]
        gaps = [f"{q:.5g}  ({q - best:.3g})" for q in expected.q_values]
        texts = [f"{best:.5g}" if row in greedy else gaps[row] for row in range(len(kept))]
        axes.set_xlabel("discounted return from here on; at the right its mean, the Q-value")
    else:
        shares = expected.probabilities[kept].astype(float)
        _draw_probabilities(axes, shares, greedy)
        texts = [f"{share:.2%}" for share in shares]
    _draw_frame(axes, names, texts, greedy)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure


def _draw_probabilities(axes: Axes, shares: np.ndarray, greedy: np.ndarray) -> None:
    colors = [BLUE if row in greedy else _OTHER_ACTION for row in range(len(shares))]
    axes.barh(range(len(shares)), shares, _HEIGHT * 0.75, color=colors)
    _add_to_legend(axes, "what it does if it does not explore", "other actions", len(shares))
    axes.set_xlim(0, 1)
    axes.set_xlabel("probability of the action")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")


def _add_to_legend(axes: Axes, greedy: str, other: str, count: int) -> None:
    """What the two colours stand for."""
    from matplotlib.patches import Rectangle

    for label, color in ((greedy, BLUE), (other, _OTHER_ACTION))[: min(count, 2)]:
        axes.add_patch(Rectangle((0, -9), 0, 0, color=color, label=label))


def _draw_returns(axes: Axes, expected: ActionReturns, greedy: int) -> None:
    """A row for each action; upwards is towards the row before."""
    form, returns, probabilities, q_values = expected
    rows = np.arange(len(q_values))
    highest = probabilities.max()
    for row in rows:
        color = BLUE if row == greedy else _OTHER_ACTION
        floor = row + _HEIGHT / 2
        if form == "quantiles":
            axes.vlines(returns[row], floor, floor - _HEIGHT, color, lw=1)
        elif form == "atoms":
            heights = floor - _HEIGHT * probabilities[row] / highest
            edges = _edges(returns[row])
            axes.stairs(heights, edges, baseline=floor, fill=True, color=color)
    _add_to_legend(axes, f"greedy action: {_HEADINGS[form]}", "other actions", len(rows))
    if form == "values":
        _draw_values(axes, q_values, greedy)
    elif form == "atoms":
        _crop_to_probable(axes, expected)
    if form != "values":
        floors = rows + _HEIGHT / 2
        axes.hlines(floors, 0, 1, _OTHER_ACTION, lw=0.6, transform=axes.get_yaxis_transform())
        axes.plot(q_values, floors, "D", color=ORANGE, ms=5, label="mean (Q-value)", zorder=3)
    axes.axvline(
        q_values[greedy], color=ORANGE, lw=0.9, ls=":", zorder=0.9, label="the greedy action's mean"
    )


def _draw_values(axes: Axes, q_values: np.ndarray, greedy: int) -> None:
    """Bars from zero; where that would hide how they differ, how far each is from the best."""
    colors = [BLUE if row == greedy else _OTHER_ACTION for row in range(len(q_values))]
    spread = float(np.ptp(q_values))
    if not 0 < spread < _CLOSE * np.abs(q_values).max():
        axes.barh(range(len(q_values)), q_values, _HEIGHT * 0.75, color=colors)
        axes.axvline(0, color=GREY, lw=0.8)
        return
    rows = np.arange(len(q_values))
    axes.hlines(rows, q_values, q_values[greedy], colors, lw=3, alpha=0.5)
    axes.scatter(q_values, rows, s=90, c=colors, zorder=3)
    axes.set_xlim(q_values.min() - 0.15 * spread, q_values.max() + 0.15 * spread)


def _crop_to_probable(axes: Axes, expected: ActionReturns) -> None:
    """Leave out the ends of the support where no bar would be a pixel high."""
    atoms, probabilities = expected.returns[0], expected.probabilities
    visible = atoms[(probabilities > probabilities.max() / 100).any(0)]
    ends = np.append(visible, expected.q_values)
    margin = 2 * (atoms[1] - atoms[0])
    axes.set_xlim(ends.min() - margin, ends.max() + margin)


def _edges(atoms: np.ndarray) -> np.ndarray:
    """The ends of bars that stand side by side, with an atom in the middle of each."""
    half = (atoms[1] - atoms[0]) / 2
    return np.append(atoms - half, atoms[-1] + half)


def _draw_frame(axes: Axes, names: list[str], texts: list[str], greedy: np.ndarray) -> None:
    """The rows' names at the left, their numbers at the right, and the greedy ones marked."""
    for row in greedy:
        axes.axhspan(row - 0.5, row + 0.5, color=_GREEDY_ROW, zorder=0)
    marked = [f"greedy: {name}" if row in greedy else name for row, name in enumerate(names)]
    axes.set_yticks(range(len(names)), marked)
    for row, label in enumerate(axes.get_yticklabels()):
        label.set_parse_math(False)
        label.set_fontweight("bold" if row in greedy else "normal")
    axes.set_ylim(len(names) - 0.5, -0.5)
    for row, text in enumerate(texts):
        axes.text(
            1.01,
            row,
            text,
            transform=axes.get_yaxis_transform(),
            va="center",
            fontsize=9,
            fontweight="bold" if row in greedy else "normal",
            color=GREY,
        )
    draw_grid(axes, "x")
    axes.tick_params(axis="both", length=0)


def _draw_spread(explanation: Explanation, expected: Spread) -> Figure:
    """A row for each dimension: what is played, and beside it what the critics expect."""
    count = min(len(expected.action), MOST_DIMENSIONS)
    critics = len(expected.along) > 0
    height = 1.5 if critics else 1.0
    figure = new_figure(_WIDTH_INCHES, 2.2 + height * count)
    grid: Any = figure.subplots(count, 2 if critics else 1, squeeze=False, sharex="row")
    for dim in range(count):
        left = grid[dim, 0]
        _draw_dimension(left, expected, dim)
        left.set_yticks([0], [explanation.actions[dim]])
        left.get_yticklabels()[0].set_parse_math(False)
        if critics:
            _draw_critics(grid[dim, 1], expected, dim)
    if critics:
        grid[0, 1].set_title("the critics' value along the dimension", fontsize=9, color=GREY)
    for axes in grid[-1]:
        axes.set_xlabel("action")
    if count < len(expected.action):
        grid[-1, 0].set_xlabel(f"action; the first {count} of {len(expected.action)} dimensions")
    handles = {
        label: handle
        for axes in grid[0]
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=3,
        frameon=False,
        fontsize=9,
    )
    return figure


def _draw_dimension(axes: Axes, expected: Spread, dim: int) -> None:
    low, lower, middle, upper, high = expected.quantiles[:, dim].tolist()
    action = float(expected.action[dim])
    axes.hlines(0, low, high, _OTHER_ACTION, lw=2.5, label="90 % of the actions of training")
    axes.hlines(0, lower, upper, BLUE, lw=11, alpha=0.55, label="half of them")
    axes.plot([middle], [0], "|", color=BLUE, ms=16, mew=2, label="median")
    axes.plot([action], [0], "D", color=ORANGE, ms=7, zorder=3, label="without exploration")
    ends = expected.grid[[0, -1], dim].tolist()
    left, right = min(*ends, low), max(*ends, high)
    margin = 0.03 * (right - left)
    place = (action - left) / (right - left)  # the number stays within the frame
    side = "left" if place < 0.1 else "right" if place > 0.9 else "center"
    axes.annotate(
        f"{action:.3g}", (action, 0), (0, 13), textcoords="offset points", ha=side, fontsize=9
    )
    axes.set_xlim(left - margin, right + margin)
    axes.locator_params(axis="x", nbins=5)
    axes.set_ylim(-1, 1)
    for end in ends:
        axes.axvline(end, color=GREY, lw=0.8, zorder=0)
    draw_grid(axes, "x")
    axes.tick_params(axis="both", length=0)


def _draw_critics(axes: Axes, expected: Spread, dim: int) -> None:
    places, values = expected.grid[:, dim], expected.along[:, dim]
    mean = values.mean(0)
    if len(values) > 1:
        axes.fill_between(
            places,
            values.min(0),
            values.max(0),
            color=BLUE,
            alpha=0.15,
            lw=0,
            label=f"between the lowest and highest of {len(values)} critics",
        )
    axes.plot(places, mean, color=BLUE, lw=1.8, label="mean of the critics")
    axes.plot([float(expected.action[dim])], [float(expected.values.mean())], "D", color=ORANGE)
    place, value = best_along(expected)[dim]
    axes.plot([place], [value], "^", color=BLUE, ms=8, label="where it is highest")
    draw_grid(axes, "y")
    axes.tick_params(axis="both", length=0)
