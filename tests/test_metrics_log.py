from __future__ import annotations

import errno
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rl_training.errors import CheckpointError, RunError, SaveError
from rl_training.storage.metrics_log import EMPTY_LOG, MetricsLog, latest_values, read_metrics


def steps(path: Path) -> list[int]:
    return [row["global_step"] for row in read_metrics(path)]


def scalars(path: Path, tag: str) -> list[tuple[int, float]]:
    accumulator = EventAccumulator(str(path))
    accumulator.Reload()
    return [(event.step, event.value) for event in accumulator.Scalars(tag)]


def test_rows_are_lines_of_standard_json_in_order(tmp_path: Path) -> None:
    with MetricsLog(tmp_path, tensorboard=False) as log:
        log.write(10, {"train/loss": 0.5, "train/q_value_mean": math.nan})
        log.write(20, {"eval/return_mean": 3, "train/loss": math.inf, "note": None})
        rows = read_metrics(tmp_path)  # on disk before the log is closed
    assert [list(row) for row in rows] == [
        ["global_step", "wall_time_s", "train/loss", "train/q_value_mean"],
        ["global_step", "wall_time_s", "eval/return_mean", "train/loss", "note"],
    ]
    assert (rows[0]["train/loss"], rows[0]["train/q_value_mean"]) == (0.5, None)
    assert (rows[1]["eval/return_mean"], rows[1]["train/loss"]) == (3, None)
    assert 0 <= rows[0]["wall_time_s"] <= rows[1]["wall_time_s"] < 60
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


def test_resuming_cuts_the_rows_after_the_checkpoint(tmp_path: Path) -> None:
    with MetricsLog(tmp_path, tensorboard=False) as log:
        log.write(10, {"loss": 1.0})
        state = log.state_dict()
        size = (tmp_path / "metrics.jsonl").stat().st_size
        log.write(20, {"loss": 2.0})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"global_step": 30, "lo')
    assert (state["offset"], state["global_step"]) == (size, 10)
    with MetricsLog(tmp_path, tensorboard=False, resume_from=state) as log:
        assert (tmp_path / "metrics.jsonl").stat().st_size > size  # a resume may yet fail
        assert log.state_dict()["offset"] == (tmp_path / "metrics.jsonl").stat().st_size == size
        log.write(20, {"loss": 2.5})
    assert [(row["global_step"], row["loss"]) for row in read_metrics(tmp_path)] == [
        (10, 1.0),
        (20, 2.5),
    ]


def test_the_clock_goes_on_where_the_checkpoint_left_it(tmp_path: Path) -> None:
    state = {"offset": 0, "global_step": 5, "wall_time_s": 1000.0}
    with MetricsLog(tmp_path, tensorboard=False, resume_from=state) as log:
        log.write(6, {})
        assert 1000 <= read_metrics(tmp_path)[0]["wall_time_s"] <= log.state_dict()["wall_time_s"]


def test_a_log_that_is_opened_and_not_used_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    content = '{"global_step": 1}\n{"global_step": 2}\n{"global_st'
    (tmp_path / "metrics.jsonl").write_text(content)
    for state in (None, {"offset": 19, "global_step": 1, "wall_time_s": 0.0}):
        MetricsLog(tmp_path, resume_from=state).close()
        assert (tmp_path / "metrics.jsonl").read_text() == content


