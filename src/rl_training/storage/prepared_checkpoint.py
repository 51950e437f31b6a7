"""Writing a checkpoint: what is encoded and checked first, and then put on disk by any thread.

A commit is: write every file of the checkpoint, or link it, in a temporary directory, fsync each
and the directory, rename it, fsync its parent. What is linked was flushed when it was written.
"""

from __future__ import annotations

import errno
import itertools
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from rl_training.errors import NonFiniteError, SaveError, UsageError
from rl_training.storage.files import (
    Bytes,
    fsync_directory,
    jsonable,
    make_directory,
    remove,
    save_error,
    sweep,
    temporary_directory,
    with_retries,
    write_new,
)
from rl_training.storage.manifest import (
    KINDS,
    MANIFEST_NAME,
    MAX_ENV_STEPS,
    SUFFIXES,
    FileEntry,
    check_part_name,
    damaged,
    list_checkpoints,
    manifest_bytes,
    segment_name,
    step_and_revision,
)
from rl_training.storage.rows import (
    Piece,
    RowLog,
    Rows,
    RowSource,
    Segment,
    plan_segments,
    segment_tensors,
)
from rl_training.storage.tensor_file import CHUNK_BYTES, file_chunks
from rl_training.storage.tree import Encoder, Node, StateTree, split

logger = logging.getLogger("rl_training")

MAX_STRUCTURE_BYTES = 64 << 20
_NO_LINKS = {errno.EPERM, errno.EACCES, errno.EXDEV, errno.EMLINK, errno.ENOSYS, errno.ENOTSUP}

Key: TypeAlias = tuple[str, str]
"""Which rows: a part, and the path in its tree."""


class EarlierRows(NamedTuple):
    """The rows that a checkpoint on disk holds, and the logs they are of."""

    folder: Path
    rows: Mapping[Key, tuple[RowLog, list[Segment]]]


