"""TQC's reference script."""

from __future__ import annotations

from typing import Any, ClassVar

from reference_script import ReferenceScriptTests


class TestTQCReferenceScript(ReferenceScriptTests):
    name = "tqc_pendulum_reference"
    learning_steps = 5_000
    short_steps = 300
    learned = -400.0  # a random policy reaches about -1,200
    smaller: ClassVar[dict[str, Any]] = {
        "hidden_sizes": (64, 64),
        "batch_size": 128,
        "num_critics": 2,
    }
