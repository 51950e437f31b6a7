"""Rows in rings, the large part of a replay memory, and the segments they are saved in.

A ring is written in order, and a finished row does not change until the ring comes round to it. So
a checkpoint writes only the rows finished since the last one, in files of their own: segments.
Those of earlier rows it takes over from the last checkpoint. Training goes on meanwhile: the rows
that are being written are the newest, which are overwritten last, and a `RowLog` makes the buffer
wait in the rare case that it comes round to them too soon.
"""

from __future__ import annotations

import itertools
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_training.errors import CheckpointError, UsageError
from rl_training.storage.manifest import FileEntry
from rl_training.storage.tensor_file import STORABLE

SEGMENT_BYTES = 4 << 20
"""The most a segment holds, one row of every ring aside; also the memory that writing one takes."""

MAX_SMALL_SEGMENTS = 256
"""Segments there may be beyond twice those of full size, before small ones are joined."""

_MAX_ROWS = 1 << 62
_MAX_CAPACITY = 1 << 40


class RowBlock(NamedTuple):
    """Some rows of every ring, by number: from `begin` up to but not including `end`."""

    begin: np.ndarray  # [rings]
    end: np.ndarray
    arrays: Mapping[str, np.ndarray]  # [rows, ...] each, ring after ring


class Segment(NamedTuple):
    """A file of rows that a checkpoint holds."""

    number: int
    begin: np.ndarray
    end: np.ndarray
    file: FileEntry


class Piece(NamedTuple):
    """An interval of rows of a checkpoint to be written: from memory, or as an existing segment."""

    begin: np.ndarray
    end: np.ndarray
    segment: Segment | None = None

    @property
    def num_rows(self) -> int:
        """Rows of all rings together."""
        return int((self.end - self.begin).sum())


class RowSource(ABC):
    """A value in a state tree that stands for the rows of a `RowLog`."""

    @abstractmethod
    def blocks(self) -> Iterator[RowBlock]:
        """The rows, oldest first."""

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """All rows as a plain dict of arrays, whatever the blocks were."""


