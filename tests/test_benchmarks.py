"""The benchmarks: arithmetic by hand, tables from canned figures, and one real process of ours."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import benchmarks.__main__ as commands
from benchmarks import peers, replay_memory, runner
from benchmarks.__main__ import main
from benchmarks.compare import HERE, THERE, checkout_of, comparison_table
from benchmarks.custom import CustomLoss, network, ours, variants
from benchmarks.libraries.ours import settings
from benchmarks.limits import (
    dqn_flops,
    drq_flops,
    drqn_flops,
    limit_rate,
    ppo_flops,
    product,
    recurrent_ppo_flops,
    sac_flops,
    weights,
)
from benchmarks.parts import PARTS
from benchmarks.peers import LIBRARIES, OURS, PEERS, REQUIREMENTS, Library
from benchmarks.pictures import draw_scaling, draw_speeds
from benchmarks.probe import NotOffered, Probe
from benchmarks.probe import main as run_library
from benchmarks.runner import check_record, measure, measure_all, parse_record, pin, run_json
from benchmarks.scaling import ALONG, BASES, point
from benchmarks.summary import (
    BY_HAND,
    PACKAGED,
    Spread,
    fastest_peer,
    markdown_tables,
    parts_table,
    speed_table,
    summarise,
)
from benchmarks.workloads import (
    W1,
    W1B,
    W2,
    W3,
    W4,
    W5,
    W6,
    W7,
    W8,
    W9,
    WORKLOADS,
    BenchmarkError,
    chosen,
    from_plain,
)
from rl_training.algorithms import DQN
from rl_training.fast.autograd import BlockForward


def run_of(library: str, number: int, transitions: int, wall: float, cpu: float) -> dict[str, Any]:
    return {
        "library": library,
        "workload": "W1",
        "round": number,
        "transitions": transitions,
        "reset_rows": 0,
        "updates": transitions // 4,
        "wall_s": wall,
        "cpu_s": cpu,
        "start_to_first_update_s": 2.0 + number,
        "peak_rss_mb": 250.0,
    }


@pytest.fixture
def results() -> dict[str, Any]:
    """Ours at 1000, 1200 and 1400 per second; SB3 at 500, 500 and 1000; SBX failed once."""
    limits = {"env_steps_per_s": {"CartPole-v1": 50_000.0}, "gflops": {"128 x 256": 80.0}}
    return {
        "date": "2026-01-02T03:04:05+00:00",
        "command": "python -m benchmarks --workloads W1",
        "git_commit": "0123456789abcdef",
        "git_dirty": False,
        "machine": {"cpu": "A Processor", "cores": 2},
        "load_average": 0.7,
        "rounds": 3,
        "complete": True,
        "workloads": {"W1": W1.to_plain()},
        "limits": [limits] * 3,
        "versions": {"ours": {"rl-training": "0.1"}, "sb3": {"stable-baselines3": "2.9"}},
        "runs": [
            run_of("ours", 0, 1000, 1.0, 1.0),
            run_of("ours", 1, 1200, 1.0, 1.0),
            run_of("ours", 2, 1400, 1.0, 0.5),
            run_of("sb3", 0, 1000, 2.0, 1.0),
            run_of("sb3", 1, 1000, 2.0, 2.0),
            run_of("sb3", 2, 1000, 1.0, 1.0),
            {"library": "sbx", "workload": "W1", "round": 0, "error": "it broke"},
        ],
    }


# Workloads.


@pytest.mark.parametrize(
    ("workload", "cycle", "warm_up", "timed"),
    [
        (W1, (4, 1), 250, 2500),
        (W1B, (1, 1), 1000, 10_000),
        (W2, (4, 1), 250, 2500),
        (W3, (1, 1), 200, 1500),
        (W5, (1, 20), 200, 1000),
        (W6, (4, 1), 250, 500),
        (W7, (1, 1), 4, 25),
        (W8, (1024, 16), 32, 960),
        (W9, (1024, 16), 32, 320),
        (replace(W1, num_envs=8), (8, 2), 250, 2500),
        (replace(W1, num_envs=6), (12, 3), 249, 2499),
        (replace(W8, batch_size=300), (1024, 16), 32, 960),
    ],
)
def test_updates_owed(workload: Any, cycle: tuple[int, int], warm_up: int, timed: int) -> None:
    assert workload.cycle == cycle
    assert workload.warm_up_updates == warm_up
    assert workload.timed_updates == timed


def test_epsilon_has_fallen_when_the_clock_starts() -> None:
    assert W1.budget == 2_000 + 10_000 + 2_500
    assert W1.epsilon_fraction * W1.budget == pytest.approx(2_000)


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=lambda w: w.name)
def test_a_workload_survives_json(workload: Any) -> None:
    assert from_plain(json.loads(json.dumps(workload.to_plain()))) == workload


def test_scaling_a_workload_changes_its_length_alone() -> None:
    assert W1.scaled(0.1) == replace(W1, timed=1000)


def test_points_of_the_scaling_curves_are_whole_cycles() -> None:
    for base in BASES:
        for along, (_, values) in ALONG.items():
            for value in values:
                workload = point(base, along, value, seconds=4.0)
                assert workload.timed % workload.cycle[0] == 0
                assert workload.warm_up_updates >= 1
    assert point(W1, "network width", 32, 4.0).hidden == (32, 32)
    assert point(W8, "environments", 64, 4.0).num_envs == 64


# Limits.


def test_matrix_products_are_those_counted_by_hand() -> None:
    assert weights(4, 256, 256, 2) == 1024 + 65_536 + 512
    # Acting 2 x 67,072; an update 2 x 128 x (4 x 67,072 - 1,024), a quarter per transition.
    assert dqn_flops(W1) == 134_144 + 68_419_584 / 4
    # 51 quantiles of 2 actions: 256 x 102 = 26,112 weights in the last layer, 92,672 in all.
    assert dqn_flops(W2) == 2 * 92_672 + 2 * 128 * (4 * 92_672 - 1_024) / 4
    # Policy 4,480 and value 4,416 weights, 512 of them in first layers; 4 epochs.
    assert ppo_flops(W8) == 2 * 8_896 + 8 * (3 * 8_896 - 512)


def test_matrix_products_of_recurrent_networks_are_those_counted_by_hand() -> None:
    # 4 x 128 before the LSTM, 4 gates x 128 x (128 + 128) in it, 128 x 2 after it: 131,840. Of 32
    # sequences: 17 rows forward in the target, 16 forward and twice back in the online network.
    assert drqn_flops(W6) == 2 * 131_840 + 2 * 32 * (65 * 131_840 - 16 * 512) / 4
    # 4 x 64, then 4 x 128 x (64 + 128), then 128 x 2 and 128 x 1: 98,944.
    assert recurrent_ppo_flops(W9) == 2 * 98_944 + 8 * (3 * 98_944 - 256)


def test_matrix_products_of_actors_and_critics_are_those_counted_by_hand() -> None:
    # Actor 3 x 256 + 256 x 256 + 256 x 2 = 66,816; a critic 4 x 256 + 256 x 256 + 256 = 66,816, of
    # them 1,024 in the first layer and 768 of these for the observation.
    critics_step = 66_816 + 2 * 66_816 + 2 * (3 * 66_816 - 1_024)
    actor_step = 3 * 66_816 - 768 + 2 * (2 * 66_816 - 768)
    assert sac_flops(W3) == 2 * 66_816 + 512 * (critics_step + actor_step)
    # Ten critics, of which targets ask two, and the actor once in the twenty updates of a step.
    critics_step = 66_816 + 2 * 66_816 + 10 * (3 * 66_816 - 1_024)
    actor_step = 3 * 66_816 - 768 + 10 * (2 * 66_816 - 768)
    assert sac_flops(W5) == 2 * 66_816 + 512 * (20 * critics_step + actor_step)
    # 25 quantiles in place of one number: 24 x 256 weights more.
    assert sac_flops(W4) - sac_flops(W3) == 512 * (2 + 6 + 4) * 24 * 256


def test_matrix_products_of_convolutions_are_those_counted_by_hand() -> None:
    # 84, 20, 9 and 7 pixels a side; 9 x 8 x 8, 32 x 4 x 4 and 64 x 3 x 3 numbers seen at each.
    assert W7.convolutions == [(400, 576, 32), (81, 512, 64), (49, 576, 64)]
    first = 400 * 576 * 32
    encoder = first + 81 * 512 * 64 + 49 * 576 * 64 + 49 * 64 * 256
    back = 2 * encoder - first
    actor, critics = 2 * 256 * 256 + 256 * 2, 2 * (257 * 256 + 256 * 256 + 256)
    critics_step = (encoder + actor) + (encoder + critics) + (encoder + back + 3 * critics)
    to_action = critics - 2 * 256 * 256
    actor_step = encoder + back + 3 * actor + encoder + critics + to_action
    assert drq_flops(W7) == 2 * (encoder + actor) + 128 * (critics_step + actor_step)


def test_the_peak_is_measured_on_the_largest_product() -> None:
    products = {name: product(w) for name, w in WORKLOADS.items()}
    assert products["W1"] == "128 x 256"  # by 256 x 256
    assert products["W6"] == "512 x 128 x 512"  # 32 sequences of 16 rows, 4 gates of 128
    assert products["W7"] == "25600 x 576 x 32"  # 64 images of 20 x 20 places
    assert products["W9"] == "256 x 128 x 512"


def test_the_limit_adds_stepping_and_products(results: dict[str, Any]) -> None:
    seconds = 1 / 50_000 + 17_239_040 / 80e9
    assert limit_rate(W1, results["limits"][0]) == pytest.approx(1 / seconds)
    rows = summarise(results, "W1")
    assert rows[0].limit_share == pytest.approx(1200 * seconds)


# Summaries.


def test_ratios_are_taken_round_by_round(results: dict[str, Any]) -> None:
    ours, sb3 = summarise(results, "W1")
    assert ours.rate == Spread(1200, 1000, 1400)
    assert ours.ratio is None
    assert sb3.rate == Spread(500, 500, 1000)
    assert sb3.ratio == Spread(2.0, 1.4, 2.4)
    assert sb3.cpu_ratio == Spread(2.4, 1.0, 2.8)
    assert (sb3.start_s, sb3.memory_mb) == (3.0, 250.0)
    assert fastest_peer([ours, sb3]) is sb3


def test_a_round_that_one_side_missed_gives_no_ratio(results: dict[str, Any]) -> None:
    results["runs"][1] = {"library": "ours", "workload": "W1", "round": 1, "error": "no"}
    _, sb3 = summarise(results, "W1")
    assert sb3.ratio == Spread(pytest.approx(1.7), 1.4, 2.0)


def test_the_readme_tables(results: dict[str, Any], tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "canned.json"
    path.write_text(json.dumps(results))
    assert main(["table", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| CartPole-v1, transitions per second | rl_training | Stable-Baselines3 |"
    assert lines[2] == f"| W1: {W1.title} | 1,200 | 500, **2.00x** (1.40 to 2.40) |"
    assert lines[6] == "| W1 | 3.0 s, 250 MB | 3.0 s, 250 MB |"
    assert "the median of 3 interleaved rounds" in lines[-1]
    assert lines[-1].endswith(
        "Measured on 2026-01-02 with `python -m benchmarks --workloads W1` at commit `0123456789`; "
        "Stable-Baselines3 2.9."
    )


def test_the_tables_tell_what_speaks_against_the_figures(results: dict[str, Any]) -> None:
    results |= {"git_dirty": True, "load_average": 1.26, "rounds": 5, "complete": False}
    results["runs"][5] = {"library": "sb3", "workload": "W1", "round": 2, "error": "it broke"}
    told = markdown_tables(results).splitlines()[-1]
    assert "the median of 2 to 3 interleaved rounds" in told
    assert "`0123456789` with local changes, beside other work (load average 1.3);" in told
    assert told.endswith(" Partial: 3 of 5 rounds were measured.")


def test_results_from_before_commits_were_recorded_still_make_tables(
    results: dict[str, Any],
) -> None:
    for key in ("git_commit", "git_dirty", "complete"):
        del results[key]
    assert "--workloads W1`; Stable-Baselines3 2.9." in markdown_tables(results)


def test_the_readme_has_one_row_per_workload_of_all_results(results: dict[str, Any]) -> None:
    other = results | {
        "workloads": {"W8": W8.to_plain()},
        "date": "2026-02-03T00:00:00",
        "machine": {"cpu": "another"},
        "limits": [],
        "runs": [
            run_of("ours", 0, 1024, 1.0, 1.0) | {"workload": "W8"},
            run_of("axiomrl", 0, 256, 1.0, 1.0) | {"workload": "W8"},
            {"library": "sb3", "workload": "W8", "round": 0, "error": "it broke"},
        ],
    }
    lines = speed_table([other, results]).splitlines()
    assert (
        lines[0]
        == "| workload | transitions per second | times Stable-Baselines3 | times axiomrl |"
    )
    assert lines[2] == f"| W1: {W1.title} | 1,200 | 2.00 |  |"
    assert lines[3] == f"| W8: {W8.title} | 1,024 | failed | 4.00 |"
    assert "measured on 2026-01-02 to 2026-02-03." in lines[-1]


def test_parts_have_shares_of_the_total() -> None:
    found = {"W1": {"acting": 25.0, "total": 200.0}, "W8": {"acting": 15.04, "total": 20.0}}
    assert parts_table(found) == [
        "| microseconds per transition | W1 | W8 |",
        "| --- | --- | --- |",
        "| acting | 25.0 (12%) | 15.0 (75%) |",
        "| total | 200.0 (100%) | 20.0 (100%) |",
    ]


def test_a_library_that_never_ran_a_workload_has_an_empty_place(results: dict[str, Any]) -> None:
    results["workloads"]["W8"] = W8.to_plain()
    results["limits"] = []
    results["runs"] += [run_of("ours", 0, 1024, 1.0, 1.0) | {"workload": "W8"}]
    assert f"| W8: {W8.title} | 1,024 | not offered |" in markdown_tables(results)
    results["runs"] += [{"library": "sb3", "workload": "W8", "round": 0, "error": "it broke"}]
    assert f"| W8: {W8.title} | 1,024 | failed |" in markdown_tables(results)


@pytest.mark.extra("report")
def test_pictures_are_drawn(
    results: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the scaling picture every library has a line that looks like no other's."""
    from matplotlib.axes import Axes

    lines: dict[str, tuple[str, str]] = {}
    plot = Axes.plot

    def watched(axes: Axes, *args: Any, **style: Any) -> Any:
        lines[style["label"]] = style["color"], style["marker"]
        return plot(axes, *args, **style)

    monkeypatch.setattr(Axes, "plot", watched)
    draw_speeds(results, tmp_path / "speeds.png")
    record = run_of("any", 0, 1000, 1.0, 1.0)
    points = [
        {"value": 32, **dict.fromkeys(LIBRARIES, record)},
        {"value": 64, "ours": {"error": "it broke"}},
    ]
    series = [{"base": "W1", "along": "batch size", "points": points}]
    draw_scaling({"series": series}, tmp_path / "scaling.png")
    assert list(lines) == [library.title for library in LIBRARIES.values()]
    assert len(set(lines.values())) == len(LIBRARIES)
    for name in ("speeds.png", "scaling.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


# Commands.


def canned(workload: str, library: str) -> dict[str, Any]:
    return run_of(library, 0, 1000, 1.0, 1.0) | {"workload": workload, "versions": {"it": "1"}}


def limits_of(results: dict[str, Any]) -> Any:
    return lambda _: results["limits"][0]


def run_two_rounds(folder: Path, *more: str) -> int:
    command = ["run", "--workloads", "W1", "--peers", "", "--rounds", "2", *more]
    return main([*command, "--output", str(folder)])


@pytest.fixture
def without_processes(results: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Canned figures in place of processes, and no pinning of the tests' own."""
    monkeypatch.setattr(runner, "measure", lambda library, w, _: canned(w.name, library.name))
    monkeypatch.setattr(commands, "measure_limits", limits_of(results))
    monkeypatch.setattr(commands, "prepare", lambda core, threads=1: core)


@pytest.mark.extra("report")
@pytest.mark.usefixtures("without_processes")
def test_a_run_records_where_it_was_measured(tmp_path: Path) -> None:
    assert run_two_rounds(tmp_path) == 0
    latest = json.loads((tmp_path / "latest.json").read_text())
    assert latest["complete"] is True
    assert [run["round"] for run in latest["runs"]] == [0, 1]
    assert latest["command"] == "python -m benchmarks run --workloads W1 --peers '' --rounds 2"
    git = ["git", "-C", str(peers.ROOT), "rev-parse", "HEAD"]
    head = subprocess.run(git, capture_output=True, text=True, check=False)
    assert latest.get("git_commit", "") == head.stdout.strip()  # neither in a copy without git
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".json", ".png"]


@pytest.mark.extra("report")
@pytest.mark.usefixtures("without_processes")
def test_a_run_with_a_name_of_its_own_leaves_the_latest_alone(tmp_path: Path) -> None:
    (tmp_path / "latest.json").write_text("as it was")
    assert run_two_rounds(tmp_path, "--name", "latest-w1") == 0
    assert (tmp_path / "latest.json").read_text() == "as it was"
    named = json.loads((tmp_path / "latest-w1.json").read_text())
    assert set(named["workloads"]) == {"W1"}
    assert (tmp_path / "latest-w1.png").exists()


@pytest.mark.usefixtures("without_processes")
def test_an_interrupted_run_leaves_the_latest_alone(
    results: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted after its first round of two: one dated file, which says so."""
    answers = iter([results["limits"][0]])

    def measure_limits(_: Any) -> Any:
        for answer in answers:
            return answer
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "measure_limits", measure_limits)
    (tmp_path / "latest.json").write_text("as it was")
    with pytest.raises(KeyboardInterrupt):
        run_two_rounds(tmp_path)
    assert (tmp_path / "latest.json").read_text() == "as it was"
    (partial,) = (path for path in tmp_path.iterdir() if path.stem != "latest")
    left = json.loads(partial.read_text())
    assert left["complete"] is False
    told = markdown_tables(left)
    assert "median of 1 interleaved rounds" in told
    assert told.endswith("Partial: 1 of 2 rounds were measured.")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("--output 5 --rounds 5", "--rounds 5"),
        ("run --output=/a/b --rounds 5", "run --rounds 5"),
        ("--rounds 5 --output /a/b", "--rounds 5"),
        ("--rounds 5", "--rounds 5"),
    ],
)
def test_the_recorded_command_names_no_folder(given: str, kept: str) -> None:
    assert commands.without_output(given.split()) == kept.split()


@pytest.mark.extra("report")
@pytest.mark.usefixtures("without_processes")
def test_failed_points_of_the_scaling_curves_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def measure(library: Library, w: Any, _: Path) -> dict[str, Any]:
        if (w.name, w.hidden) == ("W8 512", (512, 512)):
            raise BenchmarkError("it broke")
        return canned(w.name, library.name)

    monkeypatch.setattr(runner, "measure", measure)
    assert main(["scaling", "--peers", "", "--output", str(tmp_path)]) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[-2:] == ["failed:", "W8, network width 512, ours: it broke"]
    monkeypatch.setattr(runner, "measure", lambda library, w, _: canned(w.name, library.name))
    assert main(["scaling", "--peers", "", "--output", str(tmp_path)]) == 0


def test_parts_are_measured_on_one_core_in_processes_with_one_thread(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    done: list[Any] = []

    def run_json(_: Path, module: str, workload: Any) -> dict[str, float]:
        done.append((module, workload["name"]))
        return {"acting": 25.0, "total": 100.0}

    monkeypatch.setattr(commands, "prepare", done.append)
    monkeypatch.setattr(commands, "run_json", run_json)
    assert main(["parts", "--workloads", "W8,W1", "--core", "1"]) == 0
    assert done == [1, ("benchmarks.parts", "W8"), ("benchmarks.parts", "W1")]
    assert "| acting | 25.0 (25%) | 25.0 (25%) |" in capsys.readouterr().out
    assert runner.ONE_THREAD["OMP_NUM_THREADS"] == "1"


def test_parts_run_as_a_process() -> None:
    """A whole run of a tiny workload: every part took time, and together they are the total."""
    tiny = replace(
        W1, hidden=(8,), batch_size=4, learning_starts=40, warm_up=80, timed=160, buffer_size=1000
    )
    found = run_json(Path(sys.executable), "benchmarks.parts", tiny.to_plain())
    total = found.pop("total")
    assert found.keys() == {*PARTS, "the rest"}
    assert all(found[part] > 0 for part in PARTS)
    assert sum(found.values()) == pytest.approx(total)


# Two checkouts.


def compared(here: float, there: float, number: int, transitions: int = 1000) -> list[Any]:
    return [
        run_of(side, number, transitions, 9.0, cpu) for side, cpu in ((HERE, here), (THERE, there))
    ]


@pytest.fixture
def comparison() -> dict[str, Any]:
    """Ratios of 2, 0.5 and 1.5 in three rounds on two cores, with one other process at most."""
    state = {"git_commit": "0123456789abcdef", "git_dirty": False}
    return {
        **state,
        "machine": {"cpu": "A Processor", "cores": 2},
        "load_average": 0.5,
        "loads": [1.5, 2.0, 1.0],
        "threads": 1,
        "workloads": {"W1": replace(W1, timed=1000).to_plain()},
        "other": state | {"git_commit": "fedcba9876543210", "git_dirty": True},
        "runs": [*compared(1.0, 2.0, 0), *compared(4.0, 2.0, 1), *compared(2.0, 3.0, 2)],
    }


def test_checkouts_are_compared_by_processor_time_round_by_round(
    comparison: dict[str, Any],
) -> None:
    lines = comparison_table(comparison).splitlines()
    assert lines[0] == "| workload | seconds here | seconds there | ratio | spread |"
    assert lines[2:4] == ["| W1 | 2.000 | 2.000 | 1.500 | 0.500 to 2.000 |", ""]
    assert lines[4].startswith("Ratios over 1: this checkout is faster. Medians of 3 interleaved")
    assert lines[4].endswith(
        "processor time of 1 thread on A Processor. Here: commit 0123456789; there: commit "
        "fedcba9876 with local changes."
    )
    assert len(lines) == 5


def test_a_run_that_ended_late_counts_as_long_as_the_others(comparison: dict[str, Any]) -> None:
    """Twice the time for twice the transitions is no slower."""
    comparison["runs"] = [compared(1.0, 2.0, 0)[0], compared(2.0, 2.0, 0, transitions=2000)[1]]
    assert "| W1 | 1.000 | 1.000 | 1.000 | 1.000 to 1.000 |" in comparison_table(comparison)


def test_a_side_that_failed_has_no_ratio(comparison: dict[str, Any]) -> None:
    error = {"library": THERE, "workload": "W1", "round": 0, "error": "it broke"}
    comparison["runs"] = [comparison["runs"][0], error]
    assert "| W1 | failed | failed |  |  |" in comparison_table(comparison)


@pytest.mark.parametrize("key", ["load_average", "loads"])
def test_a_busy_machine_is_told(comparison: dict[str, Any], key: str) -> None:
    comparison[key] = 2.6 if key == "load_average" else [0.1, 2.6, 0.1]
    assert comparison_table(comparison).splitlines()[-1] == (
        "warning: the machine was busy, with a load average of 2.6 on 2 cores; measure again when "
        "it is quiet"
    )


def test_two_checkouts_take_turns_in_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A copy whose updates also count to 300,000: the ratio is far above 1."""
    tiny = replace(
        W1, hidden=(8,), batch_size=4, learning_starts=40, warm_up=80, timed=160, buffer_size=1000
    )
    copy = tmp_path / "copy"
    shutil.copytree(peers.ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / "src" / "rl_training" / "algorithms" / "value_based.py").open("a") as file:
        file.write("\nimport collections\n\n_update = ValueBased.update\n")
        file.write("def slow(*args):\n    collections.deque(range(300_000), maxlen=0)\n")
        file.write("    return _update(*args)\n\nValueBased.update = slow\n")
    monkeypatch.setitem(WORKLOADS, "W1", tiny)
    monkeypatch.setattr(commands, "prepare", lambda core, threads: core)
    command = ["compare", str(copy), "--workloads", "W1", "--rounds", "2"]
    assert main([*command, "--output", str(tmp_path / "results")]) == 0
    told = capsys.readouterr().out
    (row,) = (line for line in told.splitlines() if line.startswith("| W1 |"))
    assert float(row.split("|")[4]) > 1.5
    assert "there: a copy without git" in told
    saved = json.loads((tmp_path / "results" / "compare-latest.json").read_text())
    assert [run["library"] for run in saved["runs"]] == [HERE, THERE, THERE, HERE]
    assert saved["command"] == "python -m benchmarks compare OTHER --workloads W1 --rounds 2"
    assert str(tmp_path) not in json.dumps(saved)
    assert len(list((tmp_path / "results").iterdir())) == 2  # and one that stays


def test_a_package_from_elsewhere_is_not_measured(tmp_path: Path) -> None:
    """A checkout without a package: the installed one, or this one, must not stand in for it."""
    empty = Library("there", "nothing", adapter="ours", checkout=tmp_path)
    with pytest.raises(BenchmarkError, match=r"(?s)ended with code 1.*rl_training"):
        measure(empty, W1, Path(sys.executable))


def test_a_revision_is_checked_out_as_long_as_it_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "src" / "rl_training"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("old = True\n")
    identity = ["-c", "user.name=me", "-c", "user.email=me@example.com"]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "old")
    (package / "__init__.py").write_text("new = True\n")
    monkeypatch.setattr("benchmarks.compare.ROOT", tmp_path)
    with checkout_of("HEAD") as folder:
        assert folder != tmp_path
        assert (folder / "src" / "rl_training" / "__init__.py").read_text() == "old = True\n"
        assert len(git("worktree", "list").splitlines()) == 2
    assert not folder.exists()
    assert len(git("worktree", "list").splitlines()) == 1
    with checkout_of(str(tmp_path)) as folder:
        assert folder == tmp_path
    for name in ("no-such-revision", "--help", str(package)):
        with pytest.raises(BenchmarkError, match="expected"), checkout_of(name):
            pass


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("--rounds 0", "--rounds and --threads must be at least 1"),
        ("--threads 0", "--rounds and --threads must be at least 1"),
        ("--threads 2 --core 0", "--core: one core is for one thread, found 2"),
        ("--workloads W0", "--workloads: expected names from W1"),
    ],
)
def test_wrong_options_of_a_comparison_are_told(options: str, problem: str, capsys: Any) -> None:
    assert main(["compare", str(peers.ROOT), *options.split()]) == 2
    assert problem in capsys.readouterr().err


