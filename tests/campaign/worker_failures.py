"""Every kind of worker failure in every phase: named in time, learner saved, no orphans.

    python -m campaign.worker_failures --rounds 3

Each trial is a process of its own with three environments in two workers, one of which fails in its
construction, in a reset, in a step at a random moment, in a method, in `close`, or in a step of a
training run, whose learner has to be saved. In a last phase nothing fails but one worker is stuck,
and the process is killed. Afterwards no worker may be alive.

The negative controls are the same trials with Gymnasium's AsyncVectorEnv, which waits for ever on a
worker that hangs, and leaves it behind: the harness has to report both.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from failing_envs import ANSWERS, FAILURES, HANGS, FailingEnv
from rl_training import train_dqn
from rl_training.envs.async_vector_env import QuickAsyncVectorEnv
from rl_training.errors import EnvError
from rl_training.storage.checkpoints import find_checkpoint
from training import tiny_config

TIMEOUT_S = 1.0  # env_timeout
DEATH_S = 2.0  # in which a death has to be named
CLOSE_S = 5.0
GRACE_S = 5.0  # after which no worker may be alive
PATIENCE_S = 20.0  # after which a trial counts as hung
PHASES = ("construction", "reset", "step", "look", "close", "run", "parent killed")

_FORK = multiprocessing.get_context("fork")
_ACTIONS = np.zeros(3, np.int64)


class Trial(NamedTuple):
    """One failure; `library` is whose vector environment suffers it."""

    kind: str
    phase: str
    at: int
    library: str = "ours"


def trials(rounds: int, seed: int) -> Iterator[Trial]:
    """Every kind in every phase it can occur in; answers are wrong only in a step."""
    draw = random.Random(seed)
    for _ in range(rounds):
        for kind in (*FAILURES, *ANSWERS):
            for phase in PHASES if kind in FAILURES else ("step", "run"):
                if phase != "parent killed" or kind in HANGS:
                    yield Trial(kind, phase, draw.randint(1, 60))


def controls() -> list[Trial]:
    """Trials that have to fail."""
    return [Trial("sleeps", phase, 3, "gymnasium") for phase in ("step", "close", "parent killed")]


def problem(trial: Trial) -> str:
    """What is wrong with how a trial went; empty if nothing."""
    here, there = _FORK.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        process = _FORK.Process(target=_suffer, args=(trial, there, Path(folder)))
        process.start()
        there.close()
        pids: list[int] = []
        try:
            found = _followed(trial, process, here, pids)
        finally:
            process.kill()
            process.join()
        orphans = _alive_after(pids, GRACE_S)
        for pid in orphans:
            os.kill(pid, 9)
    return found or (f"{len(orphans)} orphans" if orphans else "")


def _followed(trial: Trial, process: Any, reports: Any, pids: list[int]) -> str:
    """Read what a trial reports, until it ends or patience does."""
    give_up = time.monotonic() + PATIENCE_S
    while reports.poll(max(0.0, give_up - time.monotonic())):
        try:
            name, value = reports.recv()
        except EOFError:
            return f"ended without a word, exit code {process.exitcode}"
        if name == "pids":
            pids += value
        elif name == "stuck":
            time.sleep(0.3)  # until the step has begun
            process.kill()
            return ""
        else:
            return str(value)
    return "hung"


def _alive_after(pids: list[int], seconds: float) -> list[int]:
    deadline = time.monotonic() + seconds
    while alive := [pid for pid in pids if _running(pid)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return alive


def _running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _suffer(trial: Trial, reports: Any, folder: Path) -> None:
    """The trial's process; it reports its workers and then what is wrong."""
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lasts
    found = _in_a_run(trial, folder) if trial.phase == "run" else _alone(trial, reports)
    reports.send(("problem", found))


def _alone(trial: Trial, reports: Any) -> str:
    other = partial(FailingEnv, "not at all")
    makers = [other, partial(FailingEnv, trial.kind, trial.phase, trial.at), other]
    if trial.phase == "parent killed":
        makers[1] = partial(FailingEnv, trial.kind, "step", trial.at)
    envs, started, found = None, time.monotonic(), "nothing was raised"
    try:
        envs = _make(trial.library, makers)
        reports.send(("pids", [process.pid for process in envs.processes]))
        started = _play(envs, trial, lambda: reports.send(("stuck", None)))
    except EnvError as error:
        found = _judged(trial, str(error), time.monotonic() - started)
    started = time.monotonic()
    if envs is not None:
        envs.close()
    if time.monotonic() - started > CLOSE_S:
        return f"close took {time.monotonic() - started:.1f} s"
    return "" if trial.phase == "close" else found


def _make(library: str, makers: list[Callable[[], gym.Env[Any, Any]]]) -> Any:
    if library == "gymnasium":
        return AsyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    return QuickAsyncVectorEnv(makers, timeout=TIMEOUT_S, workers=2)


def _play(envs: Any, trial: Trial, stuck: Callable[[], None]) -> float:
    """Play into the failure; the time at which its call began is lost with the exception."""
    envs.reset(seed=7)
    for step in range(1, trial.at + 1):
        if step == trial.at and trial.phase == "parent killed":
            stuck()
        envs.step(_ACTIONS)
    if trial.phase == "look":
        envs.call("look")
    return time.monotonic()


def _judged(trial: Trial, text: str, seconds: float) -> str:
    limit = TIMEOUT_S + 1.5 if trial.kind in HANGS else DEATH_S
    since = {"construction": "never reset", "reset": "reset seed 8"}.get(trial.phase)
    since = since or f"{trial.at} steps after its reset with seed 8"
    if not text.startswith(f"environment 1, {since}"):
        return f"expected environment 1, {since}; found {text[:200]}"
    # The steps before it and the start of the workers are included.
    return f"named after {seconds:.1f} s" if seconds > limit + 1 else ""


def _in_a_run(trial: Trial, folder: Path) -> str:
    at = 60 + trial.at
    config = tiny_config(
        "dqn",
        folder,
        env_id=partial(FailingEnv, trial.kind, at=at),
        num_envs=2,
        vectorization="async",
        env_timeout=TIMEOUT_S,
        total_timesteps=400,
        run_name="run",
    )
    try:
        train_dqn(config)
    except EnvError as error:
        saved = find_checkpoint(folder / "run").env_steps
        if f"{at} steps after its reset" not in str(error):
            return f"expected step {at} to be named, found {str(error)[:200]}"
        return "" if saved == 2 * (at - 1) else f"saved at {saved}, expected {2 * (at - 1)}"
    return "nothing was raised"


def main(arguments: list[str]) -> int:
    """Run the campaign and print its figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--phases", default=",".join(PHASES), help="default: %(default)s")
    args = parser.parse_args(arguments)
    phases = args.phases.split(",")
    chosen = [trial for trial in trials(args.rounds, args.seed) if trial.phase in phases]
    counts: Counter[str] = Counter()
    failed = []
    for trial in chosen:
        counts[trial.phase] += 1
        if found := problem(trial):
            failed.append([*trial, found])
            print(f"{trial}: {found}", file=sys.stderr)
    unnoticed = [trial.phase for trial in controls() if not problem(trial)]
    figures = {
        "trials": len(chosen),
        "kinds": len({trial.kind for trial in chosen}),
        "by phase": dict(counts),
        "failed": failed,
        "controls noticed": len(controls()) - len(unnoticed),
        "controls": len(controls()),
    }
    print(json.dumps(figures, indent=1))
    return 1 if failed or unnoticed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
