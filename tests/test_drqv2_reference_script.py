"""DrQ-v2's reference script, on a smaller task."""

from __future__ import annotations

from typing import Any, ClassVar

from reference_script import ReferenceScriptTests
from test_drq_reference_script import GLOW


class TestDrQv2ReferenceScript(ReferenceScriptTests):
    name = "drqv2_pendulum_reference"
    learning_steps = 800
    short_steps = 110
    few_steps = "505"  # five more than the warm-up
    learned = 8.5  # of 10; a random policy gets about 3.3
    constants: ClassVar[dict[str, Any]] = GLOW
    smaller: ClassVar[dict[str, Any]] = {
        "hidden_sizes": (64, 64),
        "batch_size": 32,
        "learning_rate": 1e-3,
        "gamma": 0.5,
        "reward_scale": 1.0,
    }