# Custom networks and losses.


def test_what_is_timed_beside_plain_torch_makes_the_same_updates() -> None:
    """Over 300 updates and two copies of the target network, from equal parameters."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        updates, parameters = variants(replace(W1, hidden=(16, 16), batch_size=8))
        start = parameters[BY_HAND].clone()
        for _ in range(300):
            for update in updates.values():
                update()
    finally:
        torch.set_num_threads(threads)
    assert len(updates) == 4
    assert (parameters[BY_HAND] - start).abs().max() > 0.05
    for moved in parameters.values():
        torch.testing.assert_close(moved, parameters[BY_HAND], rtol=1e-3, atol=1e-4)


def test_a_custom_loss_computes_with_the_kernels_of_its_network() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        packaged, loss, custom = ours(W1, DQN), ours(W1, CustomLoss), ours(W1, DQN, network=network)
    finally:
        torch.set_num_threads(threads)
    assert packaged.optimizer.kernels
    assert not loss.optimizer.kernels
    for network_of_loss in (loss.model, loss.target.module):
        assert isinstance(network_of_loss.layers.forward, BlockForward)
    assert not custom.optimizer.kernels
    assert not any(isinstance(module.forward, BlockForward) for module in custom.model.modules())


def test_custom_parts_are_timed_in_a_process() -> None:
    tiny = replace(W1, hidden=(8,), batch_size=4)
    wanted = {"workload": tiny.to_plain(), "rounds": 3, "seconds": 0.01}
    found = run_json(Path(sys.executable), "benchmarks.custom", wanted)
    assert found.keys() >= {BY_HAND, PACKAGED, "custom network"}
    assert all(len(taken) == 3 and min(taken) > 10 for taken in found.values())


def test_custom_parts_are_told_beside_plain_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {BY_HAND: [300.0, 200.0, 240.0], "custom network": [100.0, 200.0, 120.0]}
    monkeypatch.setattr(commands, "run_json", lambda *_: found | {PACKAGED: [50.0, 50.0, 60.0]})
    monkeypatch.setattr(commands, "prepare", lambda core: core)
    assert main(["custom", "--workloads", "W1", "--output", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "| custom network | 120 | 2.00 (1.00 to 3.00) | 0.50 (0.25 to 0.50) |" in told
    saved = json.loads((tmp_path / "custom-latest.json").read_text())
    assert saved["microseconds"]["W1"][BY_HAND] == [300, 200, 240]
    for options, problem in (("--workloads W8", "expected names from W1"), ("--rounds 0", "least")):
        assert main(["custom", *options.split()]) == 2
        assert problem in capsys.readouterr().err


def test_environments_in_workers_are_measured_in_turns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--num-envs", "2", "--rounds", "3", "--steps", "20", "--output"]
    assert main(["workers", *options, str(tmp_path)]) == 0
    saved = json.loads((tmp_path / "workers-latest.json").read_text())
    ours, gymnasium = saved["steps_per_second"].values()
    ratios = sorted(mine / theirs for mine, theirs in zip(ours, gymnasium, strict=True))
    low, middle, high = (f"{ratio:.2f}" for ratio in ratios)
    assert f"Ours is {middle} ({low} to {high}) times as fast" in capsys.readouterr().out
    assert main(["workers", "--rounds", "0"]) == 2


# Names, records and processes.


@pytest.mark.parametrize("option", ["--workloads", "--peers"])
def test_unknown_names_list_the_known_ones(option: str, capsys: Any) -> None:
    assert main([option, "W1x,sb4"]) == 2
    told = capsys.readouterr().err
    known = WORKLOADS if option == "--workloads" else PEERS
    assert f"{option}: expected names from {', '.join(known)}, found W1x, sb4" in told


def test_names_are_taken_once_and_in_order() -> None:
    assert chosen("W8, W1,W8,", list(WORKLOADS), "--workloads") == ["W8", "W1"]
    assert chosen("", list(PEERS), "--peers") == []


def test_a_missing_results_file_is_told(tmp_path: Path, capsys: Any) -> None:
    assert main(["table", str(tmp_path / "none.json")]) == 2
    assert "measure first" in capsys.readouterr().err


@pytest.mark.parametrize("output", ["", "Traceback", "[1]", '{"library": "ours"'])
def test_output_that_is_no_record_is_refused(output: str) -> None:
    with pytest.raises(BenchmarkError, match="expected JSON in the last line"):
        parse_record(output, "benchmarks.libraries.ours")


def test_the_record_is_the_last_line() -> None:
    assert parse_record('a warning\n{"wall_s": 1.5}\n', "module") == {"wall_s": 1.5}


def test_another_number_of_updates_is_refused() -> None:
    record = {"transitions": 1000, "reset_rows": 100, "updates": 250}
    check_record(OURS, W1, record)
    check_record(OURS, W1, record | {"updates": 251})
    check_record(LIBRARIES["axiomrl"], W1, record | {"updates": 275})
    with pytest.raises(BenchmarkError, match="expected 250 gradient steps in 1000 rows, found 275"):
        check_record(OURS, W1, record | {"updates": 275})


def test_the_clock_spans_whole_cycles(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Played by hand: an update after every second step; 2 updates warm up, 3 are timed."""

    class Env:
        def step(self, action: int) -> int:
            return action

        def reset(self, *, seed: int | None = None) -> None:
            pass

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr("os._exit", leave)
    monkeypatch.setenv("BENCHMARK_STARTED", "0.0")
    workload = replace(W1, steps_per_update=2, learning_starts=0, warm_up=4, timed=6)
    probe = Probe(workload, "toy", ["pytest"])
    probe.watch(Env)
    env = Env()

    def play() -> None:
        for step in range(1, 100):
            assert env.step(7) == 7
            if step == 6:
                env.reset(seed=1)
            if step % 2 == 0:
                probe.updated()

    with pytest.raises(SystemExit):
        play()
    record = json.loads(capsys.readouterr().out)
    assert (record["transitions"], record["updates"], record["reset_rows"]) == (6, 3, 1)
    assert record["start_to_first_update_s"] > 0
    assert record["versions"] == {"pytest": pytest.__version__}


