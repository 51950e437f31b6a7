"""Quantile regression of return distributions (Dabney et al., 2018)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from rl_training.data.types import expect_shapes


def midpoints(count: int, device: torch.device | None = None) -> Tensor:
    """The middles of `count` equal shares of probability (Lemma 2), (i + 1/2) / count."""
    return (torch.arange(count, device=device) + 0.5) / count


def quantile_huber_loss(quantiles: Tensor, targets: Tensor) -> Tensor:
    """Quantile Huber loss with threshold 1 (Eq. 10) of quantiles [B, N] on samples [B, M].

    Summed over the quantiles, averaged over the samples, one value per row; N and M may differ.
    The samples carry no gradient.
    """
    expect_shapes("B N, B M", quantiles, targets)
    levels = midpoints(quantiles.shape[1], quantiles.device)
    error = targets.detach()[:, None, :] - quantiles[:, :, None]  # [B, N, M]
    huber = F.huber_loss(error, torch.zeros_like(error), reduction="none")
    tilt = (levels[:, None] - (error < 0).float()).abs()
    return (tilt * huber).mean(2).sum(1)
