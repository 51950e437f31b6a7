"""Writing files so that a crash leaves the old content or the new one, never a mixture.

A commit is always: write into a hidden temporary directory beside the target, fsync the file,
rename, fsync the directory. A temporary directory is locked while its writer lives, so whatever
a killed process left behind can be told apart and swept.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from rl_training.errors import SaveError, UsageError

TEMPORARY_PREFIX = ".rl-training-tmp-"
MAX_RECORD_BYTES = 16 << 20
"""Of the JSON or YAML that describes a run."""
RETRY_DELAYS_S = (0.05, 0.2, 0.8)
"""Pauses before a write that failed with a transient error is tried again."""

# What network disks recover from, and what other processes may put right: space that is freed.
TRANSIENT = frozenset(
    {
        errno.EIO,
        errno.ESTALE,
        errno.EAGAIN,
        errno.EINTR,
        errno.EBUSY,
        errno.ETIMEDOUT,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.ENOMEM,
        errno.ENFILE,
    }
)
_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

T = TypeVar("T")
Bytes = bytes | memoryview


def write_atomic(path: Path, data: bytes | str) -> None:
    """Replace `path` by a file with this content, durably; a str is written as UTF-8."""
    content = data.encode() if isinstance(data, str) else data

    def commit() -> None:
        sweep(path.parent)
        with temporary_directory(path.parent) as folder:
            write_new(folder / "file", [content])
            os.replace(folder / "file", path)
        fsync_directory(path.parent)

    try:
        with_retries(commit)
    except OSError as error:
        raise save_error(path, error, needed=len(content)) from error


def write_json(path: Path, obj: object) -> None:
    """Replace `path` by `obj` as indented standard JSON; NaN and infinities become null."""
    write_atomic(path, json.dumps(jsonable(obj), indent=2, allow_nan=False) + "\n")


def jsonable(value: object) -> object:
    """`value` in plain JSON types: NaN and infinities are null, NumPy and 0-d values numbers."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "item"):
        return jsonable(value.item())
    raise UsageError(
        f"expected numbers, strings, lists and dicts for a JSON file, found "
        f"{type(value).__name__}: convert it first"
    )


@contextmanager
def open_ordinary(path: Path) -> Iterator[tuple[BufferedReader, int]]:
    """An ordinary file and its size; OSError for a link, a pipe or a device, which is not read.

    A run directory may come from somebody else: a link would lead out of it, a pipe would hang.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not an ordinary file", str(path))
        yield file, status.st_size


def read_ordinary(path: Path, limit: int = MAX_RECORD_BYTES) -> bytes:
    """The content of an ordinary file of at most `limit` bytes; otherwise OSError."""
    with open_ordinary(path) as (file, size):
        if size > limit:
            raise OSError(errno.EFBIG, f"larger than {limit} bytes", str(path))
        return file.read(limit)


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a record of a run; empty if there is none, or something else."""
    try:
        value = parse_json(read_ordinary(path))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def parse_json(data: bytes) -> Any:
    """The value in UTF-8 encoded standard JSON; ValueError with the reason for anything else.

    Stricter than `json.loads`: duplicate keys, NaN, infinities and hostile nesting are refused.
    """
    try:
        return json.loads(
            data.decode("utf-8"), object_pairs_hook=_unique_keys, parse_constant=_no_constant
        )
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("JSON object with a duplicate key")
    return result


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not standard JSON")


def write_new(path: Path, chunks: Iterable[Bytes]) -> tuple[int, str]:
    """Write a file that does not exist yet and fsync it; gives its size and SHA-256.

    The hash is taken on the way, so a large file is not read again and is never in memory twice.
    """
    digest = hashlib.sha256()
    size = 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        for chunk in chunks:
            digest.update(chunk)
            write_all(descriptor, chunk)
            size += len(chunk)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return size, digest.hexdigest()


def write_all(descriptor: int, data: Bytes) -> None:
    """Write every byte; `os.write` alone may stop early."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def fsync_directory(path: Path) -> None:
    """Make renames and new names inside `path` survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems refuse fsync on directories; their renames are synchronous.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Create `path` durably if it is missing; its parent has to be there."""
    with suppress(FileExistsError):
        path.mkdir()
        fsync_directory(path.parent)


@contextmanager
def temporary_directory(parent: Path) -> Iterator[Path]:
    """A new hidden directory in `parent`, locked while in use; removed unless renamed away."""
    folder, descriptor = _locked_directory(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


def sweep(directory: Path) -> None:
    """Remove the temporary files that killed processes left in `directory`."""
    with suppress(OSError), os.scandir(directory) as entries:
        stale = [Path(entry.path) for entry in entries if entry.name.startswith(TEMPORARY_PREFIX)]
        for path in stale:
            descriptor = _lock(path)
            if descriptor is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(descriptor)


def remove(path: Path) -> None:
    """Delete a directory (or whatever bears its name) so that it is never seen half deleted."""
    with temporary_directory(path.parent) as folder:
        os.rename(path, folder / path.name)


def with_retries(action: Callable[[], T]) -> T:
    """The result of `action`, tried again after each transient error, three times at most.

    It must begin anew each time: after a failed fsync the kernel may count what it lost as written.
    """
    for delay in RETRY_DELAYS_S:
        try:
            return action()
        except OSError as error:
            if error.errno not in TRANSIENT:
                raise
            time.sleep(delay)
    return action()


def replace_directory(target: Path, write: Callable[[Path], Path]) -> None:
    """Put the directory that `write` makes in a temporary folder at `target`, all or nothing."""

    def write_and_rename() -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".saving-") as folder:
            source = write(Path(folder))
            if target.exists():
                target.rename(Path(folder) / "replaced")
            source.rename(target)

    try:
        with_retries(write_and_rename)
    except OSError as error:
        raise save_error(target, error) from error


def save_error(path: Path, error: OSError, *, needed: int | None = None) -> SaveError:
    """The SaveError for an OSError: the path, the reason, bytes needed and free, what to do."""
    out_of_space = error.errno in _SPACE
    space = f"; {_space(path, needed)}" if out_of_space and needed is not None else ""
    if out_of_space:
        advice = "Free some space or choose another output directory"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        advice = "Make the directory writable or choose another output directory"
    else:
        advice = "Check that the directory still exists and the disk is healthy"
    return SaveError(f"could not write {path}: {error.strerror or error}{space}. {advice}.")


def _space(path: Path, needed: int) -> str:
    """The bytes needed and free; where there are enough, what else can have run out."""
    for folder in path.parents:
        with suppress(OSError):
            status = os.statvfs(folder)
            free = status.f_bavail * status.f_frsize
            text = f"{needed} bytes needed, {free} free"
            if free < needed:
                return text
            return (
                f"{text}, which a quota, a limit on file sizes, whole blocks of "
                f"{status.f_frsize} bytes or the {status.f_favail} files still allowed may make "
                "too few"
            )
    return f"{needed} bytes needed, an unknown number free"


def _locked_directory(parent: Path) -> tuple[Path, int | None]:
    # Between mkdir and lock another process may sweep the directory: then take another name.
    # Where the file system has no locks nobody can sweep, and the last one is used unlocked.
    for _ in range(3):
        folder = parent / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
        folder.mkdir()
        descriptor = _lock(folder)
        if descriptor is not None:
            return folder, descriptor
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder, None


def _lock(path: Path) -> int | None:
    """A descriptor that locks the directory `path`, or None if it is in use, gone or a file."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError:
        return None
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
            return descriptor
    os.close(descriptor)
    return None