def test_ours_runs_as_a_process() -> None:
    tiny = replace(
        W1, hidden=(8,), batch_size=4, learning_starts=40, warm_up=80, timed=160, buffer_size=1000
    )
    record = measure(OURS, tiny, Path(sys.executable))
    assert (record["transitions"], record["updates"]) == (160, 40)
    assert 0 < record["cpu_s"] < 60
    assert record["start_to_first_update_s"] > 0
    assert record["peak_rss_mb"] > 50
    assert record["versions"].keys() >= {"rl-training", "torch"}


@pytest.mark.parametrize("base", [W6, W9], ids=lambda w: w.name)
def test_ours_runs_recurrent_workloads(base: Any) -> None:
    if base is W6:
        tiny = replace(base, learning_starts=40, warm_up=80, timed=160, buffer_size=1000)
    else:
        tiny = replace(base, num_envs=2, num_steps=8, warm_up=16, timed=80)
    tiny = replace(tiny, hidden=(8,), core_size=8, sequence_length=4, batch_size=8)
    record = measure(OURS, tiny, Path(sys.executable))
    assert (record["transitions"], record["updates"]) == (tiny.timed, 40)
    found = run_json(Path(sys.executable), "benchmarks.parts", tiny.to_plain())
    assert all(found[part] > 0 for part in PARTS)


