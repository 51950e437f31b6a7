"""How much memory this machine can still give, and sizes as people write them."""

from __future__ import annotations

from pathlib import Path

from rl_training.errors import ConfigError, ReplayTooLarge

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_memory() -> int | None:
    """Bytes this process may still allocate, or None where the system does not say."""
    limits = [limit for limit in (_system_available(), _cgroup_available()) if limit is not None]
    return min(limits, default=None)


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
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = (_CGROUP / "memory.current").read_text().strip()
    except OSError:
        return None
    return None if limit == "max" else max(0, int(limit) - int(used))
