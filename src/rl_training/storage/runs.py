"""Run directories: created once, locked while in use, described by their metadata, listed."""

from __future__ import annotations

import errno
import fcntl
import importlib.metadata
import os
import platform
import re
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from rl_training.errors import ConfigError, RunError, RunInUse, UsageError
from rl_training.storage.files import (
    fsync_directory,
    parse_json,
    read_json_object,
    read_ordinary,
    save_error,
    with_retries,
    write_all,
)
from rl_training.storage.metrics_log import METRICS_NAME, latest_values

LOCK_NAME = ".lock"
METADATA_NAME = "metadata.json"
SUMMARY_NAME = "summary.json"
CONFIG_NAME = "config.yaml"
CHECKPOINTS_DIR_NAME = "checkpoints"
ABANDONED_DIR_NAME = "abandoned"
DIVERGENCE_DIR_NAME = "divergence"
VIDEOS_DIR_NAME = "videos"

_FIGURES = ("global_step", "eval/return_mean", "rollout/episode_return")

MAX_NUMBER = 1e18
"""Beyond it, or not finite, no count or return of a run can be."""

N = TypeVar("N", int, float)

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_MAX_ATTEMPTS = 10_000
_LOCK_PATIENCE_S = 0.5
_GIT_TIMEOUT_S = 2.0
_CPUINFO = Path("/proc/cpuinfo")
_PACKAGES = ("rl-training", "torch", "numpy", "gymnasium", "box2d", "mujoco")


def slug(text: str) -> str:
    """`text` as a part of a run name: `ALE/Pong-v5` becomes `ALE-Pong-v5`; never empty."""
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")
    return words[:50].rstrip("-.") or "run"


def default_run_name(algo: str, env_id: str, seed: int, *, time_stamp: bool = True) -> str:
    """Such as `dqn-CartPole-v1-seed0-20261115-201500`, with the time in UTC, or none."""
    time_text = f"-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}" if time_stamp else ""
    return f"{slug(algo)[:20]}-{slug(env_id)}-seed{seed}{time_text}"[:100]


def create_run_directory(output_dir: Path, *, name: str, only: bool = False) -> Path:
    """A new directory NAME in `output_dir`, or NAME-2, NAME-3, ... if that exists already.

    Only the process that really creates a directory gets it, however many start at once. With
    `only` no other name will do, and RunInUse is raised.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            "expected a run name of up to 100 letters, digits, '.', '_' and '-', not starting with "
            f"'.' or '-', found {name[:120]!r}: choose another name"
        )
    if "\0" in str(output_dir):
        raise UsageError(f"expected a directory, found {str(output_dir)!r} with a NUL character")
    try:
        with_retries(lambda: output_dir.mkdir(parents=True, exist_ok=True))
        directory = _first_free(output_dir, name, attempts=1 if only else _MAX_ATTEMPTS)
        with_retries(lambda: fsync_directory(output_dir))
    except OSError as error:
        raise save_error(output_dir / name, error) from error
    if directory.resolve().parent != output_dir.resolve():
        raise RunError(f"{directory} lies outside {output_dir}: choose another output directory")
    return directory


def _first_free(output_dir: Path, name: str, *, attempts: int) -> Path:
    for attempt in range(1, attempts + 1):
        directory = output_dir / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            with_retries(directory.mkdir)
        except FileExistsError:
            continue
        return directory
    if attempts == 1:
        raise RunInUse(
            f"another process has just begun a run in {output_dir / name}: the same command later "
            "goes on with what it leaves"
        )
    raise RunError(f"{output_dir} holds {_MAX_ATTEMPTS} runs named {name}: choose another name")


def refuse_links(run_dir: Path | None) -> None:
    """Refuse to write in a run whose directories lie elsewhere: files there would be deleted."""
    for name in (CHECKPOINTS_DIR_NAME, ABANDONED_DIR_NAME, DIVERGENCE_DIR_NAME, VIDEOS_DIR_NAME):
        if run_dir is not None and (run_dir / name).is_symlink():
            raise RunError(
                f"{run_dir / name} is a symbolic link; a run writes and deletes only in its own "
                "directory: put a copy of what it leads to in its place"
            )


def remove_summary(run_dir: Path) -> None:
    """Remove what an earlier session wrote about the end of a run that goes on."""
    path = run_dir / SUMMARY_NAME

    def unlink() -> None:
        path.unlink(missing_ok=True)
        fsync_directory(run_dir)

    try:
        with_retries(unlink)
    except OSError as error:
        raise save_error(path, error) from error


class RunLock:
    """Holds a run directory for one process; the kernel lets go of it when the process dies."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / LOCK_NAME
        self._descriptor: int | None = None

    def __enter__(self) -> RunLock:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = with_retries(lambda: os.open(self._path, flags, 0o666))
        except OSError as error:
            raise save_error(self._path, error) from error
        try:
            self._acquire(descriptor)
            with_retries(lambda: _write_holder(descriptor))
        except OSError as error:  # also of a pipe or a device in its place
            os.close(descriptor)
            raise save_error(self._path, error) from error
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        _held.add(descriptor)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._descriptor in _held:
            _held.remove(self._descriptor)
            os.close(self._descriptor)
        self._descriptor = None

    def _acquire(self, descriptor: int) -> None:
        # A short patience, because `is_locked` holds the lock for an instant to look at it.
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while not _try_lock(descriptor, fcntl.LOCK_EX, self._path):
            if time.monotonic() > deadline:
                holder = os.pread(descriptor, 1000, 0).decode(errors="replace").strip()
                raise RunInUse(
                    f"{self._path.parent} is in use by another process ({holder or 'unknown'}): "
                    "wait until it ends, stop it, or start a new run"
                )
            time.sleep(0.02)


