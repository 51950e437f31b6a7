"""Signals that a run notes, and the memory it keeps, where the C library can be asked to."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_training.runtime.process import EnvCalls, Interrupts, Watchdog

FAULTS = """
import resource
import sys

import numpy as np

from rl_training.runtime.process import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()


def work():
    arrays = [np.ones(500_000, np.float32) for _ in range(8)]  # 2 MB each
    return sum(float(x[0]) for x in arrays)


for _ in range(5):
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    work()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 20)
"""


def faults(way: str) -> float:
    command = [sys.executable, "-c", FAULTS, way]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks glibc")
def test_memory_that_was_freed_is_used_again_without_page_faults() -> None:
    """8 arrays of 2 MB are 4,000 pages, which the system gives anew each time if not kept."""
    assert faults("kept") < 100


# Signals

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]


@pytest.fixture
def handlers() -> Iterator[None]:
    """Whatever a test does to signals ends with it; SIGINT may be ignored in a background job."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_noted_and_then_only_ctrl_c_and_sigterm_have_an_effect(
    number: signal.Signals, handlers: None
) -> None:
    usual = {each: signal.getsignal(each) for each in SIGNALS}
    ignored = dict.fromkeys(SIGNALS[2:], signal.SIG_IGN)  # a terminal may send SIGHUP twice
    with Interrupts() as interrupts:
        assert interrupts.received is None
        os.kill(os.getpid(), number)
        assert interrupts.received == number
        assert {each: signal.getsignal(each) for each in SIGNALS} == usual | ignored
    assert {each: signal.getsignal(each) for each in SIGNALS} == usual


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_is_ignored_from_the_start_stays_ignored(
    number: signal.Signals, handlers: None
) -> None:
    """As SIGHUP under nohup, and SIGINT in a shell's background jobs."""
    signal.signal(number, signal.SIG_IGN)
    with Interrupts() as interrupts:
        os.kill(os.getpid(), number)
        assert interrupts.received is None
        assert signal.getsignal(number) is signal.SIG_IGN


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="asks the system")
def test_a_stack_dump_on_request_stays_possible(handlers: None, tmp_path: Path) -> None:
    with (tmp_path / "stacks").open("w") as stacks:
        faulthandler.register(signal.SIGUSR1, stacks)
        try:
            with Interrupts() as interrupts:
                os.kill(os.getpid(), signal.SIGUSR1)
        finally:
            faulthandler.unregister(signal.SIGUSR1)
    assert interrupts.received is None
    assert "test_a_stack_dump_on_request" in (tmp_path / "stacks").read_text()


def test_a_handler_that_came_later_is_replaced_with_a_warning(
    handlers: None, caplog: pytest.LogCaptureFixture
) -> None:
    with Interrupts() as interrupts:
        signal.signal(signal.SIGTERM, lambda *_: None)
        interrupts.retake()
        assert "installed a handler of SIGTERM" in caplog.text
        assert len(caplog.records) == 1
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.received == signal.SIGTERM
        ending = signal.getsignal(signal.SIGTERM)
        interrupts.retake()  # a second one must still end the process
        assert signal.getsignal(signal.SIGTERM) is ending


def test_a_handler_of_the_program_is_left_in_place(handlers: None) -> None:
    noted: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: noted.append(number))
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert (interrupts.received, noted) == (None, [signal.SIGUSR1])
        os.kill(os.getpid(), signal.SIGUSR2)
        assert interrupts.received == signal.SIGUSR2


class Watched:
    """A watchdog of 0.2 seconds that notes when it gives up."""

    def __init__(self) -> None:
        self.calls, self.interrupts = EnvCalls(), Interrupts()
        self.gave_up = threading.Event()
        self.with_signal: list[int] = []

    def give_up(self, number: int) -> None:
        self.with_signal.append(number)
        self.gave_up.set()

    def watchdog(self) -> Watchdog:
        return Watchdog(self.interrupts, self.calls, seconds=0.2, give_up=self.give_up)


def test_a_call_that_does_not_return_after_a_signal_is_given_up(handlers: None) -> None:
    watched = Watched()
    with watched.interrupts, watched.watchdog():
        watched.calls.enter()
        assert not watched.gave_up.wait(0.5)  # without a signal an environment may take its time
        os.kill(os.getpid(), signal.SIGTERM)
        assert watched.gave_up.wait(5)
        assert watched.with_signal == [signal.SIGTERM]
    assert signal.set_wakeup_fd(-1) == -1


def test_after_a_signal_updates_saves_and_calls_that_return_take_their_time(
    handlers: None,
) -> None:
    watched = Watched()
    with watched.interrupts, watched.watchdog():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.5)  # a save
        for _ in range(8):
            watched.calls.enter()
            time.sleep(0.1)
            watched.calls.leave()
    assert not watched.gave_up.is_set()


def test_calls_within_a_call_are_part_of_it() -> None:
    calls = EnvCalls()
    with calls.inside():
        with calls.inside():
            pass
        assert calls.count == 1
    assert calls.count == 2


def test_a_call_that_returns_while_the_run_is_saved_stays_where_it_is() -> None:
    calls = EnvCalls()
    calls.enter()
    assert calls.abandon(calls.count)
    returning = threading.Thread(target=calls.leave, daemon=True)
    returning.start()
    returning.join(0.2)
    assert returning.is_alive()
    assert not calls.abandon(1)  # it has returned: there is nothing to give up
    returning.join(5)
    assert not returning.is_alive()
