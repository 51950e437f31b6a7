"""Trials in forked processes: torch is imported once, and a trial that dies takes nothing along."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rl_training.config.train_config import TrainConfig
from training import tiny_config

PATIENCE_S = 60.0


class Ended(NamedTuple):
    """How a trial ended: its exit code or, negative, the signal; what it reported; the seconds."""

    code: int
    report: dict[str, Any]
    seconds: float


class Trial:
    """`action` in a forked process; what it returns is reported as JSON, an error as `error`."""

    def __init__(self, action: Callable[[], dict[str, Any]]) -> None:
        self._reader, writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
            self.pid = os.fork()
        if self.pid == 0:
            os.close(self._reader)
            _run(action, writer)
        os.close(writer)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, patience: float = PATIENCE_S) -> Ended:
        """Wait for the end; a trial that does not come to it is killed, and its code is -9."""
        begun = time.monotonic()
        while os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() - begun > patience:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.002)
        seconds = time.monotonic() - begun
        _, status = os.waitpid(self.pid, 0)
        with os.fdopen(self._reader, "rb") as reader:
            text = reader.read()
        return Ended(os.waitstatus_to_exitcode(status), json.loads(text or b"{}"), seconds)


def _run(action: Callable[[], dict[str, Any]], writer: int) -> None:
    write = os.write  # which a trial may replace
    code = 1
    try:
        report, code = action(), 0
    except BaseException as error:
        report = {"error": type(error).__name__, "message": str(error)}
        report["traceback"] = traceback.format_exc()
        code = getattr(error, "exit_code", 1)
    try:
        write(writer, json.dumps(report).encode())
    finally:
        os._exit(code)


def tiny_run(directory: Path, **changes: Any) -> TrainConfig:
    """A run with every kind of write: rows, events, periodic, best and last checkpoints."""
    keys = {"total_timesteps": 120, "eval_interval": 50, "checkpoint_interval": 40}
    keys |= {"log_interval": 30, "final_eval_episodes": 1, "eval_episodes": 1}
    return tiny_config("dqn", directory, run_name="run", **(keys | changes))


@contextmanager
def new_directory() -> Iterator[Path]:
    """A directory for one trial."""
    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
