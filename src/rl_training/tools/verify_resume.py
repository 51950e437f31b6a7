"""Whether a resumed run of a configuration is the one that was never stopped: tried, and compared.

A short run with the configuration's environments and algorithm goes on to its end; then new
processes go on from each of its checkpoints, as after a kill. Between checkpoints they must do and
see the same, and end with the same weights, replay and environments, to the bit.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.config.loading import dump_yaml
from rl_training.config.train_config import TrainConfig
from rl_training.envs.snapshots.vector import Level
from rl_training.errors import RLTrainingError, RunError
from rl_training.experiment.registry import get_spec, resolve_config, train_config
from rl_training.runtime.resume import refuse_unserialized
from rl_training.runtime.transcript import parse_transcript
from rl_training.storage.checkpoints import find_checkpoint
from rl_training.storage.runs import CHECKPOINTS_DIR_NAME, METADATA_NAME
from rl_training.storage.tree import tree_hash

DEFAULT_STEPS = 2_000
_NUM_CONTINUATIONS = 3
_RUN = "run"
# Imported once, by the server that the processes are forked from; no environment is among them.
_PRELOADED = [
    "rl_training.api.managed",
    "rl_training.tools.verify_resume",
    "tensorboard.summary.writer.record_writer",
    "torch._dynamo",
]


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """What continuing from one checkpoint showed: where it began, and the first difference."""

    env_steps: int
    difference: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What the environments claim, and what continuing from each checkpoint showed."""

    level: Level
    reason: str
    continuations: list[Continuation]

    @property
    def exact(self) -> bool:
        """Whether resuming is exact, claimed and seen."""
        return self.level != "statistical" and not any(
            each.difference for each in self.continuations
        )


def show_comparison(config: TrainConfig, steps: int, say: Callable[[str], None]) -> bool:
    """Compare, and say what was found; whether resuming is exact."""
    found = compare_resumed(config, steps)
    say(f"resume level: {found.level} ({found.reason})")
    for each in found.continuations:
        outcome = f"differs: {each.difference}" if each.difference else "the same to the bit"
        say(f"continued from step {each.env_steps}: {outcome}")
    if found.exact:
        at = "" if found.level == "exact" else " from the checkpoints at its interval"
        say(f"verdict: a resumed run is the one that was never stopped, to the bit{at}")
    elif found.level == "statistical":
        say("verdict: a resumed run is not the one that was never stopped, and claims no more")
    else:
        say(f"verdict: the claim {found.level!r} is false; runs in this environment cannot rely on")
        say("it: keep all state in attributes of the environment, or in get_state and set_state")
    return found.exact


def compare_resumed(config: TrainConfig, steps: int = DEFAULT_STEPS) -> Comparison:
    """Train for about `steps` transitions, continue from each checkpoint, and compare."""
    refuse_unserialized(config)
    short = _short(config, steps)
    with tempfile.TemporaryDirectory(prefix="rl-training-verify-") as folder:
        straight = Path(folder) / "straight"
        _in_new_process(short, straight, None)
        metadata = json.loads((straight / _RUN / METADATA_NAME).read_text())
        checkpoints = sorted((straight / _RUN / CHECKPOINTS_DIR_NAME).glob("step_*"))
        return Comparison(
            level=metadata["resume_level"],
            reason=metadata["resume_level_reason"],
            continuations=[
                _continued(short, straight, Path(folder) / path.name, path.name)
                for path in checkpoints[:-1]
            ],
        )


