"""Recurrent PPO's reference script."""

from __future__ import annotations

from reference_script import ReferenceScriptTests


class TestRecurrentPPOReferenceScript(ReferenceScriptTests):
    name = "recurrent_ppo_cartpole_reference"
    learning_steps = 12_000
    short_steps = 1_100
