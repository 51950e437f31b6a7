"""Temporal-difference targets for value learning, on tensors or arrays."""

from __future__ import annotations

from rl_training.algorithms.functional.shapes import expect_shapes
from rl_training.data.arrays import Array, namespace, row_max, rows_of


def chosen(values: Array, action: Array) -> Array:
    """The value of the action taken in each row: values [B, A], action [B] gives [B]."""
    return values[rows_of(values), action]


def q_target(reward: Array, discount: Array, next_q: Array, selector: Array | None = None) -> Array:
    """Target `reward + discount * next_q[argmax selector]`.

    Shapes: reward [B], discount [B], next_q and selector [B, A]. Without a selector this is
    Q-learning's maximum; with the online network's values it is double Q-learning
    (van Hasselt et al., 2016, Eq. 4).
    """
    best = best_value(next_q, selector)
    expect_shapes("B, B, B", reward, discount, best)
    return reward + discount * best


def best_value(values: Array, selector: Array | None = None) -> Array:
    """The value of each row's best action, which the selector may choose: [B, A] gives [B]."""
    return row_max(values) if selector is None else chosen(values, selector.argmax(1))


def sequence_target(
    reward: Array, discount: Array, next_value: Array, goes_on: Array, n_step: int
) -> Array:
    """Targets of sequences: up to `n_step` rewards, then the value of what follows them.

    All are [T, B]. The sum ends early at the last row, and where `goes_on` says that the next row
    does not follow in the same episode.
    """
    expect_shapes("T B, T B, T B, T B", reward, discount, next_value, goes_on)
    xp = namespace(reward)
    target = reward + discount * next_value
    for _ in range(n_step - 1):
        later = xp.concatenate([target[1:], next_value[-1:]])
        target = reward + discount * xp.where(goes_on, later, next_value)
    return target