def test_ours_runs_the_workload_of_images() -> None:
    tiny = replace(W7, hidden=(8,), features=8, batch_size=2, learning_starts=8, timed=4)
    record = measure(OURS, replace(tiny, warm_up=12), Path(sys.executable))
    assert (record["transitions"], record["updates"]) == (4, 4)


def test_a_failing_library_is_recorded_and_the_others_go_on(capsys: Any) -> None:
    tiny = replace(W8, hidden=(8,), num_envs=2, num_steps=8, batch_size=8, warm_up=16, timed=48)
    unknown = Library("no_such_library", "None")
    failed, ours = measure_all([tiny], peers.interpreters([unknown, OURS]), rounds=1)
    assert (failed["library"], failed["round"]) == ("no_such_library", 0)
    assert "no_such_library" in failed["error"]
    assert (ours["transitions"], ours["updates"]) == (48, 24)
    assert "failed" in capsys.readouterr().out


def test_a_process_that_fails_shows_the_end_of_its_errors() -> None:
    with pytest.raises(BenchmarkError, match=r"ended with code 1:\n(.*\n)*.*KeyError"):
        run_json(Path(sys.executable), "benchmarks.libraries.ours", {"hidden": []})


def test_a_core_that_does_not_exist_is_refused() -> None:
    with pytest.raises(BenchmarkError, match="--core: expected one of"):
        pin(100_000)


