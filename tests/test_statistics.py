"""Statistics that compare algorithms over seeds and tasks, by worked examples and by SciPy."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from scipy import stats

from rl_training.experiment.statistics import (
    bootstrap_interval,
    bootstrap_intervals,
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

EXACT = 1e-9


def close(value: float) -> object:
    return pytest.approx(value, rel=0, abs=EXACT)


def test_equal_values_count_half_in_the_probability_of_improvement() -> None:
    # 3: none. 5: better than 4, equal to 5. 7: better than both. 3.5 of 6 pairs.
    assert probability_of_improvement([[3, 5, 7]], [[4, 5]]).value == close(3.5 / 6)
    assert probability_of_improvement([[4, 5]], [[3, 5, 7]]).value == close(2.5 / 6)


def test_the_probability_over_tasks_is_the_mean_of_the_tasks() -> None:
    first, second = [[3, 5, 7], [1, 2]], [[4, 5], [3, 3, 3]]
    assert probability_of_improvement(first, second).value == close((3.5 / 6 + 0) / 2)


def test_the_interval_of_a_probability_is_that_of_its_resamples() -> None:
    # Of 1 against 0 and 2, a resample has two 0s, one of each or two 2s: 1, 0.5 or 0, and the
    # outer ones come up in a quarter of all resamples each.
    assert probability_of_improvement([[1.0]], [[0.0, 2.0]]) == (0.5, 0.0, 1.0)


def test_the_difference_is_that_of_the_means_of_the_middle_halves() -> None:
    # (2 + 3) / 2 - (1 + 2) / 2: one value is cut from each end of four.
    found = difference_of_interquartile_means([[1, 2, 3, 10]], [[0, 1, 2, 30]])
    assert found.value == close(1.0)
    assert found.low < found.value < found.high
    assert difference_of_interquartile_means([[5.0] * 4], [[2.0] * 4]) == (3.0, 3.0, 3.0)


def test_the_difference_of_two_and_one_is_bounded_by_what_can_be_drawn() -> None:
    # The mean of two draws from 0 and 1 is 0, 0.5 or 1; minus 0.25.
    assert difference_of_interquartile_means([[0, 1]], [[0.25]]) == (0.25, -0.25, 0.75)


def test_the_stratified_bootstrap_draws_the_seeds_of_each_task() -> None:
    # Of 0, 1, 5, 5 the middle half is 1 and 5. A resample has 5 and 5 of the first task, and of
    # the second max(x, y) = 0 in a quarter of all: (0 + 5) / 2, else (1 + 5) / 2. Drawn from all
    # four together it could be 0 or 5 as well.
    assert stratified_interquartile_mean([[5, 5], [0, 1]]) == (3.0, 2.5, 3.0)


def test_one_task_gives_the_plain_bootstrap() -> None:
    values = [3.0, 1.0, 4.0, 1.5, 9.0]
    found = stratified_interquartile_mean([values])
    assert (found.low, found.high) == bootstrap_interval(values)
    assert found.value == interquartile_mean(values) == close((1.5 + 3 + 4) / 3)


def test_each_row_has_the_interval_it_has_alone() -> None:
    rows = np.array([[3.0, 1.0, 4.0, 1.5], [0.0, 0.0, 2.0, 7.0]])
    low, high = bootstrap_intervals(rows, resamples=10_000)
    for row, interval in zip(rows, zip(low, high, strict=True), strict=True):
        assert interval == bootstrap_interval(row)


def test_the_p_value_of_a_small_example() -> None:
    # U = 9 of 9, its mean 4.5 and variance 3 * 3 * 7 / 12; half a unit for continuity.
    z = (9 - 4.5 - 0.5) / math.sqrt(5.25)
    assert mann_whitney_p([[4, 5, 6]], [[1, 2, 3]]) == close(2 * NormalDist().cdf(-z))
    # Three 1s and two 3s are tied: the variance is 9 / 12 * (7 - (24 + 6) / (6 * 5)) = 4.5, and
    # U = 0.5 + 0.5 + 1 = 2.
    z = (4.5 - 2 - 0.5) / math.sqrt(4.5)
    assert mann_whitney_p([[1, 1, 2]], [[1, 3, 3]]) == close(2 * NormalDist().cdf(-z))
    assert mann_whitney_p([[1, 1]], [[1, 1, 1]]) == 1.0


def test_the_p_value_over_tasks_adds_what_the_tasks_say() -> None:
    # Twice the same task: twice the excess, correction and variance.
    z = 2 * (1 - 0.5 - 0.5 / 9) / math.sqrt(2 * 7 / (12 * 9))
    found = mann_whitney_p([[4, 5, 6]] * 2, [[1, 2, 3]] * 2)
    assert found == close(2 * NormalDist().cdf(-z))


def test_the_profile_is_the_share_above_each_threshold() -> None:
    share, low, high = performance_profile([[1, 2, 3, 4]], [0, 1, 2.5, 4])
    assert share.tolist() == [1.0, 0.75, 0.5, 0.0]
    assert (low <= share).all()
    assert (share <= high).all()
    assert performance_profile([[1, 2, 3, 4], [3, 3]], [2.5])[0].tolist() == [0.75]


def test_a_threshold_is_reached_at_the_first_measurement_that_is_no_lower() -> None:
    steps, values = [100, 200, 300, 400], [1.0, 5.0, 4.0, 6.0]
    assert steps_to_threshold(steps, values, 5.0) == 200
    assert steps_to_threshold(steps, values, 5.5) == 400
    assert steps_to_threshold(steps, values, 7.0) is None


def test_seeds_that_never_reach_a_threshold_count_as_later_than_all_others() -> None:
    assert median_steps([10, 20, None, None, 30]) == (30.0, 10.0, math.inf)
    assert median_steps([10, None]).value == math.inf
    assert median_steps([10, 20]).value == close(15.0)
    assert median_steps([None, None]) == (math.inf, math.inf, math.inf)


def test_few_seeds_suffice_for_what_never_overlaps_and_none_for_what_is_the_same() -> None:
    assert seeds_to_tell_apart([[4.0, 5.0, 6.0]], [[1.0, 2.0, 3.0]]) == 4
    assert seeds_to_tell_apart([[1.0, 2.0]], [[1.0, 2.0]]) is None
    assert seeds_to_tell_apart([[1.0, 2.0]], [[2.0, 1.0, 1.0, 2.0]]) is None


def test_the_number_of_seeds_is_near_what_the_normal_approximation_says() -> None:
    # P = 0.76. Noether (1987): N = (z_0.975 + z_0.8)² / (12 * 1/4 * (P - 1/2)²) for both = 38.7,
    # 19.4 each.
    first, second = [[3.0, 5.0, 7.0, 9.0, 11.0]], [[1.0, 4.0, 6.0, 8.0, 2.0]]
    assert probability_of_improvement(first, second).value == close(0.76)
    needed = seeds_to_tell_apart(first, second)
    assert needed is not None
    assert abs(needed - 19.4) < 4
    assert seeds_to_tell_apart(second, first) == needed
    assert seeds_to_tell_apart(first, second, more_than=30) == 31


@pytest.mark.parametrize("ties", [False, True])
def test_the_statistics_are_those_of_scipy(ties: bool) -> None:
    rng = np.random.default_rng(5)
    for n, m in ((4, 4), (5, 9), (30, 7)):
        first, second = rng.normal(0.3, 1, n), rng.normal(0, 1, m)
        if ties:
            first, second = first.round(), second.round()
        theirs = stats.mannwhitneyu(first, second, method="asymptotic")
        ours = probability_of_improvement([first], [second]).value
        assert ours == close(theirs.statistic / (n * m))
        assert mann_whitney_p([first], [second]) == close(theirs.pvalue)
        assert interquartile_mean(first) == close(stats.trim_mean(first, 0.25))
