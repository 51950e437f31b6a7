"""Arrays that share memory: saved as one buffer and a layout for each, restored as its views.

In `state = np.zeros(4); position = state[:2]` two arrays share a buffer, which is stored
once. A forged layout that leaves the buffer is refused before any array is made from it. Columns of
a large table are saved without the table and restored with their strides, along which sums round.
"""

from __future__ import annotations

import math
import mmap
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from rl_training.errors import CheckpointError
from rl_training.storage.tensor_file import checked_shape
from rl_training.storage.tree import Node, array_dtype

_ALIGNMENT = 16  # of what NumPy allocates
_GAPS = 4  # bytes stored at most for each byte of an element, in a buffer that is not small
_SMALL = 1 << 20
_MAX_COMPARED = 100
_MAX_WORK = 10_000
_MAX_TABLES = 1 << 30  # bytes of new memory for the columns in one state


class Span(NamedTuple):
    """Addresses from the first byte to the one after the last."""

    low: int
    high: int


def span_of(array: np.ndarray) -> Span:
    """The memory from the first to the last element of an array, gaps included."""
    low = high = int(array.__array_interface__["data"][0])
    for length, stride in zip(array.shape, array.strides, strict=True):
        reach = (length - 1) * stride
        low, high = low + min(reach, 0), high + max(reach, 0)
    return Span(low, high + array.itemsize)


def overlapping(arrays: Sequence[np.ndarray]) -> list[list[int]]:
    """The indices of the arrays, in groups that overlap in memory; empty arrays overlap nothing.

    Their order follows from the indices alone, as addresses differ from process to process.
    """
    spans = {index: span_of(array) for index, array in enumerate(arrays) if array.size}
    groups = [[index] for index, array in enumerate(arrays) if not array.size]
    end = -1
    for index in sorted(spans, key=spans.__getitem__):
        if spans[index].low >= end:
            groups.append([])
        groups[-1].append(index)
        end = max(end, spans[index].high)
    return sorted(map(sorted, groups))


def has_plain_layout(array: np.ndarray) -> bool:
    """Whether the elements in C or Fortran order suffice to restore the array."""
    flags = array.flags
    return not array.size or (flags.writeable and (flags.c_contiguous or flags.f_contiguous))


def is_sparse(arrays: Sequence[np.ndarray]) -> bool:
    """Whether most of the memory that the arrays span belongs to none of their elements."""
    spans = [span_of(array) for array in arrays]
    size = max(high for _, high in spans) - min(low for low, _ in spans)
    return size > max(_SMALL, _GAPS * sum(_without_repeats(array).nbytes for array in arrays))


def share_elements(arrays: Sequence[np.ndarray]) -> bool:
    """Whether any two of the arrays have an element in common, or may have."""
    if len(arrays) > _MAX_COMPARED:
        return True
    return any(_may_share(*pair) for pair in combinations(arrays, 2))


def writes_to_file(array: np.ndarray) -> bool:
    """Whether writing to the array would write to a file."""
    owner: object = array
    while isinstance(owner, np.ndarray | memoryview):
        inner = owner.base if isinstance(owner, np.ndarray) else owner.obj
        if inner is None:
            break
        owner = inner
    return isinstance(owner, mmap.mmap) and array.flags.writeable


