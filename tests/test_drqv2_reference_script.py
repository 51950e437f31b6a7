"""DrQ-v2's reference script, on a smaller task."""

from __future__ import annotations

from typing import Any, ClassVar

from reference_script import ReferenceScriptTests
from test_drq_reference_script import POINT


class TestDrQv2ReferenceScript(ReferenceScriptTests):
    name = "drqv2_pendulum_reference"
    learning_steps = 2_500
    short_steps = 230
    few_steps = "505"  # five more than the warm-up
    learned = 18.0  # of 35 at best; a random policy gets about 8
    constants: ClassVar[dict[str, Any]] = POINT
    smaller: ClassVar[dict[str, Any]] = {
        "hidden_sizes": (64, 64),
        "batch_size": 32,
        "learning_rate": 1e-3,
        "gamma": 0.9,
    }
