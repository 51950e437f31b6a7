"""C51's reference script."""

from __future__ import annotations

from reference_script import ReferenceScriptTests


class TestC51ReferenceScript(ReferenceScriptTests):
    name = "c51_cartpole_reference"
    learning_steps = 5_000
    short_steps = 1_300
