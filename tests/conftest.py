"""What every test module shares."""

from __future__ import annotations

import os

import pytest

# Before torch is imported, here or in a process that a test starts: workers that run side by side
# would wait for each other's threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session", autouse=True)
def _compiler_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compiled code goes to the session's own directory, which its worker processes share."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(shared / "inductor")
