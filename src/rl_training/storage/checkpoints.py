"""Checkpoints: directories of plain data that are written atomically and verified before use.

A checkpoint holds `manifest.json` and, for each part (`agent`, `replay`, ...), `PART.json` with
the structure and `PART.safetensors` with the tensors. Rows of a replay memory are in segments,
`PART.NUMBER.safetensors`, of which one that an earlier checkpoint holds is linked, not written
again; so each directory is complete, and a file goes when the last one that needs it does.

There is no pickle on any path. The SHA-256 sums detect accidents. Forged files are contained by the
format, which holds only data, and by a check of every bound. Everything is verified against the
manifest before it is parsed.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal, TypeVar

from torch import Tensor

from rl_training.errors import CheckpointError, NonFiniteError, RLTrainingError, UsageError
from rl_training.storage.files import (
    fsync_directory,
    make_directory,
    open_ordinary,
    parse_json,
    remove,
    save_error,
    with_retries,
)
from rl_training.storage.manifest import (
    CHECKPOINT_DIRECTORY,
    KINDS,
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    SUFFIXES,
    FileEntry,
    damaged,
    list_checkpoints,
    parse_manifest,
    segment_name,
    segment_part,
    step_and_revision,
)
from rl_training.storage.prepared_checkpoint import (
    MAX_STRUCTURE_BYTES,
    EarlierRows,
    Key,
    PreparedCheckpoint,
    check_finite,
)
from rl_training.storage.rows import RowBlock, SavedRows, segment_block
from rl_training.storage.runs import ABANDONED_DIR_NAME, CHECKPOINTS_DIR_NAME
from rl_training.storage.tensor_file import read_tensors
from rl_training.storage.tree import Decoder, Node, StateTree, join

HASHED_BYTES = 1 << 20  # at a time, so that verifying takes little memory
PRUNED_ATTEMPTS = 10

T = TypeVar("T")


class CheckpointGone(CheckpointError):
    """A checkpoint that was deleted while it was read, as a run in progress deletes old ones."""


def retry_if_pruned(action: Callable[[], T]) -> T:
    """The result of `action`, which finds and reads a checkpoint; repeated if that was deleted."""
    for _ in range(PRUNED_ATTEMPTS - 1):
        with suppress(CheckpointGone):
            return action()
    return action()


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One checkpoint on disk whose manifest was verified; parts are verified when read.

    `skipped` tells which newer checkpoints `find_checkpoint` passed over, and why.
    """

    path: Path
    kind: str
    env_steps: int
    info: Mapping[str, Any]
    files: Mapping[str, FileEntry]
    skipped: tuple[str, ...] = ()
    rows: dict[Key, SavedRows] = field(default_factory=dict, compare=False)  # those read so far

    @classmethod
    def open(cls, path: Path) -> Checkpoint:
        """The checkpoint in the directory `path`, its manifest and its file names verified."""
        with _open_file(path / MANIFEST_NAME) as (file, size):
            if size > MAX_MANIFEST_BYTES:
                raise damaged(path / MANIFEST_NAME, f"{size} bytes are too many for a manifest")
            manifest = parse_manifest(path / MANIFEST_NAME, file.read(size))
        surplus = sorted(set(_names(path)) - {MANIFEST_NAME, *manifest.files})
        if surplus:
            raise damaged(path / surplus[0], "the file is not listed in the manifest")
        return cls(path=path, **manifest._asdict())

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts, in the order they were written."""
        suffix = SUFFIXES[0]
        return tuple(n.removesuffix(suffix) for n in self.files if n.endswith(suffix))

    def has(self, part: str) -> bool:
        """Whether the checkpoint holds this part."""
        return part in self.parts

    def verify(self, parts: Collection[str] | None = None) -> None:
        """Compare size and SHA-256 of every file (or of some parts) with the manifest."""
        for part in self.parts if parts is None else parts:
            self._require(part)
            names = [part + suffix for suffix in SUFFIXES] + self._segment_names(part)
            for name in names:
                with self._verified(name):
                    pass

    def read(self, part: str) -> StateTree:
        """The state of one part, verified before it is parsed.

        Rows in it are read when they are loaded, each segment verified before it is parsed.
        """
        self._require(part)
        with self._verified(f"{part}.json") as (file, size):
            if size > MAX_STRUCTURE_BYTES:
                raise damaged(self.path / f"{part}.json", f"{size} bytes are too many")
            structure_bytes = file.read(size)
        with self._verified(f"{part}.safetensors") as (file, size):
            try:
                tensors = read_tensors(file, size)
            except ValueError as error:
                raise damaged(self.path / f"{part}.safetensors", str(error)) from error
        if part == "agent":
            self._refuse_non_finite(part, tensors)
        decoder = _PartDecoder(tensors, partial(self._read_segment, part))
        try:
            tree = join(parse_json(structure_bytes), tensors, decoder=decoder)
            named = [segment_name(part, n) for x in decoder.rows.values() for n in x.numbers]
            if sorted(named) != sorted(self._segment_names(part)):
                raise ValueError("the segments are not those of the manifest")
        except (ValueError, CheckpointError) as error:
            raise damaged(self.path / f"{part}.json", str(error)) from error
        self.rows.update({(part, path): rows for path, rows in decoder.rows.items()})
        return tree

    def earlier_rows(self) -> EarlierRows:
        """The rows that were loaded from this checkpoint, for the next one to link."""
        loaded = {key: (rows.log, rows.segments) for key, rows in self.rows.items()}
        rows = {key: (log, segments) for key, (log, segments) in loaded.items() if log is not None}
        return EarlierRows(self.path, rows)

    def _refuse_non_finite(self, part: str, tensors: Mapping[str, Tensor]) -> None:
        """Such weights are never written, and some networks fail with them in strange ways."""
        try:
            check_finite(part, tensors, self.env_steps)
        except NonFiniteError as error:
            raise damaged(self.path / f"{part}.safetensors", str(error)[:200]) from error

    def _segment_names(self, part: str) -> list[str]:
        return [name for name in self.files if segment_part(name) == part]

    def _read_segment(self, part: str, number: int) -> tuple[RowBlock, FileEntry]:
        name = segment_name(part, number)
        with self._verified(name) as (file, size):
            try:
                return segment_block(read_tensors(file, size)), self.files[name]
            except (ValueError, TypeError) as error:  # of a type that no array has
                raise damaged(self.path / name, str(error)) from error

    def _require(self, part: str) -> None:
        if not self.has(part):
            raise CheckpointError(
                f"{self.path}: expected a part {part!r}, found {', '.join(self.parts)}. It was "
                "saved without that part; use another checkpoint."
            )

    @contextmanager
    def _verified(self, name: str) -> Iterator[tuple[BufferedReader, int]]:
        path, expected = self.path / name, self.files[name]
        with _open_file(path) as (file, size):
            if size != expected.size:
                raise damaged(path, f"{size} bytes, the manifest says {expected.size}")
            digest = hashlib.sha256()
            while chunk := file.read(HASHED_BYTES):
                digest.update(chunk)
            if digest.hexdigest() != expected.sha256:
                raise damaged(path, "the content does not match its SHA-256")
            file.seek(0)
            yield file, size


class _PartDecoder(Decoder):
    """Decodes a part whose rows are in segments; `rows` has them by their path."""

    def __init__(
        self, tensors: Mapping[str, Tensor], read: Callable[[int], tuple[RowBlock, FileEntry]]
    ) -> None:
        super().__init__(tensors)
        self.rows: dict[str, SavedRows] = {}
        self._read_segment = read
        self.direct["rows"] = self._rows
        self.optional["rows"] = {"segments", "kept", "fading"}

    def _rows(self, node: dict[str, Node], *_: object) -> SavedRows:
        path, numbers, fading = node["rows"], node["segments"], node["fading"]
        if not isinstance(path, str) or path in self.rows:
            raise ValueError("rows without a path")
        if not isinstance(numbers, list) or not numbers or not all(map(_is_natural, numbers)):
            raise ValueError("rows without their segments")
        if not isinstance(fading, dict) or not all(map(_is_natural, fading.values())):
            raise ValueError("rows with fields that fade in another way than by number")
        if not _is_natural(node["kept"]):
            raise ValueError("rows without the number of those kept")
        rows = SavedRows(numbers, self._read_segment, capacity=node["kept"], fading=fading)
        self.rows[path] = rows
        return rows


def _is_natural(value: object) -> bool:
    return type(value) is int and value >= 0


@contextmanager
def loading_part(checkpoint: Checkpoint, part: str) -> Iterator[None]:
    """Context in which a part is loaded; whatever fails is a CheckpointError that names it.

    A forged part may fail in any way that Python knows, so nothing is left out.
    """
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{checkpoint.path}: {part}: {error}") from error
    except RLTrainingError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"{checkpoint.path}: {part}: it does not fit ({type(error).__name__}: {error}); it was "
            "written by another version or configuration, or changed since"
        ) from error


def write_checkpoint(
    checkpoints_dir: Path,
    *,
    kind: Literal["step", "best"],
    env_steps: int,
    parts: Mapping[str, StateTree],
    info: Mapping[str, Any],
) -> Path:
    """Write a checkpoint atomically and durably; gives its directory, `KIND_000000050000`.

    One of the same kind and step is replaced; at every moment one of the two is there, whole.
    The part `agent` must be finite (NonFiniteError); trouble with the disk is a SaveError.
    """
    checkpoint = PreparedCheckpoint(
        checkpoints_dir, kind=kind, env_steps=env_steps, parts=parts, info=info
    )
    return checkpoint.write().folder


def find_checkpoint(
    path: Path, *, best: bool = False, parts: Collection[str] | None = None
) -> Checkpoint:
    """The newest checkpoint that verifies in a run or its checkpoints directory, or `path` itself.

    Damaged ones are passed over and named in `skipped`; if none is left, CheckpointError lists
    them all. With `parts` only those are hashed, which spares reading a large replay memory. One
    that a run in progress deletes meanwhile is not damaged: there are newer ones.
    """
    return retry_if_pruned(lambda: _find(path, best, parts))


def has_checkpoint(run_dir: Path) -> bool:
    """Whether a run directory holds a step checkpoint, intact or not."""
    folder = run_dir / CHECKPOINTS_DIR_NAME
    return folder.is_dir() and bool(list_checkpoints(folder, "step"))


def _find(path: Path, best: bool, parts: Collection[str] | None) -> Checkpoint:
    kind = "best" if best else "step"
    skipped: list[str] = []
    for candidate in _candidates(path, kind):
        try:
            if candidate.is_symlink() and candidate != path:
                raise damaged(candidate, "a symbolic link, not a checkpoint")
            checkpoint = Checkpoint.open(candidate)
            checkpoint.verify(parts)
        except CheckpointGone:
            raise
        except CheckpointError as error:
            skipped.append(str(error))
            continue
        if best and checkpoint.kind != "best":
            raise CheckpointError(f"{path} is not a best checkpoint: give the run directory")
        return replace(checkpoint, skipped=tuple(skipped))
    if skipped:
        raise CheckpointError("\n".join([f"no usable checkpoint in {path}:", *skipped]))
    hint = "the run has not been evaluated yet; leave out --best" if best else "check the path"
    raise CheckpointError(f"{path} holds no {kind}_* checkpoint: {hint}.")


def prune(checkpoints_dir: Path, *, keep: int) -> None:
    """Delete all but the newest `keep` step checkpoints, the newest exact one and the best one.

    While the newest best is newer than every step checkpoint, the one before it stays too: a run
    that dies now goes on from before the new one was found.
    """
    if keep < 1:
        raise UsageError(f"expected to keep at least 1 checkpoint, found keep={keep}")
    try:
        steps, bests = (
            list_checkpoints(checkpoints_dir, "step"),
            list_checkpoints(checkpoints_dir, "best"),
        )
        newest_step = step_and_revision(steps[-1])[0] if steps else -1
        safe = [name for name in bests if step_and_revision(name)[0] <= newest_step]
        exact = (name for name in reversed(steps) if _is_exact(checkpoints_dir / name))
        kept = {*steps[-keep:], *itertools.islice(exact, 1), *bests[-1:], *safe[-1:]}
        for name in (name for name in steps + bests if name not in kept):
            with_retries(partial(_remove_if_there, checkpoints_dir / name))
    except OSError as error:
        raise save_error(checkpoints_dir, error) from error


def _is_exact(path: Path) -> bool:
    try:
        return Checkpoint.open(path).info.get("exact") is True
    except CheckpointError:
        return False


def set_aside_newer(checkpoints_dir: Path, *, env_steps: int) -> list[Path]:
    """Move checkpoints taken after `env_steps` to `abandoned/` beside the directory.

    A run that goes on from an older checkpoint leaves a timeline that must neither win over the
    new one nor be lost.
    """
    moved = []
    for kind in KINDS if checkpoints_dir.is_dir() else ():
        for name in list_checkpoints(checkpoints_dir, kind):
            if step_and_revision(name)[0] > env_steps:
                target = checkpoints_dir.parent / ABANDONED_DIR_NAME
                moved.append(_move_to(checkpoints_dir / name, target))
    return moved


def _move_to(path: Path, folder: Path) -> Path:
    def move() -> Path:
        make_directory(folder)
        number = 1
        while (target := folder / f"{path.name}.{number}").exists():
            number += 1
        os.rename(path, target)
        return target

    try:
        target = with_retries(move)
        with_retries(partial(fsync_directory, path.parent))
    except OSError as error:
        raise save_error(folder, error) from error
    return target


def _remove_if_there(path: Path) -> None:
    if path.exists():  # else an attempt that ended with an error had removed it already
        remove(path)


def _candidates(path: Path, kind: str) -> list[Path]:
    """The checkpoints that `path` can mean, newest first."""
    if (path / MANIFEST_NAME).exists() or CHECKPOINT_DIRECTORY.fullmatch(path.name):
        return [path]
    inner = path / CHECKPOINTS_DIR_NAME
    folder = inner if inner.is_dir() else path
    try:
        return [folder / name for name in reversed(list_checkpoints(folder, kind))]
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"expected a run or a checkpoint at {folder}, found none ({error}). Check the path."
        ) from error


def _names(path: Path) -> list[str]:
    try:
        return os.listdir(path)
    except OSError as error:
        raise _unreadable(path, path, error) from error


@contextmanager
def _open_file(path: Path) -> Iterator[tuple[BufferedReader, int]]:
    """An ordinary file and its size; a link, a pipe or a device is refused unopened or unread."""
    try:
        with open_ordinary(path) as opened:
            yield opened
    except OSError as error:
        raise _unreadable(path, path.parent, error) from error


def _unreadable(path: Path, directory: Path, error: OSError) -> CheckpointError:
    reason = "a symbolic link" if path.is_symlink() else error.strerror
    described = damaged(path, f"cannot be read ({reason})")
    gone = error.errno in (errno.ENOENT, errno.ESTALE) and not directory.exists()
    return CheckpointGone(str(described)) if gone else described
