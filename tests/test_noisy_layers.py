"""Noisy layers (Fortunato et al., 2018): their noise, when it acts, and what Rainbow is made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from rl_training.algorithms.c51 import C51
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.value_based import ValueBased
from rl_training.config.value_based import C51Config, DQNConfig, DRQNConfig
from rl_training.data.types import Clock, EnvSpec
from rl_training.experiment.registry import resolve_config
from rl_training.models.blocks import MLP, DuelingMLP, NoisyMLP, q_layers
from rl_training.models.mlp_categorical_q_network import MLPCategoricalQNetwork
from rl_training.models.mlp_q_network import MLPQNetwork
from rl_training.models.recurrent.lstm_q_network import LSTMQNetwork
from value_batches import random_batch

SPEC = EnvSpec(env_id="toy", obs_shape=(3,), action_kind="discrete", num_actions=2)
EXPLORING = Clock(env_steps=50, horizon=100)


def test_a_layer_adds_sigma_times_the_product_of_its_factors() -> None:
    layer = NoisyMLP((2, 1))
    with torch.no_grad():
        layer.mean.weight0.copy_(torch.tensor([[1.0, 2.0]]))
        layer.mean.bias0.copy_(torch.tensor([0.5]))
        layer.sigma.weight0.copy_(torch.tensor([[0.1, 0.2]]))
        layer.sigma.bias0.copy_(torch.tensor([0.3]))
        layer.noise.copy_(torch.tensor([2.0, -1.0, 3.0]))  # of two inputs and one output
    # Weights 1 + 0.1 * 3 * 2 = 1.6 and 2 + 0.2 * 3 * -1 = 1.4, bias 0.5 + 0.3 * 3 = 1.4.
    x = torch.tensor([[1.0, 10.0]])
    assert_close(layer(x), torch.tensor([[1.6 + 14.0 + 1.4]]))
    assert_close(layer.eval()(x), torch.tensor([[1.0 + 20.0 + 0.5]]))


def test_hidden_layers_are_rectified_and_each_has_its_own_factors() -> None:
    layer = NoisyMLP((1, 1, 1))
    with torch.no_grad():
        for part, value in ((layer.mean, 1.0), (layer.sigma, 1.0)):
            for parameter in part.parameters():
                parameter.fill_(value)
        layer.noise.copy_(torch.tensor([1.0, -2.0, 1.0, 0.5]))
    # First layer: weight 1 - 2 = -1, bias -1; second: weight 1.5, bias 1.5.
    assert_close(layer(torch.tensor([[-3.0]])), torch.tensor([[2.0 * 1.5 + 1.5]]))
    assert_close(layer(torch.tensor([[3.0]])), torch.tensor([[1.5]]))  # -4 is cut off at 0


def test_factors_are_signed_roots_of_normal_numbers() -> None:
    layer = NoisyMLP((3, 2))
    layer.resample(np.random.default_rng(7))
    drawn = np.random.default_rng(7).standard_normal(5, np.float32)
    assert_close(layer.noise, torch.from_numpy(np.sign(drawn) * np.sqrt(np.abs(drawn))))


def test_sigma_starts_at_half_the_bound_of_the_means() -> None:
    layer = NoisyMLP((16, 4, 2))
    assert (layer.sigma.weight0 == 0.125).all()  # 0.5 / sqrt(16)
    assert (layer.sigma.bias1 == 0.25).all()  # 0.5 / sqrt(4)
    assert layer.mean.weight0.abs().max() <= 0.25


def test_noise_goes_into_the_last_two_layers_or_into_both_streams() -> None:
    plain = q_layers(3, 2, (8, 6), noisy=True)
    trunk, head = plain.children()
    assert [type(trunk), type(head)] == [MLP, NoisyMLP]
    assert [tuple(w.shape) for w, _ in head.mean.linears] == [(6, 8), (2, 6)]
    dueling: Any = q_layers(3, 2, (8, 6), dueling=True, noisy=True)
    assert isinstance(dueling, DuelingMLP)
    kinds = [type(part) for part in (dueling.trunk, dueling.value, dueling.advantage)]
    assert kinds == [MLP, NoisyMLP, NoisyMLP]
    assert isinstance(q_layers(3, 2, (), noisy=True), NoisyMLP)
    recurrent = LSTMQNetwork.build(SPEC, DRQNConfig(hidden_sizes=(4,), core_size=5, noisy=True))
    assert isinstance(recurrent.head, NoisyMLP)


def noisy_dqn(seed: int = 0, **hyper: Any) -> DQN:
    settings = DQNConfig(hidden_sizes=(16, 16), noisy=True, epsilon=0, **hyper)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = MLPQNetwork.build(SPEC, settings)
    return DQN(network, settings, SPEC, seed=seed)


def noises(network: torch.nn.Module) -> list[torch.Tensor]:
    return [m.noise.clone() for m in network.modules() if isinstance(m, NoisyMLP)]


def test_exploring_draws_noise_at_every_step_and_greedy_acting_has_none() -> None:
    dqn = noisy_dqn()
    with torch.no_grad():
        for layer in dqn.model.modules():
            if isinstance(layer, NoisyMLP):
                for sigma in layer.sigma.parameters():
                    sigma.fill_(1.0)  # louder than the means
    obs, first = np.ones((1, 3), np.float32), np.zeros(1, np.bool_)

    def actions(explore: bool) -> set[int]:
        results = [dqn.act(obs, (), first, EXPLORING, explore=explore) for _ in range(64)]
        return {int(result.action[0]) for result in results}

    assert actions(explore=True) == {0, 1}  # of 64 fair coins all alike: 2 ** -63
    before = noises(dqn.model)
    assert len(actions(explore=False)) == 1
    assert all(map(torch.equal, noises(dqn.model), before))


def test_both_networks_are_noisy_in_an_update_each_with_its_own_noise() -> None:
    dqn = noisy_dqn()
    dqn.update(random_batch(0, 8, 2, obs_dim=3), EXPLORING)
    online, target = noises(dqn.model)[0], noises(dqn.target.module)[0]
    assert online.any()
    assert target.any()
    assert not torch.equal(online, target)
    assert dqn.target.module.training


def test_sigma_is_learned() -> None:
    dqn = noisy_dqn(learning_rate=1e-2)
    (layer,) = (m for m in dqn.model.modules() if isinstance(m, NoisyMLP))
    start = layer.sigma.weight0.detach().clone()
    for number in range(5):
        dqn.update(random_batch(number, 8, 2, obs_dim=3), EXPLORING)
    assert (layer.sigma.weight0 - start).abs().max() > 1e-3


def rainbow(seed: int) -> C51:
    options = {"double": True, "dueling": True, "noisy": True, "epsilon": 0}
    settings = C51Config(hidden_sizes=(8, 8), num_atoms=11, **options)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = MLPCategoricalQNetwork.build(SPEC, settings)
    return C51(network, settings, SPEC, seed=seed)


@pytest.mark.parametrize("build", [noisy_dqn, rainbow])
def test_a_saved_state_continues_bit_for_bit(build: Any) -> None:
    obs, first = np.ones((2, 3), np.float32), np.zeros(2, np.bool_)

    def trained(algorithm: ValueBased, numbers: range) -> list[Any]:
        seen = []
        for number in numbers:
            seen.append(algorithm.act(obs, (), first, EXPLORING, explore=True).action.tolist())
            algorithm.update(random_batch(number, 8, 2, obs_dim=3), Clock(number, 100))
        return seen

    straight, half, resumed = build(0), build(0), build(1)
    actions = trained(straight, range(8))
    trained(half, range(4))
    resumed.load_state_dict(half.state_dict())
    assert trained(resumed, range(4, 8)) == actions[4:]
    assert torch.equal(resumed.optimizer.flat, straight.optimizer.flat)
    assert all(map(torch.equal, noises(resumed.target.module), noises(straight.target.module)))


def test_the_packaged_rainbow_has_its_six_components() -> None:
    for name in ("rainbow/cartpole", "rainbow/lunarlander"):
        loaded = resolve_config(name)
        hyper = loaded.hyper
        assert loaded.config.algo == "c51"
        assert isinstance(hyper, C51Config)
        assert hyper.double
        assert hyper.dueling
        assert hyper.prioritized
        assert hyper.noisy
        assert hyper.n_step == 3
        assert hyper.epsilon == 0


def test_noise_is_refused_beside_a_custom_network() -> None:
    with pytest.raises(ValueError, match="noisy configure the default network"):
        DQNConfig(noisy=True, network="package.module:build")
