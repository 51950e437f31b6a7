"""QR-DQN's reference script."""

from __future__ import annotations

from reference_script import Case, ReferenceScriptTests, cases

CASE = Case(name="qr_dqn_cartpole_reference", learning_steps=4_000, short_steps=1_300)


@cases(CASE)
class TestQRDQNReferenceScript(ReferenceScriptTests):
    pass
