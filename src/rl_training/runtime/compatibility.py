"""Refusal of environments an algorithm cannot take, before anything is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rl_training.errors import IncompatibleEnv
from rl_training.runtime.spec import AlgorithmSpec
from rl_training.runtime.spec_table import all_specs

if TYPE_CHECKING:
    import gymnasium as gym

_PLAIN = {
    "vector": "Box vectors, Discrete",
    "image": "images",
    "discrete": "Discrete",
    "continuous": "one-dimensional bounded Box of floats",
    "multi_discrete": "one-dimensional MultiDiscrete",
    "multi_binary": "one-dimensional MultiBinary",
}


_NO_FIXED_SIZE = ("Graph", "OneOf", "Sequence", "Text")


def check_spaces(
    spec: AlgorithmSpec, env_id: str, observation: gym.Space[Any], action: gym.Space[Any]
) -> None:
    """Raise IncompatibleEnv, naming the space and the algorithms that would work."""
    from rl_training.envs.spaces import action_kind, observation_kind

    kinds = observation_kind(observation), action_kind(action)
    for what, space, kind, taken in (
        ("observations", observation, kinds[0], spec.observations),
        ("actions", action, kinds[1], spec.actions),
    ):
        if kind not in taken:
            raise IncompatibleEnv(
                f"{spec.name} takes {in_plain_words(taken)} {what}; {env_id} has {space}. "
                f"{_advice(what, kinds, taken)}"
            )


def in_plain_words(kinds: frozenset[str]) -> str:
    """Kinds of space as people call them."""
    names = {_PLAIN.get(name, name) for name in kinds - {"unbounded", "parts"}}
    if "continuous_array" in kinds:
        names -= {"continuous_array", _PLAIN["continuous"]}
        names.add("Box of floats" if "unbounded" in kinds else "bounded Box of floats")
    listed = sorted(names)
    if "vector" in kinds:
        listed.append("Dict or Tuple of them")
    elif "parts" in kinds:
        listed.append("Dict or Tuple with images")
    return ", ".join(listed)


def _advice(what: str, kinds: tuple[str, str], taken: frozenset[str]) -> str:
    fitting = [
        name
        for name, spec in all_specs().items()
        if kinds[0] in spec.observations and kinds[1] in spec.actions
    ]
    advice = f"Algorithms that would work: {', '.join(fitting)}." if fitting else ""
    if what == "observations" and kinds[0] == "other image" and "image" in taken:
        return (
            "Images have to be uint8, or floats bounded by 0 and 1, with their channels first or "
            "last, and have fewer channels than rows and columns. In Python Gymnasium's "
            "TransformObservation turns others into such images; larger images or a shorter stack "
            "have room for more channels."
        )
    if what == "observations" and kinds[0] in _NO_FIXED_SIZE:
        return (
            f"{kinds[0]} has no fixed number of values, which every network here needs. "
            "In Python Gymnasium's TransformObservation encodes it in a Box, and FilterObservation "
            "leaves parts of a Dict out."
        )
    if what == "observations" and "vector" not in taken:
        return (
            f"{advice} The wrapper PixelObservation, with env_kwargs {{render_mode: rgb_array}}, "
            "shows what an environment renders."
        ).lstrip()
    wrapper = "FlattenObservation" if what == "observations" else "TransformAction"
    return advice or (
        "No algorithm of this package takes these spaces; a Gymnasium wrapper (config key "
        f"`wrappers`), such as {wrapper}, may turn them into ones it takes."
    )
