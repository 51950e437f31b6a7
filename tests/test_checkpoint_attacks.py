"""Damaged and forged checkpoints: refused with a CheckpointError, never run, never half loaded."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import random
import sys
import tarfile
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.errors import CheckpointError
from rl_training.storage.checkpoints import Checkpoint, find_checkpoint, write_checkpoint
from rl_training.storage.manifest import FileEntry, manifest_bytes
from rl_training.storage.tree import Encoded

TREE = {
    "weights": {"0.weight": torch.ones(4, 3), "mask": torch.tensor([True, False])},
    "rng": {"state": 2**100, "key": np.arange(4, dtype=np.uint32)},
    "history": [(1, 2.5, None), float("nan"), "text", b"raw", np.float32(1.5)],
    "kinds": {1: {2, 3}, "recent": deque([1j], maxlen=2), "counts": Counter("ab"), "r": range(3)},
    "generator": np.random.default_rng(0),
    "env": Encoded({"list": [{"array": "0"}]}, {"0": np.ones((2, 3), order="F")}),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    parts = {"agent": {"w": torch.zeros(2)}, "replay": TREE}
    info = {"algo": "dqn", "config": {"gamma": 0.99}}
    return write_checkpoint(tmp_path / "run", kind="step", env_steps=5, parts=parts, info=info)


def load_all(path: Path) -> dict[str, Any]:
    checkpoint = Checkpoint.open(path)
    checkpoint.verify()
    return {part: checkpoint.read(part) for part in checkpoint.parts}


def forge(path: Path, **changes: Any) -> None:
    """Write a manifest that fits the files as they are now, as an attacker would."""
    files = {}
    for name in sorted(os.listdir(path)):
        if name != "manifest.json":
            data = (path / name).read_bytes()
            files[name] = FileEntry(len(data), hashlib.sha256(data).hexdigest())
    fields = {"kind": "step", "env_steps": 5, "info": {}, "files": files, **changes}
    (path / "manifest.json").write_bytes(manifest_bytes(**fields))


def mutate(data: bytes, rng: random.Random) -> bytes:
    """A different file: a bit or byte changed, bytes cut out, put in, or moved to another place."""
    where = rng.randrange(len(data))
    end = min(len(data), where + rng.randrange(1, 9))
    other = rng.randrange(len(data))
    return rng.choice(
        [
            data[:where] + bytes([data[where] ^ (1 << rng.randrange(8))]) + data[where + 1 :],
            data[:where] + bytes([(data[where] + rng.randrange(1, 256)) % 256]) + data[where + 1 :],
            data[:where],
            data[:where] + data[end:],
            data[:where] + rng.randbytes(end - where) + data[where:],
            data[:where] + data[other : other + 8] + data[where + 8 :],
        ]
    )


def test_no_mutated_checkpoint_is_accepted(path: Path) -> None:
    rng = random.Random(1)
    originals = {name: (path / name).read_bytes() for name in sorted(os.listdir(path))}
    refused = 0
    while refused < 1000:
        name = rng.choice(list(originals))
        mutant = mutate(originals[name], rng)
        if mutant == originals[name]:
            continue
        (path / name).write_bytes(mutant)
        with pytest.raises(CheckpointError) as error:
            load_all(path)
        assert name in str(error.value)
        (path / name).write_bytes(originals[name])
        refused += 1
    assert load_all(path).keys() == {"agent", "replay"}


def test_a_missing_added_or_swapped_file_is_refused(path: Path) -> None:
    for name in sorted(os.listdir(path)):
        data = (path / name).read_bytes()
        (path / name).unlink()
        with pytest.raises(CheckpointError, match=name):
            load_all(path)
        (path / name).write_bytes(data)
    (path / "agent.json").rename(path / "x")
    (path / "replay.json").rename(path / "agent.json")
    (path / "x").rename(path / "replay.json")
    with pytest.raises(CheckpointError, match=r"\.json"):
        load_all(path)


@pytest.mark.parametrize("name", ["replay.json", "replay.safetensors"])
def test_mutants_with_the_right_hash_are_refused_or_are_data(path: Path, name: str) -> None:
    rng = random.Random(2)
    original = (path / name).read_bytes()
    outcomes = []
    for _ in range(500):
        (path / name).write_bytes(mutate(original, rng))
        forge(path)
        outcomes.append(outcome(path))
    assert min(outcomes.count("loaded"), outcomes.count("replay.json: ")) > 5
    assert len(set(outcomes)) == (3 if name == "replay.safetensors" else 2)


def outcome(path: Path) -> str:
    """Whether the checkpoint loads, or which of its files is blamed; other errors pass through."""
    try:
        load_all(path)
    except CheckpointError as error:
        return str(error).removeprefix(f"{path}/")[: len("replay.json: ")]
    return "loaded"


def put(name: str, data: bytes) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        (path / name).unlink()
        (path / name).write_bytes(data)
        forge(path)

    return apply


def tensors(header: Any, data: bytes = b"", length: int | None = None) -> Callable[[Path], None]:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if length is None else length
    return put("replay.safetensors", size.to_bytes(8, "little") + text + data)


def entry(shape: Any, offsets: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def manifest(**changes: Any) -> Callable[[Path], None]:
    return lambda path: forge(path, **changes)


def declare(name: str) -> Callable[[Path], None]:
    return lambda path: forge(path, files={name: FileEntry(1, "0" * 64)})


def link(name: str, target: str) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        (path / name).rename(path.parent / "elsewhere")
        os.symlink(target, path / name)

    return apply


def special(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        (path / "replay.json").unlink()
        make(path / "replay.json")

    return apply


class Exploit:
    def __reduce__(self) -> Any:
        return os.system, ("touch executed",)


def saved_by_torch() -> bytes:
    buffer = io.BytesIO()
    torch.save({"weight": Exploit()}, buffer)
    return buffer.getvalue()


def tar_archive() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("../outside"), io.BytesIO())
    return buffer.getvalue()


DEEP = b"[" * 200_000 + b"]" * 200_000
CORPUS: dict[str, Callable[[Path], None]] = {
    "pickle as structure": put("replay.json", pickle.dumps(Exploit())),
    "pickle as tensors": put("replay.safetensors", pickle.dumps(Exploit())),
    "torch.save as tensors": put("replay.safetensors", saved_by_torch()),
    "tar as tensors": put("replay.safetensors", tar_archive()),
    "empty tensors": put("replay.safetensors", b""),
    "empty structure": put("replay.json", b""),
    "deep structure": put("replay.json", DEEP),
    "deep header": tensors(DEEP),
    "deep manifest": lambda path: _raw_manifest(path, DEEP),
    "utf-16 structure": put("replay.json", "null".encode("utf-16")),
    "NaN in the structure": put("replay.json", b"[NaN]"),
    "long number": put("replay.json", b"9" * 10_000),
    "duplicate key in the structure": put("replay.json", b'{"dict": {"a": 1, "a": 2}}'),
    "duplicate key in the header": tensors(
        b'{"/a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},'
        b'"/a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
    ),
    "header is a list": tensors([1]),
    "header longer than the file": tensors({}, length=2**63),
    "huge shape": tensors({"/a": entry([2**62, 2**62], [0, 4])}, b"0000"),
    "huge shape hidden by a zero": tensors({"/a": entry([0, 2**62, 2**62], [0, 0])}),
    "huge claim": tensors({"/a": entry([2**38], [0, 2**40])}, b"0000"),
    "negative shape": tensors({"/a": entry([-1, -1], [0, 4])}, b"0000"),
    "offsets outside": tensors({"/a": entry([1], [4, 8])}, b"0000"),
    "negative offsets": tensors({"/a": entry([1], [-4, 0])}, b"0000"),
    "overlap": tensors({"/a": entry([1], [0, 4]), "/b": entry([1], [0, 4])}, b"0000"),
    "gap": tensors({"/a": entry([1], [0, 4]), "/b": entry([1], [8, 12])}, b"0" * 12),
    "strides": tensors({"/a": {**entry([1], [0, 4]), "strides": [0]}}, b"0000"),
    "unknown dtype": tensors({"/a": entry([1], [0, 4], dtype="OBJECT")}, b"0000"),
    "dtype is a list": tensors({"/a": entry([1], [0, 4], dtype=["F32"])}, b"0000"),
    "boolean that is neither": tensors({"/a": entry([4], [0, 4], dtype="BOOL")}, b"\2\0\0\0"),
    "metadata": tensors({"__metadata__": {"a": "b"}}),
    "link as part": link("replay.json", "../elsewhere"),
    "link as manifest": link("manifest.json", "../elsewhere"),
    "link to a device": link("replay.safetensors", "/dev/zero"),
    "pipe that would hang": special(os.mkfifo),
    "directory as part": special(Path.mkdir),
    "name with a path": declare("../elsewhere.json"),
    "absolute name": declare("/etc/passwd"),
    "name in a folder": declare("a/b.json"),
    "manifest as part": declare("manifest.json"),
    "name with NUL": declare("a\0.json"),
    "structure without tensors": declare("replay.json"),
    "kind": manifest(kind="other"),
    "negative steps": manifest(env_steps=-1),
    "boolean steps": manifest(env_steps=True),
    "info is a list": manifest(info=[1]),
    "infinite number in the manifest": lambda path: _replace(
        path, b'"env_steps": 5', b'"env_steps": 1e999'
    ),
    "duplicate key in the manifest": lambda path: _replace(
        path, b'"env_steps": 5', b'"env_steps": 5,\n "env_steps": 5'
    ),
    "other spacing": lambda path: _replace(path, b'"env_steps": 5', b'"env_steps":  5'),
    "other format": lambda path: _replace(
        path, b"rl_training.checkpoint", b"rl_training.checkpoinT"
    ),
}


def _raw_manifest(path: Path, data: bytes) -> None:
    (path / "manifest.json").write_bytes(data)


def _replace(path: Path, old: bytes, new: bytes) -> None:
    data = (path / "manifest.json").read_bytes()
    assert data.count(old) == 1
    _raw_manifest(path, data.replace(old, new))


watched: list[str] = []
watching = False


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if not watching:
        return
    writes = event == "open" and bool((arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR))
    if writes or event in ("os.system", "subprocess.Popen", "exec", "pickle.find_class"):
        watched.append(event)
    if event.startswith("socket."):
        watched.append(event)


sys.addaudithook(_watch)


@pytest.mark.parametrize("attack", CORPUS.values(), ids=CORPUS)
@pytest.mark.timeout(10)
def test_a_forged_checkpoint_is_refused_and_nothing_is_run(
    path: Path, attack: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    global watching  # an audit hook cannot be removed, only switched off
    monkeypatch.chdir(path.parent)
    attack(path)
    watching = True
    try:
        with pytest.raises(CheckpointError):
            load_all(path)
        with pytest.raises(CheckpointError):
            find_checkpoint(path).read("replay")
    finally:
        watching = False
    assert watched == []
    assert not (path.parent / "executed").exists()


@pytest.mark.parametrize(("version", "remedy"), [(2, "Use the rl-training that"), (4, "Upgrade")])
def test_another_format_names_the_version_to_use(path: Path, version: int, remedy: str) -> None:
    _replace(path, b'"version": 3', f'"version": {version}'.encode())
    with pytest.raises(
        CheckpointError, match=rf"format version {version}.*reads version 3\. {remedy}"
    ):
        Checkpoint.open(path)
