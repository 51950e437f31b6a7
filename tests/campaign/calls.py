"""The calls of the operating system with which a run writes, watched."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

CALLS = ("write", "fsync", "rename", "replace", "open", "mkdir", "ftruncate", "unlink")


class WriteCalls:
    """Counts the calls that write inside a directory; `made` makes each, or does otherwise."""

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory)
        self.count = 0
        self.names: list[str] = []

    def install(self, calls: tuple[str, ...] = CALLS) -> None:
        for name in calls:
            setattr(os, name, partial(self._call, name, getattr(os, name)))

    def made(self, name: str, call: Callable[..., Any], *args: Any, **keys: Any) -> Any:
        return call(*args, **keys)

    def path(self, args: tuple[Any, ...], keys: dict[str, Any]) -> str:
        """What a call writes to; names relative to a directory's descriptor are not resolved."""
        given = args[0]
        return os.readlink(f"/proc/self/fd/{given}") if isinstance(given, int) else os.fspath(given)

    def _call(self, name: str, original: Callable[..., Any], *args: Any, **keys: Any) -> Any:
        reads = name == "open" and not args[1] & os.O_CREAT
        if reads or not self.path(args, keys).startswith(self.directory):
            return original(*args, **keys)
        self.count += 1
        self.names.append(name)
        return self.made(name, original, *args, **keys)
