"""The state of a random generator as plain data, and back into one of the same kind.

NumPy accepts a position outside its buffer and then reads whatever memory lies there, so a state
that may come from a file is compared with the generator's current one before it is set.
"""

from __future__ import annotations

import random
from typing import Any, TypeAlias

import numpy as np

from rl_training.errors import CheckpointError

AnyGenerator: TypeAlias = np.random.Generator | np.random.RandomState | random.Random

_LAST_POSITION = {"pos": 624, "buffer_pos": 4}  # of MT19937's words and of Philox' block


def generator_state(generator: AnyGenerator) -> dict[str, Any]:
    """A copy of the generator's state: a dict of numbers, text, arrays and dicts."""
    if isinstance(generator, random.Random):
        version, words, gauss = generator.getstate()
        return {"version": version, "words": np.array(words, np.uint32), "gauss": gauss}
    if isinstance(generator, np.random.RandomState):
        return dict(generator.get_state(legacy=False))
    return dict(generator.bit_generator.state)


def set_generator_state(generator: AnyGenerator, state: Any) -> None:
    """Put the generator into a state of `generator_state`; CheckpointError if it does not fit."""
    _check_like(generator_state(generator), state, "")
    try:
        if isinstance(generator, random.Random):
            words = tuple(state["words"].tolist())
            generator.setstate((state["version"], words, state["gauss"]))
        elif isinstance(generator, np.random.RandomState):
            generator.set_state(state)
        else:
            generator.bit_generator.state = state
    except (ValueError, TypeError, OverflowError) as error:
        raise CheckpointError(f"the state of a random generator is malformed: {error}") from error


def _check_like(expected: Any, found: Any, name: str) -> None:
    if isinstance(expected, dict):
        if not isinstance(found, dict) or expected.keys() != found.keys():
            raise _malformed(name, f"the keys {', '.join(expected)}", found)
        for key, inner in expected.items():
            _check_like(inner, found[key], key)
    elif not _is_like(expected, found, name):
        raise _malformed(name, f"a value like {str(expected)[:40]}", found)


def _is_like(expected: Any, found: Any, name: str) -> bool:
    if isinstance(expected, np.ndarray):
        same = isinstance(found, np.ndarray) and found.dtype == expected.dtype
        return same and found.shape == expected.shape
    if isinstance(expected, str):
        return bool(found == expected)
    if name == "gauss":  # Python's generator has None until it keeps one for the next call
        return found is None or isinstance(found, float)
    return isinstance(found, int) and 0 <= found <= _LAST_POSITION.get(name, 2**128 - 1)


def _malformed(name: str, expected: str, found: Any) -> CheckpointError:
    return CheckpointError(
        f"the state of a random generator is malformed: expected {expected}"
        f"{f' for {name}' if name else ''}, found {str(found)[:80]}"
    )
