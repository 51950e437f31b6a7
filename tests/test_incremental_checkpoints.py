"""Checkpoints that write what is new, in the background, at intervals of steps and of time."""

from __future__ import annotations

import errno
import itertools
import json
import logging
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.config.loading import packaged_configs
from rl_training.data.prioritized_replay import PrioritizedReplayBuffer
from rl_training.data.recurrent_replay_buffer import RecurrentReplayBuffer
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.types import EnvSpec, Transitions
from rl_training.errors import CheckpointError, SaveError
from rl_training.experiment.registry import resolve_config, train_config
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.dqn_trainer import train_dqn
from rl_training.runtime.training_run import TrainingRun
from rl_training.storage import checkpoint_writer, files, rows
from rl_training.storage.checkpoint_writer import CheckpointContent, CheckpointWriter
from rl_training.storage.checkpoints import Checkpoint, find_checkpoint
from rl_training.storage.rows import RowLog, Rows, plan_segments
from rl_training.storage.tree import tree_hash
from test_checkpoint_attacks import forge
from test_frame_replay import Play
from test_frame_replay import spec as image_spec
from test_recurrent_replay_buffer import Row, vector_step
from test_recurrent_replay_buffer import make as make_recurrent
from toy_envs import GeneratorEnv
from training import StopAt, final_state, tiny_config

SPEC = EnvSpec(env_id="toy", obs_shape=(17,), action_kind="continuous", action_dim=6)
ROW_BYTES = 17 * 4 + 6 * 4 + 2 * 4 + 1


def vectors(count: int, start: int = 0, num_envs: int = 1) -> Iterator[Transitions]:
    """Steps of episodes of 10, in which every number names its step."""
    for t in range(start, start + count):
        numbers = t + 1000 * np.arange(num_envs, dtype=np.float32)[:, None]
        yield Transitions(
            obs=np.repeat(numbers, 17, 1),
            action=np.repeat(numbers, 6, 1),
            reward=numbers[:, 0],
            next_obs=np.repeat(numbers + 1, 17, 1),
            terminated=np.full(num_envs, t % 10 == 9),
            truncated=np.zeros(num_envs, np.bool_),
            first=np.full(num_envs, t % 10 == 0),
            valid=np.ones(num_envs, np.bool_),
        )


def fill(buffer: ReplayBuffer, count: int, start: int = 0) -> ReplayBuffer:
    for step in vectors(count, start, buffer.num_envs):
        buffer.add(step)
    return buffer


def parts_of(buffer: Any) -> dict[str, Any]:
    return {"agent": {"weight": torch.ones(3)}, "replay": buffer.state_dict()}


def save(writer: CheckpointWriter, buffer: Any, env_steps: int) -> Path:
    return writer.write(CheckpointContent(env_steps, parts_of(buffer), {})).path


def new_bytes(path: Path, earlier: Path | None = None) -> int:
    """Bytes of the segments in `path` that are not also in `earlier`."""
    known = {os.stat(file).st_ino for file in earlier.iterdir()} if earlier else set()
    segments = [file.stat() for file in path.glob("replay.0*")]
    return sum(status.st_size for status in segments if status.st_ino not in known)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


# What is written


def test_a_later_checkpoint_writes_what_is_new_and_links_the_rest(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, keep=2)
    buffer = fill(ReplayBuffer(SPEC, capacity=6000), 5000)
    first = save(writer, buffer, 1)
    # An episode of 10 steps takes 11 rows; the row at the head is not finished.
    assert new_bytes(first) == pytest.approx(5499 * ROW_BYTES, abs=1024)
    fill(buffer, 1000, start=5000)  # comes round, and leaves some rows of the first segment
    second = save(writer, buffer, 2)
    assert 0 <= new_bytes(second, first) - 1100 * ROW_BYTES < 0.02 * 1100 * ROW_BYTES
    twin = ReplayBuffer(SPEC, capacity=6000, seed=9)
    twin.load_state_dict(find_checkpoint(second).read("replay"))
    assert tree_hash(twin.state_dict()) == tree_hash(buffer.state_dict())
    third = save(writer, buffer, 3)
    assert new_bytes(third, second) == 0
    assert not first.exists()
    find_checkpoint(second).verify()


