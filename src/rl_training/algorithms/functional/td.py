"""Temporal-difference targets for value learning, of transitions (arrays too) and sequences."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.algorithms.functional.shapes import expect_shapes
from rl_training.data.arrays import Array, row_max, rows_of
from rl_training.data.types import SequenceBatch


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


def sequence_target(batch: SequenceBatch, next_value: Tensor, n_step: int) -> Tensor:
    """Targets [T, B] of sequences: up to `n_step` rewards, then the value of what follows them.

    `next_value` is [T, B]. A sum ends early at the last row, and where the next row is of another
    episode or none.
    """
    reward, discount = batch.reward, batch.discount
    expect_shapes("T B, T B, T B", reward, discount, next_value)
    target = reward + discount * next_value
    if n_step > 1:
        goes_on = batch.mask[1:] & ~batch.first[1 : len(reward)]
    for _ in range(n_step - 1):
        later = torch.where(goes_on, target[1:], next_value[:-1])
        target = reward + discount * torch.cat([later, next_value[-1:]])
    return target