def _short(config: TrainConfig, steps: int) -> TrainConfig:
    """The configuration with a small budget: long in the environments, short in learning."""
    spec = get_spec(config.algo)
    hyper = spec.hyper(**config.algo_kwargs)
    learned, changes = spec.loop.short_run(hyper, False)
    total = max(steps, learned, 8 * config.num_envs)
    if "learning_starts" in changes:  # updates in the last part are enough
        changes["learning_starts"] = total - learned // 2
        changes["replay_memory"] = None
    if "buffer_size" in changes:
        changes["buffer_size"] = max(changes["buffer_size"], total // 2)
    return config.with_changes(
        total_timesteps=total,
        checkpoint_interval=max(1, total // (_NUM_CONTINUATIONS + 1) + config.num_envs),
        checkpoint_minutes=0,  # one by the clock would end an interval elsewhere
        keep_checkpoints=_NUM_CONTINUATIONS + 2,
        eval_interval=0,
        final_eval_episodes=0,
        callbacks=[],
        run_name=_RUN,
        algo_kwargs={**config.algo_kwargs, **changes},
    )


def _continued(short: TrainConfig, straight: Path, folder: Path, name: str) -> Continuation:
    """Go on from the checkpoint of that name, without those after it, in a new process."""
    checkpoints = shutil.copytree(straight, folder) / _RUN / CHECKPOINTS_DIR_NAME
    for later in checkpoints.glob("step_*"):
        if later.name > name:
            shutil.rmtree(later)
    begun = find_checkpoint(checkpoints).env_steps
    _in_new_process(short, folder, checkpoints / name)
    (entry,) = json.loads((folder / _RUN / METADATA_NAME).read_text())["resumed_from"]
    verification = entry["verification"]
    if verification["verdict"] == "differs":  # found when it was resumed, nothing comes before it
        return Continuation(env_steps=begun, difference=verification["detail"])
    difference = _first_difference(straight / _RUN, folder / _RUN, short.num_envs, name)
    return Continuation(env_steps=begun, difference=difference)


def _first_difference(straight: Path, resumed: Path, num_envs: int, since: str) -> str:
    for path in sorted((straight / CHECKPOINTS_DIR_NAME).glob("step_*")):
        if path.name <= since:
            continue
        pair = [
            find_checkpoint(run / CHECKPOINTS_DIR_NAME / path.name) for run in (straight, resumed)
        ]
        if not all(checkpoint.has("transcript") for checkpoint in pair):
            continue
        (start, uninterrupted), (_, continued) = (
            parse_transcript(checkpoint.read("transcript"), num_envs) for checkpoint in pair
        )
        if difference := uninterrupted.first_difference(continued):
            return f"after step {start.env_steps}, {difference}"
    before, after = run_state(straight), run_state(resumed)
    differing = [name for name in before if before[name] != after.get(name)]
    return f"the final {', '.join(differing)} differ" if differing else ""


def run_state(run_dir: Path) -> dict[str, str]:
    """Hashes of everything a run ended with, except clocks and log positions."""
    checkpoint = find_checkpoint(run_dir)
    loop = checkpoint.read("loop")
    del loop["run"]["elapsed"], loop["metrics_log"]
    parts = {"agent": checkpoint.read("agent"), "replay": checkpoint.read("replay"), **loop}
    return {name: tree_hash(part) for name, part in parts.items()}


def _in_new_process(config: TrainConfig, folder: Path, resume: Path | None) -> None:
    """Train in a process that has run no environment yet."""
    folder.mkdir(exist_ok=True)
    path = folder / "config.yaml"
    path.write_text(dump_yaml(config.with_changes(output_dir=str(folder)).to_plain()))
    start = multiprocessing.get_start_method()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    process: Any = context.Process(
        target=_train, args=(str(path), resume, str(folder / "error"), start)
    )
    process.start()
    process.join()
    if process.exitcode != 0:
        error = folder / "error"
        reason = error.read_text() if error.exists() else f"it ended with {process.exitcode}"
        what = "be resumed" if resume else "run"
        raise RunError(f"the configuration could not {what}: {reason}")


def _train(path: str, resume: Path | None, error_path: str, start_method: str) -> None:
    # Workers of asynchronous environments start as they would in a run from the command line.
    multiprocessing.set_start_method(start_method, force=True)
    try:
        train_config(resolve_config(path).config, resume=resume)
    except Exception as error:
        expected = isinstance(error, RLTrainingError)
        Path(error_path).write_text(str(error) if expected else traceback.format_exc())
        raise SystemExit(1) from None
