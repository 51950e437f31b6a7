"""The clock inside a library's process.

Whatever the library, a transition is a call of the environment's own `step`, so rows in which a
vector environment only resets are never counted. The clock starts at the first transition after the
warm-up's gradient steps and stops at the first one after the timed ones: whole cycles lie between.
Then the process prints one line of JSON and ends, before any final evaluation or saving.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.workloads import Workload, from_plain

STARTED = "BENCHMARK_STARTED"
"""Environment variable with the parent's monotonic clock, just before it started the process."""
SOURCE = "BENCHMARK_SOURCE"
"""Environment variable with the folder that our package is to be imported from."""


class Probe:
    """Counts transitions, reset rows and gradient steps, and takes the times."""

    def __init__(self, workload: Workload, library: str, packages: Sequence[str]) -> None:
        self.workload = workload
        self.library = library
        self.packages = packages
        self.transitions = self.resets = self.updates = 0
        self.first_update: float | None = None
        self._next_mark = workload.warm_up_updates
        self._start: dict[str, float] | None = None

    def updated(self, count: int = 1) -> None:
        """Note that gradient steps have been made."""
        if self.first_update is None and count:
            self.first_update = time.monotonic()
        self.updates += count

    def counting(self, function: Callable[..., Any], count: int = 1) -> Callable[..., Any]:
        """The function, noting gradient steps after every call."""

        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            self.updated(count)
            return result

        return call

    def count_torch_optimizers(self) -> None:
        """Note each step of each `torch.optim` optimiser."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(lambda *_: self.updated())

    def watch(self, env_class: type[Any]) -> None:
        """Count the steps and resets of an environment's class."""
        step, reset = env_class.step, env_class.reset

        def counted_step(env: Any, action: Any) -> Any:
            if self.updates >= self._next_mark:
                self._mark()
            self.transitions += 1
            return step(env, action)

        def counted_reset(env: Any, **kwargs: Any) -> Any:
            self.resets += 1
            return reset(env, **kwargs)

        env_class.step, env_class.reset = counted_step, counted_reset

    def _mark(self) -> None:
        now = {
            "wall_s": time.monotonic(),
            "cpu_s": time.process_time(),
            "transitions": self.transitions,
            "reset_rows": self.resets,
            "updates": self.updates,
        }
        if self._start is None:
            self._start = now
            self._next_mark = self.updates + self.workload.timed_updates
            return
        assert self.first_update is not None
        timed = {key: value - self._start[key] for key, value in now.items()}
        record = {
            "library": self.library,
            "workload": self.workload.name,
            "start_to_first_update_s": self.first_update - float(os.environ[STARTED]),
            "peak_rss_mb": peak_rss_mb(),
            "versions": {package: version(package) for package in self.packages},
        }
        print(json.dumps(record | timed), flush=True)
        os._exit(0)


def peak_rss_mb() -> float:
    """The process's largest resident memory so far."""
    try:
        # Unlike getrusage this does not include the parent's memory from before the exec.
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024
    except (OSError, IndexError):
        import resource

        unit = 1024**2 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


class NotOffered(Exception):
    """The library cannot run this workload."""


Run = Callable[[Any, Probe], None]


def main(library: str, packages: Sequence[str], runs: Mapping[str, Run]) -> None:
    """Run the workload given as this process's argument; `runs` has a function per algorithm."""
    workload = from_plain(json.loads(sys.argv[1]))
    not_offered = json.dumps({"library": library, "workload": workload.name, "unsupported": True})
    if workload.algorithm not in runs:
        print(not_offered)
        return
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    probe = Probe(workload, library, packages)
    module, _, env_id = workload.env_id.rpartition(":")
    if module:
        importlib.import_module(module)  # which registers the environment
    entry_point: Any = gymnasium.spec(env_id).entry_point
    env_class: Any = load_env_creator(entry_point)
    probe.watch(env_class)
    try:
        runs[workload.algorithm](workload, probe)
    except NotOffered as reason:
        print(reason, not_offered, sep="\n")
        return
    sys.exit(
        f"{library} ended {workload.name} after {probe.updates} gradient steps and "
        f"{probe.transitions} transitions; expected more than "
        f"{workload.warm_up_updates + workload.timed_updates} gradient steps"
    )
