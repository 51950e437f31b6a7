"""A figure for each task: the learning curves of all cards on it, made from the cards alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rl_training.storage.runs import slug
from rl_training.tools.charts import Chart
from rl_training.tools.curves import chart_of
from rl_training.tools.evidence.card import Card, write_with_parents
from rl_training.tools.evidence.plot import DRAWING
from rl_training.tools.plotting import (
    draw_chart,
    draw_note,
    new_figure,
    package_style,
    picture,
    require_matplotlib,
)
from rl_training.tools.results import Results, labelled, results_of_card

COMPARABLE = 4
"""Budgets of which none is more than this many times another share a panel."""

_WIDTH_OF_PANEL, _HEIGHT = 6.5, 5.0


@dataclass(frozen=True)
class TaskFigure:
    """The cards on one task, by their panels; `mark` tells what was drawn."""

    task: str
    charts: tuple[Chart, ...]
    mark: str

    @property
    def file_name(self) -> str:
        """Such as `CartPole-v1-with-MaskVelocity.png`."""
        return f"{slug(self.task)}.png"


def task_figures(cards: Mapping[str, Card]) -> list[TaskFigure]:
    """A figure for every task with two cards or more, by name; a panel for comparable budgets."""
    results = labelled([results_of_card(Path(name), card) for name, card in cards.items()])
    figures = []
    for task in sorted({group.task for group in results}):
        members = [group for group in results if group.task == task]
        if len(members) > 1:
            panels = _by_budget(members)
            digests = "".join(cards[group.path.as_posix()].digest for group in members)
            mark = f"{hashlib.sha256(digests.encode()).hexdigest()} drawing {DRAWING}"
            figures.append(TaskFigure(task, tuple(map(_panel, panels)), mark))
    return figures


def draw_task(figure: TaskFigure, path: Path) -> None:
    """Write the figure; the same cards give the same bytes with the same matplotlib."""
    require_matplotlib()
    count = len(figure.charts)
    with package_style():
        canvas = new_figure(_WIDTH_OF_PANEL * count if count > 1 else 9.0, _HEIGHT)
        panels = canvas.subplots(1, count, squeeze=False, sharey=True)[0]
        colours = 0
        for axes, chart in zip(panels, figure.charts, strict=True):
            draw_chart(axes, chart, first_colour=colours)
            colours += len(chart.curves)
        for axes in panels[1:]:
            axes.set_ylabel("")
        canvas.suptitle(figure.task, fontsize=14, parse_math=False)
        draw_note(canvas, _longest(chart.note for chart in figure.charts))
        content = picture(canvas, "png", {"Cards": figure.mark})
    write_with_parents(path, content)


def is_task_drawn(figure: TaskFigure, path: Path) -> bool:
    """Whether the file is the figure of these very cards, drawn as it is drawn now."""
    return path.is_file() and figure.mark.encode() in path.read_bytes()


def _by_budget(results: Sequence[Results]) -> list[list[Results]]:
    """The results by budget, in groups of comparable ones."""
    groups: list[list[Results]] = []
    for group in sorted(results, key=lambda group: group.budget):
        if groups and group.budget <= COMPARABLE * groups[-1][0].budget:
            groups[-1].append(group)
        else:
            groups.append([group])
    return groups


def _panel(results: Sequence[Results]) -> Chart:
    steps = max(group.budget for group in results)
    return chart_of(results, title=f"up to {steps:,} steps")


def _longest(notes: Iterable[str]) -> str:
    return max(notes, key=len)
