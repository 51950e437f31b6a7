"""The picture of an explanation: a row per action, with the returns the agent expects of it."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

import numpy as np

from rl_training.errors import UsageError
from rl_training.experiment.evidence_picture import require_matplotlib, shown_name
from rl_training.experiment.explanation import ActionReturns, Explanation
from rl_training.experiment.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ROWS = 24
_WIDTH_INCHES, _DPI = 9.0, 100
_HEIGHT = 0.8  # of what is drawn in a row, of 1
_GREEDY, _OTHER, _BAND, _MEAN, _QUIET = "#1f5fa8", "#8fa3b8", "#eaf1f9", "#c2571a", "#5a5a5a"
_HEADINGS = {
    "values": "Q-value of each action",
    "quantiles": "quantiles of the return: the denser, the more probable",
    "atoms": "probability of each return, on one scale for all actions",
}


def check_path(path: Path) -> None:
    """Refuse a picture that could not be written, before work is done for it."""
    require_matplotlib()
    from matplotlib.backend_bases import FigureCanvasBase

    # PGF would need LaTeX, and bare pixels a reader that knows their number.
    formats = sorted(FigureCanvasBase.get_supported_filetypes().keys() - {"pgf", "raw", "rgba"})
    if path.suffix[1:].lower() not in formats:
        raise UsageError(
            f"explain: expected a file name that ends in .png or another of {', '.join(formats)}, "
            f"found {path.name!r}"
        )
    if not path.parent.is_dir():
        raise UsageError(
            f"explain: expected a folder that exists, found none at {path.parent}; create it first"
        )
    if path.is_dir():
        raise UsageError(f"explain: expected the name of a file, found the folder {path}")


def write_picture(explanation: Explanation, path: Path) -> None:
    """Draw it, in the format that the path's suffix names."""
    from matplotlib import style

    with style.context("default"):  # whatever the user's own settings are
        content = BytesIO()
        draw(explanation).savefig(content, format=path.suffix[1:].lower())
    write_atomic(path, content.getvalue())


def draw(explanation: Explanation) -> Figure:
    """The figure; of very many actions only those with the highest Q-values are shown."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    expected, count = explanation.expected, len(explanation.actions)
    kept = np.sort(np.argsort(-expected.q_values, kind="stable")[:MOST_ROWS])
    row_height = float(np.clip(4.5 / len(kept), 0.36, 1.1))
    size = (_WIDTH_INCHES, 1.9 + row_height * len(kept))
    figure = Figure(figsize=size, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_ylabel("action" if len(kept) == count else f"action, the best {len(kept)} of {count}")
    expected = expected._replace(
        returns=expected.returns[kept].astype(float),
        probabilities=expected.probabilities[kept].astype(float),
        q_values=expected.q_values[kept].astype(float),
    )
    greedy = int(expected.q_values.argmax())
    _draw_returns(axes, expected, greedy)
    _draw_frame(axes, [explanation.actions[index] for index in kept], expected.q_values, greedy)
    title = (
        f"{shown_name(explanation.algo)} on {explanation.env_id}, step {explanation.env_steps:,}"
    )
    figure.suptitle(title, fontsize=13, parse_math=False)
    observation = shorten(explanation.observation, 100, placeholder=" ...")
    axes.set_title(f"at {observation}", fontsize=9, color=_QUIET, parse_math=False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def _draw_returns(axes: Axes, expected: ActionReturns, greedy: int) -> None:
    """A row for each action; upwards is towards the row before."""
    form, returns, probabilities, q_values = expected
    rows = np.arange(len(q_values))
    highest = probabilities.max()
    for row in rows:
        color = _GREEDY if row == greedy else _OTHER
        label = _HEADINGS[form] if row == greedy else ""
        floor = row + _HEIGHT / 2
        if form == "values":
            axes.barh(row, q_values[row], _HEIGHT * 0.75, color=color, label=label)
        elif form == "quantiles":
            axes.vlines(returns[row], floor, floor - _HEIGHT, color, lw=1, label=label)
        else:
            heights = floor - _HEIGHT * probabilities[row] / highest
            edges = _edges(returns[row])
            axes.stairs(heights, edges, baseline=floor, fill=True, color=color, label=label)
    if form == "atoms":
        _show_what_is_probable(axes, expected)
    if form != "values":
        floors = rows + _HEIGHT / 2
        axes.hlines(floors, 0, 1, _OTHER, lw=0.6, transform=axes.get_yaxis_transform())
        axes.plot(q_values, floors, "D", color=_MEAN, ms=5, label="mean (Q-value)", zorder=3)
    axes.axvline(q_values[greedy], color=_MEAN, lw=0.9, ls=":", zorder=0.9)


def _show_what_is_probable(axes: Axes, expected: ActionReturns) -> None:
    """Leave out the ends of the support where no bar would be a pixel high."""
    atoms, probabilities = expected.returns[0], expected.probabilities
    seen = atoms[(probabilities > probabilities.max() / 100).any(0)]
    ends = np.append(seen, expected.q_values)
    margin = 2 * (atoms[1] - atoms[0])
    axes.set_xlim(ends.min() - margin, ends.max() + margin)


def _edges(atoms: np.ndarray) -> np.ndarray:
    """The ends of bars that stand side by side, with an atom in the middle of each."""
    half = (atoms[1] - atoms[0]) / 2
    return np.append(atoms - half, atoms[-1] + half)


def _draw_frame(axes: Axes, actions: list[str], q_values: np.ndarray, greedy: int) -> None:
    rows = range(len(actions))
    axes.axhspan(greedy - 0.5, greedy + 0.5, color=_BAND, zorder=0)
    names = [f"greedy: {name}" if row == greedy else name for row, name in enumerate(actions)]
    axes.set_yticks(rows, names)
    axes.get_yticklabels()[greedy].set_fontweight("bold")
    axes.set_ylim(len(actions) - 0.5, -0.5)
    for row in rows:
        axes.text(
            1.01,
            row,
            f"{q_values[row]:.5g}",
            transform=axes.get_yaxis_transform(),
            va="center",
            fontsize=9,
            fontweight="bold" if row == greedy else "normal",
            color=_QUIET,
        )
    axes.set_xlabel("discounted return from here on (at the right: its mean, the Q-value)")
    axes.grid(axis="x", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="both", length=0)