def test_an_environment_is_made_once_per_requirements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    made: list[list[str]] = []

    def run(command: list[str]) -> None:
        made.append(command)
        (tmp_path / ".bench" / "sb3").mkdir(parents=True, exist_ok=True)
        if "broken" in (tmp_path / "sb3.txt").read_text():
            raise BenchmarkError("pip failed")

    monkeypatch.setattr(peers, "ROOT", tmp_path)
    monkeypatch.setattr(peers, "REQUIREMENTS", tmp_path)
    monkeypatch.setattr(peers, "ENVIRONMENTS", tmp_path / ".bench")
    monkeypatch.setattr(peers, "_run", run)
    requirements = tmp_path / "sb3.txt"
    requirements.write_text("broken==1")
    for _ in range(2):  # what failed is tried again
        with pytest.raises(BenchmarkError, match="pip failed"):
            peers.interpreter(PEERS["sb3"])
    for text in ("one==1", "one==1", "one==2"):
        requirements.write_text(text)
        python = peers.interpreter(PEERS["sb3"])
    assert python == tmp_path / ".bench" / "sb3" / "bin" / "python"
    assert [command[2] for command in made] == ["venv", "venv", "venv", "pip", "venv", "pip"]
    assert "creating .bench/sb3 from sb3.txt" in capsys.readouterr().out


