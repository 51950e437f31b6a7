"""Arrays and tensors, written out and automatic gradients: one update, whichever way it is made."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from rl_training.algorithms.dqn import DQN, DQNConfig
from rl_training.algorithms.ppo import PPO
from rl_training.algorithms.ppo_config import PPOConfig
from rl_training.data.types import Batch, EnvSpec, Moment, Rollout
from rl_training.models.blocks import MLP
from rl_training.models.mlp_actor_critic import MLPActorCritic
from rl_training.models.mlp_q_network import MLPQNetwork

OBS = 3
SPECS = {
    "discrete": {"num_actions": 4},
    "continuous": {"action_dim": 2},
    "multi_discrete": {"action_dim": 2, "action_sizes": (3, 2)},
    "multi_binary": {"action_dim": 3},
}
UPDATES = 6


def spec_of(kind: str) -> EnvSpec:
    return EnvSpec(env_id="toy", obs_shape=(OBS,), action_kind=kind, **SPECS[kind])  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def random_batch(seed: int, size: int = 32) -> Batch:
    """Errors on both sides of 1, weights other than 1, some terminations."""
    rng = np.random.default_rng(seed)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.normal(size=shape).astype(np.float32))

    return Batch(
        obs=numbers(size, OBS),
        action=torch.from_numpy(rng.integers(0, 4, size)),
        reward=3 * numbers(size),
        next_obs=numbers(size, OBS),
        discount=torch.from_numpy(rng.choice([0.0, 0.9], size).astype(np.float32)),
        weight=numbers(size).abs() + 0.1,
        slots=np.arange(size),
    )


def random_rollout(spec: EnvSpec, seed: int, steps: int = 24, envs: int = 2) -> Rollout:
    """Terminations, truncations, and rows that only reset."""
    rng = np.random.default_rng(seed)
    shape = (steps, envs)

    def numbers(*sizes: int) -> torch.Tensor:
        return torch.from_numpy(rng.normal(size=sizes).astype(np.float32))

    kinds = {
        "discrete": lambda: rng.integers(0, 4, shape),
        "continuous": lambda: rng.normal(size=(*shape, 2)).astype(np.float32),
        "multi_discrete": lambda: rng.integers(0, (3, 2), (*shape, 2)),
        "multi_binary": lambda: rng.integers(0, 2, (*shape, 3)),
    }
    terminated = rng.random(shape) < 0.1
    ended = terminated | (rng.random(shape) < 0.1)
    open_ended = ended & ~terminated
    open_ended[-1] = ~terminated[-1]
    rows = np.flatnonzero(open_ended)
    return Rollout(
        obs=numbers(*shape, OBS),
        action=torch.from_numpy(kinds[spec.action_kind]()),
        reward=numbers(*shape),
        terminated=torch.from_numpy(terminated),
        ended=torch.from_numpy(ended),
        first=torch.zeros(shape, dtype=torch.bool),
        valid=torch.from_numpy(rng.random(shape) < 0.9),
        bootstrap_rows=torch.from_numpy(rows),
        bootstrap_obs=numbers(len(rows), OBS),
    )


def make_dqn(network: nn.Module, **hyper: Any) -> DQN:
    settings = {"learning_rate": 1e-3, "target_update_interval": 2} | hyper
    return DQN(copy.deepcopy(network), DQNConfig(**settings), spec_of("discrete"))


def make_ppo(network: nn.Module, kind: str, **hyper: Any) -> PPO:
    settings = {"batch_size": 16, "epochs": 2, "learning_rate": 1e-3} | hyper
    return PPO(copy.deepcopy(network), PPOConfig(**settings), spec_of(kind), seed=5)


def q_network() -> MLPQNetwork:
    torch.manual_seed(0)
    return MLPQNetwork(OBS, 4, (16, 16))


def actor_critic(kind: str) -> MLPActorCritic:
    torch.manual_seed(0)
    spec = spec_of(kind)
    network = MLPActorCritic(
        OBS, spec.policy_outputs, (16, 16), gaussian=kind == "continuous", log_std_init=-0.5
    )
    with torch.no_grad():
        network.actor.weight2 *= 100  # far from uniform, so that every term of the loss counts
    return network


def update_both(one: Any, other: Any, batches: list[Any]) -> None:
    """Equal metrics and parameters after each of several updates."""
    start = one.optimizer.flat.detach().clone()
    for number, batch in enumerate(batches):
        moment = Moment(env_steps=number, horizon=100)
        found, expected = one.update(batch, moment), other.update(batch, moment)
        assert found.gradient_steps == expected.gradient_steps
        assert found.metrics.keys() == expected.metrics.keys()
        for name, value in found.metrics.items():
            assert value.dtype == torch.float32, name
            assert value.ndim == 0, name
            assert_close(value, expected.metrics[name], atol=2e-6, rtol=2e-5, msg=name)
        assert (found.priorities is None) == (expected.priorities is None)
        if found.priorities is not None:
            np.testing.assert_allclose(found.priorities, expected.priorities, rtol=1e-4, atol=2e-6)
    assert_close(one.optimizer.flat, other.optimizer.flat, atol=2e-6, rtol=0)
    assert (one.optimizer.flat.detach() - start).abs().max() > 1e-3


DQN_CASES: list[dict[str, Any]] = [
    {},
    {"loss": "mse"},
    {"double": True},
    {"double": True, "loss": "mse", "tau": 0.1, "target_update_interval": None},
    {"optimizer": "rmsprop", "optimizer_eps": 0.01, "max_grad_norm": 0.1},
]


@pytest.mark.parametrize("hyper", DQN_CASES, ids=str)
def test_dqn_on_arrays_equals_dqn_on_tensors(hyper: dict[str, Any]) -> None:
    on_arrays, on_tensors = make_dqn(q_network(), **hyper), make_dqn(q_network(), **hyper)
    assert on_arrays.learns_on_host
    on_tensors.learns_on_host = False
    update_both(on_arrays, on_tensors, [random_batch(seed) for seed in range(UPDATES)])
    mine, other = (list(dqn.target.module.parameters()) for dqn in (on_arrays, on_tensors))
    assert_close(mine, other, atol=2e-6, rtol=0)


PPO_CASES: list[dict[str, Any]] = [
    {},
    {"value_clip_range": 0.05, "entropy_coef": 0.1, "clip_range": 0.02, "max_grad_norm": None},
    {"target_kl": 1e-4, "normalize_advantages": False},
]


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("hyper", PPO_CASES, ids=str)
def test_ppo_on_arrays_equals_ppo_on_tensors(kind: str, hyper: dict[str, Any]) -> None:
    network = actor_critic(kind)
    on_arrays, on_tensors = make_ppo(network, kind, **hyper), make_ppo(network, kind, **hyper)
    assert on_arrays.learns_on_host
    on_tensors.learns_on_host = False
    rollouts = [random_rollout(spec_of(kind), seed) for seed in range(UPDATES)]
    update_both(on_arrays, on_tensors, rollouts)


def test_a_target_kl_ends_an_update_on_arrays_too() -> None:
    ppo = make_ppo(actor_critic("discrete"), "discrete", target_kl=1e-4)
    free = make_ppo(actor_critic("discrete"), "discrete")
    rollout, moment = random_rollout(spec_of("discrete"), 0), Moment(0, 100)
    assert free.update(rollout, moment).gradient_steps > 4
    assert 0 < ppo.update(rollout, moment).gradient_steps < 4


@pytest.mark.parametrize("explore", [True, False])
@pytest.mark.parametrize("kind", ["dqn", *SPECS])
def test_acting_on_arrays_equals_acting_through_tensors(kind: str, explore: bool) -> None:
    def make() -> Any:
        return make_dqn(q_network(), epsilon=0.3) if kind == "dqn" else ppo()

    def ppo() -> PPO:
        return make_ppo(actor_critic(kind), kind)

    on_arrays, on_tensors = make(), make()
    assert on_arrays.acts_on_host
    on_tensors.acts_on_host = False
    rng, first = np.random.default_rng(0), np.zeros(64, np.bool_)
    for step in range(5):
        obs = rng.normal(size=(64, OBS)).astype(np.float32)
        arguments = (obs, (), first, Moment(step, 100))
        found = on_arrays.act(*arguments, explore=explore).action
        expected = on_tensors.act(*arguments, explore=explore).action
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


class PlainQ(nn.Module):
    """What a user would write: modules, and no gradient of its own."""

    def __init__(self, like: MLP) -> None:
        super().__init__()
        self.layers = plain(like, nn.ReLU)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.layers(obs)


class PlainActorCritic(nn.Module):
    """The same for a policy and its value."""

    def __init__(self, like: MLPActorCritic) -> None:
        super().__init__()
        self.actor, self.critic = plain(like.actor, nn.Tanh), plain(like.critic, nn.Tanh)
        if hasattr(like, "log_std"):
            self.log_std = nn.Parameter(like.log_std.detach().clone())

    def policy(self, obs: torch.Tensor) -> torch.Tensor:
        return self.actor(obs)

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        return self.critic(obs).squeeze(-1)


def plain(like: MLP, activation: type[nn.Module]) -> nn.Sequential:
    """Linear layers with the weights of `like`."""
    weights, layers = list(like.parameters()), []
    for weight, bias in zip(weights[::2], weights[1::2], strict=True):
        linear = nn.Linear(weight.shape[1], weight.shape[0])
        with torch.no_grad():
            linear.weight.copy_(weight)
            linear.bias.copy_(bias)
        layers += [linear, activation()]
    return nn.Sequential(*layers[:-1])


def by_name(algorithm: Any) -> torch.Tensor:
    """All parameters, a network's scalars (log_std) last, as both kinds of network order them."""
    weights = dict(algorithm.model.named_parameters())
    log_std = [weights.pop("log_std")] if "log_std" in weights else []
    return torch.cat([p.detach().flatten() for p in [*weights.values(), *log_std]])


