from __future__ import annotations

import errno
import math
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.errors import RunError, SaveError, UsageError
from rl_training.storage import runs
from rl_training.storage.files import parse_json, write_atomic, write_json
from rl_training.storage.runs import (
    RunLock,
    collect_metadata,
    create_run_directory,
    default_run_name,
    is_locked,
    list_runs,
    slug,
)

HOSTILE_NAMES = ["../x", "/abs", "a/b", "a\0b", "x" * 101, "x" * 300, "-rf", ".", "..", ".hidden"]
HOSTILE_NAMES += ["", "naïve", "a b", "a\n", "~", "$(id)", "a\\b", "\u202e"]


def test_a_second_run_gets_a_directory_of_its_own(tmp_path: Path) -> None:
    output = tmp_path / "new" / "runs"
    made = [create_run_directory(output, name="dqn").name for _ in range(3)]
    assert made == ["dqn", "dqn-2", "dqn-3"]


def _create(output: Path, barrier: Any, made: Any) -> None:
    barrier.wait()
    made.put(create_run_directory(output, name="same").name)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_twenty_processes_at_once_get_twenty_directories(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier, made = context.Barrier(20), context.SimpleQueue()
    workers = [context.Process(target=_create, args=(tmp_path, barrier, made)) for _ in range(20)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    expected = {"same", *(f"same-{n}" for n in range(2, 21))}
    assert {made.get() for _ in workers} == expected == set(os.listdir(tmp_path))


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_name_that_is_not_plain_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="expected a run name"):
        create_run_directory(tmp_path / "runs", name=name)
    assert os.listdir(tmp_path) == []


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(max_size=120), st.sampled_from(HOSTILE_NAMES)))
def test_nothing_is_ever_made_outside_the_output_directory(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    output = tmp_path_factory.getbasetemp() / "names" / "runs"
    for name in (text, slug(text), default_run_name("dqn", text, 0)):
        try:
            directory = create_run_directory(output, name=name)
        except UsageError:
            assert name == text  # a slug is always a valid name
        else:
            assert directory.resolve().parent == output.resolve()
            directory.rmdir()
    assert os.listdir(output.parent) == ["runs"]


def test_a_link_with_the_name_of_the_run_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "outside").mkdir()
    os.symlink(tmp_path / "outside", tmp_path / "runs" / "dqn")
    os.symlink(tmp_path / "nowhere", tmp_path / "runs" / "dqn-2")
    assert create_run_directory(tmp_path / "runs", name="dqn").name == "dqn-3"


@pytest.mark.parametrize("output", ["file/runs", "x" * 300, "nul\0"])
def test_an_impossible_output_directory_is_an_error_of_ours(tmp_path: Path, output: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises((SaveError, UsageError)):
        create_run_directory(tmp_path / output, name="dqn")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CartPole-v1", "CartPole-v1"),
        ("ALE/Pong-v5", "ALE-Pong-v5"),
        ("my_pkg.envs:Maze", "my_pkg.envs-Maze"),
        ("../../etc", "etc"),
        ("--", "run"),
        ("é", "run"),
        ("x" * 80, "x" * 50),
    ],
)
def test_a_slug_keeps_what_a_name_may_hold(text: str, expected: str) -> None:
    assert slug(text) == expected


def test_the_default_name_tells_what_runs() -> None:
    name = default_run_name("dqn", "CartPole-v1", 3)
    assert re.fullmatch(r"dqn-CartPole-v1-seed3-20\d{6}-\d{6}", name)


def test_a_live_run_cannot_be_opened_twice(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    with RunLock(tmp_path):
        assert is_locked(tmp_path)
        with (
            pytest.raises(RunError, match=rf"pid {os.getpid()} on host .+: wait"),
            RunLock(tmp_path),
        ):
            pass
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)
    with RunLock(tmp_path):
        pass


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_lock_dies_with_its_process_even_if_a_worker_lives_on(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _lock_and_fork(tmp_path, writer)
    worker = int.from_bytes(os.read(reader, 4), "little")
    try:
        with pytest.raises(RunError, match=f"pid {child} "), RunLock(tmp_path):
            pass
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with RunLock(tmp_path):
            os.kill(worker, 0)  # it is still there
    finally:
        os.kill(worker, signal.SIGKILL)
        os.close(reader)
        os.close(writer)


def _lock_and_fork(run_dir: Path, writer: int) -> None:
    try:
        with RunLock(run_dir):
            worker = os.fork()  # such as an environment worker
            if worker == 0:
                signal.pause()
            os.write(writer, worker.to_bytes(4, "little"))
            signal.pause()
    finally:
        os._exit(1)


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    os.symlink(tmp_path / "precious", tmp_path / ".lock")
    with pytest.raises(SaveError), RunLock(tmp_path):
        pass
    assert (tmp_path / "precious").read_text() == "data"


def metadata(**extra: Any) -> dict[str, Any]:
    fixed: dict[str, Any] = {"seed": 4, "device": "cpu", "resume_level": "exact"}
    return collect_metadata(command=["rl-training", "train"], extra=extra, **fixed)


def test_metadata_tells_how_to_repeat_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    found = metadata(algo="dqn")
    assert found["packages"]["numpy"] == np.__version__
    assert {"rl-training", "torch", "gymnasium"} <= set(found["packages"])
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    expected = {"command": ["rl-training", "train"], "seed": 4, "device": "cpu", "algo": "dqn"}
    assert {key: found[key] for key in expected} == expected
    assert found["started_at"].endswith("+00:00")
    assert os.uname().nodename not in found.values()
    assert "git_commit" not in found


def test_metadata_tells_the_commit_and_whether_it_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], [*identity, "commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", *command], check=True)
    clean = metadata()
    assert re.fullmatch(r"[0-9a-f]{40}", clean["git_commit"])
    (tmp_path / "new").touch()
    assert [clean["git_dirty"], metadata()["git_dirty"]] == [False, True]


