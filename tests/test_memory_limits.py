"""How much memory a process can still have, by what the system, its groups and ulimit say."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training.config.value_based import DQNConfig
from rl_training.data import memory
from rl_training.data.memory import available_memory, format_duration
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.types import EnvSpec
from rl_training.errors import ReplayTooLarge

GIB = 2**30


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 64 GiB available and no groups."""
    (tmp_path / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {64 * GIB // 1024} kB\n")
    (tmp_path / "cgroup").write_text("1:cpu:/x\n")
    for name, file in (("_MEMINFO", "meminfo"), ("_OWN_CGROUP", "cgroup"), ("_CGROUP", "groups")):
        monkeypatch.setattr(memory, name, tmp_path / file)
    return tmp_path


def group(folder: Path, *, limit: str, used: int, cached: int, version: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {cached}\n")


def test_without_groups_it_is_what_the_system_has(system: Path) -> None:
    assert available_memory() == 64 * GIB
    (system / "cgroup").unlink()
    assert available_memory() == 64 * GIB


@pytest.mark.parametrize("version", [1, 2])
def test_the_process_s_own_group_counts_and_those_around_it(system: Path, version: int) -> None:
    """Cached files give way: of 10 GiB, 6 are used, 2 of them by the cache."""
    controllers, root = ("", "groups") if version == 2 else ("rdma,memory", "groups/memory")
    (system / "cgroup").write_text(f"7:{controllers}:/job/step\n")
    inner, outer = system / root / "job" / "step", system / root / "job"
    group(inner, limit=str(10 * GIB), used=6 * GIB, cached=2 * GIB, version=version)
    assert available_memory() == 6 * GIB
    group(outer, limit=str(5 * GIB), used=2 * GIB, cached=0, version=version)
    assert available_memory() == 3 * GIB
    group(inner, limit=str(10 * GIB), used=12 * GIB, cached=0, version=version)
    assert available_memory() == 0


def test_a_group_without_a_limit_or_out_of_sight_limits_nothing(system: Path) -> None:
    (system / "cgroup").write_text("0::/hidden\n4:memory:/hidden\n")
    group(system / "groups", limit="max", used=GIB, cached=0, version=2)
    assert available_memory() == 64 * GIB
    # In a container the group itself is what can be seen of the path.
    group(system / "groups", limit=str(3 * GIB), used=GIB, cached=0, version=2)
    assert available_memory() == 2 * GIB
    unlimited = str(2**63 - 4096)  # what version 1 says
    group(system / "groups" / "memory", limit=unlimited, used=GIB, cached=0, version=1)
    assert available_memory() == 2 * GIB


def test_a_limit_of_the_address_space_counts(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """statm begins with the pages of the address space."""
    pages = 3 * GIB // resource.getpagesize()
    (system / "statm").write_text(f"{pages} 7 7 7 0 7 0\n")
    monkeypatch.setattr(memory, "_OWN_SIZE", system / "statm")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4 * GIB, resource.RLIM_INFINITY))
    assert available_memory() == GIB


def test_the_default_replay_takes_at_most_half_of_what_is_available(
    system: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # CartPole: a row is 4 numbers and an action of 8 bytes, reward and discount of 4, a flag.
    spec = EnvSpec(env_id="e", obs_shape=(4,), action_kind="discrete", num_actions=2)
    row, hyper = 16 + 8 + 4 + 4 + 1, DQNConfig()
    assert ReplayBuffer.capacity_for(spec, hyper, 1) == 1_000_000
    (system / "meminfo").write_text(f"MemAvailable: {row * 1000 // 1024} kB\n")
    held = ReplayBuffer.capacity_for(spec, hyper, 1)
    assert held == 1_000_000 * (row * 1000 // 1024 * 1024 // 2) // (row * 1_000_001)
    assert held == 496  # 32 KiB for rows of 33 bytes
    options: Any = {"num_envs": 1, "seed": 0, "device": torch.device("cpu")}
    assert ReplayBuffer.build(spec, hyper, **options).capacity == held
    (said,) = caplog.messages
    assert said.startswith("the replay buffer holds 496 transitions, not 1,000,000: that is half")
    # A size that was chosen is never changed: it fits, or it is refused.
    assert ReplayBuffer.build(spec, DQNConfig(buffer_size=800), **options).capacity == 800
    with pytest.raises(ReplayTooLarge, match="buffer_size"):
        ReplayBuffer.build(spec, DQNConfig(buffer_size=1_000), **options)
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.31, "0.3 s"), (119, "119 s"), (1640, "27 min"), (7_200, "2.0 h"), (172_800, "2 d")],
)
def test_durations_are_written_as_people_write_them(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
