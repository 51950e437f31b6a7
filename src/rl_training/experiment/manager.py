"""Many seeds of one experiment: a process per seed, one directory, restartable."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl_training.config.loading import dump_yaml
from rl_training.config.train_config import TrainConfig
from rl_training.errors import CheckpointError, ConfigError, UsageError
from rl_training.experiment.registry import get_spec, resolve_config
from rl_training.experiment.result import ExperimentInterrupted, ExperimentResult, SeedResult
from rl_training.runtime.process import Interrupts
from rl_training.runtime.spec import AlgorithmSpec
from rl_training.runtime.spec_table import portable_name
from rl_training.runtime.trust import markers
from rl_training.storage.checkpoints import find_checkpoint
from rl_training.storage.files import read_json_object, save_error, write_atomic, write_json
from rl_training.storage.runs import RunLock, is_locked, slug, usable_cpus

__all__ = [
    "ExperimentInterrupted",
    "ExperimentManager",
    "ExperimentResult",
    "SeedResult",
    "parse_seeds",
]

logger = logging.getLogger("rl_training")

# Not config.yaml, which marks a single run: `rl-training list` looks for the seeds inside.
CONFIG_NAME = "experiment.yaml"
RESULT_NAME = "experiment.json"
POLL_SECONDS = 0.1
GRACE_SECONDS = 30.0  # for the seeds to save after a signal
MAX_SEEDS = 10_000

_SEEDS = re.compile(r"\s*([0-9]{1,10})(?:-([0-9]{1,10}))?\s*")


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
        _refuse_registered_only(get_spec(self.config.algo))
        for seed in seeds:
            self.config.with_changes(seed=seed)  # refuses one out of range
        self.seeds = tuple(seeds)
        self.jobs = jobs
        self.report = report
        self.directory = Path(directory) if directory else self._default_directory()

    def run(self) -> ExperimentResult:
        """Run what is left to run; raises KeyboardInterrupt after a signal, all seeds saved."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise save_error(self.directory, error) from error
        with RunLock(self.directory), Interrupts() as interrupts:
            self._claim_directory()
            failed = self._run_seeds(interrupts)
            outcomes = (self._outcome(seed) for seed in self.seeds)
            seeds = (replace(o, status="failed") if o.seed in failed else o for o in outcomes)
            result = ExperimentResult(self.directory, tuple(seeds))
            write_json(self.directory / RESULT_NAME, self._record(result))
        if interrupts.received:
            raise ExperimentInterrupted(result, interrupts.received)
        return result

    def _run_seeds(self, interrupts: Interrupts) -> set[int]:
        """Run the seeds that are not finished; gives those that failed."""
        waiting, failed = self._unfinished(), set[int]()
        running: dict[int, subprocess.Popen[bytes]] = {}
        try:
            while (waiting or running) and not interrupts.received:
                while waiting and len(running) < self.jobs:
                    seed = waiting.pop(0)
                    running[seed] = self._start(seed)
                time.sleep(POLL_SECONDS)
                failed |= self._reap(running)
        finally:
            self._stop(running)
        return failed

    def _unfinished(self) -> list[int]:
        waiting = []
        for seed in self.seeds:
            status = self._outcome(seed).status
            if status == "running":
                # Left over from a manager that was killed; two processes must not share a seed.
                self.report(f"seed {seed}: another process is running it, left to that one")
            elif status != "finished":
                waiting.append(seed)
        return waiting

    def _default_directory(self) -> Path:
        config = self.config
        keys = {k: v for k, v in self._plain.items() if k != "output_dir"}
        digest = hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).hexdigest()[:8]
        algo = get_spec(config.algo).name
        name = config.run_name or f"{algo}-{slug(self._plain['env_id'])}-seeds-{digest}"
        return Path(config.output_dir) / name

    def _claim_directory(self) -> None:
        """Write the configuration, or refuse a directory that holds another experiment."""
        path = self.directory / CONFIG_NAME
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
        command += ["train", "--config", str(self.directory / CONFIG_NAME)]
        command += ["--seed", str(seed), "--output-dir", str(self.directory)]
        command += ["--set", f"run_name=seed-{seed}"]
        if outcome.status == "interrupted":  # with our configuration, not the one it was saved with
            command += ["--resume", str(outcome.run_dir)]
        verb = "resuming" if outcome.status == "interrupted" else "starting"
        self.report(f"seed {seed}: {verb}")
        # What can be imported here can be imported there.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
        # Divide the cores among concurrent seeds: oversubscribed OpenMP threads spin while they
        # wait.
        environment.setdefault("OMP_NUM_THREADS", str(max(1, usable_cpus() // self.jobs)))
        try:
            with self._log(seed).open("ab") as log:
                # A session of its own: a Ctrl-C at the terminal reaches a seed once, through us.
                return subprocess.Popen(
                    command,
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    env=environment,
                    start_new_session=True,
                )
        except OSError as error:
            raise save_error(self._log(seed), error) from error

    def _reap(self, running: dict[int, subprocess.Popen[bytes]]) -> set[int]:
        """Report the seeds that have ended; gives those that failed."""
        failed = set()
        for seed, process in list(running.items()):
            if (code := process.poll()) is None:
                continue
            del running[seed]
            outcome = self._outcome(seed)
            if outcome.status == "finished":
                mean = outcome.eval_return_mean
                result = "no evaluation" if mean is None else f"evaluation return {mean:.2f}"
                self.report(f"seed {seed}: finished, {result}")
            else:
                failed.add(seed)
                self.report(f"seed {seed}: ended with exit code {code}, see {self._log(seed)}")
        return failed

    def _stop(self, running: dict[int, subprocess.Popen[bytes]]) -> None:
        """Ask the seeds to save and stop, and wait for them."""
        for process in running.values():
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        for seed, process in running.items():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self.report(f"seed {seed}: stopped, {self._outcome(seed).status}")

    def _outcome(self, seed: int) -> SeedResult:
        """What is on disk for a seed: finished beats running beats interrupted beats nothing."""
        found = SeedResult(seed, "missing", None, {})
        for run_dir in sorted(self._run_dirs(seed), key=os.path.getmtime):
            summary = read_json_object(run_dir / "summary.json")
            if summary.get("status") == "finished":
                return SeedResult(seed, "finished", run_dir, summary)
            if is_locked(run_dir):
                found = SeedResult(seed, "running", run_dir, summary)
            elif found.status != "running" and _has_checkpoint(run_dir):
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


def parse_seeds(text: str) -> list[int]:
    """Seeds as people write them: `0-4`, `0,3,7` or a mixture."""
    seeds: list[int] = []
    for part in text.split(","):
        match = _SEEDS.fullmatch(part)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if high < low:
            raise UsageError(f"--seeds: expected seeds such as 0-4 or 0,3,7, found {text[:80]!r}")
        if len(seeds) + high - low >= MAX_SEEDS:
            raise UsageError(f"--seeds: expected at most {MAX_SEEDS} seeds, found {text[:80]!r}")
        seeds += range(low, high + 1)
    if len(set(seeds)) != len(seeds):
        raise UsageError(f"--seeds: each seed may appear only once, found {text[:80]!r}")
    return seeds


def _refuse_objects(plain: dict[str, Any]) -> None:
    for key, value in markers(plain):
        raise ConfigError(
            f"{key}: seeds run in processes of their own, which cannot receive {value}; give an "
            "importable package.module:name"
        )


def _refuse_registered_only(spec: AlgorithmSpec) -> None:
    if portable_name(spec) is None:
        raise ConfigError(
            f"algo: seeds run in separate processes, which cannot receive {spec.name!r}, an "
            "algorithm registered in this one; put its spec into a module and give "
            "package.module:SPEC"
        )


def _has_checkpoint(run_dir: Path) -> bool:
    try:
        find_checkpoint(run_dir, parts=("loop",))
    except CheckpointError:
        return False
    return True
