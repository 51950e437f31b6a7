"""Gaussian actions squashed into [-1, 1] (Haarnoja et al., 2018, Appendix C), with their gradient.

On tensors or arrays. The log-probability is computed from the number before the squashing, in a
form that stays exact where tanh has reached its bounds.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from rl_training.algorithms.functional.shapes import expect_shapes
from rl_training.data.arrays import Array, namespace

LOG_STD_RANGE = (-20.0, 2.0)
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class SquashedSample(NamedTuple):
    """Actions [B, A] and their log-probabilities [B], with what the way back needs."""

    action: Array
    log_prob: Array
    by_log_std: Array  # derivative of the number before the squashing by the log std
    free: Array  # where the log std is within its range


def squashed_mode(output: Array) -> Array:
    """The squashed mean: output [B, 2A] gives [B, A]."""
    return namespace(output).tanh(output[:, : output.shape[1] // 2])


def squashed_sample(output: Array, noise: Array) -> SquashedSample:
    """A sample per row: `output` [B, 2A] has means and log stds, `noise` [B, A] is normal."""
    size = noise.shape[1]
    mean, raw = output[:, :size], output[:, size:]
    expect_shapes("B A, B A, B A", mean, raw, noise)
    xp = namespace(output)
    log_std = raw.clip(*LOG_STD_RANGE)
    spread = xp.exp(log_std) * noise
    before = mean + spread
    density = -0.5 * noise * noise - log_std - _LOG_SQRT_2PI
    log_prob = (density - log_slope(before)).sum(1)
    return SquashedSample(xp.tanh(before), log_prob, spread, raw == log_std)


def log_slope(x: Array) -> Array:
    """log(1 - tanh(x)^2) = 2 (log 2 - |x| - log(1 + exp(-2 |x|)))."""
    xp, size = namespace(x), abs(x)
    return 2 * (math.log(2) - size - xp.log1p(xp.exp(-2 * size)))


def squashed_gradient(sample: SquashedSample, by_action: Array, by_log_prob: Array) -> Array:
    """Gradient by the output [B, 2A], from those by the actions [B, A] and log-probabilities [B].

    The derivative of -log(1 - tanh(x)^2) is 2 tanh(x).
    """
    action, each = sample.action, by_log_prob[:, None]
    by_mean = by_action * (1 - action * action) + each * (2 * action)
    by_log_std = (by_mean * sample.by_log_std - each) * sample.free
    if isinstance(action, np.ndarray):
        return np.concatenate([by_mean, by_log_std], 1)
    return torch.cat([by_mean, by_log_std], 1)
