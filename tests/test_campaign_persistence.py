"""The short part of three campaigns: kill -9, errors of the file system, signals."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from campaign import io_errors, kills, signals


@pytest.fixture(scope="module")
def clean() -> dict[str, Any]:
    """A run without errors."""
    return io_errors.outcome(None)


@pytest.mark.parametrize(
    ("kind", "at", "late"),
    [("EIO", 28, False), ("ESTALE", 93, True), ("ENOSPC", 5, False), ("EACCES", 140, False)],
)
def test_a_run_survives_what_passes_and_reports_what_stays(
    clean: dict[str, Any], kind: str, at: int, late: bool
) -> None:
    assert list(io_errors.violations(clean, at, kind, late)) == []


@pytest.mark.parametrize(("kind", "at"), [("EDQUOT", 30), ("EROFS", 100)])
def test_with_warn_a_run_goes_on_to_the_same_end(clean: dict[str, Any], kind: str, at: int) -> None:
    assert at in io_errors.periodic_calls(clean)
    assert list(io_errors.warned(clean, at, kind)) == []


def test_without_retries_the_campaign_finds_that_runs_fail() -> None:
    assert io_errors.control() == 3


def test_a_signal_at_any_moment_saves_and_a_second_ends_it_at_once() -> None:
    end, seconds = signals.straight()
    for share, number in ((0.05, signal.SIGHUP), (0.5, signal.SIGUSR1), (0.8, signal.SIGINT)):
        assert list(signals.trial(number, share * seconds, end)) == []
    assert list(signals.second_signal(signal.SIGUSR2, 0.4 * seconds)) == []
    assert list(signals.trial(signal.SIGTERM, 0.3 * seconds, end, deaf=True)) != []


@pytest.fixture(scope="module")
def dqn_straight() -> kills.Straight:
    """A DQN run that is not killed."""
    return kills.straight("dqn")


def test_runs_that_are_killed_end_as_if_they_had_not_been(dqn_straight: kills.Straight) -> None:
    for algo, clean in (("dqn", dqn_straight), ("ppo", kills.straight("ppo"))):
        killed, found, _ = kills.campaign(algo, clean, count=4)
        assert killed == {kills.MOMENT: 2, kills.SAVE: 2}
        assert found == []


def test_kills_find_a_writer_in_place_and_a_forgetful_resume(dqn_straight: kills.Straight) -> None:
    assert kills.control(dqn_straight) == 2