def test_rows_beyond_a_segment_are_divided_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "SEGMENT_BYTES", 4 * 8)
    log = RowLog({"x": np.arange(20.0)}, rings=2, capacity=10)
    plan = plan_segments(Rows(log, np.array([9, 5])), [])
    assert [piece.end.tolist() for piece in plan] == [[2, 1], [4, 2], [6, 3], [9, 5]]
    assert log.copy(plan[1].begin, plan[1].end).arrays["x"].tolist() == [2.0, 3.0, 11.0]


def test_the_number_of_segments_is_bounded_and_joining_writes_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(rows, "MAX_SMALL_SEGMENTS", 16)
    writer = CheckpointWriter(tmp_path, keep=2)
    buffer = fill(ReplayBuffer(SPEC, capacity=2000), 2000)
    before, excess = save(writer, buffer, 0), []
    for number in range(1, 120):
        path = save(writer, fill(buffer, 10, start=2000 + 10 * number), number)
        assert len(list(path.glob("replay.0*"))) <= 16 + 2
        excess.append(new_bytes(path, before) - 11 * ROW_BYTES)
        before = path
    # One segment more at a time: the two smallest neighbours have at most 2 / 18 of the rows.
    assert 0 < max(excess) <= 2 / 18 * 2000 * ROW_BYTES
    assert max(excess[:16]) < 1024  # nothing is joined before there are too many


def test_segments_that_are_gone_are_written_again(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, keep=3)
    buffer = fill(ReplayBuffer(SPEC, capacity=900), 300)
    first = save(writer, buffer, 1)
    second = save(writer, fill(buffer, 300, start=300), 2)
    (second / names(second)[-2]).unlink()  # the newer of its two segments
    third = save(writer, fill(buffer, 50, start=600), 3)
    assert new_bytes(third, first) == pytest.approx(385 * ROW_BYTES, abs=1024)
    shutil.rmtree(third)
    fourth = save(writer, buffer, 4)
    assert new_bytes(fourth, first) == new_bytes(fourth) > 700 * ROW_BYTES
    twin = ReplayBuffer(SPEC, capacity=900)
    twin.load_state_dict(find_checkpoint(fourth).read("replay"))
    assert tree_hash(twin.state_dict()) == tree_hash(buffer.state_dict())


def test_a_buffer_that_went_back_shares_no_segment_with_what_it_was(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, keep=9)
    buffer = fill(ReplayBuffer(SPEC, capacity=900), 100)
    old = find_checkpoint(save(writer, buffer, 1))
    save(writer, fill(buffer, 100, start=100), 2)
    buffer.load_state_dict(old.read("replay"))
    path = save(writer, fill(buffer, 200, start=5000), 3)
    twin = ReplayBuffer(SPEC, capacity=900)
    twin.load_state_dict(find_checkpoint(path).read("replay"))
    assert tree_hash(twin.state_dict()) == tree_hash(buffer.state_dict())


def test_a_resumed_run_links_the_segments_it_was_resumed_from(tmp_path: Path) -> None:
    buffer = fill(ReplayBuffer(SPEC, capacity=900), 500)
    first = find_checkpoint(save(CheckpointWriter(tmp_path, keep=2), buffer, 1))
    twin = ReplayBuffer(SPEC, capacity=900)
    twin.load_state_dict(first.read("replay"))
    writer = CheckpointWriter(tmp_path, keep=2)
    writer.continue_from(first)
    second = save(writer, fill(twin, 10, start=500), 2)
    assert new_bytes(second, first.path) == pytest.approx(11 * ROW_BYTES, abs=1024)


def test_one_checkpoint_copied_out_of_a_run_is_complete(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path / "checkpoints", keep=1)
    (tmp_path / "checkpoints").mkdir()
    buffer = fill(ReplayBuffer(SPEC, capacity=900), 500)
    save(writer, buffer, 1)
    path = save(writer, fill(buffer, 100, start=500), 2)
    shutil.copytree(path, tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "checkpoints")
    twin = ReplayBuffer(SPEC, capacity=900)
    twin.load_state_dict(find_checkpoint(tmp_path / "elsewhere").read("replay"))
    assert tree_hash(twin.state_dict()) == tree_hash(buffer.state_dict())


def test_without_hard_links_segments_are_copied_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_links(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_links)
    writer = CheckpointWriter(tmp_path, keep=1)
    buffer = fill(ReplayBuffer(SPEC, capacity=900), 300)
    first = save(writer, buffer, 1)
    assert not caplog.records
    with caplog.at_level(logging.INFO, "rl_training"):
        save(writer, fill(buffer, 100, start=300), 2)
        path = save(writer, fill(buffer, 100, start=400), 3)
    assert [r.getMessage().endswith("so segments are copied") for r in caplog.records] == [True] * 2
    assert not first.exists()
    assert find_checkpoint(path).skipped == ()
    assert len(list(path.glob("replay.0*"))) == 3


