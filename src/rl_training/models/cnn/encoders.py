"""Networks that turn uint8 images into features."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.errors import ConfigError
from rl_training.models.blocks import MLP, Layers

Layer = tuple[int, int, int]
"""Filters, size and stride of a convolution."""

NATURE: tuple[Layer, ...] = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
DRQ: tuple[Layer, ...] = ((32, 3, 2), (32, 3, 1), (32, 3, 1), (32, 3, 1))
ENCODERS = {"nature": NATURE, "drq": DRQ}


class Convolutions(nn.Module):
    """Convolutions with ReLU over images (batch, channels, height, width), flattened.

    Bytes are scaled to [0, 1], or with `centered` to [-1/2, 1/2].
    """

    def __init__(
        self, shape: Sequence[int], layers: Sequence[Layer], *, centered: bool = False
    ) -> None:
        super().__init__()
        self._offset = -0.5 if centered else 0.0
        channels, *sides = shape
        self.layers = nn.ModuleList()
        self.work = 0  # multiplications of the layer that has most, for one image
        for filters, size, stride in layers:
            self.layers.append(nn.Conv2d(channels, filters, size, stride))
            weights = channels * filters * size**2
            channels, sides = filters, [(side - size) // stride + 1 for side in sides]
            if min(sides) < 1:
                raise ConfigError(
                    f"images of {shape[1]} x {shape[2]} are too small for the encoder's "
                    f"{len(layers)} convolutions; use larger ones"
                )
            self.work = max(self.work, weights * math.prod(sides))
        self.size = channels * math.prod(sides)

    def forward(self, images: Tensor) -> Tensor:
        """Features (batch, size)."""
        # With the channels last, convolutions on a CPU take a third less time.
        images = images.contiguous(memory_format=torch.channels_last)
        x = images.to(torch.float32, copy=True).mul_(1 / 255)
        if self._offset:
            x += self._offset
        for layer in self.layers:
            x = F.relu(layer(x), inplace=True)
        return x.flatten(1)


class NatureCNN(nn.Module):
    """The network of Mnih et al. (2015): three convolutions and a layer of 512, or other layers."""

    def __init__(self, shape: Sequence[int], hidden_sizes: Sequence[int] = (512,)) -> None:
        super().__init__()
        self.convolutions = Convolutions(shape, NATURE)
        sizes = (self.convolutions.size, *hidden_sizes)
        self.layers = MLP(sizes, activate_last=True) if hidden_sizes else None
        self.size = sizes[-1]

    def forward(self, images: Tensor) -> Tensor:
        """Features (batch, size)."""
        features: Tensor = self.convolutions(images)
        return features if self.layers is None else self.layers(features)


class NormalizedFeatures(nn.Module):
    """The layer after DrQ's convolutions: small, linear, normalised and squashed by tanh."""

    def __init__(self, inputs: int, features: int = 50) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(inputs, features), nn.LayerNorm(features)

    def forward(self, x: Tensor) -> Tensor:
        """Features (batch, size) in [-1, 1]."""
        return torch.tanh(self.norm(self.linear(x)))


def init_orthogonal(module: nn.Module, gain: float = 1.0) -> None:
    """Orthogonal weights, larger by `gain` and in convolutions by sqrt(2), and biases of zero."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.orthogonal_(
                layer.weight, math.sqrt(2) if isinstance(layer, nn.Conv2d) else gain
            )
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, Layers):
            layer.init_orthogonal(last_gain=gain, gain=gain)
