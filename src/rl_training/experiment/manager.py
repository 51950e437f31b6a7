"""Many seeds of one experiment: a process per seed, one directory, restartable."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.errors import CheckpointError, ConfigError, UsageError
from rl_training.experiment.checkpointing import find_checkpoint
from rl_training.experiment.config import TrainConfig, is_placeholder
from rl_training.experiment.config_loading import dump_yaml
from rl_training.experiment.files import write_atomic, write_json
from rl_training.experiment.registry import resolve_config
from rl_training.experiment.runs import RunLock, slug
from rl_training.experiment.statistics import bootstrap_interval, interquartile_mean
from rl_training.runtime.interrupts import Interrupts

logger = logging.getLogger("rl_training")

POLL_SECONDS = 0.1
GRACE_SECONDS = 30.0  # for the seeds to save after a signal


@dataclass(frozen=True)
class SeedResult:
    """One seed's outcome; `summary` is its summary.json, empty if it failed."""

    seed: int
    status: str
    run_dir: Path | None
    summary: dict[str, Any]

    @property
    def eval_return_mean(self) -> float | None:
        """Mean evaluation return of the final policy."""
        return self.summary.get("eval_return_mean")


@dataclass(frozen=True)
class ExperimentResult:
    """All seeds of an experiment; the figures are over the per-seed means."""

    directory: Path
    seeds: tuple[SeedResult, ...]

    @property
    def returns(self) -> list[float]:
        """The mean evaluation return of each finished seed."""
        means = (seed.eval_return_mean for seed in self.seeds if seed.status == "finished")
        return [mean for mean in means if mean is not None]

    def figures(self) -> dict[str, Any]:
        """Mean, interquartile mean and its 95 % interval; empty if no seed has a result."""
        if not self.returns:
            return {}
        return {
            "mean": float(np.mean(self.returns)),
            "interquartile_mean": interquartile_mean(self.returns),
            "interval_95": list(bootstrap_interval(self.returns)),
        }