def test_an_environment_that_failed_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    tried = []

    def interpreter(library: Library) -> Path:
        tried.append(library.name)
        raise BenchmarkError("pip failed")

    monkeypatch.setattr(peers, "interpreter", interpreter)
    found = peers.interpreters([PEERS["sb3"]])
    records = measure_all([W1, W8], found, rounds=2)
    assert tried == ["sb3"]
    assert [(r["round"], r["workload"], r["error"]) for r in records] == [
        (0, "W1", "pip failed"),
        (0, "W8", "pip failed"),
        (1, "W1", "pip failed"),
        (1, "W8", "pip failed"),
    ]
    assert capsys.readouterr().out.count("failed: pip failed") == 4


def test_what_a_library_does_not_offer_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def dqn(w: Any, probe: Probe) -> None:
        raise NotOffered("one environment only")

    monkeypatch.setattr("sys.argv", ["toy", json.dumps(W1.to_plain())])
    monkeypatch.setattr(Probe, "watch", lambda probe, env_class: None)
    run_library("toy", [], {"dqn": dqn})
    record = {"library": "toy", "workload": "W1", "unsupported": True}
    assert parse_record(capsys.readouterr().out, "toy") == record
    run_library("toy", [], {"ppo": dqn})
    assert parse_record(capsys.readouterr().out, "toy") == record


