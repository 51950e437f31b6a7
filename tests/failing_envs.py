"""An environment that fails in every way a worker process can be made to suffer."""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import os
import resource
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from toy_envs import CountingEnv, Reset, Step


def _unpicklable() -> None:
    class LocalError(Exception):
        def __init__(self) -> None:
            super().__init__("cannot be pickled")
            self.lock = threading.Lock()

    raise LocalError


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class ExitingError(Exception):
    def __str__(self) -> str:
        sys.exit(7)


def _raise(error: BaseException) -> None:
    raise error


def _recurse() -> None:
    _recurse()


def _sleep() -> None:
    time.sleep(1e6)


def _spin() -> None:
    while True:
        pass


def _deadlock() -> None:
    """Inside a C library, which no signal interrupts and no Python handler reaches."""
    library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(128)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


def _deaf() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    time.sleep(1e6)


def _segfault() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler._sigsegv()  # type: ignore[attr-defined] # what a broken extension does


def _abort() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.abort()


def _sockets() -> list[int]:
    found = []
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        try:
            if descriptor > 2 and stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                found.append(descriptor)
        except OSError:  # the listing's own
            pass
    return found


def _close_sockets() -> None:
    for descriptor in _sockets():
        os.close(descriptor)
    time.sleep(1e6)


def _write_garbage() -> None:
    for descriptor in _sockets():
        socket.socket(fileno=os.dup(descriptor)).send(b"Loading textures ... 100 %\n")


def _die_with_a_child_that_lives_on() -> None:
    """The child keeps every descriptor of the worker open."""
    if not os.fork():
        time.sleep(3)
        os._exit(0)
    os._exit(9)


FAILURES: dict[str, Callable[[], object]] = {
    "raises": lambda: _raise(RuntimeError("the robot fell over")),
    "raises what cannot be pickled": _unpicklable,
    "raises what cannot be printed": lambda: _raise(UnprintableError()),
    "raises what exits when printed": lambda: _raise(ExitingError()),
    "raises KeyboardInterrupt": lambda: _raise(KeyboardInterrupt("not the user's")),
    "recurses": _recurse,
    "sys.exit": lambda: sys.exit("enough"),
    "os._exit": lambda: os._exit(9),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segmentation fault": _segfault,
    "abort": _abort,
    "dies, its child lives": _die_with_a_child_that_lives_on,
    "sleeps": _sleep,
    "spins": _spin,
    "hangs in a library": _deadlock,
    "sleeps, all signals blocked": _deaf,
    "closes its sockets": _close_sockets,
    "writes to its sockets": _write_garbage,
}
"""What is done in a call."""

HANGS = ("sleeps", "spins", "hangs in a library", "sleeps, all signals blocked")

ANSWERS: dict[str, Callable[[np.ndarray], Any]] = {
    "reward of two numbers": lambda obs: (obs, [1.0, 2.0], False, False, {}),
    "reward of text": lambda obs: (obs, "much", False, False, {}),
    "observation of another shape": lambda obs: (np.ones(3, np.float32), 1.0, False, False, {}),
    "observation of text": lambda obs: (np.array(["a", "b"]), 1.0, False, False, {}),
    "no observation": lambda obs: (None, 1.0, False, False, {}),
    "four values": lambda obs: (obs, 1.0, False, {}),
    "flag of two": lambda obs: (obs, 1.0, np.array([True, False]), False, {}),
    "info that cannot be sent": lambda obs: (obs, 1.0, False, False, {"x": threading.Lock()}),
}
"""What step returns instead of an answer."""


class FailingEnv(CountingEnv):
    """A counting env that fails in a worker process, or anywhere if `anywhere`.

    In the phase `step` at call number `at` after a seeded reset, else whenever the phase is met.
    """

    def __init__(
        self, kind: str = "raises", phase: str = "step", at: int = 3, anywhere: bool = False
    ) -> None:
        super().__init__(length=30)  # so that the probe of a run takes at most 110 steps
        self.kind, self.phase, self.at, self.calls = kind, phase, at, 0
        self.fails = anywhere or "worker" in multiprocessing.current_process().name.lower()
        self._meet("construction")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        self._meet("reset")
        self.calls = 0 if seed is not None else self.calls
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> Step:
        self.calls += 1
        if self.calls == self.at and self.fails and self.kind in ANSWERS:
            answer: Any = ANSWERS[self.kind](self.observe())
            return answer
        if self.calls == self.at:
            self._meet("step")
        return super().step(action)

    def look(self) -> str:
        self._meet("look")
        return "seen"

    def close(self) -> None:
        self._meet("close")

    def _meet(self, phase: str) -> None:
        if self.fails and self.phase == phase and self.kind in FAILURES:
            FAILURES[self.kind]()


class HangsInTheEnd(FailingEnv):
    """Does not return from `close` once it has made `at` steps after a seeded reset."""

    def close(self) -> None:
        if self.calls >= self.at:
            _deadlock()
