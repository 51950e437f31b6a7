"""Checks of saved values before they are taken over; CheckpointError names the field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rl_training.errors import CheckpointError

if TYPE_CHECKING:  # listing runs must not pay for the import
    import numpy as np


def saved_value(state: object, name: str) -> Any:
    """The entry of that name in a saved dict."""
    if not isinstance(state, Mapping) or name not in state:
        found = ", ".join(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise CheckpointError(f"{name}: expected it among the saved values, found {found[:200]}")
    return state[name]


def saved_count(state: object, name: str, *, low: int = 0, high: int = 2**62) -> int:
    """The whole number of that name, within bounds."""
    value = saved_value(state, name)
    if type(value) is not int or not low <= value <= high:
        raise CheckpointError(
            f"{name}: expected a whole number from {low} to {high}, found {value!r:.80}"
        )
    return value


def saved_number(state: object, name: str) -> float:
    """The finite number of that name."""
    value = saved_value(state, name)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value):
        raise CheckpointError(f"{name}: expected a finite number, found {value!r:.80}")
    return float(value)


def saved_array(
    state: object,
    name: str,
    like: np.ndarray,
    *,
    low: np.ndarray | float | None = None,
    high: np.ndarray | float | None = None,
) -> np.ndarray:
    """The array of that name, of the shape and dtype of another one, with values within bounds."""
    import numpy as np

    value = saved_value(state, name)
    kind = like.dtype, like.shape
    if not isinstance(value, np.ndarray) or (value.dtype, value.shape) != kind:
        found = (
            f"{value.dtype}{list(value.shape)}"
            if isinstance(value, np.ndarray)
            else type(value).__name__
        )
        expected = f"{like.dtype}{list(like.shape)}"
        raise CheckpointError(f"{name}: expected an array {expected}, found {found}")
    check_bounds(name, value, low=low, high=high)
    return value


def check_bounds(
    name: str,
    array: np.ndarray,
    *,
    low: np.ndarray | float | None = None,
    high: np.ndarray | float | None = None,
) -> None:
    """Refuse an array with values outside; `high` may be an array with a bound of each column."""
    import numpy as np

    if not array.size:
        return
    rows = array.reshape(-1, array.shape[-1] if isinstance(high, np.ndarray) else 1)
    below = low is not None and bool((rows.min(0) < low).any())
    if below or (high is not None and bool((rows.max(0) > high).any())):
        raise CheckpointError(f"{name}: expected values from {low} to {high}, found others")
