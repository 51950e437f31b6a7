"""Checkpoints that an earlier state of this package wrote still load, act and go on."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from campaign import golden
from rl_training.experiment.registry import load_agent, open_checkpoint, train_config
from rl_training.storage.manifest import VERSION
from rl_training.storage.tree import tree_hash
from rounding import rounding
from training import ALGORITHMS, updates_due


class Golden(NamedTuple):
    """What a checkpoint of step 100 holds: updates, weights and optimisers, and what it does."""

    updates: int
    digest: str
    action: int | list[float]


# The updates are 0.5 * (100 - 20), DRQN's 0.5 * (100 - 48) and REDQ's 2 * (100 - 60); PPO's are 10
# rollouts of 2 epochs of 2 batches. Digests and actions are those of the day they were made.
GOLDEN = {
    "c51-v3": Golden(40, "e7978f4452fa8871", 0),
    "dqn-v3": Golden(40, "f9a36505433e5ef6", 0),
    "drq-v3": Golden(40, "642f59126fca8a51", [0.0267011, -0.568357]),
    "drqn-v3": Golden(26, "ee6bfb316e7021fc", 1),
    "drqv2-v3": Golden(40, "6f1812b910e93c58", [-0.13398838, 0.31646144]),
    "ppo-v3": Golden(40, "dd36d743d5a6f4ad", 0),
    "qr_dqn-v3": Golden(40, "1a4d4083611c1c93", 1),
    "recurrent_ppo-v3": Golden(40, "c8f7960dc2ee3b2f", 1),
    "redq-v3": Golden(80, "4c27de8372456284", [0.23728389]),
    "sac-v3": Golden(40, "8dac3f43f4d2db1e", [0.3914575]),
    "td3-v3": Golden(40, "aafe0dc8053b0c76", [-0.844684]),
    "tqc-v3": Golden(40, "3ec32fadfcb68b3e", [0.39186665]),
}


def test_every_algorithm_has_a_checkpoint_of_the_present_format() -> None:
    assert {f"{algo}-v{VERSION}" for algo in ALGORITHMS} <= GOLDEN.keys()
    assert {path.name for path in golden.FOLDER.iterdir()} == {f"{x}.tar.xz" for x in GOLDEN}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_golden_checkpoint_holds_and_does_what_it_did(name: str, tmp_path: Path) -> None:
    expected = GOLDEN[name]
    checkpoint, config = open_checkpoint(golden.unpacked(name, tmp_path))
    agent = load_agent(checkpoint, config)
    assert (checkpoint.env_steps, checkpoint.info["updates"]) == (100, expected.updates)
    assert tree_hash(checkpoint.read("agent")).startswith(expected.digest)
    action = agent.predict(golden.observation(agent))[0]
    if isinstance(expected.action, int):  # another only if the observation moves by over 0.01
        assert action == expected.action
    else:
        # On the longest path (DrQ's four convolutions, its norm and its layers) fewer than 150
        # numbers are added up, whose sizes stay below 10 with weights like these.
        np.testing.assert_allclose(action, expected.action, rtol=0, atol=rounding(150, size=10))


@pytest.mark.parametrize("name", GOLDEN)
def test_a_golden_checkpoint_is_gone_on_with(name: str, tmp_path: Path) -> None:
    path = golden.unpacked(name, tmp_path / "saved")
    _, config = open_checkpoint(path, parts=None)
    result = train_config(config.with_changes(output_dir=str(tmp_path / "runs")), resume=path)
    assert (result.global_step, result.updates) == (140, updates_due(config, 140))
