"""Building blocks that the models share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import nn


def mlp(
    sizes: Sequence[int], *, activation: Callable[[], nn.Module] = nn.ReLU, end: bool = False
) -> nn.Sequential:
    """Linear layers of the given sizes with an activation between them, and after them if `end`."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), activation()]
    return nn.Sequential(*(layers if end else layers[:-1]))


def orthogonal(layers: nn.Sequential, *, last_gain: float, gain: float = math.sqrt(2)) -> None:
    """Orthogonal weights and zero biases, with a gain of its own for the last linear layer."""
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    for layer in linear:
        nn.init.orthogonal_(layer.weight, last_gain if layer is linear[-1] else gain)
        nn.init.zeros_(layer.bias)
