"""Quantile regression of return distributions (Dabney et al., 2018), on tensors or arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from rl_training.algorithms.functional.shapes import expect_shapes
from rl_training.data.arrays import Array, constant, contiguous, namespace

CHUNK = 65_536  # pairs compared at once on a CPU: what stays in a processor's cache


class RowLosses(NamedTuple):
    """The loss of each row [B], and its gradient with respect to the row's prediction."""

    rows: Array
    gradient: Array


def midpoints(quantiles: Array) -> Array:
    """The middles of N equal shares of probability (Lemma 2), (i + 1/2) / N, for [B, N]."""
    count = quantiles.shape[1]
    if isinstance(quantiles, np.ndarray):
        return (np.arange(count, dtype=np.float32) + np.float32(0.5)) / np.float32(count)
    return (torch.arange(count, device=quantiles.device) + 0.5) / count


def quantile_huber(quantiles: Array, targets: Array) -> RowLosses:
    """Quantile Huber loss with threshold 1 (Eq. 10) of quantiles [B, N] on samples [B, M].

    Summed over the quantiles, averaged over the samples; N and M may differ.
    """
    expect_shapes("B N, B M", quantiles, targets)
    xp, shares = namespace(quantiles), midpoints(quantiles)
    # The batch last: long rows without gaps.
    mine, samples = contiguous(quantiles.T), contiguous(constant(targets).T)
    if xp is torch and (quantiles.is_cuda or torch.compiler.is_compiling()):
        return RowLosses(*_compare(mine, samples, shares))
    size = max(1, CHUNK // (len(samples) * len(quantiles)))
    starts = range(0, len(mine), size)
    pieces = [_compare(mine[i : i + size], samples, shares[i : i + size]) for i in starts]
    rows, gradients = zip(*pieces, strict=True)
    return RowLosses(sum(rows), xp.concatenate(gradients, 1))


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