def test_metadata_tells_the_commit_of_the_package_wherever_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path / "checkout"), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    source = tmp_path / "checkout" / "rl_training" / "runs.py"
    source.parent.mkdir(parents=True)
    source.touch()
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "x")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setattr(runs, "__file__", str(source))
    assert "package_git_commit" not in metadata()  # such as in somebody's .venv
    git("add", ".")
    git("commit", "-q", "-m", "y")
    found = metadata()
    assert found["package_git_commit"] == git("rev-parse", "HEAD")
    assert found["package_git_dirty"] is False
    assert "git_commit" not in found


def test_a_slow_git_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*args: Any, timeout: float, **kwargs: Any) -> None:
        assert timeout == 2.0
        raise subprocess.TimeoutExpired("git", timeout)

    monkeypatch.setattr(subprocess, "run", run)
    assert "git_commit" not in metadata()


def make_run(path: Path, summary: dict[str, Any] | None, rows: str = "") -> None:
    path.mkdir(parents=True)
    write_json(path / "metadata.json", {"algo": "dqn", "env_id": "CartPole-v1", "seed": 3})
    (path / "metrics.jsonl").write_text(rows)
    if summary is not None:
        write_json(path / "summary.json", summary)


def test_runs_are_listed_with_their_state(tmp_path: Path) -> None:
    done = {"global_step": 500, "eval_return_mean": 475.5}
    make_run(tmp_path / "a-finished", done)
    make_run(tmp_path / "b-interrupted", {**done, "status": "interrupted"})
    make_run(tmp_path / "c" / "d" / "killed", None, '{"global_step": 70}\n{"global_s')
    make_run(tmp_path / "c" / "d" / "too" / "deep", done)
    make_run(tmp_path / "e-broken", done)
    (tmp_path / "e-broken" / "summary.json").write_text("{")
    (tmp_path / "f-young").mkdir()
    (tmp_path / "f-young" / "config.yaml").write_text("algo: sac\nenv_id: Pendulum-v1\nseed: 1\n")
    make_run(tmp_path / "g-running", done)
    make_run(tmp_path / "h-failed", {**done, "status": "failed", "error": "the robot fell over"})
    with RunLock(tmp_path / "g-running"):
        found = {str(run.path.relative_to(tmp_path)): run for run in list_runs(tmp_path)}
    assert {name: run.status for name, run in found.items()} == {
        "a-finished": "finished",
        "b-interrupted": "interrupted",
        "c/d/killed": "killed",
        "e-broken": "unreadable",
        "f-young": "killed",
        "g-running": "running",
        "h-failed": "failed",
    }
    first, killed, young = found["a-finished"], found["c/d/killed"], found["f-young"]
    assert (first.algo, first.env_id, first.seed) == ("dqn", "CartPole-v1", 3)
    assert (first.env_steps, first.eval_return_mean) == (500, 475.5)
    assert (killed.env_steps, killed.eval_return_mean) == (70, None)
    assert (young.algo, young.env_id, young.seed) == ("sac", "Pendulum-v1", 1)
    assert list_runs(tmp_path / "absent") == []


def test_json_files_are_standard_json_and_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_json(path, {"b": math.nan, "a": [np.float32(0.5), np.int64(2), -math.inf], "p": path})
    assert list(parse_json(path.read_bytes()).items()) == [
        ("b", None),
        ("a", [0.5, 2, None]),
        ("p", str(path)),
    ]
    write_atomic(path, "new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["summary.json"]
    with pytest.raises(UsageError, match="found set"):
        write_json(path, {1, 2})


def test_a_failed_replacement_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "summary.json"
    write_atomic(path, b"old")

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(
            SaveError, match=r"summary\.json: No space left.*3 bytes needed"
        ) as error:
            write_atomic(path, b"new")
    assert error.value.exit_code == 3
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["summary.json"]


def test_the_lock_waits_out_somebody_who_only_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunLock(tmp_path):
        pass
    descriptor = os.open(tmp_path / ".lock", os.O_RDONLY)
    runs.fcntl.flock(descriptor, runs.fcntl.LOCK_SH)
    monkeypatch.setattr(time, "sleep", lambda _: os.close(descriptor))
    with RunLock(tmp_path):
        assert is_locked(tmp_path)
