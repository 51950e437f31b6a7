"""Mistakes in a configuration: found, given a path and a suggestion, and listed all at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from pydantic import BaseModel, ValidationError

from rl_training.errors import ConfigError
from rl_training.experiment.config_words import KeyPath, dotted, expected_at, shown

MOST_LISTED = 50
"""Mistakes printed one by one; a file that is not a configuration at all would give thousands."""

_LEAST_SIMILAR = 0.6
_OTHER_NAMES = {
    "algorithm": "algo",
    "buffer_capacity": "buffer_size",
    "discount": "gamma",
    "env": "env_id",
    "eval_freq": "eval_interval",
    "exploration_final_eps": "epsilon.final",
    "exploration_fraction": "epsilon.fraction",
    "exploration_initial_eps": "epsilon.initial",
    "gradient_steps": "replay_ratio",
    "lr": "learning_rate",
    "n_envs": "num_envs",
    "n_eval_episodes": "eval_episodes",
    "n_timesteps": "total_timesteps",
    "net_arch": "hidden_sizes",
    "save_freq": "checkpoint_interval",
    "tensorboard_log": "output_dir",
    "train_freq": "replay_ratio",
}
"""Names used by other libraries, with ours."""


@dataclass(frozen=True)
class Mistake:
    """One thing wrong with a configuration; without a text, the key itself is unknown."""

    path: KeyPath
    text: str | None = None


class ConfigMistakes(ConfigError):
    """A `ConfigError` that still knows its mistakes, so that a loader can add where they stand."""

    def __init__(self, message: str, mistakes: Sequence[Mistake] = ()) -> None:
        super().__init__(message)
        self.mistakes = tuple(mistakes)


def check(condition: bool, message: str) -> None:
    """Refuse a configuration from inside a model's validator."""
    if not condition:
        raise ValueError(message)


def listed(
    mistakes: Sequence[Mistake],
    legal: Sequence[KeyPath],
    origin_of: Callable[[KeyPath], str] = lambda _: "",
) -> ConfigMistakes:
    """The error that lists the mistakes, one per line, each with its origin if known."""
    lines = []
    for mistake in mistakes[:MOST_LISTED]:
        origin = origin_of(mistake.path)
        if mistake.text is None:
            words = f"unknown key '{dotted(mistake.path)}'; {_hint(mistake.path, legal)}"
        else:
            words = ": ".join(filter(None, (dotted(mistake.path), mistake.text)))
        lines.append(f"{origin}: {words}" if origin else words)
    if len(mistakes) > MOST_LISTED:
        lines.append(f"... and {len(mistakes) - MOST_LISTED} more mistakes")
    return ConfigMistakes("\n".join(lines), mistakes)


def mistakes_in(
    error: ValidationError, model: type[BaseModel], values: Mapping[str, Any], prefix: KeyPath = ()
) -> list[Mistake]:
    """The mistakes behind a pydantic error, one per path."""
    found: dict[KeyPath, Mistake] = {}
    for detail in error.errors(include_url=False):
        path, value = _follow(detail["loc"], values)
        kind = detail["type"]
        whole = len(path) == len(detail["loc"])
        text: str | None
        if kind == "missing" and len(path) == len(detail["loc"]) - 1:
            path = (*path, detail["loc"][-1])
            text = f"missing; expected {expected_at(model, path)}"
        elif kind == "extra_forbidden" and whole:
            text = None
        elif kind in ("value_error", "assertion_error") and whole:
            text = str(detail["ctx"]["error"])
        else:
            text = f"expected {expected_at(model, path)}, found {shown(value)}"
        found.setdefault(path, Mistake((*prefix, *path), text))
    return list(found.values())


def nearest_path(path: KeyPath, legal: Sequence[KeyPath]) -> KeyPath | None:
    """The legal path most like a wrong one; a right name in the wrong place counts as near."""
    leaf = str(path[-1])[:100]
    if leaf in _OTHER_NAMES:
        ending = tuple(_OTHER_NAMES[leaf].split("."))
        for candidate in legal:
            if candidate[-len(ending) :] == ending:
                return candidate
    leaf = leaf.rpartition(".")[2]

    def similarity(candidate: KeyPath) -> tuple[float, bool, int]:
        # The shallow path wins a tie: fewer keys to write.
        ratio = SequenceMatcher(None, leaf.lower(), str(candidate[-1])).ratio()
        return ratio, candidate[:-1] == path[:-1], -len(candidate)

    best = max(legal, key=similarity, default=None)
    return best if best is not None and similarity(best)[0] >= _LEAST_SIMILAR else None


def _hint(path: KeyPath, legal: Sequence[KeyPath]) -> str:
    near = nearest_path(path, legal)
    if near is None:
        here = [str(known[-1]) for known in legal if known[:-1] == path[:-1]]
        return f"the valid keys here are {', '.join(here)}" if here else "no key is valid here"
    if dotted(near) == dotted(path):
        return "dots are for --set: in a file or in Python, nest one mapping in the other"
    return f"did you mean '{dotted(near)}'?"


def _follow(loc: tuple[int | str, ...], values: Any) -> tuple[KeyPath, Any]:
    """Walk down the given values as far as `loc` goes.

    Pydantic puts the names of union members into its locations; they are no part of what the user
    wrote, and the walk ends there.
    """
    path: list[int | str] = []
    for part in loc:
        inside: Any = values.__dict__ if isinstance(values, BaseModel) else values
        if isinstance(inside, list | tuple):
            inside = dict(enumerate(inside))
        if not isinstance(inside, Mapping) or part not in inside:
            break
        values = inside[part]
        path.append(part)
    return tuple(path), values
