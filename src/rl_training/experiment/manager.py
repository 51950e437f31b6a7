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
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl_training.config.loading import dump_yaml
from rl_training.config.train_config import TrainConfig
from rl_training.errors import ConfigError, RunInUse, UsageError
from rl_training.experiment.registry import get_spec, resolve_config
from rl_training.experiment.result import (
    MAX_SEEDS,
    ExperimentInterrupted,
    ExperimentResult,
    SeedProgress,
    SeedResult,
)
from rl_training.runtime.process import Interrupts
from rl_training.runtime.spec import AlgorithmSpec
from rl_training.runtime.spec_table import portable_name
from rl_training.runtime.trust import placeholders
from rl_training.storage.checkpoints import has_checkpoint
from rl_training.storage.files import (
    read_json_object,
    save_error,
    with_retries,
    write_atomic,
    write_json,
)
from rl_training.storage.runs import RunLock, is_locked, run_info, slug, usable_cpus

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
WATCH_SECONDS = 1.0
STALL_SECONDS = 120.0
"""After a signal a seed may save for as long as it takes; it is never killed before so long
without progress."""

_SEEDS = re.compile(r"\s*([0-9]{1,10})(?:-([0-9]{1,10}))?\s*")


class ExperimentManager:
    """Runs one configuration with many seeds.

    The directory is named after the configuration, so the same call continues an experiment:
    finished seeds are kept, interrupted ones resumed, the others started, and those that a killed
    manager left running are waited for. `report` is called with a line of text when a seed starts
    and ends, and `watch` every second with how far each seed has come.
    """

    def __init__(
        self,
        config: TrainConfig,
        seeds: Sequence[int],
        *,
        jobs: int = 1,
        directory: str | Path | None = None,
        report: Callable[[str], None] = logger.info,
        watch: Callable[[Sequence[SeedProgress]], None] | None = None,
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
        self.watch = watch
        self.directory = Path(directory) if directory else self._default_directory()

    def run(self) -> ExperimentResult:
        """Run what is left to run; raises KeyboardInterrupt after a signal, all seeds saved."""
        try:
            with_retries(lambda: self.directory.mkdir(parents=True, exist_ok=True))
        except OSError as error:
            raise save_error(self.directory, error) from error
        with RunLock(self.directory), Interrupts() as interrupts:
            self._claim_directory()
            failed = self._run_seeds(interrupts)
            outcomes = (self._outcome(seed) for seed in self.seeds)
            seeds = (replace(o, status="failed") if o.seed in failed else o for o in outcomes)
            result = ExperimentResult(self.directory, tuple(seeds))
            if result.returns and result.left_out:
                self.report(f"the figures are {result.coverage}")
            write_json(self.directory / RESULT_NAME, self._record(result))
        if interrupts.received:
            raise ExperimentInterrupted(result, interrupts.received)
        return result

    def _run_seeds(self, interrupts: Interrupts) -> set[int]:
        """Run the seeds that are not finished; gives those that failed."""
        status = {seed: self._outcome(seed).status for seed in self.seeds}
        # Left over from a manager that was killed; two processes must not share a seed.
        orphans = [seed for seed in self.seeds if status[seed] == "running"]
        waiting = [seed for seed in self.seeds if status[seed] not in ("running", "finished")]
        for seed in orphans:
            self._report_orphan(seed)
        failed: set[int] = set()
        running: dict[int, subprocess.Popen[bytes]] = {}
        watched_at = 0.0
        try:
            while (waiting or running or orphans) and not interrupts.received:
                while waiting and len(running) + len(orphans) < self.jobs:
                    seed = waiting.pop(0)
                    running[seed] = self._start(seed)
                time.sleep(POLL_SECONDS)
                failed |= self._reap(running, orphans)
                waiting += self._ended(orphans)
                if self.watch is not None and time.monotonic() >= watched_at + WATCH_SECONDS:
                    watched_at = time.monotonic()
                    self.watch([self._progress(seed, {*running, *orphans}) for seed in self.seeds])
        finally:
            self._stop(running)
            for seed in orphans:
                self.report(f"seed {seed}: left to the process that runs it")
        return failed

    def _progress(self, seed: int, running: Collection[int]) -> SeedProgress:
        """How far a seed has come, by the files of its run."""
        run_dir = self._run_dir(seed)
        if not run_dir.exists():
            return SeedProgress(seed, "starting" if seed in running else "waiting")
        info = run_info(run_dir)
        status = "running" if seed in running else info.status
        figures = (info.train_return_mean, info.eval_return_mean)
        return SeedProgress(seed, status, info.env_steps, *figures)

    def _ended(self, orphans: list[int]) -> list[int]:
        """Drop the orphans that another process no longer runs; gives those left unfinished."""
        unfinished = []
        for seed in tuple(orphans):
            outcome = self._outcome(seed)
            if outcome.status == "running":
                continue
            orphans.remove(seed)
            if outcome.status == "finished":
                self._report_finished(outcome)
            else:
                unfinished.append(seed)
        return unfinished

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
        # With the experiment's configuration, never with one that a run directory holds.
        command = [sys.executable, "-m", "rl_training", "train", "--auto-resume"]
        command += ["--config", str(self.directory / CONFIG_NAME)]
        command += ["--seed", str(seed), "--output-dir", str(self.directory)]
        command += ["--set", f"run_name={self._run_dir(seed).name}"]
        interrupted = self._outcome(seed).status == "interrupted"
        self.report(f"seed {seed}: {'resuming' if interrupted else 'starting'}")
        # What can be imported here can be imported there.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
        # Divide the cores among concurrent seeds: oversubscribed OpenMP threads spin while they
        # wait.
        environment.setdefault("OMP_NUM_THREADS", str(max(1, usable_cpus() // self.jobs)))
        try:
            with with_retries(lambda: self._log(seed).open("ab")) as log:
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

    def _reap(self, running: dict[int, subprocess.Popen[bytes]], orphans: list[int]) -> set[int]:
        """Report the seeds that have ended; gives those that failed.

        One that found its run in use is an orphan: it had not locked its run when we looked.
        """
        failed = set()
        for seed, process in list(running.items()):
            if (code := process.poll()) is None:
                continue
            del running[seed]
            outcome = self._outcome(seed)
            if outcome.status == "finished":
                self._report_finished(outcome)
            elif code == RunInUse.exit_code:
                orphans.append(seed)
                self._report_orphan(seed)
            else:
                failed.add(seed)
                self.report(f"seed {seed}: ended with exit code {code}, see {self._log(seed)}")
        return failed

    def _report_orphan(self, seed: int) -> None:
        self.report(f"seed {seed}: another process is running it, waiting for that one")

    def _report_finished(self, outcome: SeedResult) -> None:
        mean = outcome.eval_return_mean
        result = "no evaluation" if mean is None else f"evaluation return {mean:.2f}"
        self.report(f"seed {outcome.seed}: finished, {result}")

    def _stop(self, running: dict[int, subprocess.Popen[bytes]]) -> None:
        """Ask the seeds to save and stop, and wait for as long as they are at it."""
        for process in running.values():
            process.send_signal(signal.SIGTERM)
        patience = self.patience
        progress = {seed: SaveProgress(self._run_dir(seed), patience) for seed in running}
        while running:
            for seed, process in list(running.items()):
                if process.poll() is None and progress[seed].stalled(process.pid):
                    self.report(f"seed {seed}: no progress for {patience:g} s, killed")
                    process.kill()
                    process.wait()
                if process.poll() is not None:
                    del running[seed]
                    self.report(f"seed {seed}: stopped, {self._outcome(seed).status}")
            if running:
                time.sleep(POLL_SECONDS)

    @property
    def patience(self) -> float:
        """Seconds without progress after which a seed that was asked to save is killed.

        Its own watchdog, which saves the learner of one stuck in an environment, comes first.
        """
        return max(STALL_SECONDS, self.config.env_timeout + 60)

    def _outcome(self, seed: int) -> SeedResult:
        """What is on disk for a seed: finished beats running beats interrupted beats nothing."""
        run_dir = self._run_dir(seed)
        summary = read_json_object(run_dir / "summary.json")
        if summary.get("status") == "finished":
            return SeedResult(seed, "finished", run_dir, summary)
        if is_locked(run_dir):
            return SeedResult(seed, "running", run_dir, summary)
        if has_checkpoint(run_dir):
            return SeedResult(seed, "interrupted", run_dir, summary)
        return SeedResult(seed, "missing", None, {})

    def _run_dir(self, seed: int) -> Path:
        return self.directory / f"seed-{seed}"

    def _log(self, seed: int) -> Path:
        return self.directory / f"seed-{seed}.log"

    def _record(self, result: ExperimentResult) -> dict[str, Any]:
        rows = [
            {"seed": seed.seed, "status": seed.status, "eval_return_mean": seed.eval_return_mean}
            for seed in result.seeds
        ]
        return {"seeds": rows, **result.figures()}


class SaveProgress:
    """Whether a process that was asked to save is still at it.

    It is while files of its run change, and while it waits for a disk: then not even SIGKILL ends
    it before the disk has answered.
    """

    def __init__(self, run_dir: Path, patience: float) -> None:
        self._run_dir, self._patience = run_dir, patience
        self._files = self._look()
        self._last = time.monotonic()

    def stalled(self, pid: int) -> bool:
        """Whether nothing has happened for as long as there is patience."""
        files = self._look()
        if files != self._files or _waits_for_disk(pid):
            self._files, self._last = files, time.monotonic()
        return time.monotonic() - self._last > self._patience

    def _look(self) -> dict[str, tuple[int, int]]:
        found = {}
        for folder, _, names in os.walk(self._run_dir):
            for path in (folder, *(os.path.join(folder, name) for name in names)):
                with suppress(OSError):  # a temporary file may be gone again
                    status = os.stat(path)
                    found[path] = (status.st_size, status.st_mtime_ns)
        return found


def _waits_for_disk(pid: int) -> bool:
    """Whether a thread of a process is in an uninterruptible wait, as in fsync; Linux tells."""
    for status in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError, IndexError):
            if status.read_text().rpartition(")")[2].split()[0] == "D":
                return True
    return False


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
    for key, value in placeholders(plain):
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
