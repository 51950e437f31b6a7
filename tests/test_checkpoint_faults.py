"""What happens to checkpoints when the disk, the directory or the process fails mid-way."""

from __future__ import annotations

import errno
import math
import os
import random
import resource
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.errors import CheckpointError, SaveError
from rl_training.storage import files
from rl_training.storage.checkpoints import (
    Checkpoint,
    find_checkpoint,
    prune,
    retry_if_pruned,
    write_checkpoint,
)
from rl_training.storage.tree import tree_hash


def parts_of(value: float) -> dict[str, Any]:
    agent = {"weight": torch.full((4, 3), value), "updates": 7}
    return {"agent": agent, "replay": {"obs": np.full((8, 2), value, np.float32)}}


def write(folder: Path, env_steps: int, value: float = 1.0) -> Path:
    parts = parts_of(value)
    return write_checkpoint(folder, kind="step", env_steps=env_steps, parts=parts, info={})


def weight_of(checkpoint: Checkpoint) -> float:
    return float(checkpoint.read("agent")["weight"][0, 0])


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_a_commit_is_write_fsync_rename_fsync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, str]] = []

    def record(name: str, target: Callable[..., str]) -> None:
        original = getattr(os, name)

        def traced(*args: Any) -> Any:
            events.append((name, target(*args)))
            return original(*args)

        monkeypatch.setattr(os, name, traced)

    def kind(descriptor: int, *_: Any) -> str:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        return "temporary" if files.TEMPORARY_PREFIX in Path(path).name else Path(path).name

    record("write", kind)
    record("fsync", kind)
    record("rename", lambda source, target: Path(target).name)
    folder = tmp_path / "checkpoints"
    write(folder, 5)
    expected = [("fsync", tmp_path.name)]  # the new checkpoints directory itself
    for name in ("agent.json", "agent.safetensors", "replay.json", "replay.safetensors"):
        expected += [("write", name), ("fsync", name)]
    expected += [("write", "manifest.json"), ("fsync", "manifest.json"), ("fsync", "temporary")]
    expected += [("rename", "step_000000000005"), ("fsync", "checkpoints")]
    merged = [e for i, e in enumerate(events) if i == 0 or e != events[i - 1]]
    assert merged == expected


def _failing(call: Callable[..., Any], error: int, times: float, after: int = 0) -> Any:
    count = 0

    def fail(*args: Any) -> Any:
        nonlocal count
        count += 1
        if after < count <= after + times:
            raise OSError(error, os.strerror(error))
        return call(*args)

    return fail


@pytest.mark.parametrize("after", range(9))
def test_a_full_disk_loses_nothing_and_names_the_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    write(tmp_path, 100)
    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", lambda _: None)
        patch.setattr(os, "write", _failing(os.write, errno.ENOSPC, math.inf, after=after))
        if after < 7:
            with pytest.raises(SaveError, match=r"step_000000000200.*\d+ bytes needed, \d+ free"):
                write(tmp_path, 200)
        else:
            write(tmp_path, 200)  # seven writes are enough: the disk never was full
    assert names(tmp_path) == ["step_000000000100", "step_000000000200"][: 1 + (after >= 7)]
    assert weight_of(find_checkpoint(tmp_path / "step_000000000100")) == 1.0


def test_bytes_needed_is_the_size_of_the_data(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    parts = {"agent": {"w": torch.zeros(250_000)}}
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, limits[1]))
    try:
        with pytest.raises(SaveError, match=r"File too large; 10000\d\d bytes needed"):
            write_checkpoint(tmp_path, kind="step", env_steps=1, parts=parts, info={})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(tmp_path) == []


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
@pytest.mark.parametrize(("times", "saved"), [(1, True), (3, True), (4, False)])
def test_a_transient_error_is_tried_again_three_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, times: int, saved: bool
) -> None:
    pauses: list[float] = []
    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", pauses.append)
        patch.setattr(os, call, _failing(getattr(os, call), errno.EIO, times))
        if saved:
            assert weight_of(Checkpoint.open(write(tmp_path, 1))) == 1.0
        else:
            with pytest.raises(SaveError, match="Input/output error"):
                write(tmp_path, 1)
    assert names(tmp_path) == ["step_000000000001"] * saved
    assert pauses == [0.05, 0.2, 0.8][:times]


@pytest.mark.parametrize(
    ("kind", "tries"),
    [
        *((kind, 4) for kind in ("ESTALE", "EAGAIN", "ETIMEDOUT", "ENOSPC", "EDQUOT", "EBUSY")),
        *((kind, 1) for kind in ("EACCES", "EROFS", "ENOENT", "EFBIG", "EPERM")),
    ],
)
def test_only_what_may_pass_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, tries: int
) -> None:
    count = 0

    def fail(*_: Any) -> None:
        nonlocal count
        count += 1
        raise OSError(getattr(errno, kind), "no")

    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", lambda _: None)
        patch.setattr(os, "fsync", fail)
        with pytest.raises(SaveError):
            files.write_atomic(tmp_path / "file", b"content")
    assert (count, names(tmp_path)) == (tries, [])


