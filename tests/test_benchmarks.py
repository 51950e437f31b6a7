"""The benchmarks: arithmetic by hand, tables from canned figures, and one real process of ours."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import peers
from benchmarks.__main__ import main
from benchmarks.limits import dqn_flops, limit_rate, ppo_flops, weights
from benchmarks.peers import LIBRARIES, OURS, PEERS, REQUIREMENTS, Library
from benchmarks.pictures import draw_scaling, draw_speeds
from benchmarks.probe import Probe
from benchmarks.runner import check_record, measure, measure_all, parse_record, pin, run_json
from benchmarks.scaling import ALONG, BASES, point
from benchmarks.summary import Spread, fastest_peer, markdown_tables, summarise
from benchmarks.workloads import W1, W1B, W8, WORKLOADS, BenchmarkError, chosen, from_plain


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
        "machine": {"cpu": "A Processor", "cores": 2},
        "rounds": 3,
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
        (W1B, (1, 1), 1000, 3000),
        (W8, (1024, 16), 32, 960),
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
    # Policy 4,480 and value 4,416 weights, 512 of them in first layers; 4 epochs.
    assert ppo_flops(W8) == 2 * 8_896 + 8 * (3 * 8_896 - 512)


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
    for part in ("2026-01-02", "`python -m benchmarks --workloads W1`", "3 interleaved", "3 2.9"):
        assert part in lines[-1]


def test_a_library_that_never_ran_a_workload_has_an_empty_place(results: dict[str, Any]) -> None:
    results["workloads"]["W8"] = W8.to_plain()
    results["limits"] = []
    results["runs"] += [run_of("ours", 0, 1024, 1.0, 1.0) | {"workload": "W8"}]
    assert f"| W8: {W8.title} | 1,024 | failed or not offered |" in markdown_tables(results)


def test_pictures_are_drawn(results: dict[str, Any], tmp_path: Path) -> None:
    draw_speeds(results, tmp_path / "speeds.png")
    record = run_of("ours", 0, 1000, 1.0, 1.0)
    points = [{"value": 32, "ours": record}, {"value": 64, "ours": {"error": "it broke"}}]
    series = [{"base": "W1", "along": "batch size", "points": points}]
    draw_scaling({"series": series}, tmp_path / "scaling.png")
    for name in ("speeds.png", "scaling.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


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


def test_a_failing_library_is_recorded_and_the_others_go_on(capsys: Any) -> None:
    tiny = replace(W8, hidden=(8,), num_envs=2, num_steps=8, batch_size=8, warm_up=16, timed=48)
    failed, ours = measure_all([tiny], [Library("no_such_library", "None"), OURS], rounds=1)
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


@pytest.mark.parametrize("peer", PEERS)
def test_requirements_are_pinned_and_name_no_index(peer: str) -> None:
    lines = (REQUIREMENTS / f"{peer}.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert "torch==2.13.0" in pins
    assert all(line.count("==") == 1 and "/" not in line and "--" not in line for line in pins)
