"""What a process does with memory it has freed."""

from __future__ import annotations

import ctypes
import os
import sys

KEPT_BYTES = 256 * 1024**2
LARGEST_KEPT_BYTES = 32 * 1024**2  # the most that the C library takes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of options in malloc.h


def keep_freed_memory() -> None:
    """Have the C library keep up to 256 MiB of freed memory for what is allocated next.

    By default it gives the memory of an update's results back to the system after each update, and
    the next one has every page given and cleared again: a fifth of the time of an update of SAC.
    Only glibc, the C library of most Linux systems, is asked; others do as they do. Nothing is
    changed where one of glibc's own variables says what to do, such as MALLOC_TRIM_THRESHOLD_.
    """
    if not sys.platform.startswith("linux") or any(map(_is_glibcs, os.environ)):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):
        library.mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        library.mallopt(_MMAP_THRESHOLD, LARGEST_KEPT_BYTES)


def _is_glibcs(variable: str) -> bool:
    return variable.startswith("MALLOC_") or variable == "GLIBC_TUNABLES"
