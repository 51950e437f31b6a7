"""A comparison as tables and sentences, as a figure, and as JSON: what `compare` writes."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rl_training.experiment.statistics import Estimate
from rl_training.storage.files import jsonable, write_atomic
from rl_training.tools.charts import Chart
from rl_training.tools.comparison import (
    EVERY_TASK,
    Aggregate,
    Comparison,
    Pair,
    Profile,
    Row,
    compare,
    p_value_text,
)
from rl_training.tools.curves import chart_of
from rl_training.tools.plot import PICTURES, default_path, kind_of, refuse_to_overwrite
from rl_training.tools.plotting import (
    GREY,
    PALETTE,
    draw_chart,
    draw_grid,
    draw_note,
    new_figure,
    package_style,
    picture,
    require_matplotlib,
)
from rl_training.tools.results import RETURN, read_results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 80
_TITLES = {RETURN: "final evaluation return"}
_WIDTH, _ROW_HEIGHT = 15.0, 4.6
_NOTE = "bands and bars: 95 % bootstrap intervals over seeds"


def compare_paths(
    paths: Sequence[Path],
    *,
    metric: str | None = None,
    threshold: float | None = None,
    out: Path | None = None,
    as_json: bool = False,
) -> None:
    """Compare results and print tables and verdicts, or JSON; draw the figure unless only JSON."""
    kind = "png" if out is None else kind_of(out, PICTURES)
    results = read_results(paths, metric or RETURN)
    drawn = out is not None or not as_json
    path = default_path(results, prefix="compare") if out is None else out
    possible = find_spec("matplotlib") is not None
    if drawn and (possible or out is not None):
        refuse_to_overwrite(path, kind)
    comparison = compare(results, threshold)
    if as_json:
        print(json.dumps(jsonable(to_plain(comparison))))
    else:
        print(tables(comparison))
    if drawn and (possible or out is not None):
        write_atomic(path, comparison_picture(comparison, kind))
        print(f"picture: {path}", file=sys.stderr if as_json else sys.stdout)
    elif drawn:
        print("no picture: matplotlib is not installed: pip install 'rl-training[report]'")
    if not as_json:
        print(*comparison.sentences, sep="\n")


def to_plain(comparison: Comparison) -> dict[str, object]:
    """The comparison as plain values, without the profiles."""
    parts = {"metric": comparison.metric, "notes": comparison.notes}
    tasks = [asdict(task) for task in comparison.tasks]
    overall = comparison.aggregate and asdict(comparison.aggregate)
    for part in (*tasks, *([overall] if overall else [])):
        part.pop("profiles")
        for pair in part["pairs"]:
            pair |= {key: pair[key]._asdict() for key in ("difference", "improvement")}
        for row in part.get("rows", ()):
            row |= {key: row[key]._asdict() for key in ("iqm", "steps")}
        if "scores" in part:
            part["scores"] = [score._asdict() for score in part["scores"]]
    return {**parts, "tasks": tasks, "aggregate": overall, "sentences": comparison.sentences}


def tables(comparison: Comparison) -> str:
    """The tables, each of at most 80 columns, and the notes."""
    text = StringIO()
    console = Console(file=text, width=WIDTH)
    for task in comparison.tasks:
        what = _TITLES.get(comparison.metric, f"final {comparison.metric}")
        console.print(Text(f"{task.task}: {what}"))
        console.print(_rows(task.rows, task.threshold), "")
        if task.pairs:
            console.print(_pairs(task.pairs), "")
    if comparison.aggregate is not None:
        console.print(
            Text(f"{EVERY_TASK}: scores from 0, the lowest of any seed, to 1, the highest")
        )
        console.print(_scores(comparison.aggregate), "")
        console.print(_pairs(comparison.aggregate.pairs), "")
    for note in comparison.notes:
        console.print(Text(f"note: {note}"))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def _rows(rows: Sequence[Row], threshold: float) -> Table:
    failures = any(row.failed is not None for row in rows)
    table = _table("", "seeds", *(["failed"] if failures else []), "IQM [95 %]", "lowest")
    table.add_column(f"steps to {number(threshold)}", justify="right")
    for row in rows:
        failed = "" if row.failed is None else str(row.failed)
        cells = [str(len(row.finals)), *([failed] if failures else [])]
        cells += [estimate(row.iqm), number(row.lowest), steps(row)]
        table.add_row(Text(row.name), *cells)
    return table


def _pairs(pairs: Sequence[Pair]) -> Table:
    first = f"over {pairs[0].reference}"
    table = _table(first, "difference [95 %]", "P(improvement) [95 %]", "p")
    for pair in pairs:
        value, low, high = pair.improvement
        chance = f"{value:.2f} [{low:.2f}, {high:.2f}]"
        figures = (estimate(pair.difference), chance, p_value_text(pair.p_value))
        table.add_row(Text(pair.name), *figures)
    return table


def _scores(aggregate: Aggregate) -> Table:
    table = _table("", "IQM of scores [95 %]")
    for name, score in zip(aggregate.names, aggregate.scores, strict=True):
        table.add_row(Text(name), "{:.2f} [{:.2f}, {:.2f}]".format(*score))
    return table


def _table(first: str, *columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(Text(first), overflow="fold")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def estimate(figure: Estimate) -> str:
    """A figure with its interval: `486.3 [392.1, 493.5]`."""
    return f"{number(figure.value)} [{number(figure.low)}, {number(figure.high)}]"


def number(value: float) -> str:
    """Four significant digits, or all before the decimal point: 12,345 or 12.34 or 0.1234."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = 3 - math.floor(math.log10(abs(value)))
    if digits > 8 or digits < -12:
        return f"{value:.3g}"
    text = f"{round(value, digits):,.{max(0, digits)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def steps(row: Row) -> str:
    """The median with its interval; `> 50k` for a number of steps beyond the budget of 50,000."""
    parts = [f"> {short(row.budget)}" if math.isinf(part) else short(part) for part in row.steps]
    return f"{parts[0]} [{parts[1]}, {parts[2]}]"


def short(count: float) -> str:
    """A number of steps in three significant digits: 950, 12.5k, 3M."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:g}"


def comparison_picture(comparison: Comparison, kind: str) -> bytes:
    """The figure as a png, svg or pdf file, with a row of three panels for each task."""
    require_matplotlib()
    rows = len(comparison.tasks) + (comparison.aggregate is not None)
    with package_style():
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
    curves = tuple(profile.curve for profile in profiles)
    title, y_label = "performance profile", f"share of seeds with a higher {what}"
    chart = Chart(title=title, x_label=what, y_label=y_label, curves=curves)
    draw_chart(axes, chart, legend=False, dots=False)
    low, high = profiles[0].levels[0], profiles[0].levels[-1]
    margin = 0.02 * (high - low) or 1.0
    axes.set_xlim(low - margin, high + margin)
    axes.set_ylim(-0.02, 1.05)


def _draw_improvement(axes: Axes, pairs: Sequence[Pair]) -> None:
    """A dot and an interval for each pair; where that contains 0.5, neither is better."""
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
