"""kill -9 of small runs, half of them inside a save: none is lost, and nothing is changed.

    python -m campaign.kills --count 200 --algorithms dqn sac

kills runs of each algorithm, goes on with them as `train --auto-resume` does, and kills them again.
Half of the kills come at a random moment, from the start of the process to its end. The others come
inside a save: before, amid or after one of the calls that write, rename or delete a checkpoint or a
file of it. After each kill

- every checkpoint there is loads, and the newest is no older than before;

and in the end

- weights, optimisers, replay, environments, generators and the best policy are those of a run that
  was never stopped, to the bit, and so are the rows of its log, each once;
- no temporary file is left.

There are two negative controls, which have to be found out: a writer that writes in place, and a
resume that forgets the environments.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from campaign.calls import CALLS, WriteCalls
from campaign.forked import PATIENCE_S, Ended, Trial, new_directory
from rl_training.errors import CheckpointError
from rl_training.experiment.registry import train_config
from rl_training.runtime.collector import Collector
from rl_training.storage import prepared_checkpoint
from rl_training.storage.checkpoints import Checkpoint, find_checkpoint
from rl_training.storage.files import TEMPORARY_PREFIX
from rl_training.storage.manifest import KINDS as CHECKPOINT_KINDS
from rl_training.storage.manifest import list_checkpoints
from rl_training.storage.prepared_checkpoint import PreparedCheckpoint
from rl_training.storage.tree import tree_hash
from rl_training.testing import final_state
from training import ALGORITHMS, tiny_config

STEPS = 120
RUN: dict[str, Any] = {
    "run_name": "run",
    "total_timesteps": STEPS,
    "checkpoint_interval": 30,
    "checkpoint_minutes": 0,
    "eval_interval": 50,
    "eval_episodes": 1,
    "final_eval_episodes": 1,
    "log_interval": 40,
}
MOMENT, SAVE = KINDS = ("at a random moment", "inside a save")
PHASES = ("before", "amid", "after")
MEASURED_EVERY = 10  # runs


class AtCall(NamedTuple):
    """Before, amid or after the call of that number, of those that write checkpoints."""

    number: int
    phase: str


class Straight(NamedTuple):
    """A run that is not killed: what it ends with, its seconds and the calls of its saves."""

    end: dict[str, str]
    seconds: float
    calls: int


class SaveCalls(WriteCalls):
    """Counts the calls that write checkpoints, and kills the process at one of them."""

    def __init__(self, checkpoints_dir: Path, kill: AtCall | None) -> None:
        super().__init__(checkpoints_dir)
        self.kill = kill

    def made(self, name: str, call: Callable[..., Any], *args: Any, **keys: Any) -> Any:
        if self.kill is None or self.count < self.kill.number:
            return call(*args, **keys)
        if self.kill.phase == "after":
            call(*args, **keys)
        elif self.kill.phase == "amid" and name == "write":
            call(args[0], args[1][: len(args[1]) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    def path(self, args: tuple[Any, ...], keys: dict[str, Any]) -> str:
        folder = keys.get("dir_fd")  # shutil.rmtree deletes relative to one
        return super().path(args if folder is None else (folder,), keys)


def attempt(
    folder: Path, algo: str, kill: AtCall | None = None, sabotage: Callable[[], None] | None = None
) -> dict[str, Any]:
    """A run that goes on with what there is of it, to its end or to the kill."""
    calls = SaveCalls(folder / "run" / "checkpoints", kill)
    if sabotage is not None:
        sabotage()
    config = tiny_config(algo, folder, **RUN)
    calls.install((*CALLS, "link", "rmdir"))
    run_dir = train_config(config, auto_resume=True).run_dir
    return {"end": end(run_dir), "calls": calls.count}


def end(run_dir: Path) -> dict[str, str]:
    """Hashes of all that a run leaves, except clocks."""
    rows = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    clocks = {"wall_time_s", "time/steps_per_second"}
    timeless = [{key: row[key] for key in row if key not in clocks} for row in rows]
    best = find_checkpoint(run_dir, best=True)
    parts = {"rows": timeless, "best": {"at": best.env_steps, "agent": best.read("agent")}}
    return final_state(run_dir) | {name: tree_hash(part) for name, part in parts.items()}


def warm_up(algo: str) -> None:
    """Import and prepare what a run needs, once for all processes that are forked from this one."""
    torch.set_num_threads(1)  # a fork has none of its parent's threads, and would wait for them
    with new_directory() as folder:
        train_config(tiny_config(algo, folder, **RUN))


def straight(algo: str) -> Straight:
    """The run that is not killed, as long as it takes now."""
    with new_directory() as folder:
        ended = Trial(partial(attempt, folder, algo)).wait()
    return Straight(ended.report["end"], ended.seconds, ended.report["calls"])


def damaged(folder: Path) -> Iterator[str]:
    """The checkpoints of a run that do not load, and why."""
    checkpoints_dir = folder / "run" / "checkpoints"
    for kind in CHECKPOINT_KINDS if checkpoints_dir.is_dir() else ():
        for name in list_checkpoints(checkpoints_dir, kind):
            try:
                checkpoint = Checkpoint.open(checkpoints_dir / name)
                for part in checkpoint.parts:
                    checkpoint.read(part)
                checkpoint.verify()
            except CheckpointError as error:
                yield str(error)


def newest_step(folder: Path) -> int:
    """The step of the newest checkpoint; 0 if there is none."""
    checkpoints_dir = folder / "run" / "checkpoints"
    names = list_checkpoints(checkpoints_dir, "step") if checkpoints_dir.is_dir() else []
    return max((int(name.removeprefix("step_").partition("-")[0]) for name in names), default=0)


def killed_once(
    folder: Path,
    algo: str,
    kind: str,
    clean: Straight,
    draws: random.Random,
    sabotage: Callable[[], None] | None,
) -> tuple[Ended, str]:
    """One more attempt, and what was to kill it."""
    left = 1 - newest_step(folder) / STEPS
    if kind == SAVE:
        number = draws.randint(1, max(1, math.ceil(left * clean.calls)))
        kill = AtCall(number, draws.choice(PHASES))
        ended = Trial(partial(attempt, folder, algo, kill, sabotage)).wait()
        return ended, f"{kill.phase} call {number} of its saves"
    delay = draws.uniform(0, clean.seconds)
    ended = Trial(partial(attempt, folder, algo, sabotage=sabotage)).wait(delay)
    return ended, f"after {delay:.3f} s"


def chain(
    algo: str,
    clean: Straight,
    draws: random.Random,
    wanted: Counter[str],
    sabotage: Callable[[], None] | None = None,
) -> tuple[Counter[str], list[str]]:
    """Kill a run, go on with it, half of the times kill it again, and so on to its end.

    Gives the kills, and what a user is promised and does not get.
    """
    kills: Counter[str] = Counter()
    found: list[str] = []
    history, step = algo, 0
    with new_directory() as folder:
        while open_kinds := [kind for kind in KINDS if kills[kind] < wanted[kind]]:
            if kills and draws.random() < 0.5:
                break
            kind = draws.choice(open_kinds)
            ended, where = killed_once(folder, algo, kind, clean, draws, sabotage)
            if ended.code != -signal.SIGKILL:
                break  # it came to its end before
            kills[kind] += 1
            history += f", killed {where}"
            if ended.seconds >= PATIENCE_S:
                found.append(f"{history}: it hung")
            found += [f"{history}: {trouble}" for trouble in damaged(folder)]
            if (newest := newest_step(folder)) < step:
                found.append(f"{history}: the newest checkpoint is of step {newest}, not {step}")
            step = newest
        # At the end already, it gives its result again.
        ended = Trial(partial(attempt, folder, algo, sabotage=sabotage)).wait()
        reached = ended.report.get("end", {})
        if differing := [name for name in clean.end if reached.get(name) != clean.end[name]]:
            why = ended.report.get("traceback") or f"other {', '.join(differing)}"
            found.append(f"{history}: resumed, it ends otherwise: {why}")
        if left := list((folder / "run").rglob(f"{TEMPORARY_PREFIX}*")):
            found.append(f"{history}: temporary files are left: {left}")
    return kills, found


def write_in_place() -> None:
    """Sabotage: a checkpoint is written where it is to be, not beside it and then renamed."""
    commit = PreparedCheckpoint._commit

    def commit_in_place(self: PreparedCheckpoint) -> Any:
        self._target.mkdir(parents=True, exist_ok=True)
        prepared_checkpoint.temporary_directory = lambda _: nullcontext(self._target)
        prepared_checkpoint._install = lambda _, target: target
        return commit(self)

    PreparedCheckpoint._commit = commit_in_place


def forget_environments() -> None:
    """Sabotage: a resumed run's environments are at their beginning."""
    Collector.load_envs = lambda *_: None


