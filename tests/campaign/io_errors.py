"""Ten kinds of errors of the file system, at every call with which a run writes.

    python -m campaign.io_errors --stride 7

counts the calls of a clean run, then lets each of them (every seventh) fail, once, before or after
it took effect, and asserts what a user is promised:

- a transient error, once: the run ends as if there had been none, bit for bit;
- any error for good from some call on, `on_save_error: stop`: exit code 3 and the reason;
- the same for a while, `on_save_error: warn`: the run goes on to the same end;
- at all times the newest checkpoint on disk is intact, or there is none yet.

The negative control takes the retries away and has to find that runs then fail.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from campaign.calls import WriteCalls
from campaign.forked import Trial, new_directory, tiny_run
from rl_training.errors import CheckpointError
from rl_training.experiment.registry import train_config
from rl_training.storage import files
from rl_training.storage.checkpoints import find_checkpoint
from rl_training.testing import final_state

TRANSIENT = ("EIO", "ESTALE", "EAGAIN", "ETIMEDOUT", "ENOSPC", "EDQUOT", "EINTR", "EBUSY")
PERMANENT = ("EACCES", "EROFS")
A_WHILE = 12  # calls that fail in a row; a permanent error is not tried again, so 3 of it


class Fault(NamedTuple):
    """The calls from number `at` on, `times` of them, fail with `kind`, before or after it."""

    kind: str
    at: int
    times: float = 1
    late: bool = False


class Faults(WriteCalls):
    """Lets some of the calls that write inside a directory fail."""

    def __init__(self, directory: Path, fault: Fault | None) -> None:
        super().__init__(directory)
        self.fault = fault

    def made(self, name: str, call: Callable[..., Any], *args: Any, **keys: Any) -> Any:
        fault = self.fault
        if fault is None or not fault.at <= self.count < fault.at + fault.times:
            return call(*args, **keys)
        number = getattr(errno, fault.kind)
        if fault.late and name != "open":  # the descriptor of an open would be lost
            call(*args, **keys)
        raise OSError(number, os.strerror(number))


def run(folder: Path, fault: Fault | None, on_save_error: str, retries: bool) -> dict[str, Any]:
    """A run with a fault: the hashes of its end, and how often it wrote."""
    if not retries:
        files.TRANSIENT = frozenset()
    files.time = type("NoPause", (), {"sleep": staticmethod(lambda _: None)})
    faults = Faults(folder, fault)
    config = tiny_run(folder, on_save_error=on_save_error)
    faults.install()
    result = train_config(config)
    writes, faults.fault = faults.count, None
    state = final_state(result.run_dir)
    return {"state": state, "writes": writes, "names": faults.names, "run": result.run_dir.name}


def outcome(
    fault: Fault | None, on_save_error: str = "stop", retries: bool = True
) -> dict[str, Any]:
    """What a trial reports, its exit code, and whether the newest checkpoint is intact."""
    with new_directory() as folder:
        ended = Trial(partial(run, folder, fault, on_save_error, retries)).wait()
        intact = True
        for run_dir in folder.iterdir():
            try:
                intact &= not find_checkpoint(run_dir).skipped
            except CheckpointError as error:
                intact &= "no usable" not in str(error)
        return {**ended.report, "code": ended.code, "intact": intact}


def violations(clean: dict[str, Any], at: int, kind: str, late: bool) -> Iterator[str]:
    """What a user is promised and does not get when call number `at` fails."""
    where = f"{kind} at call {at} ({clean['names'][at - 1]}, {'late' if late else 'at once'})"
    if kind in TRANSIENT:
        once = outcome(Fault(kind, at, late=late))
        if once.get("state") != clean["state"]:
            yield f"{where}, once: ended with {once['code']}: {once.get('message')}"
        if not once["intact"]:
            yield f"{where}, once: a damaged checkpoint"
    for_good = outcome(Fault(kind, at, times=float("inf")))
    # Losing the best policy alone, or what is written last, does not end a run.
    if for_good["code"] != 3 and for_good.get("state") != clean["state"]:
        yield f"{where}, for good: ended with {for_good['code']}: {for_good.get('message')}"
    if not for_good["intact"]:
        yield f"{where}, for good: a damaged checkpoint"


def warned(clean: dict[str, Any], at: int, kind: str) -> Iterator[str]:
    """The same where `warn` allows a run to go on, while periodic files cannot be written."""
    times = A_WHILE if kind in TRANSIENT else 3
    result = outcome(Fault(kind, at, times=times), "warn")
    where = f"{kind} for {times} calls from {at} on, warn"
    if result.get("state") != clean["state"]:
        yield f"{where}: ended with {result['code']}: {result.get('message')}"
    if not result["intact"]:
        yield f"{where}: a damaged checkpoint"


def periodic_calls(clean: dict[str, Any]) -> range:
    """The calls from the first row on and well before the last checkpoint: those `warn` is for."""
    first_row = clean["names"].index("replace", clean["names"].index("replace") + 1) + 4
    return range(first_row, int(0.65 * clean["writes"]))


def control() -> int:
    """How many of a few transient errors end a run that does not try again; all should.

    None of them is in the copy of the best policy, which a run does without.
    """
    return sum(outcome(Fault("EIO", at), retries=False)["code"] != 0 for at in (20, 80, 180))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--stride", type=int, default=7, help="try every n-th call")
    stride = parser.parse_args().stride
    begun = time.monotonic()
    clean = outcome(None)
    found, trials = [], 0
    for number, kind in enumerate((*TRANSIENT, *PERMANENT)):
        for at in range(1 + number % stride, clean["writes"] + 1, stride):
            trials += 1
            found += violations(clean, at, kind, late=at % 2 == 0)
        for at in periodic_calls(clean)[number % stride :: stride]:
            trials += 1
            found += warned(clean, at, kind)
    for line in found:
        print(line)
    print(
        f"io errors: {len(TRANSIENT) + len(PERMANENT)} kinds, {clean['writes']} calls, {trials} "
        f"trials, {len(found)} broken promises, control {control()} of 3, "
        f"{time.monotonic() - begun:.0f} s"
    )
    return 1 if found or control() < 3 else 0


if __name__ == "__main__":
    sys.exit(main())
