"""REDQ's reference script."""

from __future__ import annotations

from typing import Any, ClassVar

from reference_script import ReferenceScriptTests


class TestREDQReferenceScript(ReferenceScriptTests):
    name = "redq_pendulum_reference"
    learning_steps = 1_000
    short_steps = 510
    few_steps = "505"  # five more than the warm-up
    learned = -400.0  # a random policy reaches about -1,200
    smaller: ClassVar[dict[str, Any]] = {
        "hidden_sizes": (64, 64),
        "batch_size": 128,
        "num_critics": 5,
        "learning_rate": 1e-3,
    }
