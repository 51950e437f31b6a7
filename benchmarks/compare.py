"""Two checkouts of this repository on the same workloads, in turns and by processor time.

Both are run by this checkout's benchmarks, this interpreter and its dependencies; only `src` is the
checkout's. What the benchmarks call has the same name in both (`libraries/ours.py`).
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers import ROOT, Library, tail
from benchmarks.summary import Results, Spread, markdown, rounds_of
from benchmarks.workloads import BenchmarkError

HERE, THERE = "here", "there"


@contextmanager
def checkout_of(other: str) -> Iterator[Path]:
    """Context with the folder of another checkout; one of a git revision lasts as long."""
    folder = Path(other)
    if (folder / "src" / "rl_training").is_dir():
        yield folder.resolve()
        return
    if folder.is_dir():
        raise BenchmarkError(f"{other}: expected a checkout with src/rl_training, found none in it")
    commit = _commit(other)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as temporary:
        worktree = Path(temporary) / "checkout"
        _git("worktree", "add", "--detach", "--quiet", str(worktree), commit)
        try:
            yield worktree
        finally:
            _git("worktree", "remove", "--force", str(worktree))


def _commit(revision: str) -> str:
    try:
        return _git("rev-parse", "--verify", "--quiet", "--end-of-options", revision + "^{commit}")
    except BenchmarkError:
        raise BenchmarkError(
            f"{revision}: expected the folder of a checkout or a git revision, found neither"
        ) from None


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"git {arguments[0]} failed: {tail(done.stderr)}")
    return done.stdout.strip()


def sides(other: Path, threads: int) -> tuple[Library, Library]:
    """This checkout and the other, as libraries to measure."""
    return (
        Library(HERE, "this checkout", adapter="ours", threads=threads),
        Library(THERE, "the other", adapter="ours", checkout=other, threads=threads),
    )


def seconds(run: Mapping[str, Any], workload: Mapping[str, Any]) -> float:
    """Processor time of the workload's timed transitions, all threads together.

    A run may end some transitions early or late, within its last cycle.
    """
    took: float = run["cpu_s"] * workload["timed"] / run["transitions"]
    return took


def comparison_table(results: Results) -> str:
    """Seconds of both checkouts by workload, and their ratio; how it was measured."""
    rows = []
    for name, workload in results["workloads"].items():
        here, there = (rounds_of(results, name, side) for side in (HERE, THERE))
        shared = sorted(here.keys() & there.keys())
        mine, others = ([seconds(side[n], workload) for n in shared] for side in (here, there))
        ratio = Spread.of(b / a for a, b in zip(mine, others, strict=True))
        if ratio is None:
            rows.append([name, "failed", "failed", "", ""])
            continue
        spread = f"{ratio.low:.3f} to {ratio.high:.3f}"
        times = (f"{median(mine):.3f}", f"{median(others):.3f}")
        rows.append([name, *times, f"{ratio.median:.3f}", spread])
    header = ["workload", "seconds here", "seconds there", "ratio", "spread"]
    return "\n".join([*markdown(header, rows), "", *_explanation(results)])


def _explanation(results: Results) -> Sequence[str]:
    threads = results["threads"]
    text = (
        "Ratios over 1: this checkout is faster. Medians of "
        f"{len(results['loads'])} interleaved rounds, lowest and highest ratio of a round; "
        f"processor time of {threads} thread{'s' * (threads > 1)} on {results['machine']['cpu']}. "
        f"Here: {_version(results)}; there: {_version(results['other'])}."
    )
    highest = max([results["load_average"], *results["loads"]])
    if highest <= results["machine"]["cores"]:
        return [text]
    warning = (
        f"warning: the machine was busy, with a load average of {highest:.1f} on "
        f"{results['machine']['cores']} cores; measure again when it is quiet"
    )
    return [text, warning]


def _version(state: Mapping[str, Any]) -> str:
    if "git_commit" not in state:
        return "a copy without git"
    return f"commit {state['git_commit'][:10]}" + " with local changes" * state["git_dirty"]