class RowLog:
    """Where the rows of a buffer are, and which of them a checkpoint being written still needs.

    Row n of ring i is in slot `i * size + n % size` of every array. The latest `capacity` finished
    rows of each ring are there; `finished` says how many rows of each ring were ever finished.
    `fading` maps a field to the number of oldest rows of a full ring in which it reads as zero: an
    image they need was overwritten.
    """

    def __init__(
        self,
        arrays: Mapping[str, np.ndarray],
        *,
        rings: int,
        capacity: int,
        fading: Mapping[str, int] | None = None,
    ) -> None:
        self.arrays, self.rings, self.capacity = dict(arrays), rings, capacity
        self.fading = dict(fading or {})
        self.size = len(next(iter(arrays.values()))) // rings
        self.held = False
        self._needed = np.zeros(rings, np.int64)
        self._released = threading.Condition()
        for name, array in self.arrays.items():
            if torch.from_numpy(array[:0]).dtype not in STORABLE:
                raise UsageError(f"rows of {name} cannot be saved: found the dtype {array.dtype}")

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return sum(array.nbytes for array in self.arrays.values()) // (self.size * self.rings)

    def first(self, finished: np.ndarray) -> np.ndarray:
        """The oldest row of each ring that is still there."""
        first: np.ndarray = np.maximum(finished - self.capacity, 0)
        return first

    def copy(self, begin: np.ndarray, end: np.ndarray) -> RowBlock:
        """A copy of some rows, all of which must be there."""
        ring, number = _numbers(begin, end)
        slots = ring * self.size + number % self.size
        return RowBlock(begin, end, {name: x.take(slots, 0) for name, x in self.arrays.items()})

    def load(self, source: RowSource | Mapping[str, Any], finished: np.ndarray) -> None:
        """Write saved rows into the arrays, block by block."""
        shape = self.capacity, self.fading
        if isinstance(source, SavedRows) and (source.capacity, source.fading) != shape:
            raise CheckpointError("the saved rows are those of a buffer of another size")
        first = self.first(finished)
        reached = first
        for block in source.blocks() if isinstance(source, RowSource) else [_as_block(source)]:
            self._check(block)
            if (block.begin > reached).any() or (block.end > finished).any():
                raise CheckpointError("the saved rows are not those that the buffer counts")
            ring, number = _numbers(block.begin, block.end)
            there = number >= first[ring]
            rows = slice(None) if there.all() else there
            slots = (ring * self.size + number % self.size)[rows]
            for name, array in self.arrays.items():
                array[slots] = block.arrays[name][rows]
            for name, count in self.fading.items():
                faded = number[rows] < (finished - self.capacity + count)[ring[rows]]
                self.arrays[name][slots[faded]] = 0
            reached = np.maximum(reached, block.end)
        if (reached < finished).any():
            raise CheckpointError("the saved rows are fewer than those that the buffer counts")
        if isinstance(source, SavedRows):
            source.log = self

    def _check(self, block: RowBlock) -> None:
        if set(block.arrays) != set(self.arrays):
            raise CheckpointError(
                f"expected saved rows of {', '.join(self.arrays)}, found {', '.join(block.arrays)}"
            )
        for bound in (block.begin, block.end):
            if bound.shape != (self.rings,) or bound.dtype != np.int64:
                raise CheckpointError(f"expected saved rows of {self.rings} rings, found others")
        if (block.begin < 0).any() or (block.end < block.begin).any():
            raise CheckpointError("the saved rows end before they begin")
        if (block.end > _MAX_ROWS).any():
            raise CheckpointError("the saved rows have numbers that no buffer reaches")
        count = sum((block.end - block.begin).tolist())
        for name, array in self.arrays.items():
            kind, saved = (array.dtype, (count, *array.shape[1:])), block.arrays[name]
            if (saved.dtype, saved.shape) != kind:
                raise CheckpointError(
                    f"expected {count} saved rows of {name} as {array.dtype}{list(array.shape[1:])}"
                    f", found {saved.dtype}{list(saved.shape)}"
                )

    # The buffer's thread holds and waits, the writer's releases.

    def hold(self, needed: np.ndarray) -> None:
        """Keep rows from number `needed` of each ring on until they are released."""
        with self._released:
            self._needed, self.held = needed, True

    def release(self) -> None:
        """Let every row be overwritten."""
        with self._released:
            self.held = False
            self._released.notify_all()

    def wait_until_free(self, limit: np.ndarray) -> None:
        """Return when the rows below number `limit` of each ring may be overwritten."""
        with self._released:
            self._released.wait_for(lambda: not self.held or bool((limit <= self._needed).all()))

    def advance(self, needed: np.ndarray) -> None:
        """Release the rows below number `needed`."""
        with self._released:
            self._needed = needed
            self._released.notify_all()


class Rows(RowSource):
    """The finished rows of a log at one moment: not a copy, but they stay while it is held."""

    def __init__(self, log: RowLog, finished: np.ndarray) -> None:
        self.log, self.finished = log, finished.astype(np.int64)
        self.first = log.first(self.finished)

    def blocks(self) -> Iterator[RowBlock]:
        """Copies of at most `SEGMENT_BYTES` each."""
        for piece in _split(Piece(self.first, self.finished), self.log.row_bytes):
            yield self.log.copy(piece.begin, piece.end)

    def whole(self) -> dict[str, Any]:
        """All of them."""
        return self.log.copy(self.first, self.finished)._asdict()


class SavedRows(RowSource):
    """The rows in the segments of a checkpoint, read when they are loaded; one is in memory."""

    def __init__(
        self,
        numbers: Sequence[int],
        read: Callable[[int], tuple[RowBlock, FileEntry]],
        *,
        capacity: int,
        fading: Mapping[str, int],
    ) -> None:
        self.numbers, self.capacity, self.fading = numbers, capacity, fading
        self.segments: list[Segment] = []
        self.log: RowLog | None = None  # the one that the rows were loaded into
        self._read = read

    def blocks(self) -> Iterator[RowBlock]:
        """The segments, verified one by one."""
        self.segments = []
        for number in self.numbers:
            block, file = self._read(number)
            self.segments.append(Segment(number, block.begin, block.end, file))
            yield block

    def whole(self) -> dict[str, Any]:
        """All rows in memory at once, without those that were overwritten before the save."""
        blocks = list(self.blocks())
        finished = blocks[-1].end
        if self.capacity > _MAX_CAPACITY or not set(self.fading) <= set(blocks[0].arrays):
            raise CheckpointError("the saved rows are not those of a buffer")
        size = (self.capacity + 1) * len(finished)
        fields = blocks[0].arrays.items()
        # Memory that the system gives only where rows are written.
        arrays = {name: np.zeros((size, *x.shape[1:]), x.dtype) for name, x in fields}
        log = RowLog(arrays, rings=len(finished), capacity=self.capacity, fading=self.fading)
        log.load(self, finished)
        return Rows(log, finished).whole()


