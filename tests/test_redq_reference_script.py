"""REDQ's reference script."""

from __future__ import annotations

from reference_script import PENDULUM_LEARNED, Case, ReferenceScriptTests, cases

CASE = Case(
    name="redq_pendulum_reference",
    learning_steps=1_000,
    short_steps=510,
    command_line_steps=505,  # five more than the warm-up
    learned=PENDULUM_LEARNED,
    smaller={
        "hidden_sizes": (64, 64),
        "batch_size": 128,
        "num_critics": 5,
        "learning_rate": 1e-3,
    },
)


@cases(CASE)
class TestREDQReferenceScript(ReferenceScriptTests):
    pass
