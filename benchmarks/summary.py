"""From the raw figures of a results file to medians, ratios, and tables of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.table import Table

from benchmarks.limits import limit_rate
from benchmarks.peers import LIBRARIES
from benchmarks.runner import BUSY, shown_rate
from benchmarks.workloads import from_plain

BY_HAND, PACKAGED = "plain torch by hand", "packaged network and loss"

Results = Mapping[str, Any]


@dataclass(frozen=True)
class Spread:
    """The median of some rounds, with the lowest and the highest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """Of the values; None if there are none."""
        found = list(values)
        return cls(median(found), min(found), max(found)) if found else None


@dataclass(frozen=True)
class Row:
    """One library on one workload; ratios are ours over theirs, round by round."""

    library: str
    rate: Spread
    """Transitions per second."""
    ratio: Spread | None
    cpu_ratio: Spread | None
    """The same from seconds of processor time, which other work on the core changes little."""
    rounds: int
    """In which both it and ours ran."""
    start_s: float
    memory_mb: float
    limit_share: float | None


def rounds_of(results: Results, workload: str, library: str) -> dict[int, Mapping[str, Any]]:
    """The successful runs of a library on a workload, by round."""
    return {
        run["round"]: run
        for run in results["runs"]
        if (run["workload"], run["library"]) == (workload, library) and "wall_s" in run
    }


def rate(run: Mapping[str, Any], clock: str = "wall_s") -> float:
    """Transitions per second of one run."""
    speed: float = run["transitions"] / run[clock]
    return speed


def summarise(results: Results, workload: str) -> list[Row]:
    """The libraries that ran a workload, ours first."""
    mine = rounds_of(results, workload, "ours")
    record = from_plain(results["workloads"][workload])
    limits = dict(enumerate(results.get("limits", [])))
    rows = []
    for library in LIBRARIES:
        runs = rounds_of(results, workload, library)
        if not runs:
            continue
        both = runs.keys() & mine.keys()
        shared = both if library != "ours" else ()
        speed = Spread.of(rate(run) for run in runs.values())
        assert speed is not None
        shares = Spread.of(
            rate(run) / limit_rate(record, limits[n]) for n, run in runs.items() if n in limits
        )
        rows.append(
            Row(
                library,
                speed,
                Spread.of(rate(mine[n]) / rate(runs[n]) for n in shared),
                Spread.of(rate(mine[n], "cpu_s") / rate(runs[n], "cpu_s") for n in shared),
                len(both),
                median(run["start_to_first_update_s"] for run in runs.values()),
                median(run["peak_rss_mb"] for run in runs.values()),
                shares.median if shares else None,
            )
        )
    return rows


def failures(results: Results) -> list[str]:
    """A line for each run that failed."""
    return [
        f"round {run['round'] + 1}, {run['workload']}, {run['library']}: {run['error']}"
        for run in results["runs"]
        if "error" in run
    ]


def scaling_failures(results: Results) -> list[str]:
    """A line for each point of the scaling curves that failed."""
    return [
        f"{line['base']}, {line['along']} {point['value']}, {library}: {point[library]['error']}"
        for line in results["series"]
        for point in line["points"]
        for library in LIBRARIES
        if "error" in point.get(library, {})
    ]


def fastest_peer(rows: Sequence[Row]) -> Row | None:
    """The peer with the highest median rate."""
    peers = [row for row in rows if row.library != "ours"]
    return max(peers, key=lambda row: row.rate.median, default=None)


def times(spread: Spread | None) -> str:
    """A ratio with its spread."""
    return f"{spread.median:.2f} ({spread.low:.2f} to {spread.high:.2f})" if spread else ""


def console_table(results: Results, workload: str) -> Table:
    """The full figures of one workload."""
    rows = summarise(results, workload)
    title = f"{workload}  {from_plain(results['workloads'][workload]).title}"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("library", no_wrap=True)
    columns = ("per second", "ours/theirs", "by CPU time", "1st update", "memory", "of limit")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            LIBRARIES[row.library].title,
            f"{shown_rate(row.rate.median)}",
            times(row.ratio),
            times(row.cpu_ratio),
            f"{row.start_s:.1f} s",
            f"{row.memory_mb:.0f} MB",
            f"{row.limit_share:.0%}" if row.limit_share is not None else "",
            style="green" if row.library == "ours" else "",
        )
    return table


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def environments(results: Results) -> str:
    """The environments of the workloads."""
    return ", ".join(dict.fromkeys(w["env_id"] for w in results["workloads"].values()))


