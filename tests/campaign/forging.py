"""Forged runs: what an attacker makes of a real one, with every checksum computed again."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from rl_training.config.loading import dump_yaml
from rl_training.config.train_config import TrainConfig
from rl_training.experiment.registry import train_config
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.result import TrainingInterrupted
from rl_training.storage.checkpoints import Checkpoint, find_checkpoint
from rl_training.storage.manifest import (
    MANIFEST_NAME,
    FileEntry,
    manifest_bytes,
    segment_part,
)
from rl_training.storage.tensor_file import file_chunks, read_tensors
from rl_training.testing import StopAt

SMALL: dict[str, dict[str, Any]] = {
    "dqn": {
        "env_id": "CartPole-v1",
        "algo_kwargs": {
            "hidden_sizes": [4],
            "batch_size": 4,
            "learning_starts": 8,
            "buffer_size": 60,
            "prioritized": True,
        },
    },
    "sac": {
        "env_id": "Pendulum-v1",
        "normalize_observations": True,
        "algo_kwargs": {
            "hidden_sizes": [4],
            "batch_size": 4,
            "learning_starts": 8,
            "replay_ratio": 0.5,
            "buffer_size": 60,
        },
    },
    "drqn": {
        "env_id": "CartPole-v1",
        "algo_kwargs": {
            "hidden_sizes": [4],
            "core_size": 4,
            "batch_size": 2,
            "sequence_length": 4,
            "burn_in": 2,
            "learning_starts": 12,
            "replay_ratio": 0.25,
            "buffer_size": 60,
        },
    },
    "ppo": {
        "env_id": "CartPole-v1",
        "num_envs": 2,
        "normalize_rewards": True,
        "algo_kwargs": {"hidden_sizes": [4], "num_steps": 8, "batch_size": 8, "epochs": 1},
    },
}


def honest_run(algo: str, folder: Path, **keys: Any) -> Path:
    """The directory of a real run that was stopped at step 24 of 32, its evaluations made."""
    settings: dict[str, Any] = {
        "total_timesteps": 32,
        "eval_interval": 16,
        "eval_episodes": 1,
        "final_eval_episodes": 1,
        "log_interval": 8,
        "callbacks": [{"StopOnReturn": {"threshold": 1e9}}],
    }
    config = TrainConfig(
        algo=algo, output_dir=str(folder), run_name=algo, **settings | SMALL[algo] | keys
    )
    callbacks: list[Callback] = [StopAt(24)]
    try:
        train_config(config, callbacks=callbacks)
    except TrainingInterrupted as interrupt:
        return interrupt.result.run_dir
    raise AssertionError("the run was not stopped")


class Forgery:
    """A copy of a run whose newest checkpoint can be changed and signed again."""

    def __init__(self, run: Path, copy: Path) -> None:
        shutil.copytree(run, copy)
        self.run = copy
        self.checkpoint: Checkpoint = find_checkpoint(copy)
        self.path = self.checkpoint.path
        self.env_steps = self.checkpoint.env_steps
        self.info: dict[str, Any] = json.loads(json.dumps(dict(self.checkpoint.info)))

    @property
    def config(self) -> dict[str, Any]:
        """The configuration in the manifest."""
        config: dict[str, Any] = self.info["config"]
        return config

    def structure(self, part: str) -> Any:
        """The JSON of one part."""
        return json.loads((self.path / f"{part}.json").read_bytes())

    def tensors(self, part: str) -> dict[str, torch.Tensor]:
        """The tensors of one part or segment."""
        data = (self.path / f"{part}.safetensors").read_bytes()
        return read_tensors(BytesIO(data), len(data))  # type: ignore[arg-type]  # reads alike

    def write(self, part: str, structure: Any, tensors: Mapping[str, torch.Tensor]) -> None:
        """Replace one part; tensors that the structure does not name are left out."""
        named = set(texts(structure))
        (self.path / f"{part}.json").write_text(json.dumps(structure))
        self.write_tensors(part, {key: x for key, x in tensors.items() if key in named})

    def segments(self) -> list[str]:
        """The names of the segments of rows, for `tensors` and `write_tensors`."""
        return [Path(name).stem for name in self.checkpoint.files if segment_part(name)]

    def write_tensors(self, name: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Replace the tensors of one part or segment."""
        kept = {key: tensor.contiguous() for key, tensor in tensors.items()}
        content = b"".join(map(bytes, file_chunks(kept)))
        path = self.path / f"{name}.safetensors"
        path.unlink()  # a segment may be a link to that of another checkpoint
        path.write_bytes(content)

    def sign(self) -> Path:
        """Write a manifest and a config.yaml that fit; gives the run directory."""
        files = {}
        for name in self.checkpoint.files:
            data = (self.path / name).read_bytes()
            files[name] = FileEntry(len(data), hashlib.sha256(data).hexdigest())
        content = manifest_bytes(self.checkpoint.kind, self.env_steps, self.info, files)
        (self.path / MANIFEST_NAME).write_bytes(content)
        if isinstance(self.info.get("config"), dict):
            (self.run / "config.yaml").write_text(dump_yaml(self.info["config"]))
        return self.run


def texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from texts(inner)
