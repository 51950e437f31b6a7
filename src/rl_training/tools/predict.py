"""What the command `predict` does: actions for observations, and the picture of one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rl_training.errors import UsageError
from rl_training.runtime.execution import threads
from rl_training.tools.explain import check_path, write_picture

if TYPE_CHECKING:
    from rl_training.api.managed import ManagedAlgorithm
    from rl_training.data.types import PolicyState


IN_WORDS = Path("-")
"""In place of a picture's path: print the numbers."""


def check_explain(path: Path, observation: str | None) -> None:
    """Refuse a picture that cannot be drawn, before anything is loaded."""
    if observation is None:
        raise UsageError("--explain is of one observation; give it with --observation")
    if path != IN_WORDS:
        check_path(path)


def show_actions(
    managed: ManagedAlgorithm, observation: str | None, *, stochastic: bool, explain: Path | None
) -> None:
    """Print the action for the observation, or for each line of standard input, as JSON."""
    state: PolicyState | None = None
    with threads(managed.config):
        for line in [observation] if observation is not None else input_lines():
            obs, starts, mask = parse_observation(line)
            action, state = managed.predict(
                obs, state, starts, deterministic=not stochastic, action_mask=mask
            )
            explanation = None if explain is None else managed.explanation(obs, mask)
            if explanation is not None and explain != IN_WORDS:
                write_picture(explanation, Path(explain or ""))
            typer.echo(json.dumps({"action": action.tolist()}))
            if explanation is not None:
                in_words = explain == IN_WORDS
                typer.echo(explanation if in_words else f"written: {explain}", err=True)


def parse_observation(text: str) -> tuple[object, object, object]:
    """An observation from JSON, whether it starts an episode, and its action mask.

    What was left out is None.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"observation: expected JSON such as [0.1, 0.2] or "
            f'{{"observation": [0.1, 0.2], "episode_start": true}}, found {text.strip()[:80]!r} '
            f"({error})"
        ) from None
    if not isinstance(value, dict):
        return value, None, None
    if unknown := value.keys() - {"observation", "episode_start", "action_mask"}:
        raise UsageError(
            "observation: expected the keys observation, episode_start and action_mask, found "
            f"{sorted(unknown)[0]!r}"
        )
    if "observation" not in value:
        raise UsageError('observation: expected a key "observation", found none')
    return value["observation"], value.get("episode_start"), value.get("action_mask")


def input_lines() -> Iterator[str]:
    """The lines of standard input that are not blank."""
    try:
        for line in sys.stdin:
            if line.strip():
                yield line
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input: expected UTF-8 text, found {error.reason}") from None
