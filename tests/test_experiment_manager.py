"""Many seeds of one experiment: the figures, the processes, and what a second call does."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from processes import BEYOND_PROBE, Gate, GateEnv, WarmPopen, wait_until_noted
from rl_training import DQN, ExperimentManager, TrainConfig, train_dqn
from rl_training.cli import app
from rl_training.errors import ConfigError, RunError, RunInUse, SaveError, UsageError
from rl_training.experiment.manager import ExperimentInterrupted, parse_seeds
from rl_training.experiment.statistics import (
    bootstrap_interval,
    interquartile_mean,
    more_failures_by_chance,
    share_interval,
)
from rl_training.runtime.result import TrainingInterrupted
from rl_training.storage.files import write_json
from rl_training.storage.runs import RunLock
from toy_envs import CountingEnv, RandomWalkEnv
from training import StopAt, final_state, tiny_config

# Seeds and figures


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("0-4", [0, 1, 2, 3, 4]),
        ("0,3,7", [0, 3, 7]),
        ("1-2,9", [1, 2, 9]),
        ("5", [5]),
        ("7-7", [7]),
        (" 3 , 1-2 ", [3, 1, 2]),
    ],
)
def test_seeds_are_read_as_people_write_them(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    "text",
    ["", "a", "1-", "-1", "4-0", "1,,2", "1,", "0-2-4", "1.5", "0x1", "1 2", "٣", "9" * 5000],
)
def test_what_is_no_list_of_seeds_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected seeds such as 0-4 or 0,3,7"):
        parse_seeds(text)


def test_seeds_stand_once_and_are_not_endless() -> None:
    with pytest.raises(UsageError, match="each seed may appear only once, found '0-3,2'"):
        parse_seeds("0-3,2")
    with pytest.raises(UsageError, match="at most 10000 seeds"):
        parse_seeds("0-9999999999")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2, 3, 4, 100], 3.0),  # one cut from each end: the mean of 2, 3 and 4
        ([100, 1, 3, 4, 2], 3.0),
        ([1, 2, 9], 4.0),  # nothing to cut
        ([5], 5.0),
        ([-50, 10, 20, 1000], 15.0),
        ([0, 1, 2, 3, 5, 6, 70, 80], 4.0),  # two from each end: the mean of 2, 3, 5 and 6
    ],
)
def test_the_interquartile_mean_is_the_mean_of_the_middle_half(
    values: list[float], expected: float
) -> None:
    assert interquartile_mean(values) == expected


def test_the_interval_of_a_share_is_where_the_score_test_does_not_reject_it() -> None:
    # Its ends p solve |share - p| = z sqrt(p (1 - p) / n).
    for count, total in ((0, 20), (1, 20), (7, 20), (20, 20), (1, 100)):
        low, high = share_interval(count, total)
        assert 0 <= low <= count / total <= high <= 1
        for end in {low, high} - {0.0, 1.0}:
            score = abs(count / total - end) / math.sqrt(end * (1 - end) / total)
            assert score == pytest.approx(1.959963984540054, rel=1e-9)
    low, high = share_interval(0, 100)
    assert (low, high) == (0.0, pytest.approx(0.0369935, abs=1e-7))  # z^2 / (n + z^2)


def test_more_failures_by_chance_counts_the_ways_to_share_them_out() -> None:
    # Three failures among 2 + 2 seeds, two or more of them in the first group: 1 * 2 of 4 ways.
    assert more_failures_by_chance(2, 2, before=1, of=2) == 0.5
    assert more_failures_by_chance(0, 5, before=3, of=5) == 1.0
    # All of three in the first of two groups of five: 5 * 4 * 3 / (10 * 9 * 8).
    assert more_failures_by_chance(3, 5, before=0, of=5) == pytest.approx(1 / 12, rel=1e-12)


def test_the_interval_is_that_of_the_resampled_interquartile_means() -> None:
    # Two values: their resampled means are 0, 1/2 and 1 with probability 1/4, 1/2 and 1/4.
    assert bootstrap_interval([0.0, 1.0]) == (0.0, 1.0)
    # Three zeros and a four: the middle two are fours if at least three are drawn, in 13 of 256
    # cases, which is more than 2.5 % and less than 10 % of them.
    assert bootstrap_interval([0.0, 0.0, 0.0, 4.0]) == (0.0, 4.0)
    assert bootstrap_interval([0.0, 0.0, 0.0, 4.0], confidence=0.8) == (0.0, 2.0)
    assert bootstrap_interval([7.0] * 5) == (7.0, 7.0)
    assert bootstrap_interval([7.0]) == (7.0, 7.0)


def test_the_interval_is_always_the_same_and_contains_its_centre() -> None:
    values = [191.0, 500.0, 430.0, 19.0, 500.0]
    low, high = bootstrap_interval(values)
    assert bootstrap_interval(values) == (low, high)
    assert low < interquartile_mean(values) < high
    shifted = bootstrap_interval([value + 10 for value in values])
    assert shifted == pytest.approx((low + 10, high + 10))


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    intervals = [bootstrap_interval(rng.normal(3.0, 1.0, 30), resamples=400) for _ in range(200)]
    covered = sum(low <= 3.0 <= high for low, high in intervals)
    assert 0.88 * 200 <= covered < 200


# A real experiment


QUICK: dict[str, Any] = {
    "total_timesteps": 60,
    "eval_interval": 0,
    "final_eval_episodes": 3,
    "log_interval": 20,
}


def experiment(config: Path, out: Path, *words: str) -> Result:
    arguments = ["train", "--config", str(config), "--output-dir", str(out), *words]
    return CliRunner().invoke(app, arguments)


def write_config(folder: Path) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(
        "algo: dqn\nenv_id: CartPole-v1\ntotal_timesteps: 60\neval_interval: 0\n"
        "final_eval_episodes: 3\nlog_interval: 20\n"
        "algo_kwargs: {hidden_sizes: [8], batch_size: 8, learning_starts: 20}\n"
    )
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Result]:
    """An experiment of two seeds, run by real processes: its configuration, directory, output."""
    folder = tmp_path_factory.mktemp("experiment")
    config = write_config(folder)
    result = experiment(config, folder / "out", "--seeds", "0-1", "--jobs", "2")
    assert result.exit_code == 0, result.output
    (directory,) = (folder / "out").iterdir()
    return config, directory, result


def summary(directory: Path, seed: int) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((directory / f"seed-{seed}" / "summary.json").read_text())
    return values


def test_an_experiment_is_one_directory_with_a_run_per_seed(
    finished: tuple[Path, Path, Result],
) -> None:
    _, directory, _ = finished
    assert re.fullmatch(r"dqn-CartPole-v1-seeds-[0-9a-f]{8}", directory.name)
    names = sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))
    logs = ["seed-0.log", "seed-1.log"]
    runs = ["seed-0", "seed-1"]
    assert names == sorted(["experiment.json", "experiment.yaml", *logs, *runs])
    for seed in (0, 1):
        assert summary(directory, seed)["seed"] == seed
        assert "finished at step 60" in (directory / f"seed-{seed}.log").read_text()
    listed = CliRunner().invoke(app, ["list", str(directory.parent)]).stdout
    assert all(f" {directory.name}/seed-{seed}" in listed for seed in (0, 1))


def test_the_table_and_the_figures_are_those_of_the_summaries(
    finished: tuple[Path, Path, Result],
) -> None:
    _, directory, result = finished
    rows = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in result.stdout.splitlines()
        if line.startswith("│")
    ]
    summaries = [summary(directory, seed) for seed in (0, 1)]
    means = [values["eval_return_mean"] for values in summaries]
    for seed, (row, values) in enumerate(zip(rows, summaries, strict=True)):
        expected = [str(seed), "finished", f"{means[seed]:.2f}"]
        expected += [f"{values['eval_return_std']:.2f}", "60", f"{values['wall_time_s']:.1f}"]
        assert row == expected
    mean, low, high = sum(means) / 2, min(means), max(means)
    assert (
        f"mean {mean:.2f}, interquartile mean {mean:.2f} (95 % interval {low:.2f} to {high:.2f}) "
        "over 2 seeds" in result.stdout.splitlines()
    )
    assert f"experiment directory: {directory}" in result.stdout
    record = json.loads((directory / "experiment.json").read_text())
    assert record["seeds"] == [
        {"seed": seed, "status": "finished", "eval_return_mean": means[seed]} for seed in (0, 1)
    ]
    assert record["mean"] == record["interquartile_mean"] == mean
    assert record["interval_95"] == [low, high]


def test_a_seed_of_an_experiment_equals_a_single_run(
    finished: tuple[Path, Path, Result], tmp_path: Path
) -> None:
    config, directory, _ = finished
    single = DQN.from_config(config, seed=1, output_dir=str(tmp_path)).learn()
    assert final_state(single.run_dir) == final_state(directory / "seed-1")
    assert list(single.eval_returns) == summary(directory, 1)["eval_returns"]
    assert final_state(directory / "seed-0")["agent"] != final_state(directory / "seed-1")["agent"]


def replace_popen(monkeypatch: pytest.MonkeyPatch, popen: Any) -> None:
    """Give the manager, and nobody else, another way to start processes."""
    replaced = SimpleNamespace(**(vars(subprocess) | {"Popen": popen}))
    monkeypatch.setattr("rl_training.experiment.manager.subprocess", replaced)


def never(*_: Any, **__: Any) -> Any:
    raise AssertionError("a process was started")


def test_a_finished_experiment_runs_nothing_again(
    finished: tuple[Path, Path, Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, directory, first = finished
    replace_popen(monkeypatch, never)
    again = experiment(config, directory.parent, "--seeds", "0-1")
    assert again.exit_code == 0, again.output
    assert first.stdout.endswith(again.stdout.partition("\n")[2])  # the same table
    assert "starting" in first.stdout
    assert "starting" not in again.stdout


# Experiments in processes that are forked, which saves importing torch in each.


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that a manager ran."""
    ran: list[str] = []

    class Recorded(WarmPopen):
        def __init__(self, command: Any, **keys: Any) -> None:
            ran.append(" ".join(command[3:]))
            super().__init__(command, **keys)

    replace_popen(monkeypatch, Recorded)
    return ran