class Layout(NamedTuple):
    """Where in a buffer the elements of an array are; `start` is the buffer's address modulo 16."""

    dtype: np.dtype[np.generic]
    start: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    writeable: bool

    @classmethod
    def of(cls, array: np.ndarray, low: int) -> Layout:
        """The layout of an array in a buffer that begins at the address `low`."""
        offset = int(array.__array_interface__["data"][0]) - low
        flags = array.flags
        return cls(
            array.dtype, low % _ALIGNMENT, offset, array.shape, array.strides, flags.writeable
        )

    @classmethod
    def read(cls, node: dict[str, Node], size: int) -> Layout:
        """The layout in a node; ValueError unless it lies within a buffer of that size."""
        dtype, shape = array_dtype(node["dtype"]), tuple(checked_shape(node["shape"]))
        start, offset, strides = node["start"], node["offset"], node["strides"]
        numbers = isinstance(strides, list) and all(
            type(number) is int for number in (start, offset, *strides)
        )
        if not numbers or len(strides) != len(shape) or type(node["writeable"]) is not bool:
            raise ValueError("a view without whole numbers for its layout")
        reaches = [(n - 1) * stride for n, stride in zip(shape, strides, strict=True)]
        low = offset + sum(reach for reach in reaches if reach < 0)
        high = offset + sum(reach for reach in reaches if reach > 0) + dtype.itemsize
        if not (0 <= start < _ALIGNMENT and low >= 0 and high <= size and 0 not in shape):
            raise ValueError("a view reaches beyond its buffer")
        return cls(dtype, start, offset, shape, tuple(strides), node["writeable"])

    def node(self, key: str) -> dict[str, Node]:
        """The layout as data, for the buffer of that name."""
        return (
            {"view": key}
            | self._asdict()
            | {
                "dtype": self.dtype.str,
                "shape": list(self.shape),
                "strides": list(self.strides),
            }
        )

    def on(self, memory: np.ndarray, shift: int = 0) -> np.ndarray:
        """A writeable array of this layout in `memory`."""
        array: np.ndarray = np.ndarray(
            self.shape, self.dtype, memory, self.offset + shift, self.strides
        )
        return array

    def fits(self, array: object) -> bool:
        """Whether an array has this layout, at whatever address."""
        if type(array) is not np.ndarray:
            return False
        same = array.dtype == self.dtype and array.shape == self.shape
        return same and array.strides == self.strides and array.flags.writeable == self.writeable


def pack(arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, list[Layout]]:
    """The memory of overlapping arrays as bytes, with zeros in the gaps, and their layouts."""
    spans = [span_of(array) for array in arrays]
    low, high = min(low for low, _ in spans), max(high for _, high in spans)
    buffer = np.zeros(high - low, np.uint8)
    layouts = [Layout.of(array, low) for array in arrays]
    for array, layout in zip(arrays, layouts, strict=True):
        _without_repeats(layout.on(buffer))[...] = _without_repeats(array)
    return buffer, layouts


class Claims:
    """Memory that restored arrays already occupy, so that none overwrites another.

    Arrays whose spans overlap are kept together, as only they can share an element.
    """

    def __init__(self, arrays: Iterable[np.ndarray] = ()) -> None:
        self._lows: list[int] = []
        self._highs: list[int] = []
        self._groups: list[list[np.ndarray]] = []
        for array in arrays:
            self.add(array)

    def free(self, array: np.ndarray) -> bool:
        """Whether it is certain that no element of the array is claimed."""
        if not array.size:
            return True
        claimed = [other for at in self._overlapped(span_of(array)) for other in self._groups[at]]
        if len(claimed) > _MAX_COMPARED:
            return False
        return not any(_may_share(array, other) for other in claimed)

    def add(self, array: np.ndarray) -> None:
        """Claim the elements of the array."""
        if not array.size:
            return
        low, high = span_of(array)
        group = [array]
        met = list(self._overlapped(Span(low, high)))
        if met:
            low, high = min(low, self._lows[met[0]]), max(high, self._highs[met[-1]])
            group += [other for at in met for other in self._groups[at]]
            where = slice(met[0], met[-1] + 1)
            del self._lows[where], self._highs[where], self._groups[where]
        at = bisect_left(self._lows, low)
        self._lows.insert(at, low)
        self._highs.insert(at, high)
        self._groups.insert(at, group[: _MAX_COMPARED + 1])  # with more, nothing there is free

    def _overlapped(self, span: Span) -> Iterator[int]:
        yield from range(bisect_right(self._highs, span.low), bisect_left(self._lows, span.high))


