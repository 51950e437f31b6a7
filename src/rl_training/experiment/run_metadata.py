"""What a run records about the machine and the software it ran on."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
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
        **git_state(Path.cwd()),
        **_package_git_state(),
        **extra,
    }


def with_session(
    path: Path, session: Mapping[str, Any], resumed_from: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The metadata of a run that a session begins or goes on with, given its file's path.

    How the run began stays; `sessions` and `resumed_from` get an entry each.
    """
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        earlier = {}
    if not isinstance(earlier, dict):
        earlier = {}
    metadata = {**session, **earlier}
    metadata["sessions"] = [*earlier.get("sessions", []), dict(session)]
    if resumed_from is not None:
        metadata["resumed_from"] = [*earlier.get("resumed_from", []), dict(resumed_from)]
    return metadata


def usable_cpus() -> int:
    """CPUs this process may run on, which a container or a scheduler may have limited."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _package_versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def git_state(folder: Path, *, below: str = ":/") -> dict[str, Any]:
    """Commit of the checkout a folder lies in, and whether files `below` differ from it.

    Empty if there is no checkout.
    """
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        changes = _git(folder, "status", "--porcelain", "--", below)
        return {"git_commit": commit, "git_dirty": bool(changes)}
    except (OSError, subprocess.SubprocessError):
        return {}


def _package_git_state() -> dict[str, Any]:
    """The same of this package's own source, unless it is installed as a copy."""
    here = Path(__file__).resolve()
    try:
        # An environment inside somebody's checkout is not part of that checkout.
        _git(here.parent, "ls-files", "--error-unmatch", here.name)
    except (OSError, subprocess.SubprocessError):
        return {}
    # What else lies in the checkout, such as results, is not the package.
    state = git_state(here.parents[1], below=".")
    return {f"package_{key}": value for key, value in state.items()}


def _git(folder: Path, *arguments: str) -> str:
    # No index refresh and no fsmonitor: asking must change nothing and run nothing.
    options = ["--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(folder)]
    done = subprocess.run(
        ["git", *options, *arguments],
        capture_output=True,
        check=True,
        text=True,
        timeout=_GIT_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout.strip()
