"""Networks that turn images, and the numbers beside them, into features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.data.observations import Part, part_tensor, without_names
from rl_training.data.types import EnvSpec
from rl_training.errors import ConfigError
from rl_training.models.blocks import MLP, Layers

Layer = tuple[int, int, int]
"""Filters, size and stride of a convolution."""

NATURE: tuple[Layer, ...] = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
DRQ: tuple[Layer, ...] = ((32, 3, 2), (32, 3, 1), (32, 3, 1), (32, 3, 1))
ENCODERS = {"nature": NATURE, "drq": DRQ}


class Convolutions(nn.Module):
    """Convolutions with ReLU over images (batch, channels, height, width), flattened.

    Bytes are scaled to [0, 1], where floats are; with `centered` both are moved to [-1/2, 1/2].
    """

    beside = 0
    """How many of the features, the last ones, are numbers that lay beside the images."""

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
        x = _scaled(images) if images.dtype is torch.uint8 else images
        if self._offset:
            x = x.add_(self._offset) if images.dtype is torch.uint8 else x + self._offset
        for layer in self.layers:
            x = F.relu(layer(x), inplace=True)
        return x.flatten(1)


def _scaled(images: Tensor) -> Tensor:
    """Bytes as floats in [0, 1]."""
    return images.to(torch.float32, copy=True).mul_(1 / 255)


class PartConvolutions(nn.Module):
    """Convolutions for each image of an observation with parts, and its numbers unchanged.

    Features (batch, size) of rows (batch, row): those of the images, then the numbers.
    """

    def __init__(self, parts: Sequence[Part], layers: Sequence[Layer], *, centered: bool) -> None:
        super().__init__()
        self._images = [part for part in parts if part.is_image]
        self._vectors = [part for part in parts if not part.is_image]
        self.convolutions = nn.ModuleList(
            Convolutions(part.shape, layers, centered=centered) for part in self._images
        )
        self.beside = sum(part.shape[0] for part in self._vectors)
        images: list[Any] = list(self.convolutions)
        self.size = sum(each.size for each in images) + self.beside

    def forward(self, rows: Tensor) -> Tensor:
        """Features (batch, size)."""
        rows = without_names(rows)
        images = zip(self.convolutions, self._images, strict=True)
        features = [convolutions(part_tensor(rows, part)) for convolutions, part in images]
        return torch.cat([*features, *(part_tensor(rows, part) for part in self._vectors)], 1)


def image_encoder(
    spec: EnvSpec, layers: Sequence[Layer] = NATURE, *, centered: bool = False
) -> Convolutions | PartConvolutions:
    """What turns an environment's images, and the numbers beside them, into features."""
    if spec.parts:
        return PartConvolutions(spec.parts, layers, centered=centered)
    return Convolutions(spec.obs_shape, layers, centered=centered)


class NatureCNN(nn.Module):
    """The network of Mnih et al. (2015): three convolutions and a layer of 512, or other layers.

    `shape` is that of an image, or `encoder` stands for its convolutions.
    """

    def __init__(
        self,
        shape: Sequence[int],
        hidden_sizes: Sequence[int] = (512,),
        *,
        encoder: Convolutions | PartConvolutions | None = None,
    ) -> None:
        super().__init__()
        self.convolutions = encoder or Convolutions(shape, NATURE)
        sizes = (self.convolutions.size, *hidden_sizes)
        self.layers = MLP(sizes, activate_last=True) if hidden_sizes else None
        self.size = sizes[-1]

    def forward(self, images: Tensor) -> Tensor:
        """Features (batch, size)."""
        features: Tensor = self.convolutions(images)
        return features if self.layers is None else self.layers(features)


class NormalizedFeatures(nn.Module):
    """The layer after DrQ's convolutions: small, linear, normalised and squashed by tanh.

    Of the inputs the last `beside` pass unchanged: a vector's numbers would be lost among the
    features of an image.
    """

    def __init__(self, inputs: int, features: int = 50, *, beside: int = 0) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(inputs - beside, features), nn.LayerNorm(features)
        self._beside = beside
        self.size = features + beside

    def forward(self, x: Tensor) -> Tensor:
        """Features (batch, size), those of images in [-1, 1]."""
        if not self._beside:
            return torch.tanh(self.norm(self.linear(x)))
        images, numbers = x[:, : -self._beside], x[:, -self._beside :]
        return torch.cat([torch.tanh(self.norm(self.linear(images))), numbers], 1)


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