class Tables:
    """New memory for columns of large tables: side by side, as in the tables they came from."""

    def __init__(self) -> None:
        self._size = 0
        self._places: dict[object, Iterator[np.ndarray]] = {}

    def column(self, saved: np.ndarray, strides: Node) -> np.ndarray:
        """The elements of `saved` along these strides; refuses what cannot have been saved."""
        numbers = isinstance(strides, list) and all(type(stride) is int for stride in strides)
        if not numbers or len(strides) != saved.ndim:
            raise ValueError("an array without a whole number for each of its strides")
        if not saved.size:
            return saved
        key = saved.dtype.str, saved.shape, tuple(strides)
        array = next(self._places.get(key, iter(())), None)
        if array is None:
            self._places[key] = self._new(saved, strides)
            array = next(self._places[key])
        array[...] = saved
        if array.tobytes() != saved.tobytes():
            raise ValueError("the strides of an array give one place to different elements")
        return array

    def _new(self, saved: np.ndarray, strides: list[int]) -> Iterator[np.ndarray]:
        """Arrays of these strides that share no element."""
        steps = [(n - 1, stride) for n, stride in zip(saved.shape, strides, strict=True) if n > 1]
        low = sum(min(0, n * stride) for n, stride in steps)
        high = sum(max(0, n * stride) for n, stride in steps)
        # Elements lie at multiples of it, so as many arrays fit as elements do in between.
        pitch = math.gcd(*(stride for _, stride in steps))
        # No more than a save compares with each other.
        count = min(max(1, pitch // saved.itemsize), _MAX_COMPARED)
        size = high - low + count * saved.itemsize
        self._size += size
        if self._size > _MAX_TABLES:
            raise CheckpointError(
                f"the saved columns of large tables need {self._size:,} bytes of new memory, more "
                f"than {_MAX_TABLES:,}: give the environment contiguous copies of them, or "
                "get_state and set_state"
            )
        memory = np.zeros(size, np.uint8)
        return (
            np.ndarray(saved.shape, saved.dtype, memory, at * saved.itemsize - low, strides)
            for at in range(count)
        )


class Memory:
    """A restored buffer: new memory, or that of a live array with the same layout."""

    def __init__(self, saved: np.ndarray, first: Layout, old: object, claims: Claims) -> None:
        self.size = saved.size
        self._saved = saved
        self._shift = first.start
        self._memory = np.zeros(first.start + saved.size, np.uint8)
        self._memory[first.start :] = saved
        self._live = False
        # A read-only array may be a constant that others use.
        if isinstance(old, np.ndarray) and first.fits(old) and first.writeable:
            self._move(first, old, claims)

    def view(self, layout: Layout, old: object) -> np.ndarray:
        """The array of that layout; `old` itself if it is already that view."""
        array = layout.on(self._memory, self._shift)
        if self._live:
            _without_repeats(array)[...] = _without_repeats(layout.on(self._saved))
        array.flags.writeable = layout.writeable
        if isinstance(old, np.ndarray) and layout.fits(old) and span_of(old) == span_of(array):
            return old
        return array

    def _move(self, first: Layout, old: np.ndarray, claims: Claims) -> None:
        root = old
        while isinstance(root.base, np.ndarray):
            root = root.base
        if not (root.flags.writeable and (root.flags.c_contiguous or root.flags.f_contiguous)):
            return
        low, high = span_of(root)
        shift = int(old.__array_interface__["data"][0]) - first.offset - low
        if shift < 0 or shift + self._saved.size > high - low:
            return
        flat = root if root.flags.c_contiguous else root.T
        memory = np.ndarray((high - low,), np.uint8, flat)
        target = memory[shift : shift + self._saved.size]
        if claims.free(target):
            claims.add(target)
            self._memory, self._shift, self._live = memory, shift, True


def _without_repeats(array: np.ndarray) -> np.ndarray:
    """The array without the repeated elements of a broadcast."""
    index = (*(slice(None) if stride else slice(1) for stride in array.strides), ...)
    return array[index]


def _may_share(left: np.ndarray, right: np.ndarray) -> bool:
    shares: Callable[..., bool] = np.shares_memory  # NumPy's stubs allow no other limit than None
    try:
        return shares(_without_repeats(left), _without_repeats(right), max_work=_MAX_WORK)
    except np.exceptions.TooHardError:
        return True