@pytest.mark.parametrize(("jobs", "threads"), [(2, "2"), (9, "1")])
def test_seeds_side_by_side_share_the_cores(
    jobs: int, threads: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []

    class Recorded(WarmPopen):
        def __init__(self, command: Any, **keys: Any) -> None:
            given.append(keys["env"]["OMP_NUM_THREADS"])
            super().__init__(command, **keys)

    replace_popen(monkeypatch, Recorded)
    monkeypatch.setattr("rl_training.experiment.manager.usable_cpus", lambda: 5)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    config = tiny_config("dqn", tmp_path, total_timesteps=30)
    ExperimentManager(config, seeds=[0], jobs=jobs).run()
    assert given == [threads]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # said by the user
    ExperimentManager(config, seeds=[1], jobs=jobs).run()
    assert given == [threads, "3"]


def test_more_seeds_are_added_and_the_number_of_jobs_changes_nothing(
    finished: tuple[Path, Path, Result], tmp_path: Path, commands: list[str]
) -> None:
    config, directory, _ = finished
    result = experiment(config, tmp_path, "--seeds", "1,0")
    assert result.exit_code == 0, result.output
    (other,) = tmp_path.iterdir()
    assert other.name == directory.name  # named after the configuration, not where it lies
    for seed in (0, 1):
        assert final_state(other / f"seed-{seed}") == final_state(directory / f"seed-{seed}")
    commands.clear()
    result = experiment(config, tmp_path, "--seeds", "0-2", "--jobs", "3")
    assert result.exit_code == 0, result.output
    (command,) = commands
    assert command.startswith("train ")
    assert "--seed 2 " in command
    assert "over 3 seeds" in result.stdout


def test_at_most_so_many_seeds_run_at_once(tmp_path: Path, commands: list[str]) -> None:
    lines: list[str] = []
    config = tiny_config("dqn", tmp_path, env_id=CountingEnv, **QUICK)
    result = ExperimentManager(config, [4, 5, 6], jobs=2, report=lines.append).run()
    assert [seed.status for seed in result.seeds] == ["finished"] * 3
    assert result.returns == [15.0] * 3  # 1 + 2 + 3 + 4 + 5
    assert lines[:2] == ["seed 4: starting", "seed 5: starting"]
    assert lines.index("seed 6: starting") > 2
    assert "seed 6: finished, evaluation return 15.00" in lines
    running = 0
    for line in lines:
        running += 1 if line.endswith("starting") else -1
        assert running <= 2


def test_an_interrupted_seed_is_resumed_and_ends_as_if_never_interrupted(
    tmp_path: Path, commands: list[str]
) -> None:
    config = tiny_config("dqn", tmp_path / "straight")
    straight = [train_dqn(config.with_changes(seed=seed)).run_dir for seed in (3, 4)]
    manager = ExperimentManager(config, [3, 4], directory=tmp_path / "experiment")
    cut = config.with_changes(seed=4, output_dir=str(manager.directory), run_name="seed-4")
    with pytest.raises(TrainingInterrupted):
        train_dqn(cut, callbacks=[StopAt(130)])
    result = manager.run()
    assert all(command.startswith("train --auto-resume ") for command in commands)
    assert "resumed at step 130" in (manager.directory / "seed-4.log").read_text()
    for run_dir, seed in zip(straight, result.seeds, strict=True):
        assert seed.run_dir is not None
        assert final_state(seed.run_dir) == final_state(run_dir)


def test_a_killed_seed_without_a_checkpoint_is_started_anew_in_its_directory(
    tmp_path: Path, commands: list[str]
) -> None:
    config = tiny_config("dqn", tmp_path, **QUICK)
    manager = ExperimentManager(config, [1])
    (manager.directory / "seed-1").mkdir(parents=True)
    (manager.directory / "seed-1" / "config.yaml").write_text("algo: dqn\n")
    result = manager.run()
    assert result.seeds[0].status == "finished"
    assert result.seeds[0].run_dir == manager.directory / "seed-1"
    assert not (manager.directory / "seed-1-2").exists()


def gated(tmp_path: Path, **changes: Any) -> TrainConfig:
    return tiny_config(
        "dqn",
        tmp_path / "out",
        env_id=GateEnv,
        env_kwargs={"gate": str(tmp_path / "gate"), "at": BEYOND_PROBE},
        **(QUICK | {"total_timesteps": 200} | changes),
    )


def interrupt_at(gate: Gate, out: Path) -> threading.Thread:
    """SIGTERM to this process when a seed has come to the gate, which opens for the seed to end."""

    def act() -> None:
        gate.wait_until_reached()
        os.kill(os.getpid(), signal.SIGTERM)
        (lock,) = out.glob("*/seed-*/.lock")
        wait_until_noted(int(lock.read_text().split()[1]))
        gate.open()

    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_a_signal_stops_the_seeds_after_saving_and_a_second_call_resumes_them(
    tmp_path: Path, commands: list[str]
) -> None:
    gate = Gate(tmp_path / "gate")
    reference = gated(tmp_path, seed=0).with_changes(output_dir=str(tmp_path / "straight"))
    straight = final_state(train_dqn(reference).run_dir)
    gate.close()

    lines: list[str] = []
    thread = interrupt_at(gate, tmp_path / "out")
    manager = ExperimentManager(gated(tmp_path), [0, 1], report=lines.append)
    with pytest.raises(ExperimentInterrupted) as caught:
        manager.run()
    thread.join()
    assert caught.value.signal_number == signal.SIGTERM
    assert [seed.status for seed in caught.value.result.seeds] == ["interrupted", "missing"]
    assert lines == ["seed 0: starting", "seed 0: stopped, interrupted"]
    record = json.loads((manager.directory / "experiment.json").read_text())
    assert [seed["status"] for seed in record["seeds"]] == ["interrupted", "missing"]
    assert "mean" not in record
    result = ExperimentManager(gated(tmp_path), [0, 1]).run()
    assert len(commands) == 3
    assert [seed.status for seed in result.seeds] == ["finished", "finished"]
    assert final_state(manager.directory / "seed-0") == straight


def test_the_command_exits_with_143_and_says_how_to_go_on(
    tmp_path: Path, commands: list[str]
) -> None:
    gate = Gate(tmp_path / "gate")
    gate.close()

    thread = interrupt_at(gate, tmp_path / "out")
    config = tmp_path / "gated.yaml"
    config.write_text(
        "algo: dqn\nenv_id: processes:GateEnv\ntotal_timesteps: 200\nfinal_eval_episodes: 1\n"
        f"env_kwargs: {{gate: {tmp_path / 'gate'}, at: {BEYOND_PROBE}}}\n"
        "algo_kwargs: {hidden_sizes: [8]}\n"
    )
    result = experiment(config, tmp_path / "out", "--seeds", "0,1")
    thread.join()
    assert result.exit_code == 143
    assert "next: the same command again runs what is left" in result.stdout
    assert "Traceback" not in result.output


def test_a_seed_that_fails_is_reported_and_the_others_finish(
    tmp_path: Path, commands: list[str]
) -> None:
    config = tmp_path / "fails.yaml"
    config.write_text(
        "algo: dqn\nenv_id: test_experiment_manager:UnluckyEnv\ntotal_timesteps: 120\n"
        "eval_interval: 0\nfinal_eval_episodes: 1\nalgo_kwargs: {hidden_sizes: [8]}\n"
    )
    result = experiment(config, tmp_path / "out", "--seeds", "0-2", "--jobs", "3")
    assert result.exit_code == 1
    (directory,) = (tmp_path / "out").iterdir()
    statuses = [
        seed["status"] for seed in json.loads((directory / "experiment.json").read_text())["seeds"]
    ]
    assert statuses == ["finished", "failed", "finished"]
    log = directory / "seed-1.log"
    assert f"seed 1: ended with exit code 1, see {log}" in result.stdout
    assert "this seed has no luck" in log.read_text()
    assert re.search(r"│ 1 +│ failed +│ - ", result.stdout)
    (figures,) = (line for line in result.stdout.splitlines() if line.startswith("mean "))
    assert figures.endswith("over 2 of 3 seeds (seed 1 failed)")
    assert "the figures are over 2 of 3 seeds (seed 1 failed)" in result.stdout
    record = json.loads((directory / "experiment.json").read_text())
    assert (record["seeds_counted"], record["seeds_planned"]) == (2, 3)


class UnluckyEnv(RandomWalkEnv):
    """Raises in its 100th step if its first seed is the one of training with seed 1."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.unlucky = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.unlucky = seed == UNLUCKY_SEED
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> Any:
        self.calls += 1
        if self.unlucky and self.calls == 100:
            raise RuntimeError("this seed has no luck")
        return super().step(action)


def _unlucky_seed() -> int:
    from rl_training.runtime.seeding import env_seeds

    return env_seeds(1, 1)[0]


UNLUCKY_SEED = _unlucky_seed()


def test_seeds_left_running_by_a_killed_manager_are_waited_for_and_taken_over(
    tmp_path: Path, commands: list[str]
) -> None:
    """Seed 0 is finished by the process that has it, seed 1 is not."""
    lines: list[str] = []
    config = tiny_config("dqn", tmp_path, **QUICK)
    manager = ExperimentManager(config, [0, 1, 2], report=lines.append)
    locks = []
    for seed in (0, 1):
        (manager.directory / f"seed-{seed}").mkdir(parents=True)
        locks.append(RunLock(manager.directory / f"seed-{seed}"))
        locks[-1].__enter__()

    def end_orphans(line: str) -> None:
        lines.append(line)
        if line.startswith("seed 1: another"):
            summary = {"status": "finished", "eval_return_mean": 7.0}
            (manager.directory / "seed-0" / "summary.json").write_text(json.dumps(summary))
            for lock in locks:
                lock.__exit__(None, None, None)

    manager.report = end_orphans
    result = manager.run()
    assert [seed.status for seed in result.seeds] == ["finished"] * 3
    assert result.returns[0] == 7.0
    assert lines[:2] == [
        f"seed {s}: another process is running it, waiting for that one" for s in (0, 1)
    ]
    assert "seed 0: finished, evaluation return 7.00" in lines
    assert "seed 1: starting" in lines
    assert [re.search(r"--seed (\d)", command)[1] for command in commands] == ["2", "1"]  # type: ignore[index]


def test_a_seed_that_another_process_was_about_to_run_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had not locked its run yet when a new manager looked, and so was started twice."""
    lines: list[str] = []
    lock: list[RunLock] = []

    def start(manager: ExperimentManager, seed: int) -> Any:
        run_dir = manager.directory / "seed-0"
        run_dir.mkdir()
        lock.append(RunLock(run_dir))
        lock[0].__enter__()
        return subprocess.Popen([sys.executable, "-c", f"exit({RunInUse.exit_code})"])

    def report(line: str) -> None:
        lines.append(line)
        if "another process" in line:
            summary = {"status": "finished", "eval_return_mean": 3.0}
            write_json(tmp_path / "out" / "seed-0" / "summary.json", summary)
            lock[0].__exit__(None, None, None)

    monkeypatch.setattr(ExperimentManager, "_start", start)
    config = tiny_config("dqn", tmp_path)
    result = ExperimentManager(config, [0], directory=tmp_path / "out", report=report).run()
    assert [seed.status for seed in result.seeds] == ["finished"]
    assert lines == [
        "seed 0: another process is running it, waiting for that one",
        "seed 0: finished, evaluation return 3.00",
    ]


def test_a_seed_stuck_in_an_environment_is_left_to_its_own_watchdog(tmp_path: Path) -> None:
    for env_timeout, patience in ((10.0, 120.0), (600.0, 660.0)):
        config = tiny_config("dqn", tmp_path, env_timeout=env_timeout)
        assert ExperimentManager(config, [0], directory=tmp_path / "out").patience == patience


def test_orphans_are_left_alone_when_the_manager_is_stopped(
    tmp_path: Path, commands: list[str]
) -> None:
    lines: list[str] = []
    manager = ExperimentManager(tiny_config("dqn", tmp_path, **QUICK), [0, 1])

    def report(line: str) -> None:
        lines.append(line)
        if line.endswith("waiting for that one"):
            os.kill(os.getpid(), signal.SIGTERM)

    manager.report = report
    (manager.directory / "seed-0").mkdir(parents=True)
    with RunLock(manager.directory / "seed-0"), pytest.raises(ExperimentInterrupted) as caught:
        manager.run()
    assert [seed.status for seed in caught.value.result.seeds] == ["running", "missing"]
    assert lines[-1] == "seed 0: left to the process that runs it"
    assert commands == []


class SlowSaveEnv(GateEnv):
    """A gate in whose process every fsync takes a quarter of a second from its opening on."""

    def step(self, action: int) -> Any:
        waited = self.calls + 1 == self.at and os.path.exists(self.gate)
        result = super().step(action)
        if waited:
            fsync = os.fsync
            os.fsync = lambda descriptor: (time.sleep(0.25), fsync(descriptor))[1]
        return result


def test_a_seed_that_saves_slowly_is_waited_for_and_one_that_is_stuck_is_not(
    tmp_path: Path, commands: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save has nine fsyncs and takes more than 2 s; no two of its files are 1 s apart."""
    monkeypatch.setattr(ExperimentManager, "patience", 1.0)
    gate = Gate(tmp_path / "gate")
    gate.close()
    lines: list[str] = []
    thread = interrupt_at(gate, tmp_path / "out")
    config = gated(tmp_path).with_changes(env_id=SlowSaveEnv)
    with pytest.raises(ExperimentInterrupted) as caught:
        ExperimentManager(config, [0], report=lines.append).run()
    thread.join()
    assert [seed.status for seed in caught.value.result.seeds] == ["interrupted"]
    assert caught.value.result.seeds[0].summary["wall_time_s"] > 2.0
    assert lines == ["seed 0: starting", "seed 0: stopped, interrupted"]

    gate.close()
    lines.clear()

    def stop_when_stuck() -> None:
        gate.wait_until_reached()
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop_when_stuck)
    thread.start()
    with pytest.raises(ExperimentInterrupted) as caught:
        ExperimentManager(gated(tmp_path), [5], report=lines.append).run()
    thread.join()
    assert lines[1:] == ["seed 5: no progress for 1 s, killed", "seed 5: stopped, missing"]


def test_a_report_that_raises_leaves_no_process_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[WarmPopen] = []

    class Recorded(WarmPopen):
        def __init__(self, command: Any, **keys: Any) -> None:
            super().__init__(command, **keys)
            started.append(self)

    replace_popen(monkeypatch, Recorded)
    gate = Gate(tmp_path / "gate")
    gate.close()

    def report(line: str) -> None:
        if line.startswith("seed 1"):
            gate.wait_until_reached()
            gate.open()
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        ExperimentManager(gated(tmp_path), [0, 1], jobs=2, report=report).run()
    assert [process.poll() is not None for process in started] == [True]


# What is refused


def test_a_directory_with_another_experiment_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config("dqn", tmp_path, run_name="mine")
    manager = ExperimentManager(config, [0])
    assert manager.directory == tmp_path / "mine"
    replace_popen(monkeypatch, never)
    with pytest.raises(AssertionError, match="a process was started"):
        manager.run()
    other = tiny_config("dqn", tmp_path, run_name="mine", algo_kwargs={"gamma": 0.5})
    with pytest.raises(ConfigError, match="mine holds an experiment with another configuration"):
        ExperimentManager(other, [0]).run()
    unnamed = ExperimentManager(other.with_changes(run_name=None), [0])
    assert unnamed.directory != ExperimentManager(config.with_changes(run_name=None), [0]).directory


def test_an_experiment_is_run_by_one_manager_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_popen(monkeypatch, never)
    manager = ExperimentManager(tiny_config("dqn", tmp_path), [0])
    manager.directory.mkdir()
    with RunLock(manager.directory), pytest.raises(RunError, match="in use by another process"):
        manager.run()


def test_objects_that_no_process_could_receive_are_refused(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path, env_id=lambda: CountingEnv(5))
    with pytest.raises(ConfigError, match=r"env_id: .* cannot receive <callable .*lambda"):
        ExperimentManager(config, [0])
    with pytest.raises(ConfigError, match=r"network: .* cannot receive"):
        ExperimentManager(tiny_config("dqn", tmp_path, algo_kwargs={"network": lambda *_: 1}), [0])
    odd = tiny_config("dqn", tmp_path, env_id=CountingEnv, env_kwargs={"rewards": [lambda: 1]})
    with pytest.raises(ConfigError, match=r"env_kwargs\.rewards\.0: .* cannot receive <callable"):
        ExperimentManager(odd, [0])
    by_class = ExperimentManager(tiny_config("dqn", tmp_path, env_id=CountingEnv), [0])
    assert by_class.directory.name.startswith("dqn-toy_envs-CountingEnv-seeds-")


def test_seeds_and_jobs_are_checked_before_anything_is_made(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path / "out")
    for seeds, jobs in (([], 1), ([1, 1], 1), ([1], 0)):
        with pytest.raises(UsageError, match="expected distinct seeds and jobs >= 1"):
            ExperimentManager(config, seeds, jobs=jobs)
    for seed in (-1, 2**31):
        with pytest.raises(ConfigError, match="seed"):
            ExperimentManager(config, [seed])
    assert not (tmp_path / "out").exists()


def test_a_directory_that_cannot_be_made_is_a_save_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SaveError, match="could not write"):
        ExperimentManager(tiny_config("dqn", tmp_path / "file"), [0]).run()
