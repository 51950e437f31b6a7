"""The batched ensemble: each member is a perceptron of its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from rl_training.models.blocks import EnsembleMLP
from rl_training.models.mlp_actor_q_ensemble import RegularizedCritics
from rounding import double_precision

SIZES = (5, 7, 6, 2)


def lone(ensemble: EnsembleMLP, member: int, x: Tensor) -> Tensor:
    """What one member gives, layer by layer."""
    parameters = list(ensemble.parameters())
    for weight, bias in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
        x = torch.relu(x @ weight[member] + bias[member, 0])
    return x @ parameters[-2][member] + parameters[-1][member, 0]


@pytest.mark.parametrize("members", [1, 2, 10])
@double_precision()
def test_each_member_is_a_perceptron_of_its_own(members: int) -> None:
    ensemble, x = EnsembleMLP(members, SIZES), torch.randn(9, 5)
    found = ensemble(x)
    assert found.shape == (members, 9, 2)
    for member in range(members):
        assert_close(found[member], lone(ensemble, member, x))


@double_precision()
def test_an_input_for_each_member_and_a_subset_of_the_members() -> None:
    ensemble, x = EnsembleMLP(4, SIZES), torch.randn(4, 9, 5)
    assert_close(ensemble(x)[2], lone(ensemble, 2, x[2]))
    subset = ensemble(x[0], torch.tensor([3, 1]))
    assert subset.shape == (2, 9, 2)
    assert_close(subset[0], lone(ensemble, 3, x[0]))


def test_members_are_initialised_on_their_own_as_a_linear_layer_is() -> None:
    torch.manual_seed(0)
    ensemble = EnsembleMLP(200, (100, 50))
    weight, bias = (p.detach() for p in ensemble.parameters())
    assert weight.shape == (200, 100, 50)
    assert bias.shape == (200, 1, 50)
    # Uniform within 1 / sqrt(100): a standard deviation of 0.1 / sqrt(3).
    for numbers in (weight, bias):
        assert float(numbers.abs().max()) <= 0.1 + 1e-7
        assert float(numbers.std()) == pytest.approx(0.1 / 3**0.5, rel=0.02)
    assert len({float(x) for x in weight[:, 0, 0]}) == 200


@double_precision()
def test_regularised_critics_normalise_each_members_layers() -> None:
    critics = RegularizedCritics(3, 2, (8,), num_critics=2, outputs=1, layer_norm=True)
    obs, action = torch.randn(6, 3), torch.randn(6, 2)
    found = critics(obs, action)
    hidden, last = critics.layers
    raw = hidden(torch.cat([obs, action], 1))
    mean, spread = raw.mean(-1, keepdim=True), raw.var(-1, unbiased=False, keepdim=True)
    assert_close(found, last(torch.relu((raw - mean) / (spread + 1e-5).sqrt())))
    with torch.no_grad():
        critics.scales[0][1] *= 3
    changed = critics(obs, action)
    assert torch.equal(changed[0], found[0])
    assert not torch.allclose(changed[1], found[1])
    assert_close(critics(obs, action, torch.tensor([1])), changed[1:])


def test_dropout_is_for_learning_alone() -> None:
    critics = RegularizedCritics(3, 2, (64,), layer_norm=False, dropout=0.5)
    inputs = torch.randn(6, 3), torch.randn(6, 2)
    assert not torch.equal(critics(*inputs), critics(*inputs))
    critics.eval()
    assert torch.equal(critics(*inputs), critics(*inputs))
