"""The metrics of a run: `metrics.jsonl`, one row per line, and TensorBoard events."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any

from rl_training.errors import CheckpointError, RunError
from rl_training.storage.checks import saved_count, saved_number
from rl_training.storage.files import (
    jsonable,
    open_ordinary,
    read_ordinary,
    save_error,
    with_retries,
    write_all,
)

logger = logging.getLogger("rl_training")

METRICS_NAME = "metrics.jsonl"
MAX_BYTES = 4 << 30
_TAIL_BYTES = 1 << 16
EMPTY_LOG: Mapping[str, Any] = {"offset": 0, "global_step": 0, "wall_time_s": 0.0}
"""The `state_dict` of a log without rows."""


class MetricsLog:
    """Appends rows of metrics to a run's files; a row is on its way to disk when `write` returns.

    With `resume_from`, a `state_dict` out of a checkpoint, rows written after that checkpoint are
    cut off, so that a resumed run has each row once. That is done at the first use: a resume that
    fails before it leaves the file as it was.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        tensorboard: bool = True,
        resume_from: Mapping[str, Any] | None = None,
    ) -> None:
        position = EMPTY_LOG if resume_from is None else _checked(resume_from)
        self._path = run_dir / METRICS_NAME
        self._last_step: int = position["global_step"]
        self._started: float = time.monotonic() - position["wall_time_s"]
        purge_step = None if resume_from is None else self._last_step + 1
        self._events = _EventFile(run_dir, purge_step) if tensorboard else None
        try:
            self._rows = with_retries(lambda: _AppendedFile(self._path))
        except OSError as error:
            raise save_error(self._path, error) from error
        self._resumed = resume_from is not None
        self._known: int | None = position["offset"] if self._resumed else self._rows.offset

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def wall_time_s(self) -> float:
        """Seconds this run has been logging, earlier lives of a resumed run included."""
        return time.monotonic() - self._started

    def write(self, global_step: int, values: Mapping[str, Any]) -> None:
        """Append one row; NaN and infinities are null in the file and themselves in TensorBoard."""
        row = {"global_step": global_step, "wall_time_s": round(self.wall_time_s, 3), **values}
        line = (json.dumps(jsonable(row), allow_nan=False) + "\n").encode()
        try:
            self._begin()
            self._rows.append(line)
            if self._events is not None:
                self._events.write(global_step, values)
        except OSError as error:
            raise save_error(self._path, error, needed=len(line)) from error
        self._last_step = max(self._last_step, global_step)

    def describe(self, text: str, hyper_parameters: Mapping[str, bool | float | str]) -> None:
        """What TensorBoard shows of the run: its configuration as text, and its hyper-parameters.

        Written with the first row.
        """
        if self._events is not None:
            self._events.description = (text, hyper_parameters)

    def finish(self) -> None:
        """Tell TensorBoard that the run has come to its end."""
        if self._events is not None:
            try:
                self._events.finish(self._last_step)
            except OSError as error:
                raise save_error(self._path, error) from error

    def state_dict(self) -> dict[str, Any]:
        """Where the log stands, for a checkpoint; the rows so far are durable when it returns."""
        try:
            self._begin()
            self._rows.fsync()
        except OSError as error:
            raise save_error(self._path, error) from error
        return {
            "offset": self._rows.offset,
            "global_step": self._last_step,
            "wall_time_s": self.wall_time_s,
        }

    def close(self) -> None:
        """Close the files; closing twice is harmless."""
        self._rows.close()
        if self._events is not None:
            self._events.close()

    def _begin(self) -> None:
        """Cut the file, once, to the whole lines of what is known of it."""
        if self._known is None:
            return
        known = self._known
        with_retries(lambda: self._rows.cut(known))
        missing = self._known - self._rows.offset
        if self._resumed and missing:
            logger.warning("%s: %d bytes of earlier rows are gone", self._path, missing)
        self._known = None


