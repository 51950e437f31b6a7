"""Quantile regression of return distributions (Dabney et al., 2018), on tensors or arrays."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from rl_training.algorithms.functional.shapes import expect_shapes
from rl_training.data.arrays import Array, constant, namespace

CHUNK = 65_536  # pairs compared at once on arrays: what stays in a processor's cache


class RowLosses(NamedTuple):
    """The loss of each row [B], and its gradient with respect to the row's prediction."""

    rows: Array
    gradient: Array


@lru_cache(maxsize=16)
def midpoints(count: int) -> np.ndarray:
    """The middles of `count` equal shares of probability (Lemma 2): (i + 1/2) / count."""
    return ((np.arange(count) + 0.5) / count).astype(np.float32)


def quantile_huber(quantiles: Array, targets: Array) -> RowLosses:
    """Quantile Huber loss with threshold 1 (Eq. 10) of quantiles [B, N] on samples [B, M].

    Summed over the quantiles, averaged over the samples; N and M may differ.
    """
    expect_shapes("B N, B M", quantiles, targets)
    targets = constant(targets)
    shares = midpoints(quantiles.shape[1])
    if not isinstance(quantiles, np.ndarray):
        shares = namespace(quantiles).as_tensor(shares, device=quantiles.device)
        return RowLosses(*_compare(quantiles, targets, shares))
    size = max(1, CHUNK // (quantiles.shape[1] * targets.shape[1]))
    pieces = [
        _compare(quantiles[start : start + size], targets[start : start + size], shares)
        for start in range(0, len(quantiles), size)
    ]
    return RowLosses(*map(np.concatenate, zip(*pieces, strict=True)))


def _compare(quantiles: Array, targets: Array, shares: Any) -> tuple[Array, Array]:
    """Every quantile with every sample.

    Huber's derivative is the error held within 1, here apart for errors above and below zero, and
    Huber itself is slope * (error - slope / 2).
    """
    xp, count = namespace(quantiles), targets.shape[1]
    error = targets[:, None, :] - quantiles[:, :, None]
    above, below = error.clip(0.0, 1.0), error.clip(-1.0, 0.0)

    def sums(slope: Array) -> Array:
        products, squares = (xp.einsum("bnm,bnm->bn", slope, x) for x in (error, slope))
        return products - 0.5 * squares

    rows = shares * sums(above) + (1 - shares) * sums(below)
    ones = xp.ones_like(targets[0])  # a product with them sums faster than `sum` does
    pull = shares * (above @ ones) + (1 - shares) * (below @ ones)
    return rows.sum(-1) / count, constant(pull) / -count