def control(clean: Straight) -> int:
    """How many of the two sabotages a few kills of DQN find out; both should be."""
    draws, wanted = random.Random(0), Counter({SAVE: 4})
    return sum(
        any(chain("dqn", clean, draws, wanted, sabotage)[1] for _ in range(4))
        for sabotage in (write_in_place, forget_environments)
    )


def campaign(algo: str, clean: Straight, count: int) -> tuple[Counter[str], list[str], int]:
    """So many kills, half of each kind; what they were, what they broke, and of how many runs."""
    draws = random.Random(algo)
    wanted = Counter({MOMENT: count - count // 2, SAVE: count // 2})
    kills: Counter[str] = Counter()
    found: list[str] = []
    runs = 0
    while kills.total() < count:
        if runs % MEASURED_EVERY == MEASURED_EVERY - 1:  # other work may have come or gone
            clean = clean._replace(seconds=straight(algo).seconds)
        more, broken = chain(algo, clean, draws, wanted - kills)
        kills, found, runs = kills + more, found + broken, runs + 1
    return kills, found, runs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--count", type=int, default=200, help="kills for each algorithm")
    parser.add_argument("--algorithms", nargs="+", default=ALGORITHMS, choices=ALGORITHMS)
    options = parser.parse_args()
    broken, total = 0, 0
    for algo in options.algorithms:
        begun = time.monotonic()
        warm_up(algo)
        clean = straight(algo)
        kills, found, runs = campaign(algo, clean, options.count)
        for line in found:
            print(line)
        broken, total = broken + len(found), total + kills.total()
        print(
            f"{algo}: {kills[MOMENT]} kills {MOMENT}, {kills[SAVE]} {SAVE}, {runs} runs, "
            f"{len(found)} broken promises, {time.monotonic() - begun:.0f} s",
            flush=True,
        )
    controls = control(straight("dqn"))
    print(f"kills: {total}, {broken} broken promises, controls {controls} of 2")
    return 1 if broken or controls < 2 else 0


if __name__ == "__main__":
    sys.exit(main())