@pytest.mark.parametrize("hyper", DQN_CASES[:4], ids=str)
def test_a_users_network_gives_the_update_of_ours_with_its_weights(hyper: dict[str, Any]) -> None:
    ours = make_dqn(q_network(), **hyper)
    theirs = make_dqn(PlainQ(q_network().layers), **hyper)
    assert not theirs.learns_on_host
    assert not theirs.acts_on_host
    for seed in range(UPDATES):
        for dqn in (ours, theirs):
            dqn.update(random_batch(seed), Moment(seed, 100))
        assert_close(by_name(ours), by_name(theirs), atol=2e-6, rtol=0)


@pytest.mark.parametrize("kind", SPECS)
def test_a_users_actor_and_critic_give_the_update_of_ours(kind: str) -> None:
    hyper = {"value_clip_range": 0.05, "entropy_coef": 0.1}
    ours = make_ppo(actor_critic(kind), kind, **hyper)
    theirs = make_ppo(PlainActorCritic(actor_critic(kind)), kind, **hyper)
    assert not theirs.learns_on_host
    for seed in range(UPDATES):
        for ppo in (ours, theirs):
            ppo.update(random_rollout(spec_of(kind), seed), Moment(seed, 100))
        assert_close(by_name(ours), by_name(theirs), atol=2e-6, rtol=0)


