"""What the command `predict` does: actions for observations, and the picture of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from rl_training.api.managed import ManagedAlgorithm
from rl_training.cli_show import input_lines, parse_observation
from rl_training.errors import UsageError
from rl_training.experiment.explanation_picture import check_path
from rl_training.runtime.threads import threads


def check_explain(path: Path, observation: str | None) -> None:
    """Refuse a picture that cannot be drawn, before anything is loaded."""
    if observation is None:
        raise UsageError("--explain draws one observation; give it with --observation")
    check_path(path)


def show_actions(
    managed: ManagedAlgorithm, observation: str | None, *, stochastic: bool, explain: Path | None
) -> None:
    """The action for the observation, or for each line of standard input, as JSON."""
    state: Any = None
    with threads(managed.config):
        for line in [observation] if observation is not None else input_lines():
            obs, starts = parse_observation(line)
            action, state = managed.predict(obs, state, starts, deterministic=not stochastic)
            picture = None if explain is None else managed.explain(obs, explain)
            typer.echo(json.dumps({"action": action.tolist()}))
            if picture is not None:
                typer.echo(f"written: {picture}", err=True)
