"""What Gymnasium's contract asks of the answers of an environment, and the words for a breach.

`doctor` checks every answer; training looks once something went wrong, to say what it was, and at
the first answers for what it only warns of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from gymnasium import spaces

Space: TypeAlias = spaces.Space[Any]

_ANSWERS = {
    "reset": ("observation", "info"),
    "step": ("observation", "reward", "terminated", "truncated", "info"),
}


Mark = Literal["warning", "error"]


class Problem(NamedTuple):
    """A breach of the contract, and the part of the answer that it is in.

    An error stops training, a warning does not.
    """

    mark: Mark
    topic: str
    text: str
    where: str = ""


def tuple_problem(call: str, answer: object) -> str:
    """That the answer of `reset` or `step` is no tuple of the right length; empty if it is one."""
    names = _ANSWERS[call]
    if isinstance(answer, tuple) and len(answer) == len(names):
        return ""
    return f"expected ({', '.join(names)}) from {call}, found {described(answer)}"


def answer_problems(call: str, space: Space, answer: tuple[object, ...]) -> Iterator[Problem]:
    """What is wrong with the parts of an answer that is a tuple of the right length."""
    parts = dict(zip(_ANSWERS[call], answer, strict=True))
    if "reward" in parts:
        yield from _reward_problems(parts["reward"])
    for name in ("terminated", "truncated"):
        flag = parts.get(name, False)
        if not isinstance(flag, (bool, np.bool_)):
            mark: Mark = "warning" if isinstance(flag, (int, np.integer)) else "error"
            yield Problem(mark, "api", f": expected a bool, found {described(flag)}", name)
    if not isinstance(parts["info"], dict):
        text = f" of {call}: expected a dict, found {described(parts['info'])}"
        yield Problem("error", "api", text, "info")
    for name, part, value in leaves(space, parts["observation"], "observation"):
        for problem in leaf_problems(part, value):
            yield problem._replace(where=name)


def answer_problem(call: str, space: Space, answer: object) -> str:
    """The first reason why training cannot take an answer; empty if there is none."""
    if problem := tuple_problem(call, answer):
        return problem
    assert isinstance(answer, tuple)
    return _first_error(answer_problems(call, space, answer))


def _first_error(problems: Iterable[Problem]) -> str:
    # Numbers that are not finite have a check of their own in training.
    errors = (p for p in problems if p.mark == "error" and p.topic != "finite")
    return next((f"{problem.where}{problem.text}" for problem in errors), "")


def _reward_problems(reward: object) -> Iterator[Problem]:
    if not (isinstance(reward, (int, float, np.generic, np.ndarray)) and np.ndim(reward) == 0):
        yield Problem("error", "api", f": expected a number, found {described(reward)}", "reward")
    elif not np.isfinite(reward):
        yield Problem("error", "finite", f" is {reward}; training would stop here", "reward")


def observation_problem(space: Space, obs: object) -> str:
    """The first reason why training cannot take an observation; empty if there is none."""
    return _first_error(
        problem._replace(where=name)
        for name, part, value in leaves(space, obs, "observation")
        for problem in leaf_problems(part, value)
    )


def leaves(space: Space, obs: object, name: str) -> Iterator[tuple[str, Space, object]]:
    """The parts of an observation with their spaces; whole if its structure is another."""
    parts: list[tuple[object, Space, object]]
    if isinstance(space, spaces.Dict) and isinstance(obs, dict) and obs.keys() == space.keys():
        parts = [(key, part, obs[key]) for key, part in space.items()]
    elif isinstance(space, spaces.Tuple) and isinstance(obs, tuple) and len(obs) == len(space):
        parts = [(index, part, obs[index]) for index, part in enumerate(space)]
    else:
        yield name, space, obs
        return
    for key, part, value in parts:
        yield from leaves(part, value, f"{name}[{key!r}]")


def leaf_problems(space: Space, value: object) -> Iterator[Problem]:
    """What is wrong with one part of an observation."""
    if not isinstance(space, spaces.Box):
        if not space.contains(value):
            yield Problem("error", "spaces", f" is {described(value)}, which is not in {space}")
        return
    if not isinstance(value, (np.ndarray, np.generic)):
        yield Problem("error", "dtypes", f": expected a NumPy array, found {described(value)}")
        return
    if value.shape != space.shape:
        yield Problem("error", "spaces", f": expected shape {space.shape}, found {value.shape}")
        return
    if value.dtype != space.dtype:
        converts = np.can_cast(value.dtype, space.dtype, "same_kind")
        effect = "it is converted" if converts else "it cannot be converted"
        text = f": expected {space.dtype}, found {value.dtype}; {effect} in training"
        yield Problem("warning" if converts else "error", "dtypes", text)
    yield from _number_problems(space, np.asarray(value))


def _number_problems(space: spaces.Box, value: np.ndarray) -> Iterator[Problem]:
    if value.dtype.kind not in "biuf":
        return
    if not np.isfinite(value).all():
        yield Problem("error", "finite", " has NaN or infinity in it; training would stop here")
    elif (np.abs(value.astype(np.float64)) > np.finfo(np.float32).max).any():
        text = " has numbers too large for float32, which training uses; it would stop here"
        yield Problem("error", "finite", text)
    for outside, bound, side in (
        (value < space.low, space.low, "below the lower"),
        (value > space.high, space.high, "above the upper"),
    ):
        if outside.any():
            index = tuple(int(axis[0]) for axis in np.nonzero(outside))
            text = f"{list(index)} is {value[index]}, {side} bound {bound[index]} of its space"
            yield Problem("warning", "ranges", text)


def described(value: object) -> str:
    """A value for a message, by its type and its size or beginning."""
    if isinstance(value, (tuple, list, dict)):
        return f"a {type(value).__name__} of {len(value)}"
    shape = f" of shape {value.shape}" if isinstance(value, np.ndarray) else f" {value!r:.60}"
    return f"{type(value).__name__}{shape}"