def test_the_message_of_a_full_disk_does_not_contradict_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = SimpleNamespace(f_bavail=74, f_frsize=4096, f_favail=5)  # 303,104 bytes
    monkeypatch.setattr(os, "statvfs", lambda _: status)
    full = OSError(errno.ENOSPC, "No space left")
    assert "; 303105 bytes needed, 303104 free. Free some" in str(
        files.save_error(tmp_path / "x", full, needed=303_105)
    )
    enough = str(files.save_error(tmp_path / "x", full, needed=302_398))
    assert "302398 bytes needed, 303104 free, which a quota" in enough
    assert "whole blocks of 4096 bytes or the 5 files still allowed may make too few" in enough
    # Of an error that is not about space, space is no explanation.
    broken = str(files.save_error(tmp_path / "x", OSError(errno.EIO, "broken"), needed=1))
    assert "needed" not in broken


# Checkpoints that a run in progress deletes


def test_a_checkpoint_is_found_while_others_are_written_and_pruned(tmp_path: Path) -> None:
    stop = threading.Event()

    def keep_writing() -> None:
        env_steps = 1
        while not stop.is_set():
            env_steps += 1
            write(tmp_path, env_steps, value=float(env_steps))
            prune(tmp_path, keep=1)

    write(tmp_path, 1)
    writer = threading.Thread(target=keep_writing)
    writer.start()
    try:
        seen: list[float] = []
        while len(seen) < 150 or len(set(seen)) <= 10:  # as long as it takes on a busy machine
            seen.append(retry_if_pruned(lambda: _read_newest(tmp_path)))
    finally:
        stop.set()
        writer.join()
    assert seen == sorted(seen)


def _read_newest(folder: Path) -> float:
    found = find_checkpoint(folder)
    assert found.skipped == ()
    time.sleep(0.0005)  # in which it may be deleted
    return weight_of(found)


def test_a_checkpoint_that_is_gone_for_good_is_an_error(tmp_path: Path) -> None:
    found = find_checkpoint(write(tmp_path, 1))
    prune_target = tmp_path / "step_000000000001"
    files.remove(prune_target)
    with pytest.raises(CheckpointError, match="cannot be read"):
        retry_if_pruned(lambda: found.read("agent"))
    with pytest.raises(CheckpointError, match="cannot be read"):
        find_checkpoint(prune_target)


def test_a_vanished_run_directory_is_a_save_error(tmp_path: Path) -> None:
    with pytest.raises(SaveError, match="No such file"):
        write(tmp_path / "gone" / "checkpoints", 1)


def test_a_directory_that_cannot_be_written_is_a_save_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "mkdir", _failing(Path.mkdir, errno.EACCES, math.inf))
    with pytest.raises(SaveError, match="Make the directory writable"):
        write(tmp_path, 1)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_kill_minus_nine_while_overwriting_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    rng = random.Random(0)
    values, left_behind = set(), 0
    for _ in range(40):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            _overwrite_forever(tmp_path, writer)
        os.read(reader, 1)  # the first save of this child is complete
        time.sleep(rng.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)
        found = find_checkpoint(tmp_path)
        assert found.skipped == ()
        parts = {part: found.read(part) for part in found.parts}
        value = float(parts["agent"]["weight"][0, 0])
        assert tree_hash(parts) == tree_hash(parts_of(value))
        values.add(value)
        left_behind += len(names(tmp_path)) > 1
    assert len(values) == 40, "every child must have replaced the checkpoint"
    assert left_behind > 10, "the kills did not hit the writer inside a save"
    write(tmp_path, 100)
    assert names(tmp_path) == ["step_000000000100"]


def _overwrite_forever(folder: Path, writer: int) -> None:
    """A writer slowed down, so that most kills hit it inside a save."""
    write_fast, value = os.write, float(os.getpid() * 1000 % 2**23)

    def write_slowly(descriptor: int, data: Any) -> int:
        time.sleep(0.001)
        return write_fast(descriptor, data)

    try:
        os.write = write_slowly
        while True:
            value += 1
            write(folder, 100, value=value)
            write_fast(writer, b".")
    finally:
        os._exit(1)


def test_what_a_dead_writer_left_is_swept_by_the_next_save(tmp_path: Path) -> None:
    for name in ("1", "2"):
        stale = tmp_path / f"{files.TEMPORARY_PREFIX}{name}"
        stale.mkdir()
        (stale / "agent.safetensors").write_bytes(b"half")
    write(tmp_path, 1)
    assert names(tmp_path) == ["step_000000000001"]


def test_the_temporary_files_of_a_living_writer_are_left_alone(tmp_path: Path) -> None:
    with files.temporary_directory(tmp_path) as folder:
        (folder / "file").touch()
        write(tmp_path, 1)
        assert names(folder) == ["file"]
    assert names(tmp_path) == ["step_000000000001"]
