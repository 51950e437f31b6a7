"""How much memory this process can still have; sizes and durations as people write them."""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path, PurePosixPath

from rl_training.config.hyper_parameters import OffPolicyHyperParameters
from rl_training.errors import ConfigError, ReplayTooLarge

logger = logging.getLogger("rl_training")

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
_OWN_SIZE = Path("/proc/self/statm")


def available_memory() -> int | None:
    """Bytes this process may still allocate, or None where the system does not say."""
    limits = (_system_available(), _cgroup_available(), _address_space_available())
    return min((limit for limit in limits if limit is not None), default=None)


def refuse_if_too_large(needed: int, transitions: int) -> None:
    """Raise ReplayTooLarge if `needed` bytes are more than this machine can still give."""
    available = available_memory()
    if available is not None and needed > available:
        fitting = int(transitions * 0.8 * available / needed)
        raise ReplayTooLarge(
            f"the replay buffer of {transitions:,} transitions needs {format_bytes(needed)}, and "
            f"{format_bytes(available)} are available. Set algo_kwargs.buffer_size to at most "
            f"{fitting:,}, or algo_kwargs.replay_memory to a size such as "
            f"'{_four_fifths(available)}'."
        )


def default_capacity(transitions: int, needed: Callable[[int], int]) -> int:
    """`transitions`, or as many of them as half of the available memory holds, at least one.

    `needed` gives the bytes of a buffer by its transitions.
    """
    available, whole = available_memory(), needed(transitions)
    if available is None or whole <= available // 2:
        return transitions
    return max(1, int(transitions * (available // 2) / whole))


def report_held(capacity: int, hyper: OffPolicyHyperParameters) -> None:
    """Say so if a buffer of the default size is held to what memory allows."""
    chosen = hyper.buffer_size is not None or hyper.replay_memory is not None
    if not chosen and capacity < hyper.default_buffer_size:
        logger.warning(
            "the replay buffer holds %s transitions, not %s: that is half of the available memory; "
            "algo_kwargs.buffer_size sets another size",
            f"{capacity:,}",
            f"{hyper.default_buffer_size:,}",
        )


def refuse_if_too_small(given: int, smallest: int, what: str) -> None:
    """Raise ConfigError if a replay memory of `given` bytes has no room for `what`."""
    if given < smallest:
        raise ConfigError(
            f"algo_kwargs.replay_memory: expected at least {smallest:,} bytes, room for {what}, "
            f"found {given:,}"
        )


def _four_fifths(available: int) -> str:
    return f"{int(0.8 * available / 2**20)}MiB"


def format_bytes(count: float) -> str:
    """A size for people: 1536 is '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def format_duration(seconds: float) -> str:
    """A duration for people: 1640 seconds are '27 min'."""
    for unit, length, until in (("s", 1, 120), ("min", 60, 7_200), ("h", 3_600, 172_800)):
        if seconds < until:
            return f"{seconds / length:.{0 if seconds >= 10 * length else 1}f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def _system_available() -> int | None:
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_available() -> int | None:
    """The least that the control groups of this process, nested ones each, still allow."""
    found = [
        available
        for folder, names in _cgroups()
        if (available := _left_in_group(folder, *names)) is not None
    ]
    return min(found, default=None)


_UNIFIED = ("memory.max", "memory.current", "inactive_file")
_LEGACY = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _cgroups() -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """The directories of this process's memory groups, innermost first, and their files' names.

    In a container the outer part of a path may be hidden; what there is of it is looked at.
    """
    try:
        lines = _OWN_CGROUP.read_text().splitlines()
    except OSError:
        lines = []
    roots: tuple[Path, ...]
    for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if not controllers:
            roots, names = (_CGROUP, _CGROUP / "unified"), _UNIFIED
        elif "memory" in controllers.split(","):
            roots, names = (_CGROUP / "memory",), _LEGACY
        else:
            continue
        group = PurePosixPath(path.lstrip("/"))
        for root, below in product(roots, (group, *group.parents)):
            yield root / below, names


def _left_in_group(folder: Path, limit: str, used: str, reclaimable: str) -> int | None:
    try:
        allowed, taken = (folder / limit).read_text(), (folder / used).read_text()
        if allowed.strip() == "max":
            return None
        # Cached files, such as a checkpoint just written, give way to allocations.
        rows = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
        cached = sum(int(row[1]) for row in rows if row[:1] == [reclaimable])
        return max(0, int(allowed) - int(taken) + cached)
    except (OSError, ValueError):
        return None


def _address_space_available() -> int | None:
    """What `ulimit -v` still allows."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        pages = int(_OWN_SIZE.read_text().split()[0])
    except OSError:
        return limit
    return max(0, limit - pages * resource.getpagesize())
