"""Checkpoints: directories of plain data that are written atomically and verified before use.

A checkpoint holds `manifest.json` and, for each part (`agent`, `replay`, ...), `PART.json` with
the structure and `PART.safetensors` with the tensors. There is no pickle on any path. The SHA-256
sums find accidents; against a forged file protects that the format can only hold data, and that
every bound is checked. Everything is verified against the manifest before it is parsed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from rl_training.errors import CheckpointError, NonFiniteError, RLTrainingError, UsageError
from rl_training.storage.files import (
    Bytes,
    fsync_directory,
    make_directory,
    open_ordinary,
    parse_json,
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
    MAX_MANIFEST_BYTES,
    SUFFIXES,
    FileEntry,
    check_part_name,
    damaged,
    manifest_bytes,
    parse_manifest,
)
from rl_training.storage.tensor_file import CHUNK_BYTES, file_chunks, read_tensors
from rl_training.storage.tree import StateTree, join, split

CHECKPOINTS_DIR_NAME = "checkpoints"
MAX_STRUCTURE_BYTES = 64 << 20
_DIRECTORY = re.compile(r"(step|best)_([0-9]{12,18})(?:-([0-9]{1,9}))?")


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
            for suffix in SUFFIXES:
                with self._verified(part, suffix):
                    pass

    def read(self, part: str) -> StateTree:
        """The state of one part, verified before it is parsed."""
        with self._verified(part, ".json") as (file, size):
            if size > MAX_STRUCTURE_BYTES:
                raise damaged(self.path / f"{part}.json", f"{size} bytes are too many")
            structure_bytes = file.read(size)
        with self._verified(part, ".safetensors") as (file, size):
            try:
                tensors = read_tensors(file, size)
            except ValueError as error:
                raise damaged(self.path / f"{part}.safetensors", str(error)) from error
        if part == "agent":
            self._refuse_non_finite(part, tensors)
        try:
            return join(parse_json(structure_bytes), tensors)
        except (ValueError, CheckpointError) as error:
            raise damaged(self.path / f"{part}.json", str(error)) from error

    def _refuse_non_finite(self, part: str, tensors: Mapping[str, Tensor]) -> None:
        """Such weights are never written, and some networks fail with them in strange ways."""
        try:
            _check_finite(part, tensors, self.env_steps)
        except NonFiniteError as error:
            raise damaged(self.path / f"{part}.safetensors", str(error)[:200]) from error

    @contextmanager
    def _verified(self, part: str, suffix: str) -> Iterator[tuple[BufferedReader, int]]:
        if not self.has(part):
            raise CheckpointError(
                f"{self.path}: expected a part {part!r}, found {', '.join(self.parts)}. It was "
                "saved without that part; use another checkpoint."
            )
        path = self.path / (part + suffix)
        expected = self.files[part + suffix]
        with _open_file(path) as (file, size):
            if size != expected.size:
                raise damaged(path, f"{size} bytes, the manifest says {expected.size}")
            digest = hashlib.sha256()
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
            if digest.hexdigest() != expected.sha256:
                raise damaged(path, "the content does not match its SHA-256")
            file.seek(0)
            yield file, size


@contextmanager
def fitting(checkpoint: Checkpoint, part: str) -> Iterator[None]:
    """Context in which a part is taken over; whatever fails is a CheckpointError that names it.

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
    if kind not in KINDS or type(env_steps) is not int or not 0 <= env_steps < MAX_ENV_STEPS:
        raise UsageError(f"expected a kind of {KINDS} and a step count, found {kind}, {env_steps}")
    encoded = {part: _encode_part(part, tree) for part, tree in parts.items()}
    if "agent" in encoded:
        _check_finite("agent", encoded["agent"].tensors, env_steps)
    target = checkpoints_dir / f"{kind}_{env_steps:012d}"

    def commit() -> Path:
        make_directory(checkpoints_dir)
        sweep(checkpoints_dir)
        with temporary_directory(checkpoints_dir) as folder:
            files = _write_parts(folder, encoded)
            write_new(folder / MANIFEST_NAME, [manifest_bytes(kind, env_steps, info, files)])
            fsync_directory(folder)
            return _install(folder, target)

    try:
        return with_retries(commit)
    except OSError as error:
        needed = sum(part.nbytes for part in encoded.values())
        raise save_error(target, error, needed=needed) from error


def find_checkpoint(
    path: Path, *, best: bool = False, parts: Collection[str] | None = None
) -> Checkpoint:
    """The newest checkpoint that verifies in a run or its checkpoints directory, or `path` itself.

    Damaged ones are passed over and named in `skipped`; if none is left, CheckpointError lists
    them all. With `parts` only those are hashed, which spares reading a large replay memory.
    """
    kind = "best" if best else "step"
    skipped: list[str] = []
    for candidate in _candidates(path, kind):
        try:
            if candidate.is_symlink() and candidate != path:
                raise damaged(candidate, "a symbolic link, not a checkpoint")
            checkpoint = Checkpoint.open(candidate)
            checkpoint.verify(parts)
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
    """Delete all but the newest `keep` step checkpoints and the best one.

    While the newest best is newer than every step checkpoint, the one before it stays too: a run
    that dies now goes on from before the new one was found.
    """
    if keep < 1:
        raise UsageError(f"expected to keep at least 1 checkpoint, found keep={keep}")
    try:
        steps, bests = _list(checkpoints_dir, "step"), _list(checkpoints_dir, "best")
        safe = [name for name in bests if steps and _age(name)[0] <= _age(steps[-1])[0]]
        kept = {*steps[-keep:], *bests[-1:], *safe[-1:]}
        for name in (name for name in steps + bests if name not in kept):
            remove(checkpoints_dir / name)
    except OSError as error:
        raise save_error(checkpoints_dir, error) from error


