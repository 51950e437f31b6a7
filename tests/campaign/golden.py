"""Makes the golden checkpoints: small ones of this version, which every later one has to load.

    python -m campaign.golden

writes one for each algorithm that has none yet to `tests/golden`, and prints what
`test_golden_checkpoints.py` is to state about it. Those that are there are never made again: a
change of the format gets files of its own, beside the old ones.
"""

from __future__ import annotations

import os
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from campaign.forked import new_directory
from rl_training.experiment.registry import load_agent, open_checkpoint, train_config
from rl_training.runtime.agent import Agent
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.result import TrainingInterrupted
from rl_training.runtime.training_run import TrainingRun
from rl_training.storage.checkpoints import find_checkpoint
from rl_training.storage.manifest import VERSION
from rl_training.storage.tree import tree_hash
from rl_training.testing import StopAt
from training import ALGORITHMS, tiny_config

FOLDER = Path(__file__).parents[1] / "golden"
STEPS = 100
FILTERS = 2

SMALL: dict[str, Any] = {
    "run_name": "golden",
    "total_timesteps": 140,
    "eval_interval": 0,
    "final_eval_episodes": 0,
    "algo_kwargs": {"hidden_sizes": [4]},
}
IMAGES = {"algo_kwargs": {"hidden_sizes": [4], "feature_size": 3, "batch_size": 4}}
OWN: dict[str, dict[str, Any]] = {
    "drqn": {"algo_kwargs": {"hidden_sizes": [4], "core_size": 4}},
    "recurrent_ppo": {"algo_kwargs": {"hidden_sizes": [4], "core_size": 4}},
    "tqc": {"algo_kwargs": {"hidden_sizes": [4], "critic_hidden_sizes": [4]}},
    "drq": IMAGES,
    "drqv2": IMAGES,
}


class FewFilters(Callback):
    """Silences all but a few filters of every convolution, which learn nothing then.

    A hundred thousand weights that are zero take no room in an archive.
    """

    def on_start(self, run: TrainingRun) -> None:
        networks = list(run.algorithm.networks().values())
        if hasattr(run.algorithm, "target"):
            networks.append(run.algorithm.target.module)
        for module in (module for network in networks for module in network.modules()):
            if isinstance(module, nn.Conv2d):
                with torch.no_grad():
                    module.weight[FILTERS:] = 0
                    assert module.bias is not None
                    module.bias[FILTERS:] = 0


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Context with another working directory."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def path_of(name: str) -> Path:
    """Where a golden checkpoint is; its name is that of the algorithm and the format's version."""
    return FOLDER / f"{name}.tar.xz"


def make(algo: str, archive_path: Path) -> None:
    """Train for `STEPS` steps and archive the checkpoint."""
    with new_directory() as folder, inside(folder):  # so that it names no directory from here
        config = tiny_config(algo, Path("runs"), **SMALL | OWN.get(algo, {}))
        try:
            train_config(config, callbacks=[FewFilters(), StopAt(STEPS)])
        except TrainingInterrupted as stopped:
            path = find_checkpoint(stopped.result.run_dir).path
        with tarfile.open(archive_path, "w:xz", preset=9) as archive:
            for file in sorted(path.iterdir()):
                member = archive.gettarinfo(file, f"{path.name}/{file.name}")
                member.uid = member.gid = member.mtime = 0
                member.uname = member.gname = ""
                with file.open("rb") as content:
                    archive.addfile(member, content)


def observation(agent: Agent) -> np.ndarray:
    """One that every version can make: numbers from -0.5 to 0.5, or every brightness."""
    spec = agent.adapter.spec
    count = int(np.prod(spec.obs_shape))
    if spec.obs_dtype == "uint8":
        return (np.arange(count) % 256).astype(np.uint8).reshape(spec.obs_shape)
    return np.linspace(-0.5, 0.5, count, dtype=np.float32).reshape(spec.obs_shape)


def unpacked(name: str, folder: Path) -> Path:
    """A golden checkpoint in a folder of its own."""
    with tarfile.open(path_of(name)) as archive:
        archive.extractall(folder, filter="data")
    (path,) = folder.iterdir()
    return path


def describe(name: str) -> None:
    """Print what the test is to state."""
    with new_directory() as folder:
        checkpoint, config = open_checkpoint(unpacked(name, folder))
        agent = load_agent(checkpoint, config)
        action = agent.predict(observation(agent))[0]
        digest = tree_hash(checkpoint.read("agent"))[:16]
        updates = checkpoint.info["updates"]
        size = path_of(name).stat().st_size
        print(f"{name}: {checkpoint.env_steps=} {updates=} {digest=} {action=} {size=}")


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for algo in ALGORITHMS:
        name = f"{algo}-v{VERSION}"
        if not path_of(name).exists():
            make(algo, path_of(name))
            describe(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
