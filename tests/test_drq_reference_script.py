"""DrQ's reference script, on a smaller task."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from reference_script import ReferenceScriptTests

GLOW = {"ENV_ID": "toy_envs:GlowEnv", "ENV": {}, "WARM_UP": 100}


class TestDrQReferenceScript(ReferenceScriptTests):
    name = "drq_pendulum_reference"
    learning_steps = 500
    short_steps = 110
    few_steps = "505"  # five more than the warm-up
    learned = 8.5  # of 10; a random policy gets about 3.3
    constants: ClassVar[dict[str, Any]] = GLOW
    smaller: ClassVar[dict[str, Any]] = {
        "hidden_sizes": (64, 64),
        "batch_size": 32,
        "num_augmentations": 1,
        "num_target_augmentations": 1,
        "gamma": 0.5,
        "reward_scale": 1.0,
        "alpha": 0.1,
    }

    def test_it_leaves_the_policy_behind(
        self, script: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        script.main(105, 1)
        folder = tmp_path / "runs" / "drq_pendulum"
        weights = load_file(folder / "policy.safetensors")
        assert all(name.startswith("0.") for name in weights)
        images = torch.randint(0, 256, (7, 1, 36, 36), dtype=torch.uint8)
        program = torch.export.load(folder / "policy.pt2").module()
        actions = program(images)
        assert actions.shape == (7, 1)
        assert float(actions.detach().abs().max()) < 1
        lines = capsys.readouterr().out.splitlines()[-2:]
        ways = [line.partition(": ")[0] for line in lines]
        assert ways == ["torque by the weights", "torque by the program"]
        told = [
            [float(word) for word in line.partition(": ")[2].strip("[]").split()] for line in lines
        ]
        assert np.isfinite(told).all()
        np.testing.assert_allclose(told[0], told[1], atol=2e-4)
