"""Temporal-difference targets for value learning, on tensors or arrays."""

from __future__ import annotations

from rl_training.algorithms.functional.shapes import expect_shapes
from rl_training.data.arrays import Array, row_max, rows_of


def chosen(values: Array, action: Array) -> Array:
    """The value of the action taken in each row: values [B, A], action [B] gives [B]."""
    return values[rows_of(values), action]


def q_target(reward: Array, discount: Array, next_q: Array, selector: Array | None = None) -> Array:
    """Target `reward + discount * next_q[argmax selector]`.

    Shapes: reward [B], discount [B], next_q and selector [B, A]. Without a selector this is
    Q-learning's maximum; with the online network's values it is double Q-learning
    (van Hasselt et al., 2016, Eq. 4).
    """
    best = row_max(next_q) if selector is None else chosen(next_q, selector.argmax(1))
    expect_shapes("B, B, B", reward, discount, best)
    return reward + discount * best
