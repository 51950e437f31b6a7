"""How the directories of checkpoints are named, and which of two is the newer."""

from __future__ import annotations

import os
import re
from pathlib import Path

DIRECTORY = re.compile(r"(step|best)_([0-9]{12,18})(?:-([0-9]{1,9}))?")


def list_checkpoints(folder: Path, kind: str) -> list[str]:
    """The names of the checkpoints of one kind, oldest first."""
    names = (name for name in os.listdir(folder) if DIRECTORY.fullmatch(name))
    return sorted((name for name in names if name.startswith(kind)), key=age)


def age(name: str) -> tuple[int, int]:
    """The step of a checkpoint, and which of those with that step it is."""
    found = DIRECTORY.fullmatch(name)
    assert found is not None
    return int(found[2]), int(found[3] or 1)
