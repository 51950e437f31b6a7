"""DrQ's reference script, on a smaller task."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from reference_script import GLOW, GLOW_LEARNED, Case, ReferenceScriptTests, cases

CASE = Case(
    name="drq_pendulum_reference",
    learning_steps=500,
    short_steps=110,
    command_line_steps=505,  # five more than the warm-up
    learned=GLOW_LEARNED,
    constants=GLOW,
    smaller={
        "hidden_sizes": (64, 64),
        "batch_size": 32,
        "num_augmentations": 1,
        "num_target_augmentations": 1,
        "gamma": 0.5,
        "reward_scale": 1.0,
        "alpha": 0.1,
    },
)


@pytest.mark.extra("pixels")
@cases(CASE)
class TestDrQReferenceScript(ReferenceScriptTests):
    def test_it_leaves_the_policy_behind(
        self, script: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        script.main(105, 1)
        folder = tmp_path / "runs" / "drq_pendulum"
        weights = torch.load(folder / "policy.pt", weights_only=True)
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
