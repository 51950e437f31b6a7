"""What `rl-training compare` does: a comparison as a table, a figure and sentences, or as JSON."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rl_training.experiment.statistics import Estimate
from rl_training.storage.files import jsonable, write_atomic
from rl_training.tools.comparison import EVERY_TASK, Aggregate, Comparison, Pair, Row, compare
from rl_training.tools.comparison_figure import comparison_picture
from rl_training.tools.curves import RETURN, read_results
from rl_training.tools.plot import PICTURES, default_path, kind_of, refuse_to_overwrite

WIDTH = 80
_TITLES = {RETURN: "final evaluation return"}


def compare_paths(
    paths: Sequence[Path],
    *,
    metric: str | None = None,
    threshold: float | None = None,
    out: Path | None = None,
    as_json: bool = False,
) -> None:
    """Compare results and print what there is to know; with a figure unless JSON is wanted."""
    kind = "png" if out is None else kind_of(out, PICTURES)
    results = read_results(paths, metric or RETURN)
    drawn = out is not None or not as_json
    path = default_path(results, word="compare") if out is None else out
    possible = find_spec("matplotlib") is not None
    if drawn and (possible or out is not None):
        refuse_to_overwrite(path, kind)
    comparison = compare(results, threshold)
    if as_json:
        print(json.dumps(jsonable(plain(comparison))))
    else:
        print(tables(comparison))
    if drawn and (possible or out is not None):
        write_atomic(path, comparison_picture(comparison, kind))
        print(f"picture: {path}", file=sys.stderr if as_json else sys.stdout)
    elif drawn:
        print("no picture: matplotlib is not installed: pip install 'rl-training[report]'")
    if not as_json:
        print(*comparison.sentences, sep="\n")


def plain(comparison: Comparison) -> dict[str, object]:
    """The comparison as JSON holds it; a median that was never reached is null."""
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
    table = _table(first, "difference [95 %]", "P(improvement) [95 %]")
    for pair in pairs:
        value, low, high = pair.improvement
        figures = (estimate(pair.difference), f"{value:.2f} [{low:.2f}, {high:.2f}]")
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
    """A figure with its interval, all with the digits that its largest part needs."""
    return f"{number(figure.value)} [{number(figure.low)}, {number(figure.high)}]"


def number(value: float) -> str:
    """Four digits or all before the point: 1,234 or 12.34 or 0.1234."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = 3 - math.floor(math.log10(abs(value)))
    if digits > 8 or digits < -12:
        return f"{value:.3g}"
    text = f"{round(value, digits):,.{max(0, digits)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def steps(row: Row) -> str:
    """The median with its interval; beyond what the seeds had, only that it takes longer."""
    parts = [f"> {short(row.budget)}" if math.isinf(part) else short(part) for part in row.steps]
    return f"{parts[0]} [{parts[1]}, {parts[2]}]"


def short(count: float) -> str:
    """A number of steps in three digits: 950, 12.5k, 3M."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:g}"