def set_aside_newer(checkpoints_dir: Path, *, env_steps: int) -> list[Path]:
    """Move checkpoints taken after `env_steps` to `abandoned/` beside the directory.

    A run that goes on from an older checkpoint leaves a timeline that must neither win over the
    new one nor be lost.
    """
    moved = []
    for kind in KINDS:
        for name in _list(checkpoints_dir, kind):
            if _age(name)[0] > env_steps:
                moved.append(_move_to(checkpoints_dir / name, checkpoints_dir.parent / "abandoned"))
    return moved


def _move_to(path: Path, folder: Path) -> Path:
    try:
        make_directory(folder)
        number = 1
        while (target := folder / f"{path.name}.{number}").exists():
            number += 1
        os.rename(path, target)
        fsync_directory(path.parent)
    except OSError as error:
        raise save_error(folder, error) from error
    return target


class _Part(NamedTuple):
    structure: bytes
    tensors: dict[str, Tensor]

    def chunks(self) -> tuple[Sequence[Bytes] | Iterator[Bytes], ...]:
        return [self.structure], file_chunks(self.tensors)

    @property
    def nbytes(self) -> int:
        return len(self.structure) + sum(tensor.nbytes for tensor in self.tensors.values())


def _encode_part(part: str, tree: StateTree) -> _Part:
    check_part_name(part)
    structure, tensors = split(tree)
    data = json.dumps(structure, separators=(",", ":"), allow_nan=False).encode()
    if len(data) > MAX_STRUCTURE_BYTES:
        raise UsageError(
            f"the part {part!r} needs {len(data)} bytes of JSON, at most {MAX_STRUCTURE_BYTES} are "
            "allowed: keep its numbers in arrays instead of lists"
        )
    return _Part(data, tensors)


def _check_finite(part: str, tensors: Mapping[str, Tensor], env_steps: int) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            count = int((~torch.isfinite(tensor)).sum())
            raise NonFiniteError(
                f"expected finite weights, found {count} of {tensor.numel()} values of "
                f"{part}{name} NaN or infinite at env step {env_steps}. The checkpoint was not "
                "written; resume from an earlier one, with a smaller learning rate."
            )


def _write_parts(folder: Path, parts: Mapping[str, _Part]) -> dict[str, FileEntry]:
    return {
        part + suffix: FileEntry(*write_new(folder / (part + suffix), chunks))
        for part, content in parts.items()
        for suffix, chunks in zip(SUFFIXES, content.chunks(), strict=True)
    }


def _install(folder: Path, target: Path) -> Path:
    """Give the finished directory its name; older ones of that name go only after it stands.

    A directory cannot be renamed over a full one, so a successor first stands beside it as
    `NAME-2`, which counts as the newer of the two, and takes the plain name in the end.
    """
    kind, age = target.name.partition("_")[0], _age(target.name)
    older = [name for name in _list(target.parent, kind) if _age(name)[0] == age[0]]
    if not older:
        os.rename(folder, target)
        fsync_directory(target.parent)
        return target
    successor = target.with_name(f"{target.name}-{_age(older[-1])[1] + 1}")
    os.rename(folder, successor)
    fsync_directory(target.parent)
    for name in older:
        remove(target.parent / name)
    os.rename(successor, target)
    fsync_directory(target.parent)
    return target


def _candidates(path: Path, kind: str) -> list[Path]:
    """The checkpoints that `path` can mean, newest first."""
    if (path / MANIFEST_NAME).exists() or _DIRECTORY.fullmatch(path.name):
        return [path]
    inner = path / CHECKPOINTS_DIR_NAME
    folder = inner if inner.is_dir() else path
    try:
        return [folder / name for name in reversed(_list(folder, kind))]
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"expected a run or a checkpoint at {folder}, found none ({error}). Check the path."
        ) from error


def _list(folder: Path, kind: str) -> list[str]:
    """The names of the checkpoints of one kind, oldest first."""
    names = (name for name in os.listdir(folder) if _DIRECTORY.fullmatch(name))
    return sorted((name for name in names if name.startswith(kind)), key=_age)


def _age(name: str) -> tuple[int, int]:
    found = _DIRECTORY.fullmatch(name)
    assert found is not None
    return int(found[2]), int(found[3] or 1)


def _names(path: Path) -> list[str]:
    try:
        return os.listdir(path)
    except OSError as error:
        raise damaged(path, f"cannot be read ({error.strerror})") from error


@contextmanager
def _open_file(path: Path) -> Iterator[tuple[BufferedReader, int]]:
    """An ordinary file and its size; a link, a pipe or a device is refused unopened or unread."""
    try:
        with open_ordinary(path) as opened:
            yield opened
    except OSError as error:
        reason = "a symbolic link" if path.is_symlink() else error.strerror
        raise damaged(path, f"cannot be read ({reason})") from error
