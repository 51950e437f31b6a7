"""Progress of many seeds: one live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table

from rl_training.experiment.result import SeedProgress

PLAIN_LINES = 10  # of each seed, where there is no terminal


class SeedTable:
    """Shows what an experiment's manager reports, and how far its seeds have come."""

    def __init__(self, total_timesteps: int, console: Console | None = None) -> None:
        self._total = total_timesteps
        self._console = console or Console()
        self._live: Live | None = None
        self._lines: dict[int, int] = {}  # of each seed, how many tenths have had a line

    def __enter__(self) -> SeedTable:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.update("")  # the table of results takes its place
            live.stop()

    def say(self, text: str) -> None:
        """A line, above the table if there is one."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, seeds: Sequence[SeedProgress]) -> None:
        """How far the seeds have come."""
        if self._live is not None:
            self._live.update(self._table(seeds), refresh=True)
            return
        for seed in seeds:
            tenth = PLAIN_LINES * seed.env_steps // self._total
            if seed.status == "running" and tenth > self._lines.get(seed.seed, 0):
                self._lines[seed.seed] = tenth
                returns = (("training", seed.train_return), ("evaluation", seed.eval_return))
                words = [f"{name} {value:.1f}" for name, value in returns if value is not None]
                where = f"step {seed.env_steps:,} of {self._total:,}"
                self.say(f"seed {seed.seed}: {', '.join([where, *words])}")

    def _table(self, seeds: Sequence[SeedProgress]) -> Table:
        table = Table("seed", "status", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for column in ("steps", "done", "training", "evaluation"):
            table.add_column(column, justify="right")
        for seed in seeds:
            returns = (
                "-" if x is None else f"{x:.1f}" for x in (seed.train_return, seed.eval_return)
            )
            done = f"{min(1.0, seed.env_steps / self._total):.0%}"
            table.add_row(str(seed.seed), seed.status, f"{seed.env_steps:,}", done, *returns)
        return table
