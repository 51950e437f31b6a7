"""Process-level settings: clean shutdown on signals, memory that glibc keeps."""

from __future__ import annotations

import ctypes
import logging
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType

logger = logging.getLogger("rl_training")

_ENDING = (signal.SIGINT, signal.SIGTERM)
_ASKING = tuple(  # a closed terminal, and what Slurm sends on request
    getattr(signal, name) for name in ("SIGHUP", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
)

KEPT_BYTES = 256 * 1024**2
LARGEST_KEPT_BYTES = 32 * 1024**2  # the most that glibc accepts

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of options in malloc.h


class Interrupts:
    """Context in which the first signal is noted in `received` instead of acting.

    The run then saves and stops; a second SIGINT or SIGTERM ends the process at once. SIGHUP,
    SIGUSR1 and SIGUSR2, which schedulers and terminals may send twice, ask the same and then
    nothing more. A signal that the process was started to ignore stays ignored, as SIGHUP under
    nohup, and the program's own handler of one of the last three is left in place. Only the main
    thread may set signal handlers; elsewhere nothing is watched.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            taken = {n: h for n in _ENDING if (h := signal.getsignal(n)) != signal.SIG_IGN}
            taken |= {n: signal.SIG_DFL for n in _ASKING if _has_no_handler(n)}
            self._previous = {n: h for n, h in taken.items() if h is not None}
            for number in tuple(self._previous):
                if self.received is None:  # else one has come already, and they are restored
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
        for each, handler in self._previous.items():
            signal.signal(each, handler if each in _ENDING else signal.SIG_IGN)

    def retake(self) -> None:
        """Take signals again that an environment has taken, as ROS does; a warning says so."""
        if self.received is not None:
            return
        for number in self._previous:
            if signal.getsignal(number) != self._note:
                signal.signal(number, self._note)
                logger.warning(
                    "the environment installed a handler of %s, which was replaced: the signal "
                    "saves and stops the run",
                    signal.Signals(number).name,
                )

    @property
    def watched(self) -> frozenset[int]:
        """The signals that are noted, or would have been."""
        return frozenset(self._previous)

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}


class EnvCalls:
    """Marks the time a run spends inside its environments, for a watchdog in another thread."""

    def __init__(self) -> None:
        self.count = 0  # odd inside
        self._abandoned = False

    def enter(self) -> None:
        """An environment is called."""
        self.count += 1

    def leave(self) -> None:
        """It has returned; too late if the call was abandoned, for then the run is being saved."""
        self.count += 1
        while self._abandoned:
            time.sleep(0.05)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Context of one call, or of a part of the call that it lies in."""
        if self.count % 2:
            yield
            return
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def abandon(self, count: int) -> bool:
        """Hold the run where it is, inside call `count`; False if that has returned."""
        self._abandoned = True
        self._abandoned = self.count == count
        return self._abandoned


class Watchdog:
    """Ends a run that a signal reached inside an environment that does not return.

    `give_up` is called with the signal, from a thread, once a call has lasted for `seconds` since
    the signal: it saves what it can and ends the process. Python's own handlers wait for the main
    thread, which may be inside a library, so the thread is woken by the C-level one.
    """

    def __init__(
        self,
        interrupts: Interrupts,
        calls: EnvCalls,
        *,
        seconds: float,
        give_up: Callable[[int], None],
    ) -> None:
        self._interrupts, self.calls = interrupts, calls
        self._seconds, self._give_up = seconds, give_up
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watchdog:
        if self._interrupts.watched:  # so this is the main thread
            self._read, self._write = os.pipe()
            os.set_blocking(self._write, False)
            self._previous = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.ident is not None:
            signal.set_wakeup_fd(self._previous)
            os.write(self._write, b"\0")  # no signal has this number
            self._thread.join()
            os.close(self._read)
            os.close(self._write)

    @contextmanager
    def giving_up_by(self, give_up: Callable[[int], None]) -> Iterator[None]:
        """Context in which another function is called to give up."""
        before, self._give_up = self._give_up, give_up
        try:
            yield
        finally:
            self._give_up = before

    def _watch(self) -> None:
        while (first := os.read(self._read, 1)[0]) not in self._interrupts.watched:
            if not first:
                return
        noted = since = time.monotonic()
        count = self.calls.count
        while True:
            ready, _, _ = select.select([self._read], [], [], min(0.2, self._seconds / 5))
            now = time.monotonic()
            if ready:
                number = os.read(self._read, 1)[0]
                if not number:
                    return
                # The main thread does not even get to note the first. One that comes with the
                # first, to the process and to its group, is no second.
                if number in _ENDING and self._interrupts.received is None and now - noted > 1:
                    os._exit(128 + number)
            if self.calls.count != count:
                count, since = self.calls.count, now
            elif count % 2 and now - since >= self._seconds and self.calls.abandon(count):
                self._give_up(first)
                return


def _has_no_handler(number: int) -> bool:
    """Whether a signal has its default effect; faulthandler's handlers are not Python's."""
    if signal.getsignal(number) != signal.SIG_DFL:
        return False
    status = Path("/proc/self/status")
    caught = re.search(r"SigCgt:\s*(\w+)", status.read_text()) if status.exists() else None
    return caught is None or not int(caught[1], 16) >> (number - 1) & 1


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