def plan_segments(rows: Rows, earlier: Sequence[Segment]) -> list[Piece]:
    """The pieces of a checkpoint's rows, oldest first: earlier segments, and what to write.

    Normally that is what is new. Of very many small segments, neighbours are joined and written
    again, so that their number stays bounded; what that writes is below 1 % of the rows there are.
    """
    pieces: list[Piece] = []
    reached = rows.first
    for segment in earlier:
        if segment.end.shape != reached.shape or (segment.end > rows.finished).any():
            continue
        if (segment.end > reached).any():
            if (segment.begin > reached).any():
                pieces.append(Piece(reached, np.maximum(segment.begin, reached)))
            pieces.append(Piece(segment.begin, segment.end, segment))
            reached = np.maximum(reached, segment.end)
    if (rows.finished > reached).any() or not pieces:
        pieces.append(Piece(reached, rows.finished))
    row_bytes = rows.log.row_bytes
    room = rows.log.capacity * rows.log.rings * row_bytes
    limit = MAX_SMALL_SEGMENTS + 2 * math.ceil(room / SEGMENT_BYTES)
    while len(pieces) > limit:
        _join_smallest(pieces, rows.first)
    return [part for piece in pieces for part in _split(piece, row_bytes)]


def _join_smallest(pieces: list[Piece], first: np.ndarray) -> None:
    counts = [piece.num_rows for piece in pieces]
    at = min(range(len(pieces) - 1), key=lambda i: counts[i] + counts[i + 1])
    begin = np.maximum(pieces[at].begin, first)
    pieces[at : at + 2] = [Piece(begin, pieces[at + 1].end)]


def _split(piece: Piece, row_bytes: int) -> Iterator[Piece]:
    """A piece to be written in parts of at most `SEGMENT_BYTES`; an earlier segment unchanged."""
    parts = max(1, math.ceil(piece.num_rows * row_bytes / SEGMENT_BYTES))
    if piece.segment is not None or parts == 1:
        yield piece
        return
    length = piece.end - piece.begin
    bounds = [piece.begin + length * i // parts for i in range(parts + 1)]
    for begin, end in itertools.pairwise(bounds):
        if (end > begin).any():
            yield Piece(begin, end)


def segment_tensors(block: RowBlock) -> dict[str, Tensor]:
    """The tensors of a segment's file."""
    arrays = {"begin": block.begin, "end": block.end}
    arrays |= {f"rows/{name}": array for name, array in block.arrays.items()}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def segment_block(tensors: Mapping[str, Tensor]) -> RowBlock:
    """What `segment_tensors` made tensors of; ValueError if it cannot have been that."""
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    if not {"begin", "end"} < set(arrays):
        raise ValueError("a segment without its bounds or its rows")
    begin, end = arrays.pop("begin"), arrays.pop("end")
    if not all(name.startswith("rows/") for name in arrays):
        raise ValueError("a segment with unknown tensors")
    return RowBlock(begin, end, {name.removeprefix("rows/"): x for name, x in arrays.items()})


def _as_block(saved: Mapping[str, Any]) -> RowBlock:
    """The one block of rows that went through a plain tree."""
    if not isinstance(saved, Mapping) or set(saved) != set(RowBlock._fields):
        raise CheckpointError("expected saved rows, found something else")
    return RowBlock(**saved)


def _numbers(begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ring and the number of each row of a block."""
    length = end - begin
    ring = np.repeat(np.arange(len(begin)), length)
    before = np.cumsum(length) - length
    number = np.arange(int(length.sum())) + np.repeat(begin - before, length)
    return ring, number
