"""What a finished, or interrupted, run gives back, and the command that goes on with it."""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """The outcome of a run; `eval_*` describe the final policy over `eval_returns`.

    They are None and empty if the final policy was not evaluated, whatever came before.
    """

    algo: str
    env_id: str
    seed: int
    status: str
    stop_reason: str | None
    global_step: int
    updates: int
    eval_return_mean: float | None
    eval_return_std: float | None
    eval_returns: tuple[float, ...]
    best_eval_return_mean: float | None
    metrics: dict[str, float]
    steps_per_second: float
    wall_time_s: float
    run_dir: Path
    checkpoint_path: Path | None

    def summary(self) -> dict[str, object]:
        """The run's summary.json."""
        plain = {name: value for name, value in vars(self).items() if name != "run_dir"}
        path = self.checkpoint_path
        return plain | {
            "eval_returns": list(self.eval_returns),
            "eval_episodes": len(self.eval_returns),
            "checkpoint_path": str(path.relative_to(self.run_dir)) if path else None,
        }


class TrainingInterrupted(KeyboardInterrupt):
    """A signal stopped the run after its checkpoint was saved; `result` describes it."""

    def __init__(self, result: TrainResult, signal_number: int) -> None:
        super().__init__(f"interrupted by signal {signal_number} at step {result.global_step}")
        self.result = result
        self.signal_number = signal_number


def command_line(*words: object) -> str:
    """A command of this package as it can be typed here: by the script's path if need be."""
    if shutil.which("rl-training"):
        program = ["rl-training"]
    elif Path(sys.argv[0]).name == "rl-training":
        program = [sys.argv[0]]
    else:
        program = [sys.executable, "-m", "rl_training"]
    return shlex.join([*program, *map(str, words)])
