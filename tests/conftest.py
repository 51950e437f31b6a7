"""What every test module shares."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

# Before torch is imported, here or in a process that a test starts: workers that run side by side
# would wait for each other's threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # a run of two threads is not to spin

EXTRAS = {
    "atari": ("ale_py",),
    "box2d": ("Box2D",),
    "docs": ("zensical", "mkdocstrings", "latex2mathml"),
    "dmc": ("dm_control", "shimmy"),
    "mujoco": ("mujoco", "imageio"),
    "pixels": ("cv2",),
    "popgym": ("popgym",),
    "envpool": ("envpool",),
    "report": ("matplotlib",),
    "video": ("imageio_ffmpeg",),
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked with extras that are not installed."""
    for extra in (name for mark in item.iter_markers("extra") for name in mark.args):
        if lacking := [module for module in EXTRAS[extra] if find_spec(module) is None]:
            pytest.skip(f"needs the extra {extra}; not installed: {', '.join(lacking)}")


@pytest.fixture(scope="session", autouse=True)
def _compiler_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compiled code goes to the session's own directory, which its worker processes share."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(shared / "inductor")


@pytest.fixture(autouse=True)
def _own_algorithms(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers, it registers for itself."""
    monkeypatch.setattr("rl_training.runtime.spec_table._known", {})
