"""Distributions over evenly spaced returns (Bellemare et al., 2017), on tensors or arrays."""

from __future__ import annotations

from rl_training.algorithms.functional.shapes import expect_shapes
from rl_training.data.arrays import Array, as_float, as_index, rows_of, sums_by_index


def project(probabilities: Array, reward: Array, discount: Array, support: Array) -> Array:
    """The distribution of `reward + discount * Z` on Z's own support (Eq. 7).

    Shapes: probabilities [B, K], reward and discount [B], support [K]. Each shifted return shares
    its probability between the two neighbours of the place where it falls, and gives all of it to
    one if it falls on it; beyond the ends it goes to the end. Nothing is lost.
    """
    expect_shapes("B K, B, B, K", probabilities, reward, discount, support)
    count = len(support)
    spacing = (support[-1] - support[0]) / (count - 1)
    place = (reward[:, None] + discount[:, None] * support - support[0]) / spacing
    place = place.clip(0, count - 1)
    lower = as_index(place).clip(0, count - 2)
    upper_share = (place - as_float(lower)) * probabilities
    lower_share = probabilities - upper_share
    slots = (rows_of(reward)[:, None] * count + lower).reshape(-1)
    size = len(reward) * count
    projected = sums_by_index(slots, lower_share.reshape(-1), size)
    projected += sums_by_index(slots + 1, upper_share.reshape(-1), size)
    return projected.reshape(probabilities.shape)