# Random histories


class Episodes:
    """An endless sequence of vector steps for the buffer of sequences."""

    def __init__(self, num_envs: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.count, self.first = 0, np.ones(num_envs, np.bool_)

    def step(self) -> Transitions:
        self.count += 1
        ends = self.rng.choice(["", "", "", "termination", "truncation"], len(self.first))
        columns = zip(self.first.tolist(), ends.tolist(), strict=True)
        steps = [Row(self.count, first=first, ends=end) for first, end in columns]
        self.first = ends != ""
        return vector_step(*steps)


def images(kind: type[ReplayBuffer], frames: int) -> Callable[[int, int, int], tuple[Any, Any]]:
    def build(capacity: int, num_envs: int, seed: int) -> tuple[Any, Any]:
        buffer = kind(image_spec(frames), capacity=capacity, num_envs=num_envs)
        return buffer, Play(frames, num_envs, seed)

    return build


def sequences(capacity: int, num_envs: int, seed: int) -> tuple[RecurrentReplayBuffer, Episodes]:
    return make_recurrent(capacity=capacity, num_envs=num_envs), Episodes(num_envs, seed)


BUFFERS: dict[str, Callable[[int, int, int], tuple[Any, Any]]] = {
    "uniform": images(ReplayBuffer, 1),
    "stacked": images(ReplayBuffer, 3),
    "prioritized": images(PrioritizedReplayBuffer, 2),
    "sequences": sequences,
}


@pytest.mark.parametrize("kind", list(BUFFERS))
@settings(max_examples=8, deadline=None)
@given(
    moves=st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=2, max_size=9),
    capacity=st.integers(3, 40),
    num_envs=st.integers(1, 3),
    keep=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_every_kept_checkpoint_is_the_buffer_at_its_save(
    kind: str,
    moves: list[tuple[int, bool]],
    capacity: int,
    num_envs: int,
    keep: int,
    seed: int,
) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(rows, "SEGMENT_BYTES", 200)
        patch.setattr(rows, "MAX_SMALL_SEGMENTS", 2)
        directory = Path(folder)
        buffer, play = BUFFERS[kind](capacity, num_envs, seed)
        expected: dict[int, str] = {}
        with CheckpointWriter(directory, keep=keep) as writer:
            for number, (steps, in_background) in enumerate(moves):
                expected[number] = tree_hash(buffer.state_dict())
                content = CheckpointContent(number, parts_of(buffer), {})
                if in_background:
                    writer.begin(content)
                else:
                    writer.write(content)
                for _ in range(steps):  # while it is being written
                    buffer.add(play.step())
                writer.wait()
                kept = sorted(int(path.name[5:]) for path in directory.iterdir())
                assert kept == list(range(max(0, number + 1 - keep), number + 1))
                for step in kept:
                    checkpoint = find_checkpoint(directory / f"step_{step:012d}")
                    assert tree_hash(checkpoint.read("replay")) == expected[step]
        twin, _ = BUFFERS[kind](capacity, num_envs, seed)
        twin.load_state_dict(find_checkpoint(directory).read("replay"))
        assert tree_hash(twin.state_dict()) == expected[len(moves) - 1]


# Failures


class Died(BaseException):
    """The process is gone: no clean-up happens."""


CALLS = ("open", "write", "fsync", "link", "rename", "mkdir", "unlink", "rmdir", "scandir")


def test_a_death_at_any_call_leaves_the_checkpoint_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    buffer = fill(ReplayBuffer(SPEC, capacity=300), 200)
    for moment in itertools.count():
        folder = tmp_path / str(moment)
        writer = CheckpointWriter(folder, keep=1)
        save(writer, buffer, 1)
        before = tree_hash(buffer.state_dict())
        fill(buffer, 30, start=200 + 30 * moment)
        after = tree_hash(buffer.state_dict())
        try:
            with dying_at(moment):
                save(writer, buffer, 2)
        except Died:
            pass
        else:
            break
        found = find_checkpoint(folder)
        assert tree_hash(found.read("replay")) == {1: before, 2: after}[found.env_steps]
        save(CheckpointWriter(folder, keep=1), buffer, 3)
        assert names(folder) == ["step_000000000003"]
    assert moment > 25, "the save was over before most of its calls"


class dying_at:
    """From the given call of the operating system on, every one raises."""

    def __init__(self, moment: int) -> None:
        self.left, self.patch = moment, pytest.MonkeyPatch()

    def __enter__(self) -> None:
        for name in CALLS:
            self.patch.setattr(os, name, self.counted(getattr(os, name)))

    def __exit__(self, *_: object) -> None:
        self.patch.undo()
        for descriptor in os.listdir("/proc/self/fd"):  # the system closes those of the dead
            with suppress(OSError):
                if files.TEMPORARY_PREFIX in os.readlink(f"/proc/self/fd/{descriptor}"):
                    os.close(int(descriptor))

    def counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise Died
            return call(*args, **kwargs)

        return count


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_kill_minus_nine_inside_a_background_save_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    rng = random.Random(0)
    for number in range(12):
        child = os.fork()
        if child == 0:
            _save_forever(tmp_path / str(number))
        while not (tmp_path / str(number)).exists() or not any(
            name.startswith("step") for name in names(tmp_path / str(number))
        ):
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.08))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found = find_checkpoint(tmp_path / str(number))
        assert found.skipped == ()
        straight = fill(ReplayBuffer(SPEC, capacity=300), found.env_steps)
        assert tree_hash(found.read("replay")) == tree_hash(straight.state_dict())


