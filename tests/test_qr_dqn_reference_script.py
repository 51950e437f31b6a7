"""QR-DQN's reference script."""

from __future__ import annotations

from reference_script import ReferenceScriptTests


class TestQRDQNReferenceScript(ReferenceScriptTests):
    name = "qr_dqn_cartpole_reference"
    learning_steps = 4_000
    short_steps = 1_300