def test_ours_is_told_the_algorithm_and_its_quantiles() -> None:
    keys = settings(W2)
    assert (keys["algo"], keys["algo_kwargs"]["num_quantiles"]) == ("qr_dqn", 51)
    assert "num_quantiles" not in settings(W1)["algo_kwargs"]


def test_ours_is_told_of_its_memory() -> None:
    """DRQN as asked for; recurrent PPO with the one LSTM for both that all libraries offer."""
    drqn, ppo = settings(W6), settings(W9)
    assert (drqn["algo"], ppo["algo"]) == ("drqn", "recurrent_ppo")
    memory = {"core_size": 128, "sequence_length": 16}
    assert drqn["algo_kwargs"].items() >= memory.items() | {("replay_ratio", 0.25)}
    assert ppo["algo_kwargs"].items() >= memory.items() | {("shared_core", True)}
    assert "shared_core" not in drqn["algo_kwargs"]
    assert not memory.keys() & settings(W8)["algo_kwargs"].keys()


def test_ours_is_told_of_its_images() -> None:
    keys = settings(W7)
    assert keys["env_id"] == "benchmarks.image_env:BenchmarkImages-v0"
    wanted = {"encoder": "nature", "feature_size": 256, "policy_delay": 1, "alpha": 0.1, "pad": 4}
    once = {"num_augmentations": 1, "num_target_augmentations": 1}
    assert keys["algo_kwargs"].items() >= wanted.items() | once.items()


