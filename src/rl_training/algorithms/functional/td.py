"""Temporal-difference targets for value learning."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.algorithms.functional.shapes import expect_shapes


def chosen(values: Tensor, action: Tensor) -> Tensor:
    """The value of the action taken in each row: values [B, A], action [B] gives [B]."""
    expect_shapes("B A, B", values, action)
    return values.gather(1, action.unsqueeze(1)).squeeze(1)


def q_target(
    reward: Tensor, discount: Tensor, next_q: Tensor, selector: Tensor | None = None
) -> Tensor:
    """Target `reward + discount * next_q[argmax selector]`, without gradient.

    Shapes: reward [B], discount [B], next_q and selector [B, A]. Without a selector this is
    Q-learning's maximum; with the online network's values it is double Q-learning
    (van Hasselt et al., 2016, Eq. 4).
    """
    with torch.no_grad():
        if selector is None:
            following = next_q.amax(1)
        else:
            expect_shapes("B A, B A", next_q, selector)
            following = chosen(next_q, selector.argmax(1))
        expect_shapes("B, B, B", reward, discount, following)
        return torch.addcmul(reward, discount, following)
