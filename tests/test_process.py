"""A run keeps the memory it has freed, where the C library can be asked to."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource
import sys

import numpy as np

from rl_training.runtime.process import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()


def work():
    arrays = [np.ones(500_000, np.float32) for _ in range(8)]  # 2 MB each
    return sum(float(x[0]) for x in arrays)


for _ in range(5):
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    work()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 20)
"""


def faults(way: str) -> float:
    command = [sys.executable, "-c", FAULTS, way]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks glibc")
def test_memory_that_was_freed_is_used_again_without_page_faults() -> None:
    """8 arrays of 2 MB are 4,000 pages, which the system gives anew each time if not kept."""
    assert faults("kept") < 100
