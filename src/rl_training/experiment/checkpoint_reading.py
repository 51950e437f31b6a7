"""Reading a checkpoint: everything is verified against the manifest before it is parsed."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError
from rl_training.experiment.files import parse_json
from rl_training.experiment.manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    SUFFIXES,
    FileEntry,
    damaged,
    parse_manifest,
)
from rl_training.experiment.state_tree import StateTree, join
from rl_training.experiment.tensor_file import CHUNK_BYTES, read_tensors

MAX_STRUCTURE_BYTES = 64 << 20


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
        try:
            return join(parse_json(structure_bytes), tensors)
        except (ValueError, CheckpointError) as error:
            raise damaged(self.path / f"{part}.json", str(error)) from error

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


def _names(path: Path) -> list[str]:
    try:
        return os.listdir(path)
    except OSError as error:
        raise damaged(path, f"cannot be read ({error.strerror})") from error


@contextmanager
def _open_file(path: Path) -> Iterator[tuple[BufferedReader, int]]:
    """An ordinary file and its size; a link, a pipe or a device is refused unopened or unread."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise damaged(path, "not an ordinary file")
            yield file, status.st_size
    except OSError as error:
        reason = "a symbolic link" if path.is_symlink() else error.strerror
        raise damaged(path, f"cannot be read ({reason})") from error
