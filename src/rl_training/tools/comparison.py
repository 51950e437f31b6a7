"""Statistical comparison of results, as numbers and a verdict; nothing here prints or draws.

Every result is compared with the first one of its task, which was chosen before the figures were
seen. Seeds without a final value are left out and named.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rl_training.errors import UsageError
from rl_training.experiment.statistics import (
    FEWEST_SEEDS,
    MAX_SEEDS_ADVISED,
    SIGNIFICANCE,
    Estimate,
    Tasks,
    bootstrap_interval,
    difference_of_interquartile_means,
    interquartile_mean,
    mann_whitney_p,
    median_steps,
    performance_profile,
    probability_of_improvement,
    seeds_to_tell_apart,
    steps_to_threshold,
    stratified_interquartile_mean,
)
from rl_training.tools.charts import Curve
from rl_training.tools.curves import MIN_SEEDS_OF_BAND
from rl_training.tools.results import RETURN, Results, shortened

EVERY_TASK = "all environments"
_NUMBER_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One result: the final values of its seeds, and when they reached the task's threshold.

    `failed` counts the seeds that failed, if a card defines failure. `steps` is the median over all
    seeds with a final value, infinite if half of them never reached the threshold; `reached` counts
    those that did.
    """

    name: str
    finals: tuple[float, ...]
    iqm: Estimate
    lowest: float
    failed: int | None
    left_out: tuple[str, ...]
    budget: int
    steps: Estimate
    reached: int


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A result compared with the first one, the `reference`.

    `difference` of interquartile means and `improvement`, the probability that a seed of `name` is
    better than one of the reference, favour `name` if they are above 0 and 0.5. `winner` is empty
    unless there are 4 seeds of each, the interval of `improvement` excludes 0.5 and the p-value is
    below 0.05. `seeds_needed` estimates how many would tell them apart; None if there is a winner,
    or if 1,000 are too few.
    """

    name: str
    reference: str
    difference: Estimate
    improvement: Estimate
    p_value: float
    winner: str
    seeds_needed: int | None
    sentence: str


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The share of seeds above each level, with its interval if there are 4 seeds or more.

    A level that occurs twice is where the share steps down.
    """

    name: str
    levels: tuple[float, ...]
    share: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def curve(self) -> Curve:
        """The profile as a curve of a chart."""
        return Curve(label=self.name, x=self.levels, y=self.share, low=self.low, high=self.high)