class ExperimentManager:
    """Runs one configuration with many seeds.

    The directory is named after the configuration, so the same call continues an experiment:
    finished seeds are kept, interrupted ones resumed, the others started. `report` is called with
    a line of text when a seed starts and ends.
    """

    def __init__(
        self,
        config: TrainConfig,
        seeds: Sequence[int],
        *,
        jobs: int = 1,
        directory: str | Path | None = None,
        report: Callable[[str], None] = logger.info,
    ) -> None:
        if not seeds or len(set(seeds)) != len(seeds) or jobs < 1:
            raise UsageError(f"expected distinct seeds and jobs >= 1, found {seeds}, {jobs}")
        self.config = resolve_config(config).config
        plain = self.config.to_plain() | {"seed": 0, "run_name": None}
        self._plain = plain
        _refuse_objects(plain)
        self.seeds = tuple(seeds)
        self.jobs = jobs
        self.report = report
        self.directory = Path(directory) if directory else self._default_directory()

    def run(self) -> ExperimentResult:
        """Run what is left to run; raises KeyboardInterrupt after a signal, all seeds saved."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with RunLock(self.directory), Interrupts() as interrupts:
            self._claim_directory()
            waiting = [seed for seed in self.seeds if self._outcome(seed).status != "finished"]
            running: dict[int, subprocess.Popen[bytes]] = {}
            while (waiting or running) and not interrupts.received:
                while waiting and len(running) < self.jobs:
                    seed = waiting.pop(0)
                    running[seed] = self._start(seed)
                time.sleep(POLL_SECONDS)
                self._reap(running)
            self._stop(running)
            result = ExperimentResult(self.directory, tuple(map(self._outcome, self.seeds)))
            write_json(self.directory / "experiment.json", self._record(result))
        if interrupts.received:
            raise ExperimentInterrupted(result, interrupts.received)
        return result

    def _default_directory(self) -> Path:
        config = self.config
        keys = {k: v for k, v in self._plain.items() if k != "output_dir"}
        digest = hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).hexdigest()[:8]
        name = config.run_name or f"{config.algo}-{slug(str(config.env_id))}-seeds-{digest}"
        return Path(config.output_dir) / name

    def _claim_directory(self) -> None:
        """Write the configuration, or refuse a directory that holds another experiment."""
        path = self.directory / "config.yaml"
        text = dump_yaml({k: v for k, v in self._plain.items() if k not in ("seed", "output_dir")})
        if path.exists() and path.read_text() != text:
            raise ConfigError(
                f"{self.directory} holds an experiment with another configuration; choose another "
                "run_name or directory"
            )
        write_atomic(path, text)

    def _start(self, seed: int) -> subprocess.Popen[bytes]:
        outcome = self._outcome(seed)
        command = [sys.executable, "-m", "rl_training"]
        if outcome.status == "interrupted":
            command += ["resume", "--checkpoint", str(outcome.run_dir)]
        else:
            command += ["train", "--config", str(self.directory / "config.yaml")]
            command += ["--seed", str(seed), "--output-dir", str(self.directory)]
            command += ["--set", f"run_name=seed-{seed}"]
        verb = "resuming" if outcome.status == "interrupted" else "starting"
        self.report(f"seed {seed}: {verb}")
        with open(self._log(seed), "ab") as log:
            # A session of its own: a Ctrl-C at the terminal reaches a seed once, through us.
            return subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def _reap(self, running: dict[int, subprocess.Popen[bytes]]) -> None:
        for seed, process in list(running.items()):
            code = process.poll()
            if code is None:
                continue
            del running[seed]
            outcome = self._outcome(seed)
            if outcome.status == "finished":
                self.report(f"seed {seed}: evaluation return {outcome.eval_return_mean}")
            else:
                self.report(f"seed {seed}: ended with exit code {code}, see {self._log(seed)}")

    def _stop(self, running: dict[int, subprocess.Popen[bytes]]) -> None:
        for process in running.values():
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        for process in running.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._reap(running)

    def _outcome(self, seed: int) -> SeedResult:
        """What is on disk for a seed: finished beats interrupted beats nothing."""
        found = SeedResult(seed, "missing", None, {})
        for run_dir in sorted(self._run_dirs(seed), key=os.path.getmtime):
            summary = _read_summary(run_dir)
            if summary.get("status") == "finished":
                return SeedResult(seed, "finished", run_dir, summary)
            if _has_checkpoint(run_dir):
                found = SeedResult(seed, "interrupted", run_dir, summary)
        return found

    def _run_dirs(self, seed: int) -> list[Path]:
        names = (f"seed-{seed}", f"seed-{seed}-[0-9]*")
        return [path for name in names for path in self.directory.glob(name) if path.is_dir()]

    def _log(self, seed: int) -> Path:
        return self.directory / f"seed-{seed}.log"

    def _record(self, result: ExperimentResult) -> dict[str, Any]:
        rows = [
            {"seed": seed.seed, "status": seed.status, "eval_return_mean": seed.eval_return_mean}
            for seed in result.seeds
        ]
        return {"seeds": rows, **result.figures()}


class ExperimentInterrupted(KeyboardInterrupt):
    """A signal stopped the experiment after its seeds were saved."""

    def __init__(self, result: ExperimentResult, signal_number: int) -> None:
        super().__init__(f"interrupted by signal {signal_number}")
        self.result = result
        self.signal_number = signal_number


def parse_seeds(text: str) -> list[int]:
    """Seeds as people write them: `0-4`, `0,3,7` or a mixture."""
    seeds: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if (
            not low.isdecimal()
            or (dash and not high.isdecimal())
            or (dash and int(high) < int(low))
        ):
            raise UsageError(f"--seeds: expected seeds such as 0-4 or 0,3,7, found {text!r}")
        seeds += range(int(low), int(high or low) + 1)
    if len(set(seeds)) != len(seeds):
        raise UsageError(f"--seeds: each seed may stand once, found {text!r}")
    return seeds


def _refuse_objects(plain: dict[str, Any]) -> None:
    for key, value in (
        ("env_id", plain["env_id"]),
        ("network", plain["algo_kwargs"].get("network")),
    ):
        if is_placeholder(value):
            raise ConfigError(
                f"{key}: seeds run in processes of their own, which cannot receive {value}; give "
                "an importable package.module:name"
            )


def _read_summary(run_dir: Path) -> dict[str, Any]:
    try:
        summary = json.loads((run_dir / "summary.json").read_text())
    except (OSError, ValueError):
        return {}
    return summary if isinstance(summary, dict) else {}


def _has_checkpoint(run_dir: Path) -> bool:
    try:
        find_checkpoint(run_dir, parts=("loop",))
    except CheckpointError:
        return False
    return True
