"""Pictures of the results (needs the `report` extra)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import LIBRARIES
from benchmarks.runner import shown_rate
from benchmarks.summary import Results, Row, environments, rate, summarise
from benchmarks.workloads import WORKLOADS, BenchmarkError, from_plain

OURS_COLOUR, PEER_COLOUR, TEXT = "#0b6e4f", "#b8c0c8", "#333333"
_COLOURS = (OURS_COLOUR, "#8a949e", "#c2571a", "#3f6fb5", "#8e5aa8")
LINES = dict(zip(LIBRARIES, zip(_COLOURS, "os^Dv", strict=True), strict=True))
"""Colour and marker of each library's line."""


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise BenchmarkError(
            "pictures need matplotlib: pip install -e '.[report]' in this environment"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 9, "text.color": TEXT, "axes.edgecolor": "#999999"})
    pyplot.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
    return pyplot


def draw_speeds(results: Results, path: Path) -> None:
    """One panel per workload, one bar per library with the spread of its rounds."""
    pyplot = _pyplot()
    names = list(results["workloads"])
    across = min(2, len(names))
    down = -(-len(names) // across)
    figure, grid = pyplot.subplots(down, across, figsize=(5 * across, 2.3 * down), squeeze=False)
    for axes in grid.flat[len(names) :]:
        axes.set_visible(False)
    for axes, name in zip(grid.flat, names, strict=False):
        _bars(axes, summarise(results, name))
        title = from_plain(results["workloads"][name]).title
        axes.set_title(f"{name}  {title}", loc="left", x=-0.28, fontsize=8.5)
    figure.suptitle(
        f"{environments(results)}: transitions per second, one core; longer is faster",
        x=0.01,
        ha="left",
        fontweight="bold",
    )
    figure.tight_layout()
    figure.savefig(path, dpi=160)
    pyplot.close(figure)


def _bars(axes: Any, rows: Sequence[Row]) -> None:
    rows = sorted(rows, key=lambda row: row.rate.median)
    for place, row in enumerate(rows):
        ours = row.library == "ours"
        axes.barh(place, row.rate.median, 0.68, color=OURS_COLOUR if ours else PEER_COLOUR)
        axes.hlines(place, row.rate.low, row.rate.high, color=TEXT, linewidth=1)
        label = f"{shown_rate(row.rate.median)}"
        if row.ratio is not None:
            label += f"   ours is {row.ratio.median:.2f}x"
        axes.annotate(
            label,
            (row.rate.high, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            fontweight="bold" if ours else "normal",
        )
    axes.set_yticks(range(len(rows)), [LIBRARIES[row.library].title for row in rows])
    axes.set_xlim(0, 1.35 * max((row.rate.high for row in rows), default=1))
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def draw_scaling(results: Mapping[str, Any], path: Path) -> None:
    """One row per base, one column per quantity; processor time per transition on log scales."""
    pyplot = _pyplot()
    series = results["series"]
    bases = sorted({line["base"] for line in series})
    axes_names = list(dict.fromkeys(line["along"] for line in series))
    shape = len(bases), len(axes_names)
    figure, grid = pyplot.subplots(*shape, figsize=(3.4 * shape[1], 2.7 * shape[0]), squeeze=False)
    drawn: dict[str, Any] = {}
    for line in series:
        axes = grid[bases.index(line["base"])][axes_names.index(line["along"])]
        for library, (colour, marker) in LINES.items():
            points = [
                (point["value"], 1e6 / rate(point[library], "cpu_s"))
                for point in line["points"]
                if "wall_s" in point.get(library, {})
            ]
            if points:
                title = LIBRARIES[library].title
                style = {"color": colour, "marker": marker, "label": title}
                (drawn[title],) = axes.plot(*zip(*points, strict=True), **style)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        for formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            formatter(lambda value, _: f"{value:,.0f}" if f"{value:.0e}"[0] in "125" else "")
        values = [point["value"] for point in line["points"]]
        axes.set_xticks(values, [str(value) for value in values])
        axes.set_title(f"{WORKLOADS[line['base']].algorithm.upper()}: {line['along']}", loc="left")
        axes.grid(True, which="both", color="#eeeeee")
    for row in grid:
        row[0].set_ylabel("CPU time per transition, µs")
    grid[0][0].legend(handles=list(drawn.values()), frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=160)
    pyplot.close(figure)


def draw_checkpoints(results: Mapping[str, Any], path: Path) -> None:
    """Bytes written and time taken over what is new, a line for each replay memory."""
    pyplot = _pyplot()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8.4, 3.2))
    for case, colour in zip(results["cases"], _COLOURS, strict=False):
        saves = case["saves"][1:]
        new = [each["new_bytes"] / 2**20 for each in saves]
        style = {"color": colour, "marker": "o"}
        label = f"{case['capacity']:,} x {case['kind']}"
        left.plot(new, [each["written_bytes"] / 2**20 for each in saves], label=label, **style)
        right.plot(new, [1e3 * each["total_wall_s"] for each in saves], **style)
        blocked = [1e3 * each["blocked_cpu_s"] for each in saves]
        right.plot(new, blocked, linestyle="--", **style)
    left.set_ylabel("written, MiB")
    right.set_ylabel("ms: until it is there; dashed: training blocked")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("new since the last checkpoint, MiB")
        axes.grid(True, which="major", color="#eeeeee")
    left.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=160)
    pyplot.close(figure)