def _write_holder(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    write_all(descriptor, f"pid {os.getpid()} on host {platform.node()}\n".encode())


def is_locked(run_dir: Path) -> bool:
    """Whether a living process holds the RunLock of this directory."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(run_dir / LOCK_NAME, flags)
    except OSError:
        return False
    try:
        return not _try_lock(descriptor, fcntl.LOCK_SH, run_dir)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, mode: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise RunError(
            f"{path} cannot be locked ({error.strerror}): put runs on a file system with locks"
        ) from error
    return True


_held: set[int] = set()


def _close_inherited() -> None:
    # A forked env worker that outlives its parent must not keep the run locked.
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_close_inherited)


def collect_metadata(
    *,
    command: Sequence[str],
    seed: int,
    device: str,
    resume_level: str,
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """What is needed to repeat a run: versions, platform, command, git commit, seed, `extra`.

    The host name is left out, so that run directories can be published.
    """
    import torch  # listing runs must not pay for the import

    return {
        "started_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": list(command),
        "seed": seed,
        "device": device,
        "resume_level": resume_level,
        "python": platform.python_version(),
        "packages": _package_versions(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        **git_state(Path.cwd()),
        **_package_git_state(),
        **extra,
    }


def with_session(
    path: Path, session: Mapping[str, Any], resumed_from: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The metadata of a run that a session begins or goes on with, given its file's path.

    How the run began stays; `sessions` and `resumed_from` get an entry each.
    """
    earlier = read_json_object(path)
    metadata = {**session, **earlier}
    metadata["sessions"] = [*_entries(earlier, "sessions"), dict(session)]
    if resumed_from is not None:
        metadata["resumed_from"] = [*_entries(earlier, "resumed_from"), dict(resumed_from)]
    return metadata


def _entries(metadata: Mapping[str, Any], name: str) -> list[Any]:
    entries = metadata.get(name, [])
    return entries if isinstance(entries, list) else []


def relevant_versions(packages: Iterable[str] = ()) -> dict[str, str]:
    """What the last bits of a run depend on: versions, those of `packages` too, and the processor.

    The hash seed decides on the order of a set of strings, in which an environment may choose.
    The release of the system's kernel is left out, which computes nothing.
    """
    libc = " ".join(platform.libc_ver())  # has the mathematical functions
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()} {libc}".strip(),
        "cpu": cpu_model(),
        "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED") or "random",
        **_package_versions(packages),
    }


def cpu_model() -> str:
    """The processor with family and model: several share a name but round differently."""
    try:
        lines = _CPUINFO.read_text().split("\n\n")[0].splitlines()
    except OSError:
        lines = []
    facts = {key.strip(): value.strip() for key, _, value in (x.partition(":") for x in lines)}
    name = facts.get("model name") or platform.processor() or platform.machine()
    if {"cpu family", "model"} <= facts.keys():
        return f"{name} (family {facts['cpu family']}, model {facts['model']})"
    return name


