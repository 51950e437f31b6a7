"""DRQN's reference script."""

from __future__ import annotations

from reference_script import Case, ReferenceScriptTests, cases

CASE = Case(name="drqn_cartpole_reference", learning_steps=8_000, short_steps=1_300)


@cases(CASE)
class TestDRQNReferenceScript(ReferenceScriptTests):
    pass