def speed_table(benchmarks: Sequence[Results]) -> str:
    """What the README shows: our speed and how many times a peer's it is, one row per workload."""
    found = {
        name: (results, {row.library: row for row in summarise(results, name)})
        for results in benchmarks
        for name in results["workloads"]
    }
    peers = [x for x in LIBRARIES if x != "ours" and any(x in rows for _, rows in found.values())]
    lines, processors = [], set()
    for name, (results, rows) in sorted(found.items()):
        title = from_plain(results["workloads"][name]).title
        speed = shown_rate(rows["ours"].rate.median) if "ours" in rows else "failed"
        ratios = (_times_as_fast(results, name, peer, rows.get(peer)) for peer in peers)
        lines.append([f"{name}: {title}", speed, *ratios])
        processors.add(results["machine"]["cpu"])
    dates = sorted({results["date"][:10] for results in benchmarks})
    header = ["workload", "transitions per second", *(f"times {LIBRARIES[p].title}" for p in peers)]
    measured = (
        "The ratios are medians of interleaved rounds with the same hyper-parameters, each run a "
        f"fresh process with one thread on one core ({' or '.join(sorted(processors))}), measured "
        f"on {' to '.join(dict.fromkeys((dates[0], dates[-1])))}. A blank: not offered."
    )
    return "\n".join([*markdown(header, lines), "", measured])


def _times_as_fast(results: Results, workload: str, peer: str, row: Row | None) -> str:
    if row is None or row.ratio is None:
        why = _why_none(results, workload, peer)
        return "" if why == "not offered" else why
    return f"{row.ratio.median:.2f}"


def markdown_tables(results: Results) -> str:
    """What the documentation shows: speed, ratios, start-up, memory, and how it was measured."""
    summaries = {
        name: {row.library: row for row in summarise(results, name)}
        for name in results["workloads"]
    }
    shown = [name for name in LIBRARIES if any(name in rows for rows in summaries.values())]
    titles = [LIBRARIES[name].title for name in shown]
    speeds, costs = [], []
    for name, rows in summaries.items():
        title = from_plain(results["workloads"][name]).title
        cells = [_speed(rows.get(x)) or _why_none(results, name, x) for x in shown]
        speeds.append([f"{name}: {title}", *cells])
        costs.append([name, *(_cost(rows.get(library)) for library in shown)])
    counts = {row.rounds for rows in summaries.values() for row in rows.values() if row.rounds}
    rounds = " to ".join(map(str, sorted({min(counts, default=0), max(counts, default=0)})))
    return "\n".join(
        [
            *markdown([f"{environments(results)}, transitions per second", *titles], speeds),
            "",
            *markdown(["start to the first update, peak memory", *titles], costs),
            "",
            f"Bold: how many times as fast ours is, the median of {rounds} interleaved rounds with "
            "the lowest and the highest. Same hyper-parameters, a fresh process per run, one "
            f"thread on one core of {results['machine']['cpu']}. {_measured(results, shown)}",
        ]
    )


def _measured(results: Results, shown: Sequence[str]) -> str:
    """When and how it was measured, and what makes the figures less than they seem."""
    text = f"Measured on {results['date'][:10]} with `{results['command']}`"
    if "git_commit" in results:
        text += f" at commit `{results['git_commit'][:10]}`"
        text += " with local changes" if results["git_dirty"] else ""
    if results["load_average"] > BUSY:
        text += f", beside other work (load average {results['load_average']:.1f})"
    versions = {name: next(iter(found.values())) for name, found in results["versions"].items()}
    used = [f"{LIBRARIES[name].title} {versions[name]}" for name in shown if name != "ours"]
    text += f"; {', '.join(used)}" if used else ""
    if results.get("complete", True):
        return f"{text}."
    return f"{text}. Partial: {len(results['limits'])} of {results['rounds']} rounds were measured."


def replay_table(results: Results) -> str:
    """Memory and speed of replay, how many times as fast ours is, and how it was measured."""
    rounds, rows, rates = results["rounds"], [], {}
    for name in rounds[0]:
        found = [each[name] for each in rounds]
        size, frames = (max(each[key] for each in found) for key in ("bytes", "frames"))
        rates[name] = [each["sampled_per_s"] for each in found]
        shown = _with_spread(rates[name], ",.0f")
        title = f"{LIBRARIES[name].title} {found[0]['version']}"
        rows.append([title, f"{size / 1e9:.2f} GB", f"{frames:.2f}", shown])
    header = ["", "resident memory", "images per transition", "transitions sampled per second"]
    ratios = [a / b for a, b in zip(rates["ours"], rates["sb3"], strict=True)]
    text = (
        f"Ours samples {_with_spread(ratios, '.1f')} times as fast. {results['transitions']:,} "
        f"transitions; medians of {len(rounds)} interleaved rounds with the lowest and the highest "
        f"(of memory the highest), with `{results['command']}` on "
        f"{results['machine']['cpu']}, {results['date'][:10]}, commit "
        f"`{results.get('git_commit', 'unknown')[:10]}`, load average before it "
        f"{results['load_average']:.1f}."
    )
    return "\n".join([*markdown(header, rows), "", text])


