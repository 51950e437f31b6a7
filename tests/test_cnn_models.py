"""Encoders of images: sizes, scaling, and what is too small."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from rl_training.config.actor_critic import DrQConfig, DrQv2Config
from rl_training.data.types import EnvSpec
from rl_training.errors import ConfigError
from rl_training.models.cnn.drq import CNNDrQModel
from rl_training.models.cnn.drqv2 import CNNDrQv2Model
from rl_training.models.cnn.encoders import (
    DRQ,
    NATURE,
    Convolutions,
    NatureCNN,
    NormalizedFeatures,
    init_orthogonal,
)
from rounding import EPS, double_precision


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


@pytest.mark.parametrize("offset", [0.0, -0.5])
def test_bytes_are_scaled_to_one(offset: float) -> None:
    encoder = Convolutions((1, 16, 16), ((2, 1, 1),), centered=offset != 0)
    (layer,) = encoder.layers
    with torch.no_grad():  # a pixel and its negative: what ReLU leaves of both is the pixel
        layer.weight.copy_(torch.tensor([1.0, -1.0]).reshape(2, 1, 1, 1))
        layer.bias.zero_()
        positive, negative = encoder(torch.arange(256).byte().reshape(1, 1, 16, 16)).view(2, 256)
    found = (positive - negative).double()
    assert (float(found[0]), float(found[255])) == (offset, 1 + offset)
    # A pixel is one product and no sum, so the convolution is exact. Three numbers of at most 1 are
    # rounded, each by EPS / 2 at most: 1/255, a byte times it, and the offset added.
    expected = torch.arange(256).double() / 255 + offset
    assert_close(found, expected, rtol=0, atol=1.5 * EPS)


def seen_in(side: int) -> EnvSpec:
    """An environment of images that takes two numbers."""
    return EnvSpec(
        env_id="toy",
        obs_shape=(3, side, side),
        obs_dtype="uint8",
        action_kind="continuous",
        action_dim=2,
    )


def test_the_sizes_of_drqs_networks_are_as_asked() -> None:
    images = seen_in(36)
    options = {"hidden_sizes": (8,), "feature_size": 7, "num_critics": 3, "encoder": "nature"}
    model = CNNDrQModel.build(images, DrQConfig(critic_hidden_sizes=(5, 6), **options))
    actor, critics = model.actor, model.critics
    assert actor.convolutions is not critics.convolutions
    assert [tuple(each.features.linear.weight.shape) for each in (actor, critics)] == [(7, 64)] * 2
    shapes = {
        name: [tuple(p.shape) for p in each.layers.parameters() if p.shape[0] != 1]
        for name, each in (("actor", actor), ("critics", critics))
    }
    assert shapes["actor"] == [(8, 7), (8,), (4, 8), (4,)]
    assert [shape[-2:] for shape in shapes["critics"] if shape[-2] != 1] == [(9, 5), (5, 6), (6, 1)]
    assert {shape[0] for shape in shapes["critics"]} == {3}
    later = CNNDrQv2Model.build(images, DrQv2Config(**options))
    assert later.encoder._offset == -0.5  # bytes in [-1/2, 1/2]
    assert later.critics.features.linear.weight.shape == (7, 64)


@pytest.mark.parametrize(
    ("model", "config"), [(CNNDrQModel, DrQConfig), (CNNDrQv2Model, DrQv2Config)]
)
def test_values_have_a_column_for_each_critic(model: Any, config: Any) -> None:
    network = model.build(seen_in(20), config(hidden_sizes=(8,), num_critics=3))
    images = torch.randint(0, 256, (5, 3, 20, 20), dtype=torch.uint8)
    action = torch.rand(5, 2)
    seen = images if model is CNNDrQModel else network.encoder(images)
    values = network.q_values(images, action)
    assert values.shape == (5, 3)
    assert_close(values[:, 1], network.critics(seen, action)[1, :, 0])


@torch.no_grad()
def set_signs(parameter: nn.Parameter, count: int) -> None:
    """Make all weights of an output zero but for at most `count`, which are 1 or -1."""
    weights = torch.zeros(len(parameter), parameter[0].numel())
    places = torch.randint(0, weights.shape[1], (len(weights), count))
    weights.scatter_(1, places, 2.0 * torch.randint(0, 2, places.shape) - 1)
    parameter.copy_(weights.view_as(parameter))


def test_the_nature_network_is_its_layers() -> None:
    model = NatureCNN((4, 84, 84))
    # Black and white pixels are 0 and 1, so weights of -1, 0 and 1 make all sums whole numbers,
    # which are exact in any order up to 2 ** 24. With 100 such weights per filter the outputs are
    # at most 101, 10,101 and 1,010,101, the bias included; the last layer adds up 16 of them.
    for parameter in model.parameters():
        set_signs(parameter, 16 if parameter.shape == (512, 3136) else 100)
    images = 255 * torch.randint(0, 2, (3, 4, 84, 84), dtype=torch.uint8)
    plain = nn.Sequential(
        *(part for layer in model.convolutions.layers for part in (layer, nn.ReLU())), nn.Flatten()
    )
    weight, bias = model.layers.parameters()
    seen = plain(images.float() / 255)
    assert torch.equal(model(images), (seen @ weight.T + bias).relu())
    assert model(images).any(1).all()
    shapes = [tuple(p.shape) for p in model.parameters() if p.ndim > 1]
    assert shapes == [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3), (512, 3136)]


@double_precision()
def test_normalised_features_by_hand() -> None:
    head = NormalizedFeatures(4, 3)
    x = torch.randn(5, 4)
    linear = head.linear(x)
    centred = linear - linear.mean(1, keepdim=True)
    expected = torch.tanh(centred / (linear.var(1, keepdim=True, correction=0) + 1e-5).sqrt())
    assert_close(head(x), expected)


@double_precision()
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
