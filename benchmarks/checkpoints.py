"""What a checkpoint costs, by the size of the replay memory and by how much of it is new.

Run as a process, it takes the arguments of `measure` as JSON and prints what was measured.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.replay_memory import resident_bytes
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.types import EnvSpec, Transitions
from rl_training.storage.checkpoint_writer import CheckpointContent, CheckpointWriter
from rl_training.storage.checkpoints import find_checkpoint

NETWORKS = 1_000_000
"""Numbers of the networks and optimisers beside it, as those of SAC with two layers of 256."""

SPECS = {
    "17 floats": EnvSpec(env_id="made up", obs_shape=(17,), action_kind="continuous", action_dim=6),
    "grey 84x84": EnvSpec(
        env_id="made up",
        obs_shape=(1, 84, 84),
        obs_dtype="uint8",
        action_kind="discrete",
        num_actions=6,
    ),
}

CASES: tuple[tuple[str, int, tuple[int, ...]], ...] = (
    ("17 floats", 100_000, (1_000, 10_000, 100_000)),
    ("17 floats", 1_000_000, (1_000, 10_000, 100_000, 1_000_000)),
    ("grey 84x84", 10_000, (100, 1_000, 10_000)),
    ("grey 84x84", 100_000, (100, 1_000, 10_000, 100_000)),
)
"""Observations, rows of the replay memory, and transitions between two checkpoints."""


class Filler:
    """Adds transitions of endless episodes to a buffer."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        spec, rng = buffer.spec, np.random.default_rng(0)
        self.buffer, self.count = buffer, 0
        self.pool = (rng.random((64, 1, *spec.obs_shape)) * 255).astype(spec.obs_dtype)
        self.action = np.zeros((1, *spec.action_shape), spec.action_dtype)

    def add(self, count: int) -> None:
        """Add so many transitions."""
        no, yes, reward = np.zeros(1, bool), np.ones(1, bool), np.ones(1, np.float32)
        for number in range(self.count, self.count + count):
            obs, following = self.pool[number % 64], self.pool[(number + 1) % 64]
            first = yes if number == 0 else no
            self.buffer.add(
                Transitions(obs, self.action, reward, following, no, no, first, yes, (), ())
            )
        self.count += count


def measure(kind: str, capacity: int, new: Sequence[int]) -> dict[str, Any]:
    """The cost of the first checkpoint of a full memory, of later ones, and of resuming."""
    torch.set_num_threads(1)
    buffer = ReplayBuffer(SPECS[kind], capacity=capacity)
    filler = Filler(buffer)
    filler.add(capacity)
    row = buffer.bytes_per_row(SPECS[kind])
    agent = {"weights": torch.zeros(NETWORKS)}
    with tempfile.TemporaryDirectory(prefix="checkpoints-") as folder:
        writer, saves = CheckpointWriter(Path(folder), keep=1), []
        for number, count in enumerate([0, *new]):
            filler.add(count)
            saves.append(
                {"new": count or capacity, "new_bytes": row * (count or capacity) + agent_bytes()}
                | save(writer, {"agent": agent, "replay": buffer.state_dict}, number)
            )
        size = buffer.nbytes
        del buffer, filler
        return {
            "kind": kind,
            "capacity": capacity,
            "replay_bytes": size,
            "saves": saves,
            "resume": resume(Path(folder), kind, capacity, size),
        }


def agent_bytes() -> int:
    """Bytes of the networks, which are new in each checkpoint."""
    return 4 * NETWORKS


def save(writer: CheckpointWriter, parts: dict[str, Any], number: int) -> dict[str, float]:
    """What saving in the background costs the thread that trains, and what is written."""
    before = written_bytes()
    cpu, wall = time.thread_time(), time.perf_counter()
    state = {"agent": parts["agent"], "replay": parts["replay"]()}
    writer.begin(CheckpointContent(number, state, {}))
    blocked = {"cpu_s": time.thread_time() - cpu, "wall_s": time.perf_counter() - wall}
    writer.wait()
    return {
        "written_bytes": written_bytes() - before,
        "blocked_cpu_s": blocked["cpu_s"],
        "blocked_wall_s": blocked["wall_s"],
        "total_wall_s": time.perf_counter() - wall,
    }


def written_bytes() -> int:
    """Bytes that this process has handed to the file system."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def resume(folder: Path, kind: str, capacity: int, size: int) -> dict[str, float]:
    """The time and the peak of the memory that loading takes."""
    gc.collect()
    before, start = resident_bytes(), time.perf_counter()
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from now on
    buffer = ReplayBuffer(SPECS[kind], capacity=capacity)
    buffer.load_state_dict(find_checkpoint(folder).read("replay"))
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    taken = time.perf_counter() - start
    return {"wall_s": taken, "peak_bytes": peak - before, "peak_of_replay": (peak - before) / size}


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(json.dumps(measure(**json.loads(sys.argv[1]))))
