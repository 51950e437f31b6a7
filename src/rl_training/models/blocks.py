"""Building blocks that the models share."""

from __future__ import annotations

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