@dataclass(frozen=True, kw_only=True)
class TaskComparison:
    """Results on one task; `Row.steps` counts the steps until `threshold` was reached."""

    task: str
    threshold: float
    rows: tuple[Row, ...]
    pairs: tuple[Pair, ...]
    profiles: tuple[Profile, ...]


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """Results over all tasks, by scores: in each task 0 is the lowest final value of any seed of
    any result, and 1 the highest.

    `scores` are interquartile means over the seeds of all tasks.
    """

    names: tuple[str, ...]
    scores: tuple[Estimate, ...]
    pairs: tuple[Pair, ...]
    profiles: tuple[Profile, ...]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Everything `rl-training compare` shows; `notes` qualify its figures."""

    metric: str
    results: tuple[Results, ...]
    tasks: tuple[TaskComparison, ...]
    aggregate: Aggregate | None
    notes: tuple[str, ...]

    @property
    def sentences(self) -> tuple[str, ...]:
        """The verdict on each pair, with the task where there are several."""
        several = len(self.tasks) > 1
        found = [
            f"{task.task}: {pair.sentence}" if several else pair.sentence
            for task in self.tasks
            for pair in task.pairs
        ]
        overall = self.aggregate.pairs if self.aggregate else ()
        return (*found, *(f"over {EVERY_TASK}: {pair.sentence}" for pair in overall))


def compare(results: Sequence[Results], threshold: float | None = None) -> Comparison:
    """Compare results that were read together.

    The default threshold of a task is the lowest of the interquartile means, which all reach in the
    end.
    """
    by_task: dict[str, list[Results]] = {}
    for group in results:
        by_task.setdefault(group.task, []).append(group)
    _check_comparable(by_task)
    if threshold is not None and not math.isfinite(threshold):
        raise UsageError(f"--threshold: expected a finite number, found {threshold:g}")
    if threshold is not None and len(by_task) > 1:
        raise UsageError(
            f"--threshold: {threshold:g} cannot mean the same on {len(by_task)} environments: "
            "leave it out, or compare one environment at a time"
        )
    metric = results[0].metric
    tasks = tuple(_compare_task(task, groups, threshold) for task, groups in by_task.items())
    aggregate, reason = _aggregated(tasks, metric)
    notes = [note for groups in by_task.values() for note in _notes(groups)]
    return Comparison(
        metric=metric,
        results=tuple(results),
        tasks=tasks,
        aggregate=aggregate,
        notes=(*notes, *([reason] if reason else [])),
    )


def _check_comparable(by_task: dict[str, list[Results]]) -> None:
    empty = [group for groups in by_task.values() for group in groups if not group.finals]
    if empty:
        raise UsageError(
            f"{empty[0].label} has no finished seed with a final value "
            f"({shortened(empty[0].left_out)}): finish it with `rl-training resume` or the command "
            "that began it, or leave it out; `rl-training plot` shows what it has so far"
        )
    if all(len(groups) < 2 for groups in by_task.values()):
        found = "; ".join(f"{group[0].name} on {task}" for task, group in by_task.items())
        raise UsageError(f"expected at least two results on one environment, found {found}")


def _compare_task(task: str, groups: Sequence[Results], threshold: float | None) -> TaskComparison:
    means = [interquartile_mean(group.finals) for group in groups]
    level = min(means) if threshold is None else threshold
    finals = [[group.finals] for group in groups]
    names = [group.name for group in groups]
    return TaskComparison(
        task=task,
        threshold=level,
        rows=tuple(_row(group, level) for group in groups),
        pairs=_pairs(names, finals, groups[0].metric),
        profiles=_profiles(names, finals),
    )


def _row(group: Results, threshold: float) -> Row:
    finished = [seed for seed in group.seeds if seed.final is not None]
    reached = [steps_to_threshold(seed.steps, seed.values, threshold) for seed in finished]
    return Row(
        name=group.name,
        finals=group.finals,
        iqm=Estimate(interquartile_mean(group.finals), *bootstrap_interval(group.finals)),
        lowest=min(group.finals),
        failed=group.failed,
        left_out=group.left_out,
        budget=group.budget,
        steps=median_steps(reached),
        reached=sum(step is not None for step in reached),
    )


def _pairs(names: Sequence[str], values: Sequence[Tasks], metric: str) -> tuple[Pair, ...]:
    """Each result after the first, compared with it."""
    return tuple(
        _pair(name, names[0], tasks, values[0], metric)
        for name, tasks in zip(names[1:], values[1:], strict=True)
    )


def _pair(name: str, reference: str, first: Tasks, second: Tasks, metric: str) -> Pair:
    improvement = probability_of_improvement(first, second)
    p_value = mann_whitney_p(first, second)
    seeds = [[len(task) for task in side] for side in (first, second)]
    fewest = min(map(min, seeds))
    winner = ""
    if fewest >= FEWEST_SEEDS and p_value < SIGNIFICANCE and improvement.low > 0.5:
        winner = name
    elif fewest >= FEWEST_SEEDS and p_value < SIGNIFICANCE and improvement.high < 0.5:
        winner = reference
    needed = None if winner else seeds_to_tell_apart(first, second, more_than=fewest)
    pair = Pair(
        name=name,
        reference=reference,
        difference=difference_of_interquartile_means(first, second),
        improvement=improvement,
        p_value=p_value,
        winner=winner,
        seeds_needed=needed,
        sentence="",
    )
    sentence = _verdict(pair, metric) if winner else _undecided(pair, seeds)
    return replace(pair, sentence=sentence)


def _verdict(pair: Pair, metric: str) -> str:
    value, low, high = pair.improvement
    loser = pair.reference
    if pair.winner == pair.reference:
        value, low, high, loser = 1 - value, 1 - high, 1 - low, pair.name
    figures = f"{value:.2f} [{low:.2f}, {high:.2f}]"
    if metric == RETURN:
        return f"{pair.winner} is better than {loser}: probability of improvement {figures}"
    return f"{pair.winner} is higher than {loser} in {metric}: probability {figures}"


def p_value_text(p_value: float) -> str:
    """A p-value to two digits; one that is tiny has none."""
    return "< 0.001" if p_value < 0.001 else f"{p_value:.2g}"


def _undecided(pair: Pair, seeds: Sequence[Sequence[int]]) -> str:
    counts = sorted({count for side in seeds for count in side})
    in_words = counts[-1] < len(_NUMBER_WORDS)
    words = [_NUMBER_WORDS[n] if in_words else f"{n:,}" for n in counts]
    number = " to ".join(words[:: max(1, len(words) - 1)])
    verb = "seed does" if counts == [1] else "seeds do"
    too_few = counts[0] < FEWEST_SEEDS
    reason = f"fewer than {FEWEST_SEEDS}" if too_few else f"p = {p_value_text(pair.p_value)}"
    start = f"{number} {verb} not tell {pair.name} and {pair.reference} apart ({reason})"
    if pair.seeds_needed is None:
        return f"{start}; no number up to {MAX_SEEDS_ADVISED:,} would if these are typical"
    return f"{start}; about {pair.seeds_needed:,}{' each' if len(counts) > 1 else ''} would"


def _profiles(names: Sequence[str], values: Sequence[Tasks]) -> tuple[Profile, ...]:
    """Step functions, falling at every final value, as their corners."""
    every = np.unique(np.concatenate([task for tasks in values for task in tasks]))
    margin = 0.05 * float(every[-1] - every[0]) or 1.0
    levels = np.concatenate([[every[0] - margin], every])
    profiles = []
    for name, tasks in zip(names, values, strict=True):
        shares = np.repeat(performance_profile(tasks, levels), 2, axis=1)[:, :-1]
        share, low, high = (tuple(row.tolist()) for row in shares)
        banded = min(map(len, tasks)) >= MIN_SEEDS_OF_BAND
        profiles.append(
            Profile(
                name=name,
                levels=tuple(np.repeat(levels, 2)[1:].tolist()),
                share=share,
                low=low if banded else (),
                high=high if banded else (),
            )
        )
    return tuple(profiles)


def _aggregated(tasks: Sequence[TaskComparison], metric: str) -> tuple[Aggregate | None, str]:
    """The figures over all tasks, or the reason why there are none."""
    if len(tasks) == 1:
        return None, ""
    names = [row.name for row in tasks[0].rows]
    rows = [{row.name: row for row in task.rows} for task in tasks]
    if any(sorted(found) != sorted(names) for found in rows):
        found = "; ".join(f"{', '.join(row.name for row in t.rows)} on {t.task}" for t in tasks)
        return None, (
            f"no figures over {EVERY_TASK}: that needs the same names on each, found {found}"
        )
    uneven = [name for name in names if len({len(row[name].finals) for row in rows}) > 1]
    if uneven:
        return None, (
            f"no figures over {EVERY_TASK}: that needs as many seeds of {uneven[0]} on each, found "
            f"{', '.join(str(len(row[uneven[0]].finals)) for row in rows)}"
        )
    scales = [_scale(task) for task in tasks]
    scores = [
        [
            (np.asarray(row[name].finals) - low) / span
            for row, (low, span) in zip(rows, scales, strict=True)
        ]
        for name in names
    ]
    aggregate = Aggregate(
        names=tuple(names),
        scores=tuple(map(stratified_interquartile_mean, scores)),
        pairs=_pairs(names, scores, metric),
        profiles=_profiles(names, scores),
    )
    return aggregate, ""


def _scale(task: TaskComparison) -> tuple[float, float]:
    """The lowest final value of any seed, and the distance to the highest; 1 if all are equal."""
    every = [value for row in task.rows for value in row.finals]
    return min(every), (max(every) - min(every)) or 1.0


def _notes(groups: Sequence[Results]) -> list[str]:
    notes = [
        f"{group.label}: {shortened(group.left_out)}, left out"
        for group in groups
        if group.left_out
    ]
    if len({group.budget for group in groups}) > 1:
        budgets = "; ".join(f"{group.label} {group.budget:,}" for group in groups)
        notes.append(f"the final values are after different numbers of steps: {budgets}")
    few = [group.label for group in groups if len(group.finals) < MIN_SEEDS_OF_BAND]
    if few:
        notes.append(
            f"fewer than {MIN_SEEDS_OF_BAND} seeds of {' and '.join(few)}: their intervals say "
            "little"
        )
    return notes
