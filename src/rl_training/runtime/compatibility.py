"""Refusal of environments an algorithm cannot take, before anything is built."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from rl_training.envs.spaces import action_kind, observation_kind
from rl_training.errors import IncompatibleEnv
from rl_training.runtime.spec import AlgorithmSpec, all_specs

_PLAIN = {
    "vector": "Box vectors, Discrete, flat Dict",
    "image": "channel-first images of bytes",
    "discrete": "Discrete",
    "continuous": "bounded Box of floats",
    "multi_discrete": "one-dimensional MultiDiscrete",
    "multi_binary": "one-dimensional MultiBinary",
}


def check_spaces(
    spec: AlgorithmSpec, env_id: str, observation: gym.Space[Any], action: gym.Space[Any]
) -> None:
    """Raise IncompatibleEnv, naming the space and the algorithms that would work."""
    kinds = observation_kind(observation), action_kind(action)
    for what, space, kind, taken, wrapper in (
        ("observations", observation, kinds[0], spec.observations, "FlattenObservation"),
        ("actions", action, kinds[1], spec.actions, "TransformAction"),
    ):
        if kind not in taken:
            raise IncompatibleEnv(
                f"{spec.name} takes {in_plain_words(taken)} {what}; {env_id} has {space}. "
                f"{_alternatives(*kinds, wrapper)}"
            )


def in_plain_words(kinds: frozenset[str]) -> str:
    """Kinds of space as people call them."""
    names = {_PLAIN.get(name, name) for name in kinds - {"continuous", "unbounded"}}
    if "continuous" in kinds:
        names.add("Box of floats" if "unbounded" in kinds else _PLAIN["continuous"])
    return ", ".join(sorted(names))


def _alternatives(observation: str, action: str, wrapper: str) -> str:
    fitting = [
        name
        for name, spec in all_specs().items()
        if observation in spec.observations and action in spec.actions
    ]
    if fitting:
        return f"Algorithms that would work: {', '.join(fitting)}."
    return (
        "No algorithm of this package takes these spaces; a Gymnasium wrapper (config key "
        f"`wrappers`), such as {wrapper}, may turn them into ones it takes."
    )