@pytest.mark.parametrize(
    "state",
    [{}, {"offset": 1, "global_step": 2}, {"offset": "1", "global_step": 2, "wall_time_s": 0.0}],
)
def test_a_malformed_position_is_refused(tmp_path: Path, state: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="expected offset, global_step, wall_time_s"):
        MetricsLog(tmp_path, resume_from=state)
    assert os.listdir(tmp_path) == []


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"global_step": 1}\n{"global_step": 2}\n{"global_st')
    assert steps(path) == [1, 2]
    assert latest_values(path, ["global_step"]) == {"global_step": 2}
    with MetricsLog(tmp_path, tensorboard=False) as log:
        log.write(3, {})
    assert steps(path) == [1, 2, 3]


@pytest.mark.parametrize(
    ("content", "kept", "missing"),
    [
        ('{"global_step": 1}\n', [1], 19),  # shorter than the checkpoint remembers
        ("", [], 38),
        ('{"global_step": 1}\n' + '{"global_step": 2, "long": "' + "x" * 70_000, [1], 19),
    ],
)
def test_a_changed_file_is_cut_at_a_line_and_said_so(
    tmp_path: Path,
    content: str,
    kept: list[int],
    missing: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "metrics.jsonl").write_text(content)
    state = {"offset": 38, "global_step": 2, "wall_time_s": 0.0}
    with MetricsLog(tmp_path, tensorboard=False, resume_from=state) as log:
        log.write(7, {})
    assert f"metrics.jsonl: {missing} bytes of earlier rows are gone" in caplog.text
    assert steps(tmp_path) == [*kept, 7]


def test_a_torn_line_longer_than_the_read_size_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"global_step": 1}\n' + "x" * 150_000)
    with MetricsLog(tmp_path, tensorboard=False) as log:
        log.write(2, {})
    assert steps(tmp_path) == [1, 2]


@pytest.mark.parametrize("line", ["{", "[1]", "\x00"])
def test_a_broken_line_in_the_middle_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"global_step": 1}}\n{line}\n{{"global_step": 3}}\n')
    with pytest.raises(RunError, match="line 2"):
        read_metrics(path)


def test_a_missing_file_is_an_error_and_has_no_last_row(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="No such file"):
        read_metrics(tmp_path)
    assert latest_values(tmp_path / "metrics.jsonl", ["global_step"]) == {}


def test_tensorboard_shows_each_step_of_a_resumed_run_once(tmp_path: Path) -> None:
    with MetricsLog(tmp_path) as log:
        log.write(10, {"train/loss": 1.0})
        state = log.state_dict()
        log.write(20, {"train/loss": 2.0, "eval/return_mean": 7})
    with MetricsLog(tmp_path, resume_from=state) as log:
        log.write(20, {"train/loss": 2.5, "none": None})
        log.write(30, {"train/loss": math.nan})
    shown = scalars(tmp_path, "train/loss")
    assert shown[:2] == [(10, 1.0), (20, 2.5)]
    assert (shown[2][0], math.isnan(shown[2][1])) == (30, True)
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 2


def test_a_full_disk_leaves_no_half_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write

    def full_after_ten_bytes(descriptor: int, data: Any) -> int:
        if len(data) <= 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[: max(10, len(data) - 10)])

    with MetricsLog(tmp_path, tensorboard=False) as log:
        log.write(1, {"loss": 1.0})
        with monkeypatch.context() as patch:
            patch.setattr(time, "sleep", lambda _: None)
            patch.setattr(os, "write", full_after_ten_bytes)
            with pytest.raises(SaveError, match=r"metrics\.jsonl: No space left"):
                log.write(2, {"loss": 2.0})
        assert (tmp_path / "metrics.jsonl").read_bytes().count(b"\n") == 1
        assert (tmp_path / "metrics.jsonl").read_bytes().endswith(b"\n")
        log.write(3, {"loss": 3.0})
    assert steps(tmp_path) == [1, 3]


