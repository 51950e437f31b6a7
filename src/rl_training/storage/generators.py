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


def set_generator_state(generator: AnyGenerator, state: object) -> None:
    """Put the generator into a state of `generator_state`; CheckpointError if it does not fit."""
    checked = _checked_like(generator_state(generator), state)
    try:
        if isinstance(generator, random.Random):
            words = tuple(checked["words"].tolist())
            generator.setstate((checked["version"], words, checked["gauss"]))
        elif isinstance(generator, np.random.RandomState):
            generator.set_state(checked)
        else:
            generator.bit_generator.state = checked
    except (ValueError, TypeError, OverflowError) as error:
        raise CheckpointError(f"the state of a random generator is malformed: {error}") from error


def _checked_like(expected: dict[str, Any], found: object, name: str = "") -> dict[str, Any]:
    if not isinstance(found, dict) or expected.keys() != found.keys():
        raise _malformed(name, f"the keys {', '.join(expected)}", found)
    for key, inner in expected.items():
        if isinstance(inner, dict):
            _checked_like(inner, found[key], key)
        elif not _is_like(inner, found[key], key):
            raise _malformed(key, f"a value like {str(inner)[:40]}", found[key])
    return found


def _is_like(expected: object, found: object, name: str) -> bool:
    if isinstance(expected, np.ndarray):
        kind = expected.dtype, expected.shape
        return isinstance(found, np.ndarray) and (found.dtype, found.shape) == kind
    if isinstance(expected, str):
        return bool(found == expected)
    if name == "gauss":  # Python's generator has None until it keeps one for the next call
        return found is None or isinstance(found, float)
    return isinstance(found, int) and 0 <= found <= _LAST_POSITION.get(name, 2**128 - 1)


def _malformed(name: str, expected: str, found: object) -> CheckpointError:
    return CheckpointError(
        f"the state of a random generator is malformed: expected {expected}"
        f"{f' for {name}' if name else ''}, found {str(found)[:80]}"
    )