def _save_forever(folder: Path) -> None:
    """Saves in the background, slowed down, while steps go on."""
    write_fast = os.write

    def write_slowly(descriptor: int, data: Any) -> int:
        time.sleep(0.001)
        return write_fast(descriptor, data)

    try:
        os.write = write_slowly
        writer, buffer = CheckpointWriter(folder, keep=2), ReplayBuffer(SPEC, capacity=300)
        for t, step in enumerate(vectors(10**6)):
            if writer.finished or not writer.busy:
                writer.wait()
                writer.begin(CheckpointContent(t, parts_of(buffer), {}))
            buffer.add(step)
    finally:
        os._exit(1)


def test_a_transient_error_inside_the_rows_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = fill(ReplayBuffer(SPEC, capacity=300), 200)
    expected = tree_hash(buffer.state_dict())
    monkeypatch.setattr(files, "RETRY_DELAYS_S", (0.0, 0.0, 0.0))
    for call in ("write", "fsync", "rename"):
        for moment in range(6):
            with monkeypatch.context() as patch:
                calls = itertools.count()
                original = getattr(os, call)

                def once(*args: Any, original: Any = original, calls: Any = calls) -> Any:
                    if next(calls) == moment:  # noqa: B023 - called within this iteration
                        raise OSError(errno.EIO, os.strerror(errno.EIO))
                    return original(*args)

                patch.setattr(os, call, once)
                path = save(CheckpointWriter(tmp_path, keep=1), buffer, 1)
            assert tree_hash(find_checkpoint(path).read("replay")) == expected


def forged(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    structure = json.loads((path / "replay.json").read_text())
    change(structure["dict"])
    (path / "replay.json").write_text(json.dumps(structure))
    forge(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: tree["finished"]["segments"].reverse(),
        lambda tree: tree["finished"]["segments"].pop(),
        lambda tree: tree["finished"]["segments"].append(7),
        lambda tree: tree["finished"].update(segments=[]),
        lambda tree: tree["finished"].update(segments=["../agent"]),
        lambda tree: tree["finished"].update(rows=3),
        lambda tree: tree["finished"].update(kept=0),
        lambda tree: tree["finished"].pop("kept"),
        lambda tree: tree.update(finished={"dict": {}}),
    ],
)
def test_forged_segments_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], None]
) -> None:
    monkeypatch.setattr(rows, "SEGMENT_BYTES", 4096)
    buffer = fill(ReplayBuffer(SPEC, capacity=300), 200)
    path = save(CheckpointWriter(tmp_path, keep=1), buffer, 1)
    forged(path, change)
    with pytest.raises(CheckpointError):
        ReplayBuffer(SPEC, capacity=300).load_state_dict(Checkpoint.open(path).read("replay"))


