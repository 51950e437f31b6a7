from __future__ import annotations

import math
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.errors import CheckpointError, NonFiniteError, SaveError, UsageError
from rl_training.storage.checkpoints import (
    Checkpoint,
    find_checkpoint,
    prune,
    write_checkpoint,
)
from rl_training.storage.tree import tree_hash


def small_parts(value: float = 1.0) -> dict[str, Any]:
    return {
        "agent": {"weight": torch.full((4, 3), value), "updates": 7, "best": -math.inf},
        "replay": {"obs": np.full((8, 2), value, np.uint32), "rng": {"state": 2**100}},
    }


def write(folder: Path, env_steps: int, value: float = 1.0, kind: Any = "step") -> Path:
    info = {"algo": "dqn", "score": math.nan, "config": {"gamma": 0.99}}
    parts = small_parts(value)
    return write_checkpoint(folder, kind=kind, env_steps=env_steps, parts=parts, info=info)


def weight_of(checkpoint: Checkpoint) -> float:
    return float(checkpoint.read("agent")["weight"][0, 0])


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def damage(checkpoint: Path, name: str = "agent.safetensors") -> None:
    data = bytearray((checkpoint / name).read_bytes())
    data[-1] ^= 1
    (checkpoint / name).write_bytes(data)


def test_a_checkpoint_reads_back_what_was_written(tmp_path: Path) -> None:
    path = write(tmp_path, 50_000)
    checkpoint = Checkpoint.open(path)
    checkpoint.verify()
    assert path == tmp_path / "step_000000050000"
    assert (checkpoint.kind, checkpoint.env_steps) == ("step", 50_000)
    assert checkpoint.info == {"algo": "dqn", "score": None, "config": {"gamma": 0.99}}
    assert checkpoint.parts == ("agent", "replay")
    assert [checkpoint.has(part) for part in ("agent", "replay", "env")] == [True, True, False]
    for part, tree in small_parts().items():
        assert tree_hash(checkpoint.read(part)) == tree_hash(tree)


def test_a_checkpoint_holds_only_declared_readable_data(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    assert names(path) == [
        "agent.json",
        "agent.safetensors",
        "manifest.json",
        "replay.json",
        "replay.safetensors",
    ]
    assert stat.S_IMODE(path.stat().st_mode) & 0o500 == 0o500
    assert names(tmp_path) == [path.name]


def test_a_missing_part_is_named_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="expected a part 'env', found agent, replay"):
        Checkpoint.open(write(tmp_path, 1)).read("env")


@pytest.mark.parametrize("part", ["../x", "a/b", "", "Agent", "manifest", "a.json", "x" * 65])
def test_part_names_are_plain_words(tmp_path: Path, part: str) -> None:
    with pytest.raises(UsageError, match="part name"):
        write_checkpoint(tmp_path, kind="step", env_steps=1, parts={part: 1}, info={})
    assert names(tmp_path) == []


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_weights_are_never_written(tmp_path: Path, bad: float) -> None:
    parts = {"agent": {"net": {"w": torch.tensor([1.0, bad]).half()}}}
    with pytest.raises(NonFiniteError, match=r"1 of 2 values of agent/net/w .* env step 9"):
        write_checkpoint(tmp_path, kind="step", env_steps=9, parts=parts, info={})
    assert names(tmp_path) == []


def test_the_newest_that_verifies_wins_and_the_others_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    for step in (100, 200, 300, 400):
        write(folder, step, value=step)
    damage(folder / "step_000000000400")
    (folder / "step_000000000300" / "manifest.json").unlink()
    for path in (tmp_path, folder):
        found = find_checkpoint(path)
        assert (found.env_steps, weight_of(found)) == (200, 200.0)
        assert len(found.skipped) == 2
        assert "400/agent.safetensors: the content does not match" in found.skipped[0]
        assert "300/manifest.json: cannot be read" in found.skipped[1]
    one = find_checkpoint(folder / "step_000000000100")
    assert (one.env_steps, one.skipped) == (100, ())


def test_only_the_wanted_parts_need_to_verify(tmp_path: Path) -> None:
    damage(write(tmp_path, 1), "replay.safetensors")
    assert weight_of(find_checkpoint(tmp_path, parts=["agent"])) == 1.0
    with pytest.raises(CheckpointError, match=r"replay\.safetensors"):
        find_checkpoint(tmp_path)


def test_when_none_verifies_each_is_listed_with_its_reason(tmp_path: Path) -> None:
    damage(write(tmp_path, 100))
    os.symlink(tmp_path, tmp_path / "step_000000000300")
    (write(tmp_path, 200) / "surplus").touch()
    with pytest.raises(CheckpointError) as error:
        find_checkpoint(tmp_path)
    reasons = str(error.value).splitlines()
    assert "no usable checkpoint" in reasons[0]
    assert ["300: a symbolic" in reasons[1], "surplus: the file is not" in reasons[2]] == [True] * 2
    assert "step_000000000100/agent.safetensors: the content" in reasons[3]


def test_best_is_taken_only_when_asked_for(tmp_path: Path) -> None:
    step = write(tmp_path, 500)
    with pytest.raises(CheckpointError, match="holds no best_"):
        find_checkpoint(tmp_path, best=True)
    write(tmp_path, 300, value=3.0, kind="best")
    write(tmp_path, 400, value=4.0, kind="best")
    assert weight_of(find_checkpoint(tmp_path, best=True)) == 4.0
    assert find_checkpoint(tmp_path).env_steps == 500
    with pytest.raises(CheckpointError, match="not a best checkpoint"):
        find_checkpoint(step, best=True)


@pytest.mark.parametrize("name", ["absent", "empty", "step_000000000001", "nul\0"])
def test_a_path_without_checkpoints_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError):
        find_checkpoint(tmp_path / name)


def test_writing_the_same_step_again_replaces_it(tmp_path: Path) -> None:
    for value in (1.0, 2.0, 3.0):
        path = write(tmp_path, 100, value=value)
        assert names(tmp_path) == ["step_000000000100"]
        assert weight_of(Checkpoint.open(path)) == value


def test_a_kill_between_the_two_renames_keeps_the_newer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 100, value=1.0)
    with monkeypatch.context() as patch:
        patch.setattr("rl_training.storage.prepared_checkpoint.remove", _die)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path, 100, value=2.0)
    assert names(tmp_path) == ["step_000000000100", "step_000000000100-2"]
    assert weight_of(find_checkpoint(tmp_path)) == 2.0
    write(tmp_path, 100, value=3.0)
    assert names(tmp_path) == ["step_000000000100"]
    assert weight_of(find_checkpoint(tmp_path)) == 3.0


def _die(path: Path) -> None:
    raise KeyboardInterrupt


def test_pruning_keeps_the_newest_steps_and_the_newest_best(tmp_path: Path) -> None:
    for step in (9, 10, 100, 1000):
        write(tmp_path, step)
    write(tmp_path, 10, kind="best")
    write(tmp_path, 9, kind="best")
    (tmp_path / "notes.txt").touch()
    prune(tmp_path, keep=2)
    kept = ["best_000000000010", "notes.txt", "step_000000000100", "step_000000001000"]
    assert names(tmp_path) == kept
    with pytest.raises(UsageError, match="keep=0"):
        prune(tmp_path, keep=0)
    with pytest.raises(SaveError, match="No such file"):
        prune(tmp_path / "absent", keep=1)
