"""Benchmarks against other libraries: `python -m benchmarks --workloads W1,W8 --peers sb3,sbx`.

Besides `run`, which is the default: `table` prints a results file as the documentation's tables,
`picture` draws it, `scaling` measures how the cost grows with batch, width and number of
environments, `compare` measures another checkout of this repository beside this one, `custom` the
updates of a custom network and a custom loss beside plain torch, `workers` environments in worker
processes beside Gymnasium's, and `checkpoints` what one costs by the size of the replay memory and
by what is new in it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.compare import checkout_of, comparison_table, sides
from benchmarks.parts import ensemble_times, update_times
from benchmarks.peers import OURS, PEERS, ROOT, Library, interpreter, interpreters
from benchmarks.pictures import draw_checkpoints, draw_scaling, draw_speeds
from benchmarks.runner import Record, machine, measure_all, measure_limits, prepare, run_json
from benchmarks.scaling import measure_scaling
from benchmarks.summary import (
    checkpoints_table,
    console_table,
    custom_table,
    failures,
    fastest_peer,
    markdown,
    markdown_tables,
    parts_table,
    replay_table,
    scaling_failures,
    summarise,
    workers_table,
)
from benchmarks.workers import steps_per_second
from benchmarks.workloads import WORKLOADS, BenchmarkError, chosen
from rl_training.storage.runs import git_state

RESULTS = Path(__file__).parent / "results"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", allow_abbrev=False, help="measure ours and the peers")
    run.add_argument("--workloads", default=",".join(WORKLOADS), help="default: %(default)s")
    run.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    run.add_argument("--scale", type=float, default=1.0, help="of the timed transitions")
    run.add_argument(
        "--name",
        default="latest",
        help="of the results; latest and latest-* are in the documentation. Default: %(default)s",
    )
    scaling = commands.add_parser("scaling", allow_abbrev=False, help="measure how the cost grows")
    scaling.add_argument("--seconds", type=float, default=4.0, help="per point, roughly")
    for command, peers in ((run, ",".join(PEERS)), (scaling, "sb3")):
        command.add_argument("--peers", default=peers, help="default: %(default)s; '' for none")
    compare = commands.add_parser(
        "compare", allow_abbrev=False, help="measure this checkout and another in turns"
    )
    compare.add_argument("other", help="the folder of a checkout, or a git revision")
    compare.add_argument("--workloads", default=",".join(WORKLOADS), help="default: %(default)s")
    compare.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    compare.add_argument("--scale", type=float, default=1.0, help="of the timed transitions")
    compare.add_argument("--threads", type=int, default=1, help="default: %(default)s")
    custom = commands.add_parser("custom", help="updates of a custom network and a custom loss")
    custom.add_argument("--workloads", default="W1,W1s", help="of DQN; default: %(default)s")
    custom.add_argument("--rounds", type=int, default=9, help="default: %(default)s")
    custom.add_argument("--seconds", type=float, default=1.0, help="per variant and round")
    parts = commands.add_parser("parts", help="where the time of ours goes")
    parts.add_argument("--workloads", default=",".join(WORKLOADS), help="default: %(default)s")
    replay = commands.add_parser("replay", help="memory and sampling of stacked images")
    replay.add_argument("--transitions", type=int, default=100_000, help="default: %(default)s")
    replay.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    workers = commands.add_parser("workers", help="environments in worker processes")
    workers.add_argument("--env", default="CartPole-v1", help="default: %(default)s")
    workers.add_argument("--num-envs", type=int, default=8, help="default: %(default)s")
    workers.add_argument("--rounds", type=int, default=15, help="default: %(default)s")
    workers.add_argument("--steps", type=int, default=1000, help="of all; default: %(default)s")
    saves = commands.add_parser("checkpoints", help="cost by replay memory and by what is new")
    saves.add_argument("--scale", type=float, default=1.0, help="of the replay memories")
    for command in (run, scaling, compare, custom, replay, workers, saves):
        command.add_argument("--output", type=Path, default=RESULTS, help="a folder")
    for command in (run, scaling, compare, custom, parts, replay, saves):
        command.add_argument("--core", type=int, help="to run on; default: the last one")
    commands.add_parser("threads", help="one thread or several, by width and batch")
    commands.add_parser("ensemble", help="an update of REDQ by its number of critics")
    for name, text in (
        ("table", "print the documentation's tables"),
        ("picture", "draw the picture"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("results", type=Path, nargs="?", default=RESULTS / "latest.json")
    return top


def chosen_libraries(peers: str) -> list[Library]:
    """Ours and the peers of a comma-separated list."""
    return [OURS, *(PEERS[name] for name in chosen(peers, list(PEERS), "--peers"))]


def without_output(given: Sequence[str]) -> list[str]:
    """The arguments but for the folder of the results."""
    after = ["", *given]
    return [
        text
        for text, before in zip(given, after, strict=False)
        if before != "--output" and text.partition("=")[0] != "--output"
    ]


def header(args: argparse.Namespace, core: int | None) -> dict[str, Any]:
    """What every results file begins with."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", "benchmarks", *without_output(args.given)]),
        **git_state(ROOT, below=":(exclude)benchmarks/results"),  # new results change no code
        "machine": machine(),
        "load_average": os.getloadavg()[0],
        "core": core,
    }


