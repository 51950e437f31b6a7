"""What a run records about the machine and the software it ran on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

_GIT_TIMEOUT_S = 2.0
_PACKAGES = ("rl-training", "torch", "numpy", "gymnasium", "box2d", "mujoco")


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
        **_git_state(),
        **extra,
    }


def _package_versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _git_state() -> dict[str, Any]:
    """Commit and dirty flag of the current directory's checkout; empty if there is none."""
    try:
        commit = _git("rev-parse", "HEAD")
        return {"git_commit": commit, "git_dirty": bool(_git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return {}


def _git(*arguments: str) -> str:
    # No index refresh and no fsmonitor: asking must change nothing and run nothing.
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        check=True,
        text=True,
        timeout=_GIT_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout.strip()
