"""The checkpoints of one run, each with what is new in its rows, written in the background."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from rl_training.storage.checkpoints import Checkpoint, prune
from rl_training.storage.prepared_checkpoint import EarlierRows, PreparedCheckpoint
from rl_training.storage.tree import StateTree

logger = logging.getLogger("rl_training")

COPIED_BYTES = 256 << 20
"""The most that is copied for writing in the background; with more, the caller waits instead."""


class CheckpointContent(NamedTuple):
    """What a step checkpoint is to hold."""

    env_steps: int
    parts: Mapping[str, StateTree]
    info: Mapping[str, Any]


class Written(NamedTuple):
    """A committed checkpoint."""

    path: Path
    env_steps: int


class CheckpointWriter:
    """Writes the step checkpoints of a run, one at a time, and deletes old ones.

    As a context it leaves no thread behind: it waits for a checkpoint in progress, or drops it if
    the process is being ended by KeyboardInterrupt or SystemExit.
    """

    def __init__(self, checkpoints_dir: Path, *, keep: int) -> None:
        self._directory, self._keep = checkpoints_dir, keep
        self._earlier: EarlierRows | None = None
        self._job: _Job | None = None

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._job is None:
            return
        if error is not None and not isinstance(error, Exception):
            self._job.checkpoint.cancel()
        try:
            self.wait()
        except Exception as second:  # of two errors the first is the one to raise
            logger.warning("the last checkpoint was not written: %s", second)

    def continue_from(self, checkpoint: Checkpoint) -> None:
        """Take over the rows that were loaded from a checkpoint of the same run."""
        self._earlier = checkpoint.earlier_rows()

    @property
    def busy(self) -> bool:
        """Whether a checkpoint was begun and not yet waited for."""
        return self._job is not None

    @property
    def finished(self) -> bool:
        """Whether the checkpoint that was begun is there, or has failed: `wait` returns at once."""
        return self._job is not None and not self._job.is_alive()

    def write(self, content: CheckpointContent) -> Written:
        """Write a checkpoint now, in this thread."""
        job = self._prepare(content)
        job.run()
        return self._result(job)

    def begin(self, content: CheckpointContent) -> None:
        """Write a checkpoint of this moment while the caller goes on; `wait` gives its outcome.

        If more than `COPIED_BYTES` beside the rows would have to be copied for it, it is written
        before this returns.
        """
        job = self._prepare(content)
        if job.checkpoint.copied_bytes <= COPIED_BYTES:
            job.checkpoint.detach()
            job.start()
        else:
            job.run()
        self._job = job

    def wait(self) -> Written | None:
        """The checkpoint that was begun, when it is there; raises what kept it from being written.

        None if none was begun, or it was waited for already.
        """
        job, self._job = self._job, None
        if job is None:
            return None
        if job.ident is not None:
            job.join()
        return self._result(job)

    def _prepare(self, content: CheckpointContent) -> _Job:
        assert self._job is None, "wait for the checkpoint that was begun"
        checkpoint = PreparedCheckpoint(
            self._directory, kind="step", earlier=self._earlier, **content._asdict()
        )
        return _Job(checkpoint, self._directory, self._keep)

    def _result(self, job: _Job) -> Written:
        if job.saved_rows is not None:
            self._earlier = job.saved_rows
        if job.error is not None:
            raise job.error
        assert job.saved_rows is not None
        return Written(job.saved_rows.folder, job.checkpoint.env_steps)


class _Job(threading.Thread):
    def __init__(self, checkpoint: PreparedCheckpoint, directory: Path, keep: int) -> None:
        super().__init__(name="checkpoint", daemon=True)
        self.checkpoint, self._directory, self._keep = checkpoint, directory, keep
        self.saved_rows: EarlierRows | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.saved_rows = self.checkpoint.write()
            prune(self._directory, keep=self._keep)
        except Exception as error:
            self.error = error