def save(results: dict[str, Any], folder: Path, name: str) -> Path:
    """Write a results file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(results, indent=1) + "\n")
    return path


def dated(results: dict[str, Any]) -> str:
    """The name of a results file that stays."""
    stamp: str = results["date"][:16].replace(":", "").replace("T", "-")
    return stamp


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
    found = interpreters(chosen_libraries(args.peers))
    core = prepare(args.core)
    plain = {workload.name: workload.to_plain() for workload in workloads}
    results = header(args, core) | {"rounds": args.rounds, "workloads": plain, "limits": []}

    def after_round(runs: list[Record]) -> None:
        results["limits"].append(measure_limits(workloads))
        results.update(versions=versions(runs), runs=without_versions(runs))
        results["complete"] = len(results["limits"]) == args.rounds
        save(results, args.output, dated(results))

    measure_all(workloads, found, args.rounds, after_round=after_round)
    path = save(results, args.output, args.name)
    console = Console(width=None if sys.stdout.isatty() else 120)
    for name in names:
        console.print(console_table(results, name))
        best = fastest_peer(summarise(results, name))
        if best and best.ratio:
            console.print(f"{best.ratio.median:.2f} times the fastest peer, {best.library}\n")
    for what, most in results["limits"][-1].items():
        print(what, "at most:", ", ".join(f"{name}: {value:,.0f}" for name, value in most.items()))
    draw_speeds(results, path.with_suffix(".png"))
    print(f"written: {path} and {path.with_suffix('.png').name}")
    return told(failures(results))


def told(failed: Sequence[str]) -> int:
    """Print what failed; returns the exit code."""
    print("\n".join(["failed:", *failed]) if failed else "no run failed")
    return 1 if failed else 0


def scaling(args: argparse.Namespace) -> int:
    """Measure, save and draw."""
    found = interpreters(chosen_libraries(args.peers))
    core = prepare(args.core)
    results = header(args, core) | {"series": measure_scaling(found, args.seconds)}
    save(results, args.output, f"scaling-{dated(results)}")
    path = save(results, args.output, "scaling-latest")
    draw_scaling(results, path.with_suffix(".png"))
    print(f"written: {path} and {path.with_suffix('.png').name}")
    return told(scaling_failures(results))


def compare(args: argparse.Namespace) -> int:
    """Measure this checkout and another, print and save."""
    if min(args.rounds, args.threads) < 1 or args.scale <= 0:
        raise BenchmarkError("--rounds and --threads must be at least 1, and --scale above 0")
    names = chosen(args.workloads, list(WORKLOADS), "--workloads")
    workloads = [WORKLOADS[name].scaled(args.scale) for name in names]
    with checkout_of(args.other) as folder:
        core = prepare(args.core, args.threads)
        other = git_state(folder, below=":(exclude)benchmarks/results")
        # The record names a commit in place of a folder, which means nothing elsewhere.
        commit = other.get("git_commit", "OTHER")[:10]
        args.given = [commit if text == args.other else text for text in args.given]
        results = header(args, core) | {
            "threads": args.threads,
            "rounds": args.rounds,
            "workloads": {workload.name: workload.to_plain() for workload in workloads},
            "other": other,
            "loads": [],
        }

        def after_round(runs: list[Record]) -> None:
            results["loads"].append(os.getloadavg()[0])
            results.update(versions=versions(runs), runs=without_versions(runs))
            results["complete"] = len(results["loads"]) == args.rounds
            save(results, args.output, f"compare-{dated(results)}")

        both = dict.fromkeys(sides(folder, args.threads), interpreter(OURS))
        measure_all(workloads, both, args.rounds, after_round=after_round)
    path = save(results, args.output, "compare-latest")
    print(comparison_table(results))
    print(f"written: {path}")
    return told(failures(results))


def custom(args: argparse.Namespace) -> int:
    """Measure updates of a custom network and loss beside plain torch, print and save."""
    if args.rounds < 1 or args.seconds <= 0:
        raise BenchmarkError("--rounds must be at least 1, and --seconds above 0")
    known = [name for name, workload in WORKLOADS.items() if workload.algorithm == "dqn"]
    names = chosen(args.workloads, known, "--workloads")
    core = prepare(args.core)
    results = header(args, core) | {"rounds": args.rounds}
    results["microseconds"] = {}
    for name in names:
        wanted = {"workload": WORKLOADS[name].to_plain(), "seconds": args.seconds}
        found = run_json(interpreter(OURS), "benchmarks.custom", wanted | {"rounds": args.rounds})
        results["microseconds"][name] = found
    save(results, args.output, f"custom-{dated(results)}")
    path = save(results, args.output, "custom-latest")
    print(custom_table(results))
    print(f"written: {path}")
    return 0


def parts(args: argparse.Namespace) -> int:
    """Print the microseconds per transition of each part, as a Markdown table."""
    names = chosen(args.workloads, list(WORKLOADS), "--workloads")
    prepare(args.core)
    python = interpreter(OURS)
    found = {
        name: run_json(python, "benchmarks.parts", WORKLOADS[name].to_plain()) for name in names
    }
    print("\n".join(parts_table(found)))
    return 0


def threads() -> int:
    """Print the microseconds of an update and an action, as a Markdown table."""
    found = update_times((64, 128, 256, 512, 1024), (32, 128, 256, 1024))
    rows = [[f"{value:,.0f}" for value in row.values()] for row in found]
    print("\n".join(markdown(list(found[0]), rows)))
    return 0


def ensemble() -> int:
    """Print the milliseconds of an update of REDQ by its number of critics, as a table."""
    rows = [
        [
            f"{row['critics']:g}",
            f"{row['ms']:.2f}",
            f"{row['of the first']:.2f}",
            f"{row['limit']:.0%}",
        ]
        for row in ensemble_times((2, 5, 10, 20))
    ]
    header = ["critics", "ms per update", "times that of 2", "of the products' limit"]
    print("\n".join(markdown(header, rows)))
    return 0


def replay(args: argparse.Namespace) -> int:
    """Measure what a replay memory of stacked images takes and gives, print and save it."""
    if min(args.transitions, args.rounds) < 1:
        raise BenchmarkError("--transitions and --rounds must be at least 1")
    core = prepare(args.core)
    libraries = OURS, PEERS["sb3"]
    rounds = [
        {
            library.name: run_json(
                interpreter(library),
                "benchmarks.replay_memory",
                {"library": library.name, "transitions": args.transitions, "seconds": 5.0},
            )
            for library in libraries
        }
        for _ in range(args.rounds)
    ]
    results = header(args, core) | {"transitions": args.transitions, "rounds": rounds}
    save(results, args.output, f"replay-{dated(results)}")
    path = save(results, args.output, "replay-latest")
    print(replay_table(results))
    print(f"written: {path}")
    return 0


def workers(args: argparse.Namespace) -> int:
    """Measure environments in worker processes beside Gymnasium's, print and save it."""
    if min(args.num_envs, args.rounds, args.steps) < 1:
        raise BenchmarkError("--num-envs, --rounds and --steps must be at least 1")
    results = header(args, None)  # on all cores: the workers are what is measured
    results |= {"env_id": args.env, "num_envs": args.num_envs, "rounds": args.rounds}
    results["steps_per_second"] = steps_per_second(
        args.env, args.num_envs, rounds=args.rounds, steps=args.steps
    )
    save(results, args.output, f"workers-{dated(results)}")
    path = save(results, args.output, "workers-latest")
    print(workers_table(results))
    print(f"written: {path}")
    return 0


