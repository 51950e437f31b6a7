"""Benchmarks against other libraries: `python -m benchmarks --workloads W1,W8 --peers sb3,sbx`.

Besides `run`, which is the default: `table` prints a results file as the README's tables, `picture`
draws it, and `scaling` measures how the cost grows with batch, width and number of environments.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.parts import microseconds, update_times
from benchmarks.peers import OURS, PEERS, Library
from benchmarks.pictures import draw_scaling, draw_speeds
from benchmarks.runner import Record, machine, measure_all, measure_limits, prepare
from benchmarks.scaling import measure_scaling
from benchmarks.summary import (
    console_table,
    failures,
    fastest_peer,
    markdown,
    markdown_tables,
    summarise,
)
from benchmarks.workloads import WORKLOADS, BenchmarkError, chosen

RESULTS = Path(__file__).parent / "results"
COMMANDS = ("run", "table", "picture", "scaling", "parts", "threads")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure ours and the peers")
    run.add_argument("--workloads", default=",".join(WORKLOADS), help="default: %(default)s")
    run.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    run.add_argument("--scale", type=float, default=1.0, help="of the timed transitions")
    scaling = commands.add_parser("scaling", help="measure how the cost grows")
    scaling.add_argument("--seconds", type=float, default=4.0, help="per point, roughly")
    for command, peers in ((run, ",".join(PEERS)), (scaling, "sb3")):
        command.add_argument("--peers", default=peers, help="default: %(default)s; '' for none")
        command.add_argument("--core", type=int, help="to run on; default: the last one")
        command.add_argument("--output", type=Path, default=RESULTS, help="a folder")
    parts = commands.add_parser("parts", help="where the time of ours goes")
    parts.add_argument("--workloads", default=",".join(WORKLOADS), help="default: %(default)s")
    commands.add_parser("threads", help="one thread or several, by width and batch")
    for name, text in (("table", "print the README's tables"), ("picture", "draw the picture")):
        command = commands.add_parser(name, help=text)
        command.add_argument("results", type=Path, nargs="?", default=RESULTS / "latest.json")
    return top


def chosen_libraries(peers: str) -> list[Library]:
    """Ours and the peers of a comma-separated list."""
    return [OURS, *(PEERS[name] for name in chosen(peers, list(PEERS), "--peers"))]


def header(args: argparse.Namespace, core: int | None) -> dict[str, Any]:
    """What every results file begins with."""
    given = [text for text in args.given if text not in ("--output", str(args.output))]
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", "benchmarks", *given]),
        "machine": machine(),
        "load_average": os.getloadavg()[0],
        "core": core,
    }


def save(results: dict[str, Any], folder: Path, prefix: str = "") -> Path:
    """Write a results file under its date and as the latest one; returns the latter."""
    folder.mkdir(parents=True, exist_ok=True)
    stamp = results["date"][:16].replace(":", "").replace("T", "-")
    for name in (stamp, "latest"):
        path = folder / f"{prefix}{name}.json"
        path.write_text(json.dumps(results, indent=1) + "\n")
    return path


def versions(runs: Sequence[Record]) -> dict[str, Any]:
    """Versions by library, from its runs."""
    return {run["library"]: run["versions"] for run in runs if "versions" in run}


def without_versions(runs: Sequence[Record]) -> list[Record]:
    """The runs without what `versions` says once for all."""
    return [{key: value for key, value in run.items() if key != "versions"} for run in runs]


def run(args: argparse.Namespace) -> int:
    """Measure, print, save and draw."""
    if args.rounds < 1 or args.scale <= 0:
        raise BenchmarkError("--rounds must be at least 1, and --scale above 0")
    names = chosen(args.workloads, list(WORKLOADS), "--workloads")
    workloads = [WORKLOADS[name].scaled(args.scale) for name in names]
    libraries = chosen_libraries(args.peers)
    core = prepare(libraries, args.core)
    plain = {workload.name: workload.to_plain() for workload in workloads}
    results = header(args, core) | {"rounds": args.rounds, "workloads": plain, "limits": []}

    def after_round(runs: list[Record]) -> None:
        results["limits"].append(measure_limits(workloads))
        results.update(versions=versions(runs), runs=without_versions(runs))
        save(results, args.output)

    measure_all(workloads, libraries, args.rounds, after_round=after_round)
    console = Console(width=None if sys.stdout.isatty() else 120)
    for name in names:
        console.print(console_table(results, name))
        best = fastest_peer(summarise(results, name))
        if best and best.ratio:
            console.print(f"{best.ratio.median:.2f} times the fastest peer, {best.library}\n")
    for what, found in results["limits"][-1].items():
        print(what, "at most:", ", ".join(f"{name}: {value:,.0f}" for name, value in found.items()))
    path = save(results, args.output)
    draw_speeds(results, path.with_suffix(".png"))
    print(f"written: {path} and {path.with_suffix('.png').name}")
    failed = failures(results)
    print("\n".join(["failed:", *failed]) if failed else "no run failed")
    return 1 if failed else 0


def scaling(args: argparse.Namespace) -> int:
    """Measure, save and draw."""
    libraries = chosen_libraries(args.peers)
    core = prepare(libraries, args.core)
    results = header(args, core) | {"series": measure_scaling(libraries, args.seconds)}
    path = save(results, args.output, "scaling-")
    draw_scaling(results, path.with_suffix(".png"))
    print(f"written: {path} and {path.with_suffix('.png').name}")
    return 0


def parts(args: argparse.Namespace) -> int:
    """Print the microseconds per transition of each part, as a Markdown table."""
    names = chosen(args.workloads, list(WORKLOADS), "--workloads")
    found = {name: microseconds(WORKLOADS[name]) for name in names}
    rows = [[part, *(f"{found[name][part]:,.0f}" for name in names)] for part in found[names[0]]]
    print("\n".join(markdown(["microseconds per transition", *names], rows)))
    return 0


def threads() -> int:
    """Print the microseconds of an update and an action, as a Markdown table."""
    found = update_times((64, 128, 256, 512, 1024), (32, 128, 256, 1024))
    rows = [[f"{value:,.0f}" for value in row.values()] for row in found]
    print("\n".join(markdown(list(found[0]), rows)))
    return 0


def load(path: Path) -> dict[str, Any]:
    """A results file."""
    try:
        results: dict[str, Any] = json.loads(path.read_text())
    except OSError as error:
        raise BenchmarkError(f"no results at {path} ({error.strerror}); measure first") from None
    except ValueError:
        raise BenchmarkError(f"{path}: expected JSON written by `python -m benchmarks`") from None
    return results


def main(arguments: Sequence[str]) -> int:
    """Run a command; returns the exit code."""
    first = arguments[0] if arguments else ""
    default = [] if first in (*COMMANDS, "-h", "--help") else ["run"]
    args = parser().parse_args([*default, *arguments])
    args.given = arguments
    try:
        if args.command == "table":
            print(markdown_tables(load(args.results)))
            return 0
        if args.command == "picture":
            results, path = load(args.results), args.results.with_suffix(".png")
            (draw_scaling if "series" in results else draw_speeds)(results, path)
            print(f"written: {path}")
            return 0
        if args.command == "threads":
            return threads()
        return {"run": run, "scaling": scaling, "parts": parts}[args.command](args)
    except BenchmarkError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
