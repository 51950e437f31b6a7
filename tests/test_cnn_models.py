"""Encoders of images: sizes, scaling, and what is too small."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from rl_training.errors import ConfigError
from rl_training.models.cnn.encoders import (
    DRQ,
    NATURE,
    Convolutions,
    NatureCNN,
    NormalizedFeatures,
    init_orthogonal,
)


@pytest.mark.parametrize(
    ("layers", "side", "size"),
    [
        (NATURE, 84, 64 * 7 * 7),  # 84, 20, 9, 7
        (NATURE, 48, 64 * 2 * 2),  # 48, 11, 4, 2
        (DRQ, 84, 32 * 35 * 35),  # 84, 41, 39, 37, 35
        (DRQ, 48, 32 * 17 * 17),
    ],
)
def test_sizes_by_hand(layers: tuple[tuple[int, int, int], ...], side: int, size: int) -> None:
    encoder = Convolutions((9, side, side), layers)
    images = torch.randint(0, 256, (2, 9, side, side), dtype=torch.uint8)
    assert encoder.size == size
    assert encoder(images).shape == (2, size)


def test_bytes_are_scaled_to_one() -> None:
    encoder = Convolutions((1, 8, 8), ((1, 8, 1),))
    (layer,) = encoder.layers
    with torch.no_grad():
        layer.weight.fill_(1 / 64)
        layer.bias.zero_()
    for value, expected in ((0, 0.0), (255, 1.0), (51, 0.2)):
        image = torch.full((1, 1, 8, 8), value, dtype=torch.uint8)
        assert float(encoder(image).detach()) == pytest.approx(expected, abs=1e-6)


def test_the_nature_network_is_its_layers() -> None:
    model = NatureCNN((4, 84, 84))
    images = torch.randint(0, 256, (3, 4, 84, 84), dtype=torch.uint8)
    plain = nn.Sequential(
        *(part for layer in model.convolutions.layers for part in (layer, nn.ReLU())), nn.Flatten()
    )
    weight, bias = model.layers.parameters()
    seen = plain(images.float() / 255)
    assert_close(model(images), (seen @ weight.T + bias).relu())
    shapes = [tuple(p.shape) for p in model.parameters() if p.ndim > 1]
    assert shapes == [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3), (512, 3136)]


def test_normalised_features_by_hand() -> None:
    head = NormalizedFeatures(4, 3)
    x = torch.randn(5, 4)
    linear = head.linear(x)
    centred = linear - linear.mean(1, keepdim=True)
    expected = torch.tanh(centred / (linear.var(1, keepdim=True, correction=0) + 1e-5).sqrt())
    assert_close(head(x), expected)


def test_orthogonal_weights() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(16, 5))
    init_orthogonal(model)
    convolution, linear = model[0].weight.detach().flatten(1), model[2].weight.detach()
    assert_close(convolution @ convolution.T, 2 * torch.eye(4))
    assert_close(linear @ linear.T, torch.eye(5))
    assert not any(layer.bias.any() for layer in (model[0], model[2]))


def test_images_too_small_are_refused() -> None:
    with pytest.raises(ConfigError, match="images of 30 x 84 are too small for the encoder's 3"):
        NatureCNN((3, 30, 84))