def checkpoints(args: argparse.Namespace) -> int:
    """Measure what checkpoints cost, print, save and draw it."""
    from benchmarks.checkpoints import CASES  # here, as it waits for torch

    if not 0.001 <= args.scale <= 1:
        raise BenchmarkError("--scale must be from 0.001 to 1")
    core = prepare(args.core)
    results = header(args, core) | {"cases": []}
    for kind, capacity, new in CASES:
        wanted = {
            "kind": kind,
            "capacity": int(capacity * args.scale),
            "new": [max(1, int(count * args.scale)) for count in new],
        }
        results["cases"].append(run_json(interpreter(OURS), "benchmarks.checkpoints", wanted))
    save(results, args.output, f"checkpoints-{dated(results)}")
    path = save(results, args.output, "checkpoints-latest")
    print(checkpoints_table(results))
    written = path.name
    if find_spec("matplotlib"):
        draw_checkpoints(results, path.with_suffix(".png"))
        written += f" and {path.with_suffix('.png').name}"
    print(f"written: {path.parent / written}")
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


def table(args: argparse.Namespace) -> int:
    """Print a results file."""
    results = load(args.results)
    print((comparison_table if "other" in results else markdown_tables)(results))
    return 0


def picture(args: argparse.Namespace) -> int:
    """Draw a results file."""
    results, path = load(args.results), args.results.with_suffix(".png")
    (draw_scaling if "series" in results else draw_speeds)(results, path)
    print(f"written: {path}")
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "run": run,
    "table": table,
    "picture": picture,
    "scaling": scaling,
    "compare": compare,
    "custom": custom,
    "parts": parts,
    "replay": replay,
    "workers": workers,
    "checkpoints": checkpoints,
    "threads": lambda _: threads(),
    "ensemble": lambda _: ensemble(),
}


def main(arguments: Sequence[str]) -> int:
    """Run a command; returns the exit code."""
    first = arguments[0] if arguments else ""
    default = [] if first in (*COMMANDS, "-h", "--help") else ["run"]
    args = parser().parse_args([*default, *arguments])
    args.given = arguments
    try:
        return COMMANDS[args.command](args)
    except BenchmarkError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
