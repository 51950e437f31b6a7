"""Real processes that run the command line, and an environment that waits where a test wants it.

They are forked from a server that has imported torch already: a fresh interpreter would spend
seconds of processor time on that, for each of the signals and kills that are tried.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from toy_envs import RandomWalkEnv, Step

PATIENCE_S = 60.0
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "processes",
        "rl_training.api.managed",
        "tensorboard.summary.writer.record_writer",
        "torch._dynamo",
    ]
)


def wait_until(condition: Callable[[], Any]) -> None:
    """Wait for something another process does."""
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up, "waited in vain"
        time.sleep(0.005)


def wait_until_noted(pid: int) -> None:
    """Wait until a run has noted a SIGTERM, which gives the signal its usual effect back."""
    status = Path(f"/proc/{pid}/status")

    def noted() -> bool:
        caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", status.read_text(), re.MULTILINE)
        assert caught is not None
        return not int(caught[1], 16) >> (signal.SIGTERM - 1) & 1

    wait_until(noted)
    time.sleep(0.1)  # the handler that noted it has to return, or the next signal interrupts it


BEYOND_PROBE = 160
"""More steps of a GateEnv than finding the resume level takes, in two stints of an episode each."""


class GateEnv(RandomWalkEnv):
    """A walk that waits in its step number `at` for as long as there is a file `gate`.

    The file `gate.reached` says that it waits. Its state can be saved.
    """

    def __init__(self, gate: str = "", at: int = 0) -> None:
        super().__init__()
        self.gate = gate
        self.at = at
        self.calls = 0

    def step(self, action: int) -> Step:
        self.calls += 1
        if self.calls == self.at and os.path.exists(self.gate):
            Path(f"{self.gate}.reached").touch()
            while os.path.exists(self.gate):
                time.sleep(0.005)
        return super().step(action)


class Gate:
    """The file a GateEnv waits for."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def close(self) -> None:
        self.path.with_name(f"{self.path.name}.reached").unlink(missing_ok=True)
        self.path.touch()

    def open(self) -> None:
        self.path.unlink()

    def wait_until_reached(self) -> None:
        wait_until(self.path.with_name(f"{self.path.name}.reached").exists)


class CommandLine:
    """`rl-training ARGUMENTS` in a process of its own, its output in a file (or a terminal)."""

    def __init__(self, *arguments: str, output: str | Path) -> None:
        self.output = Path(output)
        self.process: BaseProcess = _CONTEXT.Process(
            target=_run, args=(arguments, str(output), os.getcwd())
        )
        self.process.start()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float = PATIENCE_S) -> int:
        """The exit code, negative for a signal that ended it."""
        self.process.join(timeout)
        assert self.process.exitcode is not None, f"still running: {self.text()}"
        return self.process.exitcode

    def text(self) -> str:
        return self.output.read_text()


class WarmPopen:
    """As much of `subprocess.Popen` as the experiment manager uses."""

    def __init__(self, command: Sequence[str], *, stdout: Any, **_: Any) -> None:
        assert command[:3] == [sys.executable, "-m", "rl_training"]
        self._command = CommandLine(*command[3:], output=stdout.name)

    @property
    def pid(self) -> int:
        return self._command.pid

    def poll(self) -> int | None:
        return self._command.process.exitcode

    def send_signal(self, number: int) -> None:
        self._command.signal(number)

    def kill(self) -> None:
        self._command.process.kill()

    def wait(self, timeout: float = PATIENCE_S) -> int:
        self._command.process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired("rl-training", timeout)
        return self._command.wait()


def _run(arguments: tuple[str, ...], output: str, directory: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's ignores it
    os.chdir(directory)
    os.environ["TERM"] = "xterm"
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.argv = ["rl-training", *arguments]
    from rl_training.cli import main

    main()
