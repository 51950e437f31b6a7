"""Signals at random moments of a run: none lost, a checkpoint each, soon, and nothing changed.

    python -m campaign.signals --count 100

Each trial sends one of five signals at a random moment between the start of a run and its end, in
warm-up, updates, evaluations and saves, and then resumes: the end must be that of the run that was
never stopped, bit for bit. A third of the trials that save slowly get a second signal, which ends
them at once, and must leave an intact checkpoint, or none yet.

The negative control is a run that does not listen, which has to be found out.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from campaign.forked import Trial, new_directory, tiny_run
from rl_training.errors import CheckpointError
from rl_training.experiment.registry import train_config
from rl_training.runtime.process import Interrupts
from rl_training.runtime.result import TrainingInterrupted
from rl_training.storage.checkpoints import find_checkpoint
from rl_training.testing import final_state

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
LIMIT_S = 5.0
AT_ONCE_S = 1.0


def run(folder: Path, slow: bool = False, deaf: bool = False) -> dict[str, Any]:
    """A run until its end or a signal: which it was, and the hashes of the end."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's ignores it
    if slow:
        fsync = os.fsync
        os.fsync = lambda descriptor: (time.sleep(0.05), fsync(descriptor))[1]
    if deaf:
        Interrupts._note = lambda *_: None
    steps = 6000 if deaf else 600
    config = tiny_run(folder, total_timesteps=steps, checkpoint_interval=200, eval_interval=150)
    try:
        result = train_config(config, auto_resume=True)
    except TrainingInterrupted as interrupt:
        return {"signal": interrupt.signal_number, "steps": interrupt.result.global_step}
    return {"state": final_state(result.run_dir)}


def wait_until_listening(pid: int) -> None:
    """Wait until a run catches SIGTERM; one that has ended does not."""
    status = Path(f"/proc/{pid}/status")
    while not re.search(r"^State:\s+Z", text := status.read_text(), re.MULTILINE):
        caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", text, re.MULTILINE)
        if caught is not None and int(caught[1], 16) >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.001)


def intact(folder: Path) -> bool:
    """Whether the newest checkpoint on disk, if any, is whole."""
    try:
        return not find_checkpoint(folder / "run").skipped
    except CheckpointError as error:
        return "no usable" not in str(error)


def finished(folder: Path) -> bool:
    """Whether a run has written that it came to its end."""
    summary = folder / "run" / "summary.json"
    return summary.exists() and json.loads(summary.read_text())["status"] == "finished"


def trial(number: int, delay: float, end: dict[str, str], *, deaf: bool = False) -> Iterator[str]:
    """What a user is promised and does not get when a signal comes after so many seconds."""
    where = f"{signal.Signals(number).name} after {delay:.3f} s"
    with new_directory() as folder:
        process = Trial(partial(run, folder, deaf=deaf))
        wait_until_listening(process.pid)
        time.sleep(delay)
        process.signal(number)
        ended = process.wait(LIMIT_S)
        if ended.code == -number and finished(folder):
            return  # it was about to exit and listened no longer
        if ended.code < 0:
            yield f"{where}: {'no end' if ended.code == -signal.SIGKILL else 'not saved'}"
            return
        if ended.report.get("state") == end and ended.seconds < AT_ONCE_S:
            return  # it had come to its end before
        if ended.report.get("signal") != number:
            yield f"{where}: lost: {ended.report}"
            return
        if find_checkpoint(folder / "run").env_steps != ended.report.get("steps"):
            yield f"{where}: its checkpoint is not where it stopped"
        resumed = Trial(partial(run, folder)).wait()
        if resumed.report.get("state") != end:
            yield f"{where}: resumed, it ends otherwise: {resumed.report}"


def second_signal(number: int, delay: float) -> Iterator[str]:
    """The same for a second signal, SIGINT or SIGTERM, while the first one's save goes on."""
    where = f"{signal.Signals(number).name} after {delay:.3f} s and again"
    with new_directory() as folder:
        process = Trial(partial(run, folder, slow=True))
        wait_until_listening(process.pid)
        time.sleep(delay)
        process.signal(number)
        time.sleep(0.15)  # the save takes half a second
        again = signal.SIGTERM if number != signal.SIGINT else signal.SIGINT
        process.signal(again)
        ended = process.wait(LIMIT_S)
        if ended.seconds > AT_ONCE_S:
            yield f"{where}: took {ended.seconds:.1f} s"
        if not intact(folder):
            yield f"{where}: a damaged checkpoint"


def straight() -> tuple[dict[str, str], float]:
    """The end of a run that no signal stops, and its seconds."""
    with new_directory() as folder:
        ended = Trial(partial(run, folder)).wait()
        return ended.report["state"], ended.seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--count", type=int, default=100, help="signals to send")
    count = parser.parse_args().count
    begun, draws = time.monotonic(), random.Random(0)
    end, seconds = straight()
    found, seconds_signals = [], 0
    for index in range(count):
        number, delay = SIGNALS[index % len(SIGNALS)], draws.uniform(0, seconds)
        found += trial(number, delay, end)
        if index % 3 == 0:
            seconds_signals += 1
            found += second_signal(number, draws.uniform(0, seconds))
    control = len(list(trial(signal.SIGTERM, seconds / 3, end, deaf=True)))
    for line in found:
        print(line)
    print(
        f"signals: {count} at random moments of {seconds:.2f} s, {seconds_signals} second ones, "
        f"{len(found)} broken promises, control {control}, {time.monotonic() - begun:.0f} s"
    )
    return 1 if found or not control else 0


if __name__ == "__main__":
    sys.exit(main())