class PreparedCheckpoint:
    """A checkpoint that was encoded and checked, and is left to be written.

    With `earlier`, rows that its checkpoint holds are linked. It shares memory with `parts`, until
    `detach` has made a copy of all but the rows, which it holds: then another thread may write it.
    """

    def __init__(
        self,
        checkpoints_dir: Path,
        *,
        kind: Literal["step", "best"],
        env_steps: int,
        parts: Mapping[str, StateTree],
        info: Mapping[str, Any],
        earlier: EarlierRows | None = None,
    ) -> None:
        if kind not in KINDS or type(env_steps) is not int or not 0 <= env_steps < MAX_ENV_STEPS:
            raise UsageError(
                f"expected a kind of {KINDS} and a step count, found {kind}, {env_steps}"
            )
        self.env_steps = env_steps
        self._kind, self._info, self._earlier = kind, info, earlier
        present = {} if earlier is None else _file_sizes(earlier.folder)
        self._parts = {
            part: _encode_part(part, tree, earlier, present) for part, tree in parts.items()
        }
        if "agent" in self._parts:
            check_finite("agent", self._parts["agent"].tensors, env_steps)
        self._target = checkpoints_dir / f"{kind}_{env_steps:012d}"
        self._plans = [plan for part in self._parts.values() for plan in part.rows]
        self._cancelled = threading.Event()
        self._copies = False  # where there are no hard links

    @property
    def copied_bytes(self) -> int:
        """What `detach` copies."""
        return sum(x.nbytes for part in self._parts.values() for x in part.tensors.values())

    def detach(self) -> None:
        """Copy what changes as training goes on, and hold the rows that are to be written."""
        self._info = json.loads(json.dumps(jsonable(self._info)))
        for part in self._parts.values():
            part.tensors.update({name: x.clone() for name, x in part.tensors.items()})
        for plan in self._plans:
            if new := plan.new:
                plan.rows.log.hold(new[0][1].begin)

    def cancel(self) -> None:
        """Have `write` stop at the next file or chunk, with nothing written."""
        self._cancelled.set()

    def write(self) -> EarlierRows:
        """Write it; gives the rows it then holds, which a next one need not write."""
        try:
            return self._commit()
        except OSError as error:
            needed = sum(part.nbytes for part in self._parts.values())
            raise save_error(self._target, error, needed=needed) from error
        finally:
            for plan in self._plans:
                plan.rows.log.release()

    def _commit(self) -> EarlierRows:
        # Each step is tried again on its own: rows are released once their file is written.
        folder = self._target.parent
        with_retries(lambda: make_directory(folder))
        sweep(folder)
        with ExitStack() as stack:
            temporary = with_retries(lambda: stack.enter_context(temporary_directory(folder)))
            files: dict[str, FileEntry] = {}
            rows: dict[Key, tuple[RowLog, list[Segment]]] = {}
            for part, content in self._parts.items():
                for suffix, chunks in zip(SUFFIXES, content.chunks(), strict=True):
                    files[part + suffix] = self._write_file(temporary / (part + suffix), chunks)
                for plan in content.rows:
                    segments = self._write_rows(temporary, part, plan)
                    files |= {segment_name(part, x.number): x.file for x in segments}
                    rows[part, plan.path] = plan.rows.log, segments
            manifest = manifest_bytes(self._kind, self.env_steps, self._info, files)
            self._write_file(temporary / MANIFEST_NAME, lambda: [manifest])
            with_retries(lambda: fsync_directory(temporary))
            return EarlierRows(_install(temporary, self._target), rows)

    def _write_rows(self, folder: Path, part: str, plan: _RowPlan) -> list[Segment]:
        """Write what is new, oldest first, and link the rest; gives all segments in order."""
        new, log = plan.new, plan.rows.log
        written: dict[int, Segment] = {}
        for index, (number, piece) in enumerate(new):
            tensors = segment_tensors(log.copy(piece.begin, piece.end))
            if index + 1 < len(new):
                log.advance(new[index + 1][1].begin)
            else:
                log.release()
            path = folder / segment_name(part, number)
            entry = self._write_file(path, partial(file_chunks, tensors))
            written[number] = Segment(number, piece.begin, piece.end, entry)
        for _, piece in plan.pieces:
            if piece.segment is not None and self._earlier is not None:
                self._link(self._earlier.folder, folder, part, piece.segment)
        return [piece.segment or written[number] for number, piece in plan.pieces]

    def _write_file(self, path: Path, chunks: Callable[[], Iterable[Bytes]]) -> FileEntry:
        def attempt() -> FileEntry:
            path.unlink(missing_ok=True)  # what an attempt before this left
            return FileEntry(*write_new(path, self._unless_cancelled(chunks())))

        return with_retries(attempt)

    def _unless_cancelled(self, chunks: Iterable[Bytes]) -> Iterator[Bytes]:
        for chunk in chunks:
            if self._cancelled.is_set():
                raise SaveError(f"{self._target} was not written: the run was ended")
            yield chunk

    def _link(self, source: Path, folder: Path, part: str, segment: Segment) -> None:
        name = segment_name(part, segment.number)
        try:
            with_retries(lambda: os.link(source / name, folder / name, follow_symlinks=False))
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if not self._copies:
                logger.info("%s: %s, so segments are copied", source / name, error.strerror)
            self._copies = True
            copy = self._write_file(folder / name, partial(_read_chunks, source / name))
            if copy != segment.file:
                raise damaged(source / name, "the content has changed") from None


class _RowPlan(NamedTuple):
    path: str
    rows: Rows
    pieces: list[tuple[int, Piece]]  # with the numbers of their segments, oldest first

    @property
    def new(self) -> list[tuple[int, Piece]]:
        return [(number, piece) for number, piece in self.pieces if piece.segment is None]

    @property
    def nbytes(self) -> int:
        return sum(piece.num_rows for _, piece in self.new) * self.rows.log.row_bytes


class _Part(NamedTuple):
    structure: bytes
    tensors: dict[str, Tensor]
    rows: list[_RowPlan]

    def chunks(self) -> tuple[Callable[[], Iterable[Bytes]], ...]:
        return lambda: [self.structure], lambda: file_chunks(self.tensors)

    @property
    def nbytes(self) -> int:
        tensors = sum(tensor.nbytes for tensor in self.tensors.values())
        return len(self.structure) + tensors + sum(plan.nbytes for plan in self.rows)