def test_replay_memory_of_stacked_images() -> None:
    """A frame a row, and as many more for each episode as a stack has older ones, and a tail."""
    wanted = {"library": "ours", "transitions": 4_000, "seconds": 0.2}
    found = run_json(Path(sys.executable), "benchmarks.replay_memory", wanted)
    # 17 episodes of 250 steps; resident memory comes in pages.
    assert 0.98 < found["frames"] < 1.06
    assert found["sampled_per_s"] > 100


def test_checkpoints_are_measured_by_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.checkpoints import measure

    threads = torch.get_num_threads()
    try:
        monkeypatch.setattr(commands, "run_json", lambda _, __, wanted: measure(**wanted))
        monkeypatch.setattr(commands, "prepare", lambda core: core)
        monkeypatch.setattr(commands, "interpreter", lambda library: Path(library.name))
        assert commands.main(["checkpoints", "--scale", "0.002", "--output", str(tmp_path)]) == 0
    finally:
        torch.set_num_threads(threads)
    assert "| 2,000 x 17 floats | all | 4.0 | 4.0 |" in capsys.readouterr().out
    saved = json.loads((tmp_path / "checkpoints-latest.json").read_text())
    case = saved["cases"][1]
    assert [each["new"] for each in case["saves"]] == [2_000, 2, 20, 200, 2_000]
    # Numbers of the networks, and rows of 17 + 6 + 2 floats and a flag.
    assert [each["new_bytes"] for each in case["saves"]] == [
        4_000_000 + 101 * new for new in (2_000, 2, 20, 200, 2_000)
    ]
    for each in case["saves"]:
        assert 0 < each["written_bytes"] - each["new_bytes"] < 0.02 * each["new_bytes"]
    assert (tmp_path / "checkpoints-latest.png").exists()
    assert commands.main(["checkpoints", "--scale", "2"]) == 2


def test_replay_is_measured_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []
    rates = iter([300.0, 100.0, 200.0, 100.0, 120.0, 200.0])

    def run_json(_: Path, module: str, wanted: dict[str, Any]) -> dict[str, Any]:
        asked.append((module, wanted["library"], wanted["transitions"]))
        return {"version": "1.5", "bytes": 2.5e9, "frames": 1.02, "sampled_per_s": next(rates)}

    monkeypatch.setattr(commands, "run_json", run_json)
    monkeypatch.setattr(commands, "prepare", lambda core: core)
    monkeypatch.setattr(commands, "interpreter", lambda library: Path(library.name))
    assert commands.main(["replay", "--transitions", "70", "--output", str(tmp_path)]) == 0
    assert asked == [("benchmarks.replay_memory", name, 70) for name in ("ours", "sb3")] * 3
    printed = capsys.readouterr().out
    assert "| rl_training 1.5 | 2.50 GB | 1.02 | 200 (120 to 300) |" in printed
    assert "Ours samples 2.0 (0.6 to 3.0) times as fast. 70 transitions; medians of 3" in printed
    saved = json.loads((tmp_path / "replay-latest.json").read_text())
    assert [row["ours"]["sampled_per_s"] for row in saved["rounds"]] == [300, 200, 120]
    assert len(list(tmp_path.iterdir())) == 2  # and one that stays
    assert commands.main(["replay", "--rounds", "0"]) == 2


def test_steps_are_stacked_images_of_which_each_adds_one() -> None:
    found = list(replay_memory.steps(300))
    assert [number for number, step in enumerate(found) if step[2]] == [0, 250]
    assert [number for number, step in enumerate(found) if step[3]] == [249]
    for obs, following, _, _ in found:
        assert np.array_equal(obs[3:], following[:-3])
    assert np.array_equal(found[0][1], found[1][0])
    assert np.array_equal(found[250][0][:3], found[250][0][3:6])


@pytest.mark.parametrize("peer", PEERS)
def test_requirements_are_pinned_and_name_no_index(peer: str) -> None:
    lines = (REQUIREMENTS / f"{peer}.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert "torch==2.13.0" in pins
    assert all(line.count("==") == 1 and "/" not in line and "--" not in line for line in pins)
