"""A module that an environment's code calls and that counts the calls."""

from __future__ import annotations

COUNT = {"calls": 0}


def counted() -> int:
    COUNT["calls"] += 1
    return COUNT["calls"]
