"""How the cost of a transition grows with batch, width and number of environments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.limits import FLOPS
from benchmarks.peers import Interpreters
from benchmarks.runner import measure_all
from benchmarks.workloads import W1, W8, Workload

BASES: tuple[Workload, ...] = (W1, W8)
WIDTHS = (32, 64, 128, 256, 512, 1024)
COUNTS = (1, 4, 16, 64)


def _batch(w: Workload, value: int) -> Workload:
    return replace(w, batch_size=value)


def _width(w: Workload, value: int) -> Workload:
    return replace(w, hidden=(value,) * len(w.hidden))


def _num_envs(w: Workload, value: int) -> Workload:
    return replace(w, num_envs=value)


ALONG: dict[str, tuple[Callable[[Workload, int], Workload], tuple[int, ...]]] = {
    "batch size": (_batch, WIDTHS),
    "network width": (_width, WIDTHS),
    "environments": (_num_envs, COUNTS),
}


def point(base: Workload, along: str, value: int, seconds: float) -> Workload:
    """The base with one quantity changed, timed for roughly so long."""
    changed = ALONG[along][0](base, value)
    # A guess is enough: 100 µs (PPO) or 500 µs (DQN) of overhead, products at 40 GFLOP/s.
    overhead = 5e-4 if base.algorithm == "dqn" else 1e-4
    transitions = round(seconds / (overhead + FLOPS[base.algorithm](changed) / 40e9))
    rows = changed.cycle[0]
    timed = max(2, transitions // rows) * rows
    warm_up = max(base.warm_up, rows) if base.algorithm == "dqn" else rows
    return replace(changed, name=f"{base.name} {value}", timed=timed, warm_up=warm_up)


def measure_scaling(interpreters: Interpreters, seconds: float) -> list[dict[str, Any]]:
    """A series per base and quantity; each point has a record per library."""
    series = []
    for base in BASES:
        for along, (_, values) in ALONG.items():
            print(f"{base.name}: {along}")
            points = []
            for value in values:
                records = measure_all([point(base, along, value, seconds)], interpreters, rounds=1)
                points.append({"value": value, **{r["library"]: r for r in records}})
            series.append({"base": base.name, "along": along, "points": points})
    return series
