"""Drawing with matplotlib, if it is installed: colours, style, axes and charts."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING, Literal

from rl_training.errors import MissingExtra
from rl_training.tools.charts import Chart, Curve

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

BLUE, ORANGE, GREY = "#1f5fa8", "#c2571a", "#5a5a5a"
PALETTE = (BLUE, ORANGE, "#2e8b57", "#8e4fa8", "#b8901c", "#3aa0b5", "#c0407a", "#6b6b6b")
"""Colours of curves, chosen to be told apart by the colour-blind too."""

_DPI = 100
_LINE_STYLES = ("-", "--", ":", "-.")
_MAX_MARKERS = 30
_MAX_INSIDE = 6
_SPELLINGS = {"drq": "DrQ", "drqv2": "DrQ-v2", "recurrent_ppo": "Recurrent PPO"}


def require_matplotlib() -> None:
    """Raise before any work is done for a picture that could not be drawn."""
    if find_spec("matplotlib") is None:
        raise MissingExtra(
            "a picture needs matplotlib, which is not installed: pip install 'rl-training[report]'"
        )


def new_figure(width_inches: float, height_inches: float) -> Figure:
    """A figure that needs no display and leaves pyplot's state alone."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_inches, height_inches), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw_grid(axes: Axes, axis: Literal["x", "y"]) -> None:
    """Light grid lines behind the curves, and no frame at the top and the right."""
    axes.grid(axis=axis, color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


@contextmanager
def package_style() -> Iterator[None]:
    """Matplotlib's defaults, whatever the user's settings; missing glyphs are drawn as boxes."""
    from matplotlib import rc_context, style

    # Names in an SVG file follow from its content, so that equal charts give equal files.
    names = rc_context({"svg.hashsalt": "rl-training"})
    with style.context("default"), names, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        yield


def picture(figure: Figure, kind: str, metadata: Mapping[str, str] | None = None) -> bytes:
    """The figure as a png, svg or pdf file, without date and version."""
    silent: dict[str, dict[str, str | None]] = {
        "png": {"Software": None},
        "svg": {"Date": None},
        "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    }
    content = BytesIO()
    figure.savefig(content, format=kind, metadata={**silent[kind], **(metadata or {})})
    return content.getvalue()


def draw_chart(
    axes: Axes, chart: Chart, *, legend: bool = True, dots: bool = True, first_colour: int = 0
) -> None:
    """Draw the chart on axes; x begins at 0, and y shows every point, the first ones too.

    `dots` mark the points of curves that have few. `first_colour` continues the colours of a chart
    beside this one.
    """
    handles: list[Artist] = []
    for index, curve in enumerate(chart.curves, start=first_colour):
        colour = PALETTE[index % len(PALETTE)]
        style = _LINE_STYLES[index // len(PALETTE) % len(_LINE_STYLES)]
        handles += _draw_curve(axes, curve, colour, style, dots and len(curve.x) <= _MAX_MARKERS)
    labels = [curve.label for curve in chart.curves]
    for rule in chart.rules:
        handles.append(axes.axhline(rule.y, color=GREY, linestyle="--", lw=1.2))
        labels.append(rule.label)
    ends = [curve.x[-1] for curve in chart.curves if curve.x]
    ends += [x[-1] for curve in chart.curves for x, _ in curve.single if x]
    axes.set_xlim(0, max(ends, default=1) or 1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    _show_literally(axes.set_title(chart.title, loc="left", fontsize=13))
    _show_literally(axes.set_xlabel(chart.x_label))
    _show_literally(axes.set_ylabel(chart.y_label))
    draw_grid(axes, "y")
    axes.tick_params(colors=GREY)
    if legend:
        _draw_legend(axes, handles, labels)


def _draw_curve(axes: Axes, curve: Curve, colour: str, style: str, dots: bool) -> list[Artist]:
    """Draw the single seeds, the band and the line, and return the line for the legend."""
    alpha = max(0.08, 0.4 / max(1, len(curve.single) / 5) ** 0.5)
    for x, y in curve.single:
        marker = "o" if len(x) == 1 else None  # a line through one point is invisible
        axes.plot(x, y, color=colour, alpha=alpha, lw=0.9, ms=4, marker=marker, clip_on=False)
    if curve.low:
        width = 0 if len(curve.x) > 1 else 8  # of the edge: a band over one point has no area
        axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.16, linewidth=width)
    marker = "o" if dots else None
    return list(
        axes.plot(curve.x, curve.y, style, color=colour, lw=2.2, ms=4, marker=marker, clip_on=False)
    )


def _draw_legend(axes: Axes, handles: list[Artist], labels: list[str]) -> None:
    """Inside the axes where the curves leave room, or beside them if there are many."""
    # A name that begins with an underscore would be left out.
    shown = [f" {label}" if label.startswith("_") else label for label in labels]
    legend = axes.legend(handles, shown, loc="best", frameon=False, fontsize=9, labelcolor=GREY)
    if len(labels) > _MAX_INSIDE:
        legend.set_loc("upper left")
        legend.set_bbox_to_anchor((1.01, 1.0), transform=axes.transAxes)
    for text in legend.get_texts():
        _show_literally(text)


def _show_literally(text: Text) -> None:
    """A dollar sign in a name starts no formula."""
    text.set_parse_math(False)


def draw_note(figure: Figure, note: str) -> None:
    """A legend to the figure in small print below it."""
    if note:
        _show_literally(figure.supxlabel(note, x=0.99, ha="right", fontsize=8, color=GREY))


def chart_picture(chart: Chart, kind: str) -> bytes:
    """A chart as a png, svg or pdf file."""
    require_matplotlib()
    with package_style():
        figure = new_figure(9.0, 5.4)
        draw_chart(figure.subplots(), chart)
        draw_note(figure, chart.note)
        return picture(figure, kind)


def paper_name(algo: str) -> str:
    """An algorithm's name as papers write it: `qr_dqn` is QR-DQN."""
    return _SPELLINGS.get(algo, algo.upper().replace("_", "-"))
