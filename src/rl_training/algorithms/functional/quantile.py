"""Quantile regression of return distributions (Dabney et al., 2018), on tensors or arrays."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from rl_training.algorithms.functional.shapes import expect_shapes
from rl_training.data.arrays import Array, constant

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
    mine, samples = quantiles.T, constant(targets).T
    if not isinstance(quantiles, np.ndarray):
        middles = (torch.arange(len(mine), device=quantiles.device) + 0.5) / len(mine)
        return RowLosses(*_compare(mine, samples, middles))
    mine, samples = mine.copy(), samples.copy()  # the batch last: long rows without gaps
    shares = midpoints(len(mine))
    size = max(1, CHUNK // samples.size)
    starts = range(0, len(mine), size)
    pieces = [_compare(mine[i : i + size], samples, shares[i : i + size]) for i in starts]
    rows, gradients = zip(*pieces, strict=True)
    return RowLosses(sum(rows), np.concatenate(gradients, 1))


def _compare(quantiles: Array, targets: Array, shares: Array) -> tuple[Array, Array]:
    """The loss [B] of quantiles [N, B], each compared with every sample [M, B], and its gradient.

    Huber's derivative is the error held within 1, and Huber itself slope * (error - slope / 2). A
    positive error counts with the quantile's share of probability and a negative one with the rest:
    slope / 2 + (share - 1/2) * |slope|.
    """
    error = targets - quantiles[:, None]
    half = error.clip(-1.0, 1.0) * 0.5
    weighted = half + abs(half) * (2 * shares - 1)[:, None, None]
    rows = (weighted * (error - half)).sum((0, 1)) / len(targets)
    return rows, constant(weighted).sum(1).T / -len(targets)
