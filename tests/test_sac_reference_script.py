"""SAC's reference script."""

from __future__ import annotations

from typing import Any, ClassVar

from reference_script import ReferenceScriptTests


class TestSACReferenceScript(ReferenceScriptTests):
    name = "sac_pendulum_reference"
    learning_steps = 4_000
    short_steps = 300
    learned = -400.0  # a random policy reaches about -1,200
    smaller: ClassVar[dict[str, Any]] = {"hidden_sizes": (64, 64), "batch_size": 128}