def checkpoints_table(results: Results) -> str:
    """What checkpoints cost, the first of a full replay memory and later ones, and resuming."""
    rows, resumed = [], []
    for case in results["cases"]:
        title = f"{case['capacity']:,} x {case['kind']}"
        for number, each in enumerate(case["saves"]):
            rows.append(
                [
                    title,
                    "all" if number == 0 else f"{each['new']:,}",
                    f"{each['new_bytes'] / 2**20:,.1f}",
                    f"{each['written_bytes'] / 2**20:,.1f}",
                    f"{each['written_bytes'] / each['new_bytes'] - 1:.2%}",
                    f"{1e3 * each['blocked_cpu_s']:.1f}",
                    f"{1e3 * each['total_wall_s']:,.0f}",
                ]
            )
        of_replay = f"{case['resume']['peak_of_replay']:.2f}"
        resumed.append(f"{of_replay} of the replay memory ({title})")
    names = ["replay memory", "new rows", "new, MiB", "written, MiB", "more than new"]
    names += ["training blocked, ms of CPU", "until it is there, ms"]
    text = (
        f"Peak memory of a resume: {', '.join(resumed)}. With `{results['command']}` on "
        f"{results['machine']['cpu']}, {results['date'][:10]}, load average before it "
        f"{results['load_average']:.1f}."
    )
    return "\n".join([*markdown(names, rows), "", text])


def _with_spread(numbers: Sequence[float], form: str) -> str:
    """The median, with the lowest and the highest."""
    middle, low, high = (format(x, form) for x in (median(numbers), min(numbers), max(numbers)))
    return f"{middle} ({low} to {high})"


def parts_table(found: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The parts of a transition's time by workload, with their shares of the total."""

    def cell(name: str, part: str) -> str:
        return f"{found[name][part]:,.1f} ({found[name][part] / found[name]['total']:.0%})"

    parts = next(iter(found.values()), {})
    rows = [[part, *(cell(name, part) for name in found)] for part in parts]
    return markdown(["microseconds per transition", *found], rows)


def custom_table(results: Results) -> str:
    """Microseconds per update, and how many times as fast as two of the variants each one is."""
    lines: list[str] = []
    for name, found in results["microseconds"].items():
        rows = [
            [
                variant,
                f"{median(taken):,.0f}",
                times(_ratio(found[BY_HAND], taken)),
                times(_ratio(found[PACKAGED], taken)),
            ]
            for variant, taken in found.items()
        ]
        columns = ["microseconds per update", f"times {BY_HAND}", f"times {PACKAGED}"]
        lines += [*markdown([name, *columns], rows), ""]
    lines.append(
        f"Over 1: faster. Medians of {results['rounds']} interleaved rounds with the lowest and "
        f"the highest; processor time of 1 thread on {results['machine']['cpu']}."
    )
    return "\n".join(lines)


def workers_table(results: Results) -> str:
    """Steps per second of both vector environments, and their ratio."""
    found: dict[str, list[float]] = results["steps_per_second"]
    ours, other = found.values()
    ratio = _ratio(ours, other)
    rows = [[kind, f"{median(speeds):,.0f}"] for kind, speeds in found.items()]
    return "\n".join(
        [
            *markdown([f"{results['env_id']} x {results['num_envs']}", "steps per second"], rows),
            "",
            f"Ours is {times(ratio)} times as fast. Medians of {results['rounds']} rounds in turns "
            f"with the lowest and the highest; wall time, {results['machine']['cpu']}, "
            f"load average before it {results['load_average']:.1f}.",
        ]
    )


def _ratio(reference: Sequence[float], taken: Sequence[float]) -> Spread | None:
    return Spread.of(a / b for a, b in zip(reference, taken, strict=True))


def _why_none(results: Results, workload: str, library: str) -> str:
    """Why a library has no figure: it was asked and failed, or it does not offer the workload."""
    mine = [r for r in results["runs"] if (r["workload"], r["library"]) == (workload, library)]
    return "failed" if any("error" in run for run in mine) else "not offered"


def _speed(row: Row | None) -> str:
    if row is None:
        return ""
    if row.ratio is None:
        return f"{shown_rate(row.rate.median)}"
    ratio = f"**{row.ratio.median:.2f}x** ({row.ratio.low:.2f} to {row.ratio.high:.2f})"
    return f"{shown_rate(row.rate.median)}, {ratio}"


def _cost(row: Row | None) -> str:
    return "" if row is None else f"{row.start_s:.1f} s, {row.memory_mb:.0f} MB"