def test_rows_that_are_not_those_of_the_buffer_are_refused(tmp_path: Path) -> None:
    buffer = fill(ReplayBuffer(SPEC, capacity=300, num_envs=2), 100)
    saved = buffer.state_dict()
    block = saved["finished"].whole()
    other = np.array([-(2**63), 2**62], np.int64)
    for wrong in (
        block | {"begin": block["begin"] + 1},
        block | {"end": block["end"] + 1},
        block | {"begin": other, "end": other},
        block | {"end": block["end"].astype(np.float64)},
        block | {"begin": block["begin"][:1]},
        block | {"arrays": {}},
        block | {"arrays": block["arrays"] | {"reward": block["arrays"]["reward"][:-1]}},
        block | {"arrays": block["arrays"] | {"reward": block["arrays"]["discount"] > 0}},
    ):
        with pytest.raises(CheckpointError):
            buffer.load_state_dict(saved | {"finished": wrong})


# In the background


def test_rows_being_written_are_not_overwritten_until_they_are_copied() -> None:
    log = RowLog({"x": np.arange(10)}, rings=1, capacity=10)
    log.hold(np.array([4]))
    log.wait_until_free(np.array([4]))  # older rows are free
    passed: list[str] = []

    def overwrite() -> None:
        log.wait_until_free(np.array([6]))
        passed.append("overwritten")

    thread = threading.Thread(target=overwrite)
    thread.start()
    log.advance(np.array([5]))
    thread.join(0.05)
    assert passed == []
    log.advance(np.array([6]))
    thread.join(5)
    assert passed == ["overwritten"]


def test_training_goes_on_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, may_write = threading.Event(), threading.Event()
    original = os.write

    def blocked(descriptor: int, data: Any) -> int:
        if threading.current_thread().name == "checkpoint":
            writing.set()
            assert may_write.wait(10)
        return original(descriptor, data)

    monkeypatch.setattr(os, "write", blocked)
    buffer = fill(ReplayBuffer(SPEC, capacity=300), 100)
    parts = parts_of(buffer)
    expected = tree_hash(parts)
    with CheckpointWriter(tmp_path, keep=1) as writer:
        writer.begin(CheckpointContent(1, parts, {}))
        assert writing.wait(10)
        parts["agent"]["weight"] += 1
        fill(buffer, 50, start=100)
        assert not writer.finished
        assert names(tmp_path)[0].startswith(files.TEMPORARY_PREFIX)
        may_write.set()
        written = writer.wait()
    assert written is not None
    found = find_checkpoint(written.path)
    assert tree_hash({part: found.read(part) for part in found.parts}) == expected


def test_a_state_too_large_to_copy_is_written_before_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_writer, "COPIED_BYTES", 11)
    with CheckpointWriter(tmp_path, keep=1) as writer:
        writer.begin(CheckpointContent(1, {"agent": {"weight": torch.ones(3)}}, {}))
        assert writer.finished
        assert names(tmp_path) == ["step_000000000001"]


def test_an_interrupted_process_drops_the_checkpoint_it_was_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writing, may_write = threading.Event(), threading.Event()
    original = os.write

    def blocked(descriptor: int, data: Any) -> int:
        writing.set()
        assert may_write.wait(10)
        return original(descriptor, data)

    def interrupt(writer: CheckpointWriter) -> None:
        with writer:
            writer.begin(CheckpointContent(1, parts_of(ReplayBuffer(SPEC, capacity=9)), {}))
            assert writing.wait(10)
            threading.Timer(0.05, may_write.set).start()
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "write", blocked)
    with pytest.raises(KeyboardInterrupt):
        interrupt(CheckpointWriter(tmp_path, keep=1))
    assert names(tmp_path) == []
    assert "the run was ended" in caplog.text


class Full(Callback):
    """From a step on, the disk is full for what the background writes."""

    def __init__(self, patch: pytest.MonkeyPatch, env_steps: int) -> None:
        self.patch, self.at = patch, env_steps

    def on_step(self, run: TrainingRun) -> None:
        if run.env_steps == self.at:
            run.finish_saving()
            self.patch.setattr(os, "fsync", self.full(os.fsync))

    @staticmethod
    def full(fsync: Callable[[int], None]) -> Callable[[int], None]:
        def fail(descriptor: int) -> None:
            if threading.current_thread().name == "checkpoint":
                raise OSError(errno.EACCES, os.strerror(errno.EACCES))
            fsync(descriptor)

        return fail


def test_an_error_in_the_background_ends_the_run_and_keeps_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config("dqn", tmp_path, checkpoint_interval=50, run_name="run")
    with pytest.raises(SaveError, match=r"step_000000000100.*writable"):
        train_dqn(config, callbacks=[Full(monkeypatch, 90)])
    monkeypatch.undo()
    assert find_checkpoint(tmp_path / "run").env_steps == 50
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


