"""Progress on the console: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from rl_training.data.memory import format_bytes, format_duration
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.evaluator import Evaluation
from rl_training.runtime.result import TrainResult

if TYPE_CHECKING:
    from rl_training.runtime.training_run import TrainingRun

REFRESH_SECONDS = 0.2
PLAIN_LINES = 10  # lines over a whole run where there is no terminal
CURVE_WIDTH = 16  # evaluations in the curve beside the bar
_HEIGHTS = "▁▂▃▄▅▆▇█"


class ConsoleProgress(Callback):
    """Shows steps, speed, time left, and returns: of the last 100 episodes of training, and of the
    evaluations the last, the best and the curve.
    """

    def __init__(self, console: Console | None = None, *, introduced: bool = False) -> None:
        self.console = console or Console(stderr=True)
        self._introduced = introduced  # the first line has been printed before torch was imported
        self._evaluated: list[float] = []
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._next_refresh = 0.0
        self._next_line = 0.0

    def on_start(self, run: TrainingRun) -> None:
        """Say what the run is, what it takes and how it can be resumed."""
        say = self._say
        config = run.config
        if not self._introduced:
            say(f"{run.agent.spec.name} on {run.agent.adapter.spec.env_id}, seed {config.seed}")
        say(f"run directory: {run.directory}")
        say(f"{run.buffer.memory_name}: {format_bytes(run.buffer.nbytes)} in host memory")
        if run.level == "exact":  # a lower level was logged as a warning, with its reason
            say("resume level: exact")
        for line in run.start.lines() if run.start is not None else ():
            say(line)
        if run.env_steps:
            say(f"resumed at step {run.env_steps:,}")
        self._next_line = run.env_steps + run.progress.horizon / PLAIN_LINES
        if self.console.is_terminal:
            count = 2 * len(str(run.progress.horizon)) + 1
            self._bar = Progress(
                BarColumn(bar_width=None),
                MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=count)),
                TextColumn("{task.fields[speed]:,.0f} steps/s"),
                TimeRemainingColumn(table_column=Column(no_wrap=True, min_width=7)),
                TextColumn("{task.fields[returns]}"),
                console=self.console,
            )
            self._task = self._bar.add_task(
                "", total=run.progress.horizon, completed=run.env_steps, **self._fields(run)
            )
            self._bar.start()

    def on_step(self, run: TrainingRun) -> None:
        """Refresh the bar a few times a second; without a terminal, print ten lines in all."""
        if self._bar is not None:
            now = time.monotonic()
            if now >= self._next_refresh:
                self._next_refresh = now + REFRESH_SECONDS
                self._show(run, run.env_steps)
        elif run.env_steps >= self._next_line:
            self._next_line = run.env_steps + run.progress.horizon / PLAIN_LINES
            fields = self._fields(run)
            left = (run.progress.horizon - run.env_steps) / max(fields["speed"], 1e-9)
            self._say(
                f"step {run.env_steps:,} of {run.progress.horizon:,}, "
                f"{fields['speed']:,.0f} steps/s, {format_duration(left)} left, {fields['returns']}"
            )

    def on_evaluation_start(self, run: TrainingRun) -> None:
        """Say why the bar stands still."""
        self._show(run, run.env_steps, evaluating=True)

    def on_evaluation(self, run: TrainingRun, evaluation: Evaluation) -> None:
        """Show the result without waiting for the next refresh."""
        self._next_refresh = 0.0
        self._evaluated.append(evaluation.first(run.config.eval_episodes).mean)
        if self._bar is None:
            self._say(
                f"step {run.env_steps:,}: evaluation return {evaluation.mean:.1f} "
                f"± {evaluation.std:.1f} over {len(evaluation.returns)} episodes"
            )

    def on_checkpoint(self, run: TrainingRun, path: Path) -> None:
        """Print the path only if a signal asked for the checkpoint."""
        if run.interrupts.received:
            self._say(f"saved {path}")

    def on_end(self, run: TrainingRun, result: TrainResult) -> None:
        """Stop the bar where the run ended."""
        self._show(run, result.global_step)
        self.close()

    def close(self) -> None:
        """Release the terminal, also after an error."""
        bar, self._bar = self._bar, None
        if bar is not None:
            with suppress(OSError):
                bar.stop()

    def _show(self, run: TrainingRun, env_steps: int, *, evaluating: bool = False) -> None:
        if self._bar is not None:
            fields = self._fields(run)
            if evaluating:
                fields["returns"] = f"evaluating, {fields['returns']}"
            try:
                self._bar.update(self._task, completed=env_steps, refresh=evaluating, **fields)
            except OSError:  # the terminal was closed
                self.close()

    def _fields(self, run: TrainingRun) -> dict[str, Any]:
        last, best, episodes = run.last_evaluation, run.best_return, run.collector.episodes
        recent = [episode.episode_return for episode in episodes]
        returns = f"training {sum(recent) / len(recent):.1f}, " if recent else ""
        evaluated = None if last is None else last.first(run.config.eval_episodes).mean
        returns += "no evaluation yet" if evaluated is None else f"evaluation {evaluated:.1f}"
        if best is not None:
            returns += f", best {best:.1f}"
        if self._bar is not None and len(self._evaluated) > 1 and self.console.encoding == "utf-8":
            returns += f" {sparkline(self._evaluated[-CURVE_WIDTH:])}"
        return {"speed": run.steps_per_second, "returns": returns}

    def _say(self, text: str) -> None:
        try:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)
        except OSError:  # the terminal was closed; the run goes on, or saves and ends
            self.console = Console(quiet=True)


def sparkline(values: Sequence[float]) -> str:
    """A curve of one character per value, from the lowest to the highest of them."""
    low, high = min(values), max(values)
    spread, steps = high - low, len(_HEIGHTS) - 1
    if not 0 < spread < math.inf:
        return _HEIGHTS[steps // 2] * len(values)
    return "".join(_HEIGHTS[round((value - low) / spread * steps)] for value in values)
