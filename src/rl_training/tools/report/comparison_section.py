"""How far configurations differ, as a part of a page: sentences, a table, performance profiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rl_training.errors import UsageError
from rl_training.experiment.statistics import Estimate
from rl_training.tools.charts import Chart
from rl_training.tools.comparison import (
    EVERY_TASK,
    Comparison,
    Pair,
    Profile,
    compare,
    p_value_text,
)
from rl_training.tools.markup import Markup, element
from rl_training.tools.report.page import (
    SMALL,
    Cell,
    format_return,
    grid,
    section,
    small_figure,
    table,
)
from rl_training.tools.results import Results
from rl_training.tools.svg import draw_chart


def results_section(results: Sequence[Results], figures: Markup) -> Markup:
    """What a comparison of the results says around a table of their figures."""
    if len({group.task for group in results}) == len(results):
        return section("Results", figures)
    try:
        comparison = compare(results)
    except UsageError as error:
        reason = element("p", f"Not yet to be compared: {error}", class_="soft")
        return section("Results", figures, reason)
    names = tuple(group.name for group in results)

    def sentence(text: str) -> str:
        return f"{text if text.startswith(names) else text[:1].upper() + text[1:]}."

    lead = [element("p", sentence(text), class_="lead") for text in comparison.sentences]
    notes = [element("p", sentence(text), class_="soft") for text in comparison.notes]
    drawn = grid(_profiles(comparison))
    return section("Results", *lead, figures, _pairs_table(comparison), drawn, *notes)


def _pairs_table(comparison: Comparison) -> Markup:
    head = ["compared", "task", "difference of interquartile means", "probability of improvement"]
    pairs = [(task.task, pair) for task in comparison.tasks for pair in task.pairs]
    if comparison.aggregate is not None:
        pairs += [(EVERY_TASK, pair) for pair in comparison.aggregate.pairs]
    return table([*head, "p-value"], [_pair_row(task, pair) for task, pair in pairs], numeric=2)


def _pair_row(task: str, pair: Pair) -> list[Cell | str]:
    improvement = pair.improvement
    chance = f"{improvement.value:.2f} [{improvement.low:.2f}, {improvement.high:.2f}]"
    return [
        f"{pair.name} over {pair.reference}",
        task,
        Cell(_estimate(pair.difference), pair.difference.value),
        Cell(chance, improvement.value),
        Cell(p_value_text(pair.p_value), pair.p_value),
    ]


def _estimate(figure: Estimate) -> str:
    value, low, high = map(format_return, figure)
    return f"{value} [{low}, {high}]"


def _profiles(comparison: Comparison) -> Iterator[Markup]:
    """Of each task, and of all together, the share of seeds above each level."""
    several = len(comparison.tasks) > 1
    for task in comparison.tasks:
        if len(task.profiles) > 1:
            yield _profile("return", task.profiles, f", {task.task}" if several else "")
    if comparison.aggregate is not None:
        yield _profile("score", comparison.aggregate.profiles, f", {EVERY_TASK}")


def _profile(what: str, profiles: Sequence[Profile], where: str) -> Markup:
    curves = tuple(profile.curve for profile in profiles)
    caption = f"share of seeds above each {what}{where}"
    chart = Chart(title=caption, x_label="", y_label="", curves=curves)
    width, height = SMALL
    drawing = draw_chart(chart, width=width, height=height + 40, max_points=110, from_zero=False)
    return small_figure(caption, drawing)
