"""The progress of many seeds: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from rl_training.experiment.result import SeedProgress
from rl_training.tools.seed_progress import SeedTable

ROWS = (
    SeedProgress(0, "running", 250, train_return=21.25, eval_return=None),
    SeedProgress(1, "finished", 1_000, eval_return=500.0),
    SeedProgress(2, "waiting"),
)


def test_a_terminal_shows_one_table_and_lines_above_it() -> None:
    screen = StringIO()
    console = Console(force_terminal=True, file=screen, width=80, color_system=None)
    with SeedTable(1_000, console) as table:
        table.show(ROWS)
        table.say("seed 1: finished")
        assert "seed 1: finished" in screen.getvalue()
    drawn = screen.getvalue()
    assert "0     running     250   25%      21.2           -" in drawn
    assert "1     finished  1,000  100%         -       500.0" in drawn
    assert "2     waiting       0    0%         -           -" in drawn
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("\x1b[?25l")  # the cursor is shown again


def test_elsewhere_a_line_says_when_a_seed_has_passed_another_tenth() -> None:
    screen = StringIO()
    with SeedTable(1_000, Console(file=screen)) as table:
        for steps in (0, 99, 100, 150, 250, 299, 1_000):
            table.show([ROWS[0]._replace(env_steps=steps), *ROWS[1:]])
    assert screen.getvalue().splitlines() == [
        f"seed 0: step {steps} of 1,000, training 21.2" for steps in ("100", "250", "1,000")
    ]
