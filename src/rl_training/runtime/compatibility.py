"""Refusal of environments an algorithm cannot take, before anything is built."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from rl_training.envs.spaces import action_kind, observation_kind
from rl_training.errors import IncompatibleEnv
from rl_training.runtime.spec import AlgorithmSpec, all_specs

_PLAIN = {
    "vector": "Box vectors, Discrete, flat Dict",
    "discrete": "Discrete",
    "continuous": "Box of floats",
    "multi_discrete": "MultiDiscrete",
    "multi_binary": "MultiBinary",
}


def check_spaces(
    spec: AlgorithmSpec, env_id: str, observation: gym.Space[Any], action: gym.Space[Any]
) -> None:
    """Raise IncompatibleEnv, naming the space and the algorithms that would work."""
    for what, space, kind, taken in (
        ("observations", observation, observation_kind(observation), spec.observations),
        ("actions", action, action_kind(action), spec.actions),
    ):
        if kind not in taken:
            wanted = in_plain_words(taken)
            raise IncompatibleEnv(
                f"{spec.name} takes {wanted} {what}; {env_id} has {space}. "
                f"{_alternatives(observation_kind(observation), action_kind(action))}"
            )


def in_plain_words(kinds: frozenset[str]) -> str:
    """Kinds of space as people call them."""
    return ", ".join(_PLAIN.get(name, name) for name in sorted(kinds))


def _alternatives(observation: str, action: str) -> str:
    fitting = [
        name
        for name, spec in all_specs().items()
        if observation in spec.observations and action in spec.actions
    ]
    if fitting:
        return f"Algorithms that would work: {', '.join(fitting)}."
    return (
        "No algorithm of this package takes these spaces; a Gymnasium wrapper (config key "
        "`wrappers`), such as FlattenObservation, may turn them into ones it takes."
    )
