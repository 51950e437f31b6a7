"""Layer normalisation in value networks: by hand, where it goes, and what it bounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from rl_training.config.value_based import C51Config, DQNConfig, DRQNConfig, QRDQNConfig
from rl_training.data.types import EnvSpec
from rl_training.models.blocks import MLP, NoisyMLP, q_layers
from rl_training.models.mlp_categorical_q_network import MLPCategoricalQNetwork
from rl_training.models.mlp_q_network import MLPQNetwork
from rl_training.models.mlp_qr_q_network import MLPQRQNetwork
from rl_training.models.recurrent.lstm_q_network import LSTMQNetwork
from rounding import double_precision

SPEC = EnvSpec(env_id="toy", obs_shape=(3,), action_kind="discrete", num_actions=2)
VARIANTS = [{"dueling": dueling, "noisy": noisy} for dueling in (0, 1) for noisy in (0, 1)]


def write(module: Any, **values: Any) -> None:
    with torch.no_grad():
        for name, value in values.items():
            getattr(module, name).copy_(torch.tensor(value))


@double_precision()
def test_a_row_is_standardised_scaled_shifted_and_rectified() -> None:
    network = MLP((1, 2, 1), layer_norm=True)
    write(network, weight0=[[3.0], [1.0]], bias0=[0.0, 0.0], scale0=[2.0, 5.0], shift0=[1.0, 6.0])
    write(network, weight1=[[10.0, 100.0]], bias1=[0.5])
    # At 1 the layer gives 3 and 1, of mean 2 and variance 1: standardised 1 and -1 (but for the
    # 1e-5 beside the variance), scaled and shifted 2 + 1 = 3 and -5 + 6 = 1. At -1 it gives -3 and
    # -1, so -1 and 1: then -2 + 1 = -1, which the ReLU cuts off, and 5 + 6 = 11.
    unit = (1 + 1e-5) ** -0.5
    expected = [
        [10 * (2 * unit + 1) + 100 * (-5 * unit + 6) + 0.5],
        [100 * (5 * unit + 6) + 0.5],
    ]
    assert_close(network(torch.tensor([[1.0], [-1.0]])), torch.tensor(expected))


def test_it_goes_before_every_activation_and_nowhere_else() -> None:
    def sizes(layers: Any) -> list[int]:
        return [len(scale) for scale, _ in layers.norms]

    assert sizes(MLP((3, 8, 6, 2), layer_norm=True)) == [8, 6]
    assert sizes(MLP((3, 8, 6), activate_last=True, layer_norm=True)) == [8, 6]
    assert sizes(MLP((3, 8, 6, 2))) == []
    dueling: Any = q_layers(3, 2, (8, 6), dueling=True, layer_norm=True)
    assert [sizes(part) for part in (dueling.trunk, dueling.value, dueling.advantage)] == [
        [8],
        [6],
        [6],
    ]
    trunk, head = q_layers(3, 2, (8, 6), noisy=True, layer_norm=True).children()
    assert (sizes(trunk), sizes(head.mean), sizes(head.sigma)) == ([8], [6], [])
    recurrent: Any = LSTMQNetwork.build(
        SPEC, DRQNConfig(hidden_sizes=(8, 6), core_size=5, dueling=True, layer_norm=True)
    )
    assert [sizes(part) for part in (recurrent.encoder, recurrent.head.value)] == [[8, 6], [5]]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@double_precision()
def test_values_cannot_grow_with_the_weights_before_a_normalisation(options: Any) -> None:
    # The reason for the option: hidden weights a thousand times as large change no value, and
    # however far an observation is out, features stay within sqrt(width) of zero.
    network: Any = q_layers(3, 2, (8, 8), layer_norm=True, **options)
    obs = 100 * torch.randn(16, 3)
    before = network(obs)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, MLP) and module.norms:
                for weight, bias in module.linears[: len(module.norms)]:
                    weight.mul_(1e3), bias.mul_(1e3)
            if isinstance(module, NoisyMLP):
                for weight, bias in module.sigma.linears[:-1]:
                    weight.mul_(1e3), bias.mul_(1e3)
    # 1e-5 beside variances of at least a few hundredths moves values by up to a thousandth.
    assert_close(network(obs), before, rtol=1e-2, atol=1e-2)
    plain: Any = q_layers(3, 2, (8, 8), **options)
    found = plain(obs)
    with torch.no_grad():
        next(iter(plain.parameters())).mul_(1e3)
    assert (plain(obs) - found).abs().max() > 10  # without it they do grow


@pytest.mark.parametrize(
    ("network", "config"),
    [
        (MLPQNetwork, DQNConfig),
        (MLPQRQNetwork, QRDQNConfig),
        (MLPCategoricalQNetwork, C51Config),
        (LSTMQNetwork, DRQNConfig),
    ],
)
def test_the_setting_reaches_the_network_of_each_algorithm(network: Any, config: Any) -> None:
    for layer_norm in (False, True):
        built = network.build(SPEC, config(hidden_sizes=(4,), layer_norm=layer_norm))
        scales = [name for name, _ in built.named_parameters() if "scale" in name]
        assert len(scales) == layer_norm
    with pytest.raises(ValueError, match="layer_norm configure the default network"):
        config(layer_norm=True, network="package.module:network")
