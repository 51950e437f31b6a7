"""Run directories written by hand, for tests of what reads results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_training.config.loading import dump_yaml

Row = Mapping[str, Any]


def evaluation(step: int, value: float | None, seconds: float | None = None) -> Row:
    row = {"global_step": step, "eval/return_mean": value}
    return row if seconds is None else row | {"wall_time_s": seconds}


def write_run(
    path: Path,
    rows: Sequence[Row],
    *,
    seed: int = 0,
    algo: str = "dqn",
    env_id: str = "Chain-v0",
    final: float | None = None,
    status: str | None = "finished",
    **config: Any,
) -> Path:
    """A run that ended as its status says; without one it was killed."""
    path.mkdir(parents=True)
    facts = {"algo": algo, "env_id": env_id, "seed": seed}
    (path / "metadata.json").write_text(json.dumps(facts))
    settings = {"total_timesteps": 1000, **facts, "output_dir": str(path.parent), **config}
    (path / "config.yaml").write_text(dump_yaml(settings))
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if status is not None:
        summary = {**facts, "status": status, "global_step": 1000, "eval_return_mean": final}
        (path / "summary.json").write_text(json.dumps(summary))
    return path


def write_experiment(
    path: Path, finals: Sequence[float], *, planned: Sequence[int] = (), **config: Any
) -> Path:
    """Seeds 0, 1, ... with the final returns, each of which had half of it half-way."""
    for seed, final in enumerate(finals):
        rows = [evaluation(500, final / 2, 5.0), evaluation(1000, final, 10.0 + seed)]
        write_run(path / f"seed-{seed}", rows, seed=seed, final=final, **config)
    seeds = [{"seed": seed} for seed in planned or range(len(finals))]
    (path / "experiment.json").write_text(json.dumps({"seeds": seeds}))
    return path