def test_several_threads_are_torchs_so_updates_are_made_on_tensors() -> None:
    torch.set_num_threads(2)
    dqn = make_dqn(q_network())
    assert not dqn.learns_on_host
    assert dqn.acts_on_host


def test_numbers_that_are_not_finite_pass_through_both_without_a_warning() -> None:
    for on_host in (True, False):
        dqn = make_dqn(q_network())
        dqn.learns_on_host = on_host
        batch = random_batch(0)
        batch.reward[3] = float("nan")
        metrics = dqn.update(batch, Moment(0, 100)).metrics
        assert torch.isnan(metrics["loss"])
        assert torch.isnan(dqn.optimizer.flat).any()


def test_a_copied_network_computes_on_arrays_with_its_own_weights() -> None:
    network, obs = q_network(), np.ones((2, OBS), np.float32)
    before = network(obs)  # the network now has views of its weights
    twin = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        assert np.array_equal(twin(obs), before)
        assert not network(obs).any()
        for parameter in twin.parameters():
            parameter.zero_()
        assert not twin(obs).any()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_that_comes_to_lie_where_the_network_once_lay_uses_its_own_weights(
    copied: Callable[[MLP], MLP],
) -> None:
    network, obs = MLP((2, 2)), np.ones((1, 2), np.float32)
    network(obs)
    twin = copied(network)
    memory = network.weight0.detach()
    network.weight0.data = torch.zeros(2, 2)
    twin.weight0.data = memory.fill_(3.0)  # as an allocator may do with what was freed
    twin.bias0.data = torch.zeros(2)
    assert twin(obs).tolist() == [[6.0, 6.0]]
