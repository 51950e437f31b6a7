"""The libraries that are compared, and the virtual environment of each peer."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.workloads import BenchmarkError

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = Path(__file__).parent / "requirements"
ENVIRONMENTS = ROOT / ".bench"


@dataclass(frozen=True)
class Library:
    """A library; `libraries/<name>.py` runs it."""

    name: str
    title: str
    counts_reset_rows: bool = False
    """Whether a row that only resets is a transition to it, and owes updates."""
    adapter: str = ""
    """The module in `libraries/` that runs it, if that has another name."""
    checkout: Path = ROOT
    """Whose `src` our package is imported from."""
    threads: int = 1

    @property
    def module(self) -> str:
        """What is run as a process."""
        return f"benchmarks.libraries.{self.adapter or self.name}"


OURS = Library("ours", "rl_training")
PEERS = {
    peer.name: peer
    for peer in (
        Library("sb3", "Stable-Baselines3"),
        Library("sbx", "SBX"),
        Library("tianshou", "Tianshou"),
        Library("axiomrl", "axiomrl", counts_reset_rows=True),
    )
}
LIBRARIES = {"ours": OURS, **PEERS}

Interpreters = dict[Library, Path | BenchmarkError]


def interpreter(library: Library) -> Path:
    """The library's Python; a peer's environment is made if it is missing or out of date."""
    if library is OURS:
        return Path(sys.executable)
    requirements = REQUIREMENTS / f"{library.name}.txt"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    folder = ENVIRONMENTS / library.name
    python, stamp = folder / "bin" / "python", folder / "requirements.sha256"
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(
        f"creating {folder.relative_to(ROOT)} from {requirements.relative_to(ROOT)} "
        "(once; takes minutes and about 1 GB)",
        flush=True,
    )
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(folder)])
    _run([str(python), "-m", "pip", "install", "--quiet", "-r", str(requirements)])
    stamp.write_text(wanted)
    return python


def interpreters(libraries: Iterable[Library]) -> Interpreters:
    """Each library's Python, or why there is none; printed here once, and by each of its runs."""
    found: Interpreters = {}
    for library in libraries:
        try:
            found[library] = interpreter(library)
        except (BenchmarkError, OSError) as error:
            print(error, flush=True)
            found[library] = BenchmarkError(str(error))
    return found


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"{' '.join(command)} failed:\n{tail(done.stdout + done.stderr)}")


def tail(text: str, lines: int = 15) -> str:
    """The last lines of a text."""
    return "\n".join(text.strip().splitlines()[-lines:])
