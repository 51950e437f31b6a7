"""Process-level settings: clean shutdown on signals, memory that glibc keeps."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

_WATCHED = [
    number
    # Ctrl-C, a service manager or scheduler, a closed terminal, and what Slurm sends on request.
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
    if (number := getattr(signal, name, None)) is not None
]
_ENDING = (signal.SIGINT, signal.SIGTERM)

KEPT_BYTES = 256 * 1024**2
LARGEST_KEPT_BYTES = 32 * 1024**2  # the most that glibc accepts

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of options in malloc.h


class Interrupts:
    """Context in which the first signal is noted in `received` instead of acting.

    The run then saves and stops; a second signal ends the process at once. A signal that the
    process was started to ignore stays ignored, as SIGHUP under nohup, and a handler of the
    program's for SIGHUP, SIGUSR1 or SIGUSR2 stays its. Only the main thread may set signal
    handlers; elsewhere nothing is watched.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            handlers = {number: signal.getsignal(number) for number in _WATCHED}
            self._previous = {
                number: handler
                for number, handler in handlers.items()
                if handler == signal.SIG_DFL or (number in _ENDING and handler != signal.SIG_IGN)
            }
            for number in self._previous:
                signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - signal's call
        self.received = number
        # From now on the next signal has its usual effect.
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}


def keep_freed_memory() -> None:
    """Have glibc keep up to 256 MiB of freed memory for the next allocations.

    By default it returns the memory of an update's results to the system after each update, and
    the next one has every page mapped and cleared again: a fifth of the time of an update of SAC.
    Other C libraries are left alone, and so is a process whose environment configures glibc's
    allocator, for example by MALLOC_TRIM_THRESHOLD_.
    """
    if not sys.platform.startswith("linux") or any(map(_configures_glibc, os.environ)):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):
        library.mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        library.mallopt(_MMAP_THRESHOLD, LARGEST_KEPT_BYTES)


def _configures_glibc(variable: str) -> bool:
    return variable.startswith("MALLOC_") or variable == "GLIBC_TUNABLES"