class Watch(Callback):
    """Notes what on_checkpoint finds."""

    def __init__(self) -> None:
        self.found: list[int] = []

    def on_checkpoint(self, run: TrainingRun, path: Path) -> None:
        self.found.append(find_checkpoint(path).env_steps)
        assert run.saved_at == self.found[-1] <= run.env_steps


@pytest.mark.parametrize("algo", ["dqn", "drqn", "ppo"])
def test_every_background_checkpoint_continues_bit_for_bit(tmp_path: Path, algo: str) -> None:
    config = tiny_config(
        algo, tmp_path, checkpoint_interval=60, keep_checkpoints=9, num_envs=2, run_name="straight"
    )
    watch = Watch()
    straight = train_config(config, callbacks=[watch]).run_dir
    end = find_checkpoint(straight).env_steps
    assert watch.found == [*range(60, end, 60), end]
    for step in watch.found[:-1]:
        copy = tmp_path / f"copy_{step}"
        shutil.copytree(straight / "checkpoints" / f"step_{step:012d}", copy)
        resumed = train_config(config.with_changes(run_name=f"from_{step}"), resume=copy).run_dir
        assert final_state(resumed) == final_state(straight)


# By time


class WaitAndWatch(Watch):
    """Waits at each step for the checkpoint being written: a busy disk makes them no fewer."""

    def on_step(self, run: TrainingRun) -> None:
        run.finish_saving()


def test_saving_by_the_clock_does_not_change_what_is_learned(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path, checkpoint_interval=0, checkpoint_minutes=0)
    watch, often = Watch(), WaitAndWatch()
    reference = train_dqn(config, callbacks=[watch]).run_dir
    assert watch.found == [240]
    timed = train_dqn(config.with_changes(checkpoint_minutes=1e-9), callbacks=[often]).run_dir
    assert len(often.found) > 2
    assert final_state(timed) == final_state(reference)


def test_at_level_boundary_the_clock_cuts_no_episode_and_the_exact_one_is_kept(
    tmp_path: Path,
) -> None:
    changes: dict[str, Any] = {"checkpoint_interval": 100, "keep_checkpoints": 1}
    config = tiny_config("dqn", tmp_path, env_id=GeneratorEnv, checkpoint_minutes=0, **changes)
    reference = train_dqn(config).run_dir
    often = config.with_changes(checkpoint_minutes=1e-9)
    timed = train_dqn(often).run_dir
    assert final_state(timed) == final_state(reference)
    by_step = {
        checkpoint.env_steps: checkpoint.info["exact"]
        for path in (timed / "checkpoints").glob("step*")
        for checkpoint in [find_checkpoint(path)]
    }
    assert by_step == {200: True, 240: False}
    stopped = tmp_path / "stopped"
    with pytest.raises(BaseException, match="signal"):
        train_dqn(often.with_changes(run_name="stopped"), callbacks=[StopAt(180)])
    exact = stopped / "checkpoints" / "step_000000000100"
    train_dqn(often, resume=exact)
    assert final_state(stopped) == final_state(reference)


def test_every_packaged_configuration_saves_every_five_minutes() -> None:
    found = {name: resolve_config(name).config.checkpoint_minutes for name in packaged_configs()}
    assert "redq/hopper" in found
    assert set(found.values()) == {5.0}


# Memory


def test_resume_needs_no_second_copy_of_the_replay(tmp_path: Path) -> None:
    peak = Path("/proc/self/clear_refs")
    if not os.access(peak, os.W_OK):
        pytest.skip("the peak of the memory cannot be reset here")
    spec = replace(image_spec(1), obs_shape=(1, 84, 84))
    buffer = ReplayBuffer(spec, capacity=9000)
    buffer.storage["obs"].random_()
    buffer._valid[:-2] = True
    buffer._laps[:], buffer._head[:], buffer._empty = 0, 8999, False
    path = save(CheckpointWriter(tmp_path, keep=1), buffer, 1)
    size, expected = buffer.nbytes, tree_hash(buffer.state_dict())
    del buffer
    before = status("VmRSS")
    peak.write_text("5")
    twin = ReplayBuffer(spec, capacity=9000)
    twin.load_state_dict(find_checkpoint(path).read("replay"))
    # A segment of 4 MiB, what it is hashed with and its slots come on top, whatever the size.
    assert status("VmHWM") - before < size + (10 << 20)
    assert tree_hash(twin.state_dict()) == expected


def status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