class _PartEncoder(Encoder):
    """Encodes a part and plans which segments its rows are in."""

    def __init__(self, part: str, earlier: EarlierRows | None, present: Mapping[str, int]) -> None:
        super().__init__()
        self.plans: list[_RowPlan] = []
        known = {} if earlier is None else earlier.rows
        self._earlier = {path: rows for (owner, path), rows in known.items() if owner == part}
        self._part, self._present = part, present
        used = [segment.number for _, segments in self._earlier.values() for segment in segments]
        self._numbers = itertools.count(max(used, default=-1) + 1)

    def rows(self, value: RowSource, path: str) -> Node:
        if not isinstance(value, Rows):
            return super().rows(value, path)
        earlier, segments = self._earlier.get(path, (None, []))
        usable = segments if earlier is value.log else []  # else it went back to an earlier state
        pieces = plan_segments(value, [segment for segment in usable if self._is_there(segment)])
        numbered = [
            (next(self._numbers) if piece.segment is None else piece.segment.number, piece)
            for piece in pieces
        ]
        self.plans.append(_RowPlan(path, value, numbered))
        numbers, log = [number for number, _ in numbered], value.log
        return {"rows": path, "segments": numbers, "kept": log.capacity, "fading": log.fading}

    def _is_there(self, segment: Segment) -> bool:
        name = segment_name(self._part, segment.number)
        return self._present.get(name) == segment.file.size


def _encode_part(
    part: str, tree: StateTree, earlier: EarlierRows | None, present: Mapping[str, int]
) -> _Part:
    check_part_name(part)
    encoder = _PartEncoder(part, earlier, present)
    structure, tensors = split(tree, encoder=encoder)
    data = json.dumps(structure, separators=(",", ":"), allow_nan=False).encode()
    if len(data) > MAX_STRUCTURE_BYTES:
        raise UsageError(
            f"the part {part!r} needs {len(data)} bytes of JSON, at most {MAX_STRUCTURE_BYTES} are "
            "allowed: keep its numbers in arrays instead of lists"
        )
    return _Part(data, tensors, encoder.plans)


def _read_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from iter(partial(file.read, CHUNK_BYTES), b"")


def _file_sizes(folder: Path) -> dict[str, int]:
    """The sizes of the ordinary files in a folder, none if it is gone."""
    try:
        with os.scandir(folder) as entries:
            return {
                entry.name: entry.stat(follow_symlinks=False).st_size
                for entry in entries
                if entry.is_file(follow_symlinks=False)
            }
    except OSError:
        return {}


def check_finite(part: str, tensors: Mapping[str, Tensor], env_steps: int) -> None:
    """Raise NonFiniteError if a number in the tensors is not finite."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            count = int((~torch.isfinite(tensor)).sum())
            raise NonFiniteError(
                f"expected finite weights, found {count} of {tensor.numel()} values of "
                f"{part}{name} NaN or infinite at env step {env_steps}. The checkpoint was not "
                "written; resume from an earlier one, with a smaller learning rate."
            )


def _install(folder: Path, target: Path) -> Path:
    """Give the finished directory its name; older ones of that name go only after it stands.

    A directory cannot be renamed over a full one, so a successor first stands beside it as
    `NAME-2`, which counts as the newer of the two, and takes the plain name in the end.
    """
    kind, (step, _) = target.name.partition("_")[0], step_and_revision(target.name)
    names = list_checkpoints(target.parent, kind)
    older = [name for name in names if step_and_revision(name)[0] == step]
    if not older:
        return _rename(folder, target)
    revision = step_and_revision(older[-1])[1] + 1
    successor = _rename(folder, target.with_name(f"{target.name}-{revision}"))
    for name in older:
        with_retries(partial(remove, target.parent / name))
    return _rename(successor, target)


def _rename(path: Path, target: Path) -> Path:
    with_retries(lambda: os.rename(path, target))
    with_retries(lambda: fsync_directory(target.parent))
    return target