def test_rows_whose_fsync_failed_are_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed fsync the kernel may hold lost pages for written."""
    fsync, written, failures = os.fsync, list[tuple[bytes, int]](), iter([True, True, False])
    pwrite = os.pwrite

    def fail(descriptor: int) -> None:
        if next(failures):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    def record(descriptor: int, data: bytes, offset: int) -> int:
        written.append((bytes(data), offset))
        return pwrite(descriptor, data, offset)

    with MetricsLog(tmp_path, tensorboard=False) as log:
        log.write(1, {})
        known = log.state_dict()["offset"]
        log.write(2, {})
        with monkeypatch.context() as patch:
            patch.setattr(time, "sleep", lambda _: None)
            patch.setattr(os, "fsync", fail)
            patch.setattr(os, "pwrite", record)
            log.state_dict()
    second = (tmp_path / "metrics.jsonl").read_bytes()[known:]
    assert written == [(second, known)] * 2
    assert steps(tmp_path) == [1, 2]


def test_a_half_row_that_could_not_be_dropped_is_dropped_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def fail(*_: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def half(descriptor: int, data: Any) -> int:
        if len(data) > 20:
            return write(descriptor, data[:20])
        return fail() or 0

    with MetricsLog(tmp_path, tensorboard=False) as log:
        log.write(1, {"loss": 1.0})
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", half)
            patch.setattr(os, "ftruncate", fail)
            with pytest.raises(SaveError, match="Read-only"):
                log.write(2, {"loss": 2.0})
        log.write(3, {"loss": 3.0})
    assert steps(tmp_path) == [1, 3]


def test_a_vanished_directory_is_a_save_error(tmp_path: Path) -> None:
    with pytest.raises(SaveError, match=r"gone/metrics\.jsonl: No such file"):
        MetricsLog(tmp_path / "gone")


def test_the_rows_are_durable_once_a_checkpoint_knows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    with MetricsLog(tmp_path, tensorboard=False) as log:
        log.write(1, {})
        monkeypatch.setattr(
            os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        )
        log.state_dict()
    assert synced == [str(tmp_path / "metrics.jsonl")]


def test_heavy_packages_are_imported_only_when_needed() -> None:
    code = (
        "import sys, rl_training.storage.runs, rl_training.storage.metrics_log;"
        "print([m for m in ('torch', 'numpy', 'tensorboard', 'yaml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_tensorboard_has_the_configuration_and_the_hyper_parameters_with_the_result(
    tmp_path: Path,
) -> None:
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.hparams import api_pb2
    from tensorboard.plugins.hparams.backend_context import Context
    from tensorboard.plugins.hparams.list_session_groups import Handler

    at_30 = {**EMPTY_LOG, "global_step": 30}
    for seed, position in ((0, None), (1, None), (1, at_30)):
        run_dir = tmp_path / f"seed-{seed}"
        run_dir.mkdir(exist_ok=True)
        with MetricsLog(run_dir, resume_from=position) as log:
            log.describe("algo: dqn\nlayers: [8]\n", {"algo": "dqn", "seed": seed, "double": True})
            log.write(40, {"eval/final_return_mean": 7.0 + seed})
            if (seed, position) == (1, None):  # killed, and resumed from step 30
                log.write(50, {"eval/final_return_mean": -1.0})
            else:
                log.finish()
    events = EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload()
    (text,) = {event.tensor_proto.string_val[0] for event in events.Tensors("seed-0", "config")}
    assert text == b"    algo: dqn\n    layers: [8]\n"
    assert events.SummaryMetadata("seed-0", "config").plugin_data.plugin_name == "text"
    context = Context(TBContext(data_provider=MultiplexerDataProvider(events, str(tmp_path))))
    succeeded = [api_pb2.STATUS_SUCCESS]
    asked = api_pb2.ListSessionGroupsRequest(slice_size=10, allowed_statuses=succeeded)
    groups = Handler(RequestContext(), context, "", asked).run().session_groups
    found = {
        session.name: (
            group.hparams["algo"].string_value,
            group.hparams["seed"].number_value,
            group.hparams["double"].bool_value,
            [(metric.name.tag, metric.value) for metric in session.metric_values],
        )
        for group in groups
        for session in group.sessions
    }
    figure = "eval/final_return_mean"
    assert found == {
        "seed-0": ("dqn", 0, True, [(figure, 7)]),
        "seed-1": ("dqn", 1, True, [(figure, 8)]),
    }