def _checked(position: Mapping[str, Any]) -> Mapping[str, Any]:
    expected = f"metrics_log: expected {', '.join(EMPTY_LOG)} as numbers, found"
    if not isinstance(position, Mapping) or position.keys() != EMPTY_LOG.keys():
        raise CheckpointError(f"{expected} {position!r:.80}")
    try:
        saved_count(position, "offset")
        saved_count(position, "global_step")
        saved_number(position, "wall_time_s")
    except CheckpointError as error:
        raise CheckpointError(f"{expected} others ({error})") from error
    return position


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a `metrics.jsonl` (or of the run directory that holds one), oldest first.

    A last line without its end is ignored: it is being written, or its writer was killed.
    """
    file = path / METRICS_NAME if path.is_dir() else path
    try:
        lines = read_ordinary(file, limit=MAX_BYTES).split(b"\n")[:-1]
    except OSError as error:
        raise RunError(f"{file} cannot be read ({error.strerror}): check the path") from error
    return [_row(file, number, line) for number, line in enumerate(lines, start=1)]


def latest_values(path: Path, names: Collection[str]) -> dict[str, Any]:
    """The newest value of each name in the last rows of a `metrics.jsonl`; none of what is absent.

    Read from its end, so that it takes no longer for a long run.
    """
    if not path.exists():
        return {}
    with open_ordinary(path) as (file, size):
        start = max(0, size - _TAIL_BYTES)
        file.seek(start)
        lines = file.read().split(b"\n")
    found: dict[str, Any] = {}
    # Without the last line, which has no end yet, and a first one that has lost its beginning.
    for line in reversed(lines[1 if start else 0 : -1]):
        row = _row(path, len(lines), line)
        found = {name: row[name] for name in names if name in row} | found
        if len(found) == len(names):
            break
    return found


def _row(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RunError(
            f"{path}, line {number} is not a JSON row ({error}): delete that line"
        ) from error
    if not isinstance(row, dict):
        raise RunError(f"{path}, line {number} is not a JSON object: delete that line")
    return row


class _AppendedFile:
    """A file that only grows by whole records."""

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o666)
        self.offset = self._synced = os.fstat(self._descriptor).st_size
        self._torn = False

    def cut(self, offset: int) -> None:
        """Shorten the file to the last line that ends at or before `offset`."""
        position = min(offset, os.fstat(self._descriptor).st_size)
        while position > 0:
            begin = max(0, position - _TAIL_BYTES)
            newline = os.pread(self._descriptor, position - begin, begin).rfind(b"\n")
            position = begin + newline + 1
            if newline >= 0:
                break
        self.offset = self._synced = position
        self._drop_rest()

    def append(self, record: bytes) -> None:
        with_retries(lambda: self._append(record))

    def fsync(self) -> None:
        with_retries(self._fsync)
        self._synced = self.offset

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _append(self, record: bytes) -> None:
        if self._torn:
            self._drop_rest()
        try:
            write_all(self._descriptor, record)
        except OSError:
            # A record that did not fit must not leave its first half behind.
            self._torn = True
            with suppress(OSError):
                self._drop_rest()
            raise
        self.offset += len(record)

    def _fsync(self) -> None:
        try:
            os.fsync(self._descriptor)
        except OSError:
            # The kernel may now count the lost pages as written: make them new again.
            with suppress(OSError):
                rows = os.pread(self._descriptor, self.offset - self._synced, self._synced)
                os.pwrite(self._descriptor, rows, self._synced)
            raise

    def _drop_rest(self) -> None:
        os.ftruncate(self._descriptor, self.offset)
        os.lseek(self._descriptor, self.offset, os.SEEK_SET)
        self._torn = False


class _EventFile:
    """TensorBoard scalars, and a description of the run before them, written synchronously.

    Only TensorBoard's record framing and its protobuf messages are used: its writer, and torch's
    on top of it, hand records to a thread that hides the errors of the disk.
    """

    def __init__(self, run_dir: Path, purge_step: int | None) -> None:
        self._run_dir = run_dir
        self._purge_step = purge_step
        self._file: _AppendedFile | None = None
        self.description: tuple[str, Mapping[str, bool | float | str]] | None = None

    def write(self, global_step: int, values: Mapping[str, Any]) -> None:
        # Imported at the first row: 0.15 s that reading metrics and `--help` need not pay.
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary

        events = []
        if self._file is None:
            events.append(Event(file_version="brain.Event:2"))
            if self._purge_step is not None:
                start = SessionLog(status=SessionLog.START)
                events.append(Event(step=self._purge_step, session_log=start))
            if self.description is not None:
                values_of_run = [
                    _text_value(self.description[0]),
                    _start_value(self.description[1]),
                ]
                step = self._purge_step or 0
                events.append(Event(step=step, summary=Summary(value=values_of_run)))
        scalars = [
            Summary.Value(tag=name, simple_value=float(value))
            for name, value in values.items()
            if value is not None
        ]
        events.append(Event(step=global_step, summary=Summary(value=scalars)))
        self._append(events)

    def finish(self, global_step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams.api_pb2 import Status
        from tensorboard.plugins.hparams.plugin_data_pb2 import SessionEndInfo

        if self._file is None or self.description is None:
            return
        end = SessionEndInfo(status=Status.STATUS_SUCCESS, end_time_secs=time.time())
        value = _session_value("session_end_info", session_end_info=end)
        self._append([Event(step=global_step, summary=Summary(value=[value]))])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _append(self, events: list[Any]) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        records = BytesIO()
        writer = RecordWriter(records)
        for event in events:
            event.wall_time = time.time()
            writer.write(event.SerializeToString())
        if self._file is None:
            # A file per life of the run: TensorBoard reads them in the order of their names.
            name = f"events.out.tfevents.{time.time():017.6f}.{os.getpid()}"
            self._file = with_retries(lambda: _AppendedFile(self._run_dir / name))
        self._file.append(records.getvalue())


def _text_value(text: str) -> Any:
    """The configuration for the tab Text, which takes Markdown."""
    from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_TENSOR, Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING
    from tensorboard.plugins.text.metadata import create_summary_metadata

    quoted = "".join(f"    {line}\n" for line in text.splitlines())
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype=DT_STRING, string_val=[quoted.encode()], tensor_shape=shape)
    metadata = create_summary_metadata("", "")
    metadata.data_class = DATA_CLASS_TENSOR
    return Summary.Value(tag="config", metadata=metadata, tensor=tensor)


def _start_value(hyper_parameters: Mapping[str, bool | float | str]) -> Any:
    """The hyper-parameters for the tab HParams."""
    from tensorboard.plugins.hparams.plugin_data_pb2 import SessionStartInfo

    start = SessionStartInfo(start_time_secs=time.time())
    for name, value in hyper_parameters.items():
        kind = {bool: "bool_value", str: "string_value"}.get(type(value), "number_value")
        setattr(start.hparams[name], kind, value)
    return _session_value("session_start_info", session_start_info=start)


def _session_value(name: str, **information: Any) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.metadata import NULL_TENSOR, create_summary_metadata
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    metadata = create_summary_metadata(HParamsPluginData(**information))
    return Summary.Value(tag=f"_hparams_/{name}", metadata=metadata, tensor=NULL_TENSOR)
