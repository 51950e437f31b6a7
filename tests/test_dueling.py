"""Dueling streams by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from rl_training.config.value_based import C51Config, DQNConfig, QRDQNConfig
from rl_training.models.blocks import MLP, DuelingMLP
from rounding import double_precision

OBS, ACTIONS = 3, 4


def write(layer: MLP, *values: Any) -> None:
    """Set weights and biases in their order."""
    with torch.no_grad():
        for parameter, value in zip(layer.parameters(), values, strict=True):
            parameter.copy_(torch.tensor(value))


def outputs(network: nn.Module, obs: list[list[float]]) -> Any:
    return network(torch.tensor(obs)).tolist()


# By hand.


def test_a_value_plus_advantages_less_their_mean() -> None:
    network = DuelingMLP(1, 2, (1,))
    assert network.trunk is None
    write(network.value, [[1.0]], [0.0], [[3.0]], [1.0])
    write(network.advantage, [[0.5]], [0.0], [[2.0], [-4.0]], [0.0, 1.0])
    # At 2: the value is 3 * 2 + 1 = 7; the advantages are 2 * 1 = 2 and -4 * 1 + 1 = -3, of mean
    # -1/2. At -1 both hidden units are zero: the value 1, the advantages 0 and 1.
    assert outputs(network, [[2.0], [-1.0]]) == [[9.5, 4.5], [0.5, 1.5]]


def test_each_quantile_has_a_value_and_a_mean_of_its_own() -> None:
    network = DuelingMLP(1, 2, (1,), outputs_per_action=2)
    write(network.value, [[1.0]], [0.0], [[3.0], [-1.0]], [1.0, 0.0])
    write(network.advantage, [[1.0]], [0.0], [[1.0], [2.0], [3.0], [8.0]], [0.0] * 4)
    # At 2: values 7 and -2; advantages (2, 4) of the first action and (6, 16) of the second, of
    # means 4 and 10.
    assert outputs(network, [[2.0]]) == [[5.0, -8.0, 9.0, 4.0]]


def test_all_hidden_layers_but_the_last_are_shared() -> None:
    network = DuelingMLP(1, 2, (2, 1))
    assert network.trunk is not None
    write(network.trunk, [[1.0], [-1.0]], [0.0, 0.5])
    write(network.value, [[1.0, 1.0]], [0.0], [[1.0]], [0.0])
    write(network.advantage, [[1.0, -2.0]], [1.0], [[1.0], [3.0]], [0.0, 0.0])
    # At 2 the shared layer gives 2 and 0 (from -1.5): value 2, advantages 3 and 9, mean 6.
    # At -1 it gives 0 and 1.5: value 1.5, and the advantages' unit is at -2, so both are zero.
    assert outputs(network, [[2.0], [-1.0]]) == [[-1.0, 5.0], [1.5, 1.5]]
    sizes = [tuple(p.shape) for p in DuelingMLP(3, 4, (8, 7, 6), outputs_per_action=5).parameters()]
    trunk, stream = [(8, 3), (8,), (7, 8), (7,)], [(6, 7), (6,)]
    assert sizes == [*trunk, *stream, (5, 6), (5,), *stream, (20, 6), (20,)]


@pytest.mark.parametrize("outputs_per_action", [1, 3])
@double_precision()
def test_the_mean_over_actions_is_the_value(outputs_per_action: int) -> None:
    network, obs = DuelingMLP(OBS, ACTIONS, (8, 8), outputs_per_action), torch.randn(6, OBS)
    assert network.trunk is not None
    value = network.value(network.trunk(obs))
    found = network(obs).reshape(6, ACTIONS, outputs_per_action)
    assert_close(found.mean(1), value)
    assert found.std(1).min() > 1e-4  # and the actions differ


# Hyper-parameters.

CONFIGS = pytest.mark.parametrize("config", [DQNConfig, QRDQNConfig, C51Config])


@CONFIGS
def test_dueling_without_a_hidden_layer_is_refused(config: Any) -> None:
    with pytest.raises(ValueError, match="hidden_sizes; give at least one"):
        config(dueling=True, hidden_sizes=())
    assert config(dueling=False, hidden_sizes=()).hidden_sizes == ()


@CONFIGS
def test_dueling_with_a_network_of_ones_own_is_refused(config: Any) -> None:
    with pytest.raises(ValueError, match="have no effect on a custom one"):
        config(dueling=True, network="package.module:network")
    assert config(network="package.module:network").dueling is False
