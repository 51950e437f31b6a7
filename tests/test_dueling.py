"""Dueling streams by hand, and the gradients of every value network against automatic ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from rl_training.algorithms.c51 import C51Config
from rl_training.algorithms.dqn import DQN, DQNConfig
from rl_training.algorithms.gradients import writes_out_its_gradient
from rl_training.algorithms.optimization import flatten
from rl_training.algorithms.qr_dqn import QRDQNConfig
from rl_training.data.types import EnvSpec, Moment
from rl_training.models.blocks import MLP
from rl_training.models.dueling import DuelingMLP
from rl_training.models.mlp_categorical_q_network import MLPCategoricalQNetwork
from rl_training.models.mlp_q_network import MLPQNetwork
from rl_training.models.mlp_qr_q_network import MLPQRQNetwork
from value_batches import as_arrays, random_batch

OBS, ACTIONS, WIDTH = 3, 4, 5
NETWORKS = {
    "q": lambda sizes, dueling: MLPQNetwork(OBS, ACTIONS, sizes, dueling=dueling),
    "quantile": lambda sizes, dueling: MLPQRQNetwork(OBS, ACTIONS, WIDTH, sizes, dueling=dueling),
    "categorical": lambda sizes, dueling: MLPCategoricalQNetwork(
        OBS, ACTIONS, WIDTH, sizes, dueling=dueling
    ),
}


def write(layer: MLP, *values: Any) -> None:
    """Set weights and biases in their order."""
    with torch.no_grad():
        for parameter, value in zip(layer.parameters(), values, strict=True):
            parameter.copy_(torch.tensor(value))


def both(network: nn.Module, obs: list[list[float]]) -> Tensor:
    """The output for tensors, after a check that arrays give the same."""
    tensor = torch.tensor(obs)
    found = network(tensor).detach()
    array = network(as_arrays(tensor))
    assert isinstance(array, np.ndarray)
    np.testing.assert_allclose(array, found, rtol=1e-5, atol=1e-6)
    return found


# By hand.


def test_a_value_plus_advantages_less_their_mean() -> None:
    network = DuelingMLP(1, 2, (1,))
    assert network.trunk is None
    write(network.value, [[1.0]], [0.0], [[3.0]], [1.0])
    write(network.advantage, [[0.5]], [0.0], [[2.0], [-4.0]], [0.0, 1.0])
    # At 2: the value is 3 * 2 + 1 = 7; the advantages are 2 * 1 = 2 and -4 * 1 + 1 = -3, of mean
    # -1/2. At -1 both hidden units are zero: the value 1, the advantages 0 and 1.
    assert both(network, [[2.0], [-1.0]]).tolist() == [[9.5, 4.5], [0.5, 1.5]]


def test_each_quantile_has_a_value_and_a_mean_of_its_own() -> None:
    network = DuelingMLP(1, 2, (1,), width=2)
    write(network.value, [[1.0]], [0.0], [[3.0], [-1.0]], [1.0, 0.0])
    write(network.advantage, [[1.0]], [0.0], [[1.0], [2.0], [3.0], [8.0]], [0.0] * 4)
    # At 2: values 7 and -2; advantages (2, 4) of the first action and (6, 16) of the second, of
    # means 4 and 10.
    assert both(network, [[2.0]]).tolist() == [[5.0, -8.0, 9.0, 4.0]]


def test_all_hidden_layers_but_the_last_are_shared() -> None:
    network = DuelingMLP(1, 2, (2, 1))
    assert network.trunk is not None
    write(network.trunk, [[1.0], [-1.0]], [0.0, 0.5])
    write(network.value, [[1.0, 1.0]], [0.0], [[1.0]], [0.0])
    write(network.advantage, [[1.0, -2.0]], [1.0], [[1.0], [3.0]], [0.0, 0.0])
    # At 2 the shared layer gives 2 and 0 (from -1.5): value 2, advantages 3 and 9, mean 6.
    # At -1 it gives 0 and 1.5: value 1.5, and the advantages' unit is at -2, so both are zero.
    assert both(network, [[2.0], [-1.0]]).tolist() == [[-1.0, 5.0], [1.5, 1.5]]
    sizes = [tuple(p.shape) for p in DuelingMLP(3, 4, (8, 7, 6), width=5).parameters()]
    trunk, stream = [(8, 3), (8,), (7, 8), (7,)], [(6, 7), (6,)]
    assert sizes == [*trunk, *stream, (5, 6), (5,), *stream, (20, 6), (20,)]


@pytest.mark.parametrize("width", [1, 3])
def test_the_mean_over_actions_is_the_value(width: int) -> None:
    network, obs = DuelingMLP(OBS, ACTIONS, (8, 8), width), torch.randn(6, OBS)
    assert network.trunk is not None
    value = network.value(network.trunk(obs))
    outputs = network(obs).reshape(6, ACTIONS, width)
    assert_close(outputs.mean(1), value)
    assert outputs.std(1).min() > 1e-4  # and the actions differ


# Gradients.


def written(network: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in network.parameters()]  # type: ignore[union-attr]


@pytest.mark.parametrize("arrays", [False, True], ids=["tensors", "arrays"])
@pytest.mark.parametrize("sizes", [(8,), (8, 7), (8, 7, 6)], ids=str)
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_gradient_of_a_network(
    name: str, dueling: bool, sizes: tuple[int, ...], arrays: bool
) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name](sizes, dueling)
    assert writes_out_its_gradient(network)
    flatten(network, gradients=True)
    shape = (ACTIONS,) if name == "q" else (ACTIONS, WIDTH)
    for rows in (1, 6):
        obs, grad = torch.randn(rows, OBS), torch.randn(rows, *shape)
        expected_output = network(obs)
        expected = torch.autograd.grad(expected_output, list(network.parameters()), grad)
        output, pull_back = network.vjp(as_arrays(obs) if arrays else obs)
        assert isinstance(output, np.ndarray) == arrays
        assert output.shape == (rows, *shape)
        assert_close(torch.as_tensor(output), expected_output.detach())
        for parameter in network.parameters():
            parameter.grad.fill_(99.0)  # type: ignore[union-attr]
        pull_back(as_arrays(grad) if arrays else grad.clone())  # overwrites
        for mine, other in zip(written(network), expected, strict=True):
            assert_close(mine, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("arrays", [False, True], ids=["tensors", "arrays"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("features", [False, True])
@pytest.mark.parametrize("sizes", [(3, 5), (3, 8, 4)])
def test_the_gradient_of_features_and_of_the_input(
    sizes: tuple[int, ...], features: bool, activation: Any, arrays: bool
) -> None:
    torch.manual_seed(0)
    network = MLP(sizes, activation=activation, features=features)
    flatten(network, gradients=True)
    obs, grad = torch.randn(6, sizes[0], requires_grad=True), torch.randn(6, sizes[-1])
    expected_output = network(obs)
    *expected, by_obs = torch.autograd.grad(expected_output, [*network.parameters(), obs], grad)
    given = as_arrays if arrays else (lambda x: x.detach().clone())
    output, pull_back = network.vjp(given(obs), to_input=True)
    assert_close(torch.as_tensor(output), expected_output.detach())
    if features and activation == "relu":
        assert output.min() == 0.0
    assert_close(torch.as_tensor(pull_back(given(grad))), by_obs, atol=1e-5, rtol=1e-5)
    for mine, other in zip(written(network), expected, strict=True):
        assert_close(mine, other, atol=1e-5, rtol=1e-5)
    _, pull_back = network.vjp(given(obs))
    assert pull_back(given(grad)) is None  # the input's gradient is for those who ask


def test_updates_with_dueling_streams_are_alike_on_arrays_and_tensors() -> None:
    spec = EnvSpec(env_id="toy", obs_shape=(OBS,), action_kind="discrete", num_actions=ACTIONS)
    ends = []
    for on_host in (True, False):
        torch.manual_seed(0)
        hyper = DQNConfig(dueling=True, hidden_sizes=(16, 16), learning_rate=1e-3, tau=0.1)
        dqn = DQN(MLPQNetwork.build(spec, hyper), hyper, spec)
        assert isinstance(dqn.model.layers, DuelingMLP)
        start = dqn.optimizer.flat.detach().clone()
        dqn.learns_on_host = on_host
        for seed in range(6):
            dqn.update(random_batch(seed, 32, ACTIONS, OBS), Moment(seed, 100))
        ends.append(dqn.optimizer.flat.detach())
        assert (ends[-1] - start).abs().max() > 1e-3
    assert_close(ends[0], ends[1], atol=2e-6, rtol=0)


# Hyper-parameters.

CONFIGS = pytest.mark.parametrize("config", [DQNConfig, QRDQNConfig, C51Config])


@CONFIGS
def test_dueling_without_a_hidden_layer_is_refused(config: Any) -> None:
    with pytest.raises(ValueError, match="hidden_sizes; give at least one"):
        config(dueling=True, hidden_sizes=())
    assert config(dueling=False, hidden_sizes=()).hidden_sizes == ()


@CONFIGS
def test_dueling_with_a_network_of_ones_own_is_refused(config: Any) -> None:
    with pytest.raises(ValueError, match="leave it out with a network of your own"):
        config(dueling=True, network="package.module:network")
    assert config(network="package.module:network").dueling is False