def usable_cpus() -> int:
    """CPUs this process may run on, which a container or a scheduler may have limited."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _package_versions(more: Iterable[str] = ()) -> dict[str, str]:
    versions = {}
    # A distribution may be named `ale-py` or `box2d` and its package `ale_py` or `Box2D`.
    for package in dict.fromkeys((*_PACKAGES, *(name.lower().replace("_", "-") for name in more))):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def git_state(folder: Path, *, below: str = ":/") -> dict[str, Any]:
    """Commit of the checkout a folder lies in, and whether files `below` differ from it.

    Empty if there is no checkout.
    """
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        changes = _git(folder, "status", "--porcelain", "--", below)
        return {"git_commit": commit, "git_dirty": bool(changes)}
    except (OSError, subprocess.SubprocessError):
        return {}


def _package_git_state() -> dict[str, Any]:
    """The same of this package's source, unless it is installed as a copy."""
    here = Path(__file__).resolve()
    try:
        # An environment inside somebody's checkout is not part of that checkout.
        _git(here.parent, "ls-files", "--error-unmatch", here.name)
    except (OSError, subprocess.SubprocessError):
        return {}
    # What else lies in the checkout, such as results, is not the package.
    state = git_state(here.parents[1], below=".")
    return {f"package_{key}": value for key, value in state.items()}


def _git(folder: Path, *arguments: str) -> str:
    # No index refresh and no fsmonitor: asking must change nothing and run nothing.
    options = ["--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(folder)]
    done = subprocess.run(
        ["git", *options, *arguments],
        capture_output=True,
        check=True,
        text=True,
        timeout=_GIT_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout.strip()


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """One line in a list of runs.

    `status` is running (locked by a living process), finished, interrupted (stopped and saved),
    failed (by an error), killed (it left no summary) or unreadable. `eval_return_mean` is of the
    final policy, or of the latest evaluation of a run without a summary; `train_return_mean` of its
    last 100 episodes. `started_at` is in seconds since 1970. No text has control characters.
    """

    path: Path
    algo: str = ""
    env_id: str = ""
    seed: int | None = None
    env_steps: int = 0
    status: str = "unreadable"
    eval_return_mean: float | None = None
    train_return_mean: float | None = None
    started_at: float | None = None


def list_runs(root: Path) -> list[RunInfo]:
    """The runs in `root` and down to three levels below it, by path; links are not followed."""
    return [run_info(path) for path in _run_directories(root, 3)]


def _run_directories(folder: Path, levels: int) -> Iterator[Path]:
    if any((folder / name).is_file() for name in (METADATA_NAME, CONFIG_NAME)):
        yield folder
        return
    if levels == 0:
        return
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        path = folder / name
        if not name.startswith(".") and path.is_dir() and not path.is_symlink():
            yield from _run_directories(path, levels - 1)


def run_info(path: Path) -> RunInfo:
    """What there is to know of the run in a directory, without trusting its files."""
    try:
        summary = _read_object(path / SUMMARY_NAME)
        facts = {**_read_config(path), **_read_object(path / METADATA_NAME), **summary}
        figures = summary or latest_values(path / METRICS_NAME, _FIGURES)
        evaluated = figures.get("eval_return_mean" if summary else "eval/return_mean")
        return RunInfo(
            path=path,
            algo=printable(facts.get("algo", "")),
            env_id=printable(facts.get("env_id", "")),
            seed=_number(facts.get("seed"), int),
            env_steps=_number(figures.get("global_step"), int) or 0,
            status=_status(path, summary),
            eval_return_mean=_number(evaluated, float),
            train_return_mean=_number(figures.get("rollout/episode_return"), float),
            started_at=_seconds(facts.get("started_at")),
        )
    except (OSError, ValueError, RunError, ConfigError):
        return RunInfo(path=path)


def _status(path: Path, summary: dict[str, Any]) -> str:
    if is_locked(path):
        return "running"
    if not summary:
        return "killed"
    status = summary.get("status")
    return status if status in ("interrupted", "failed") else "finished"


def _read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a run; empty if there is no such file."""
    if not path.exists():
        return {}
    value = parse_json(read_ordinary(path))
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no JSON object")
    return value


def _read_config(path: Path) -> dict[str, Any]:
    if (path / METADATA_NAME).exists() or not (path / CONFIG_NAME).exists():
        return {}
    # Only for a run that died before its metadata was written.
    from rl_training.config.strict_yaml import parse_yaml

    return parse_yaml(read_ordinary(path / CONFIG_NAME).decode(), CONFIG_NAME)[0]


def printable(value: object, *, longest: int = 200) -> str:
    """A text for a table; control characters would reach the terminal."""
    text = str(value)[:longest]
    return text if text.isprintable() else ascii(text)


def _seconds(started_at: object) -> float | None:
    try:
        return datetime.fromisoformat(str(started_at)[:100]).timestamp()
    except (ValueError, OverflowError):
        return None


def finite_number(value: object) -> float | None:
    """A finite number of a plausible size; None for anything else that a file may hold."""
    return _number(value, float)


def _number(value: object, kind: type[N]) -> N | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return kind(value) if abs(value) < MAX_NUMBER else None
