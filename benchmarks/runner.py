"""Runs libraries on workloads: fresh processes, one core, one thread, interleaved rounds."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import OURS, ROOT, Interpreters, Library, interpreter, tail
from benchmarks.probe import SOURCE, STARTED
from benchmarks.workloads import BenchmarkError, Workload

TIMEOUT_S = 1800
BUSY = 0.7  # load average from which a run is not to be trusted
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
ONE_THREAD = {
    **dict.fromkeys(THREADS, "1"),
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
}

Record = dict[str, Any]


def pin(core: int | None) -> int | None:
    """Bind this process and its children to one core, by default the last; None if impossible."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    available = sorted(os.sched_getaffinity(0))
    core = available[-1] if core is None else core
    if core not in available:
        raise BenchmarkError(f"--core: expected one of {available}, found {core}")
    os.sched_setaffinity(0, {core})
    return core


def run_json(
    python: Path, module: str, argument: object, *, checkout: Path = ROOT, threads: int = 1
) -> Record:
    """The last line that a module, run as a fresh process, prints: one JSON object.

    Its argument is JSON too. The module is this checkout's, our package that of `checkout`,
    whatever is installed.
    """
    source = checkout / "src"
    # Without a cache of bytecode only a library that was not installed by pip would compile itself.
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        environment = inherited | ONE_THREAD | dict.fromkeys(THREADS, str(threads))
        environment["PYTHONPATH"] = os.pathsep.join([str(source), str(ROOT)])
        environment[SOURCE] = str(source)
        environment[STARTED] = repr(time.monotonic())
        try:
            done = subprocess.run(
                [str(python), "-m", module, json.dumps(argument)],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise BenchmarkError(f"{module} did not end within {TIMEOUT_S} s") from None
    if done.returncode:
        raise BenchmarkError(f"{module} ended with code {done.returncode}:\n{tail(done.stderr)}")
    return parse_record(done.stdout, module)


def parse_record(output: str, module: str) -> Record:
    """The JSON object in the last line of a process's output."""
    line = tail(output, lines=1)
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise BenchmarkError(f"{module}: expected JSON in the last line, found {line[:200]!r}")
    return record


def measure(library: Library, workload: Workload, python: Path) -> Record:
    """One run of a library on a workload, checked."""
    record = run_json(
        python,
        library.module,
        workload.to_plain(),
        checkout=library.checkout,
        threads=library.threads,
    )
    record["library"] = library.name
    if not record.get("unsupported"):
        check_record(library, workload, record)
    return record


def check_record(library: Library, workload: Workload, record: Record) -> None:
    """Refuse a run whose gradient steps are not those that its transitions owe, to a cycle."""
    rows = record["transitions"] + record["reset_rows"] * library.counts_reset_rows
    per_cycle, updates = workload.cycle
    expected = rows * updates / per_cycle
    if abs(record["updates"] - expected) > updates:
        raise BenchmarkError(
            f"{library.name} did not run {workload.name}: expected {expected:.0f} gradient steps "
            f"in {rows} rows, found {record['updates']}"
        )


def measure_all(
    workloads: Sequence[Workload],
    interpreters: Interpreters,
    rounds: int,
    *,
    after_round: Callable[[list[Record]], None] = lambda _: None,
) -> list[Record]:
    """Every library on every workload in each round, in an order that rotates.

    A failure becomes a record with `error` in place of figures, and the others go on.
    """
    records: list[Record] = []
    libraries = list(interpreters)
    for number in range(rounds):
        first = number % len(libraries)
        for workload in workloads:
            for library in [*libraries[first:], *libraries[:first]]:
                print(
                    f"round {number + 1}/{rounds}  {workload.name:12} {library.name:10}",
                    end=" ",
                    flush=True,
                )
                record = _attempt(library, workload, interpreters[library])
                print(_told(record), flush=True)
                records.append(record | {"round": number})
        after_round(records)
    return records


def _attempt(library: Library, workload: Workload, python: Path | BenchmarkError) -> Record:
    try:
        if isinstance(python, BenchmarkError):
            raise python
        return measure(library, workload, python)
    except (BenchmarkError, OSError) as error:
        return {"library": library.name, "workload": workload.name, "error": str(error)}


def shown_rate(rate: float) -> str:
    """A rate, with two digits at least."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"


def _told(record: Record) -> str:
    if "error" in record:
        return f"failed: {record['error']}"
    if record.get("unsupported"):
        return "not offered"
    return f"{shown_rate(record['transitions'] / record['wall_s']):>10} /s"


def measure_limits(workloads: Sequence[Workload]) -> Record:
    """What the machine allows at this moment; see `limits`."""
    plain = [workload.to_plain() for workload in workloads]
    return run_json(interpreter(OURS), "benchmarks.limits", plain)


def prepare(core: int | None, threads: int = 1) -> int | None:
    """Warn if the machine is busy, then pin to one core unless there are several threads."""
    load = os.getloadavg()[0]
    if load > BUSY:
        print(
            f"warning: the load average is {load:.1f}; figures taken beside other work mislead, "
            "the ratios of processor time less so"
        )
    if threads == 1:
        return pin(core)
    if core is not None:
        raise BenchmarkError(f"--core: one core is for one thread, found {threads}; leave it out")
    return None


def machine() -> Record:
    """What the figures were taken on; no host name."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(x.split(":")[1].strip() for x in lines if x.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
    }
