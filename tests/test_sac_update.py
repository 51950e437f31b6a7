"""SAC's target, losses and update by hand and by definition; what all soft actor-critics share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from rl_training.algorithms.sac import sac_loss
from rl_training.algorithms.soft_actor_critic import soft_target, squashed_sample
from rl_training.config.actor_critic import SACConfig
from rl_training.data.types import Clock
from rl_training.errors import CheckpointError, ConfigError
from rl_training.fast.accelerate import accelerate
from rl_training.models.mlp_actor_q_ensemble import MLPActorQEnsemble
from rounding import double_precision, precise_spec
from soft_batches import KINDS, LEARNING, SPEC, make, parameters, random_batch

each_algo = pytest.mark.parametrize("algo", KINDS)


@pytest.fixture
def one_thread() -> Any:
    """With several threads nothing learns with kernels."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_target_by_hand_and_no_entropy_after_a_termination() -> None:
    batch = random_batch(2)._replace(
        reward=torch.tensor([1.0, 2.0]), discount=torch.tensor([0.5, 0.0])
    )
    value, alpha_log_prob = torch.tensor([10.0, 1e6]), torch.tensor([-4.0, -1e6])
    # 1 + 0.5 * (10 + 4); the second row terminated: neither value nor entropy follows.
    assert soft_target(batch, value, alpha_log_prob).tolist() == [8.0, 2.0]


def test_the_loss_by_hand() -> None:
    q_values = torch.tensor([[[1.0], [2.0]], [[3.0], [0.0]]], requires_grad=True)
    target = torch.tensor([2.0, 1.0], requires_grad=True)
    # Errors -1, 1 and 1, -1: half the squares, over two rows, summed over the critics.
    loss, metrics, priority = sac_loss(q_values, target)
    loss.backward()
    assert loss.item() == 1.0
    assert {name: float(x) for name, x in metrics.items()} == {
        "critic_loss": 1.0,
        "q_value_mean": 1.5,
        "target_q_mean": 1.5,
    }
    assert q_values.grad is not None
    assert q_values.grad.tolist() == [[[-0.5], [0.5]], [[0.5], [-0.5]]]
    assert target.grad is None  # a target carries no gradient
    assert priority is None


def test_a_loss_of_shapes_that_would_broadcast_is_refused() -> None:
    with pytest.raises(ValueError, match="expected"):
        sac_loss(torch.zeros(2, 3, 1), torch.zeros(4))


def flat_gradient(loss: torch.Tensor, module: torch.nn.Module) -> torch.Tensor:
    grads = torch.autograd.grad(loss, list(module.parameters()), retain_graph=True)
    return torch.cat([grad.flatten() for grad in grads])


@each_algo
@double_precision()
def test_the_actors_gradient_is_that_of_its_loss(algo: str) -> None:
    """Critics that do not move leave the actor's loss as it was before the update."""
    agent, batch = make(algo, alpha=0.3, policy_delay=1), random_batch()
    agent.critic_optimizer.step = lambda *_: None  # type: ignore[method-assign]
    twin = make(algo, alpha=0.3)
    twin.noise.take(8)
    policy = squashed_sample(twin.actor(batch.obs), torch.from_numpy(twin.noise.take(8).copy()))
    values = twin.critics(batch.obs, policy.action)
    value = values.amin(0)[:, 0] if algo == "sac" else values.mean((0, 2))
    loss = (0.3 * policy.log_prob - value).mean()
    result = agent.update(batch, LEARNING)
    expected = flat_gradient(loss, twin.actor)
    assert_close(agent.actor_optimizer.flat.grad, expected)
    assert float(result.metrics["actor_loss"]) == pytest.approx(loss.item(), rel=1e-6)


@double_precision()
def test_an_update_is_its_definition() -> None:
    """One update of SAC from networks, automatic differentiation and Adam's first step."""
    agent, batch, rate = make("sac", alpha=0.3, learning_rate=0.01), random_batch(), 0.01
    twin = make("sac", alpha=0.3)
    noise = [torch.from_numpy(twin.noise.take(8).copy()) for _ in range(2)]
    model, target = twin.model, twin.target.module
    policy = squashed_sample(model.actor(batch.next_obs), noise[0])
    lowest = target(batch.next_obs, policy.action).amin(0)[:, 0]
    aim = (batch.reward + batch.discount * (lowest - 0.3 * policy.log_prob)).detach()
    q_values = model.critics(batch.obs, batch.action)[:, :, 0]
    critic_loss = 0.5 * ((q_values - aim) ** 2).mean(1).sum()

    def stepped(loss: torch.Tensor, module: torch.nn.Module) -> None:
        grads = torch.autograd.grad(loss, list(module.parameters()))
        with torch.no_grad():
            for p, grad in zip(module.parameters(), grads, strict=True):
                p -= rate * grad / (grad.abs() + 1e-8)

    critic_grad = flat_gradient(critic_loss, model.critics)
    stepped(critic_loss, model.critics)
    policy = squashed_sample(model.actor(batch.obs), noise[1])
    value = model.critics(batch.obs, policy.action).amin(0)[:, 0]
    actor_loss = (0.3 * policy.log_prob - value).mean()
    actor_grad = flat_gradient(actor_loss, model.actor)
    stepped(actor_loss, model.actor)
    result = agent.update(batch, LEARNING)
    # Adam's first step has the same size whatever the gradient's, so that is compared as well.
    assert_close(agent.critic_optimizer.flat.grad, critic_grad)
    assert_close(agent.actor_optimizer.flat.grad, actor_grad)
    assert_close(parameters(agent), parameters(twin))
    found = {name: float(x) for name, x in result.metrics.items()}
    assert found["critic_loss"] == pytest.approx(critic_loss.item(), rel=1e-6)
    assert found["actor_loss"] == pytest.approx(actor_loss.item(), rel=1e-6)
    assert found["target_q_mean"] == pytest.approx(aim.mean().item(), rel=1e-6)
    assert found["entropy"] == pytest.approx(-policy.log_prob.mean().item(), rel=1e-6)
    assert found["alpha"] == pytest.approx(0.3)


@each_algo
@double_precision()
def test_the_actor_moves_every_so_many_updates_and_the_targets_each_time(algo: str) -> None:
    agent, batch = make(algo, policy_delay=3, tau=0.5), random_batch()
    for number in range(1, 7):
        actor = agent.actor_optimizer.flat.detach().clone()
        target = agent.target._values.clone()
        metrics = agent.update(batch, LEARNING).metrics
        moved = not torch.equal(actor, agent.actor_optimizer.flat.detach())
        assert moved == ("actor_loss" in metrics) == (number % 3 == 0)
        expected = target.lerp(agent.critic_optimizer.flat.detach(), 0.5)
        assert_close(agent.target._values, expected)


@each_algo
@pytest.mark.parametrize(("entropy", "grows"), [(50.0, True), (-50.0, False)])
def test_the_temperature_follows_the_entropy(algo: str, entropy: float, grows: bool) -> None:
    agent, batch = make(algo, target_entropy=entropy, policy_delay=1), random_batch()
    alphas = [float(agent.update(batch, LEARNING).metrics["alpha"]) for _ in range(5)]
    assert alphas[0] == pytest.approx(1.0)
    assert alphas == sorted(alphas, reverse=not grows)
    assert len(set(alphas)) == 5


def test_the_temperatures_first_steps_by_hand() -> None:
    temperature = make("sac").temperature
    assert float(temperature.alpha) == 1.0
    # The entropy, -1.5, is above its target of -2, so log alpha's slope is 0.5, whatever alpha is.
    assert temperature.loss(torch.tensor(-1.5)).item() == 0.0  # log 1 * 0.5
    temperature.update(torch.tensor(-1.5), 0.1)  # Adam's first step takes 0.1 off log alpha
    assert float(temperature.alpha) == pytest.approx(math.exp(-0.1), rel=1e-5)
    assert temperature.loss(torch.tensor(-1.5)).item() == pytest.approx(-0.1 * 0.5)


@pytest.mark.parametrize("algo", KINDS)
def test_a_fixed_temperature_stays(algo: str) -> None:
    agent = make(algo, alpha=0.25, policy_delay=1)
    for _ in range(3):
        assert float(agent.update(random_batch(), LEARNING).metrics["alpha"]) == pytest.approx(0.25)


def test_target_entropy_is_minus_the_dimensions_unless_given() -> None:
    assert SACConfig().target_entropy_for(SPEC.action_dim) == -2.0
    assert SACConfig(target_entropy=-0.5).target_entropy_for(SPEC.action_dim) == -0.5


@each_algo
@double_precision()
def test_acting(algo: str) -> None:
    agent = make(algo)
    obs = np.random.default_rng(0).normal(size=(4000, 3))
    first = np.zeros(4000, np.bool_)

    def act(clock: Clock, *, explore: bool) -> np.ndarray:
        return agent.act(obs, (), first, clock, explore=explore).action

    warming, learning = Clock(0, 100, 10), Clock(10, 100, 10)
    random = act(warming, explore=True)
    assert np.abs(random).max() <= 1
    assert abs(random.mean()) < 0.03
    assert random.var() == pytest.approx(1 / 3, rel=0.05)  # uniform in [-1, 1]
    means = act(warming, explore=False)
    np.testing.assert_array_equal(means, act(learning, explore=False))
    with torch.no_grad():
        expected = agent.actor(torch.from_numpy(obs))[:, :2].tanh()
    np.testing.assert_allclose(means, expected, rtol=0, atol=1e-7)
    sampled = act(learning, explore=True)
    assert np.abs(sampled).max() <= 1
    assert np.abs(sampled - act(learning, explore=True)).mean() > 0.1


@each_algo
def test_a_saved_agent_goes_on_as_if_never_stopped(algo: str) -> None:
    straight, stopped, resumed = (make(algo, seed, policy_delay=3) for seed in (0, 0, 9))
    for number in range(8):
        straight.update(random_batch(8, number), LEARNING)
    for number in range(4):
        stopped.update(random_batch(8, number), LEARNING)
    resumed.load_state_dict(stopped.state_dict())
    for number in range(4, 8):
        resumed.update(random_batch(8, number), LEARNING)
    assert torch.equal(parameters(straight), parameters(resumed))
    assert torch.equal(straight.target._values, resumed.target._values)


def test_a_saved_count_of_updates_below_zero_is_refused() -> None:
    agent = make("sac", 0)
    with pytest.raises(CheckpointError, match="updates: expected a natural number"):
        agent.load_state_dict(agent.state_dict() | {"updates": -1})


@each_algo
@pytest.mark.parametrize("options", [{"layer_norm": True}, {"dropout": 0.1}])
def test_regularised_critics_learn_too(algo: str, options: dict[str, Any]) -> None:
    agent, batch = make(algo, learning_rate=0.01, policy_delay=5, **options), random_batch(32)
    fixed = batch._replace(discount=torch.zeros(32))  # the target is the reward
    torch.manual_seed(0)  # of the units that are dropped
    losses = [float(agent.update(fixed, LEARNING).metrics["critic_loss"]) for _ in range(250)]
    assert np.mean(losses[-20:]) < 0.3 * losses[0]


@each_algo
@double_precision()
def test_regularised_critics_learn_the_same_with_kernels(algo: str, one_thread: None) -> None:
    """Each of their layers has a kernel, whose inputs differ between the critics."""
    plain, accelerated = (make(algo, policy_delay=1, layer_norm=True) for _ in range(2))
    accelerate(accelerated)
    for seed in range(3):
        for agent in (plain, accelerated):
            agent.update(random_batch(32, seed), LEARNING)
    assert_close(parameters(plain), parameters(accelerated))


def test_targets_drop_units_too() -> None:
    """Dropout in the targets, as in DroQ: the same batch has another target each time."""
    for dropout, differs in ((0.5, True), (0.0, False)):
        agent = make("sac", alpha=0.0, layer_norm=True, dropout=dropout, tau=1e-12)
        agent.noise.take = lambda rows: np.zeros((rows, 2), np.float32)  # type: ignore[method-assign]
        agent.critic_optimizer.step = lambda *_: None  # type: ignore[method-assign]
        agent.actor_optimizer.step = lambda *_: None  # type: ignore[method-assign]
        batch = random_batch(32)
        targets = {float(agent.update(batch, LEARNING).metrics["target_q_mean"]) for _ in range(4)}
        assert (len(targets) > 1) == differs


@double_precision()
def test_regularised_critics_normalise_before_the_activation_and_after_dropout() -> None:
    hyper = SACConfig(hidden_sizes=(6,), layer_norm=True, dropout=0.5)
    critics = MLPActorQEnsemble.build(SPEC, hyper).critics
    obs, action = torch.randn(5, 3), torch.randn(5, 2)
    first, last = critics.layers
    with torch.no_grad():
        critics.scales[0].uniform_(0.5, 2)
        critics.shifts[0].uniform_(-1, 1)
        torch.manual_seed(1)
        x = torch.nn.functional.dropout(first(torch.cat([obs, action], 1)), 0.5)
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
        expected = last(torch.relu(x * critics.scales[0] + critics.shifts[0]))
        torch.manual_seed(1)
        assert_close(critics.train()(obs, action), expected)
        chosen = torch.tensor([1])
        assert_close(critics.eval()(obs, action, chosen), critics(obs, action)[1:])


def test_target_critics_follow_layer_norms_as_well() -> None:
    agent = make("sac", layer_norm=True, tau=0.25)
    before = agent.target.module.scales[0].clone()
    agent.update(random_batch(), LEARNING)
    moved = before.lerp(agent.critics.scales[0].detach(), 0.25)
    assert_close(agent.target.module.scales[0], moved)
    assert not torch.equal(before, moved)


def test_a_tau_of_one_copies_at_every_update() -> None:
    agent = make("sac", tau=1.0)
    for _ in range(3):  # at one clock: many updates may belong to a step
        agent.update(random_batch(), LEARNING)
        assert torch.equal(agent.target._values, agent.critic_optimizer.flat.detach())


def test_gradients_are_held_to_their_norm_each() -> None:
    agent = make("sac", max_grad_norm=1e-3)
    agent.update(random_batch(), LEARNING)
    for optimizer in (agent.actor_optimizer, agent.critic_optimizer):
        assert float(optimizer.flat.grad.norm()) == pytest.approx(1e-3, rel=1e-2)


def test_critics_have_layers_of_their_own() -> None:
    agent = make("tqc", critic_hidden_sizes=(5, 4, 3), num_quantiles=7)
    shapes = [tuple(p.shape) for p in agent.critics.parameters() if p.shape[-2] > 1]
    assert shapes == [(5, 5, 5), (5, 5, 4), (5, 4, 3), (5, 3, 7)]
    assert [p.shape[0] for p in agent.actor.parameters() if p.ndim == 2] == [16, 16, 4]
    linear = make("sac", critic_hidden_sizes=())
    assert [tuple(p.shape) for p in linear.critics.parameters()] == [(2, 5, 1), (2, 1, 1)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"network": "a:b", "dropout": 0.1, "layer_norm": True}, "layer_norm, dropout configure"),
        ({"network": "a:b", "critic_hidden_sizes": (8,)}, "critic_hidden_sizes configure"),
        ({"alpha": 0.1, "target_entropy": -1.0}, "no effect beside a fixed alpha, 0.1"),
        ({"layer_norm": True, "hidden_sizes": ()}, "need a hidden layer in the critics"),
        ({"alpha": -0.1}, "alpha"),
    ],
)
def test_options_without_effect_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SACConfig(**options)


# Custom networks.


class Custom(torch.nn.Module):
    """The package's networks inside others, which have no kernel."""

    def __init__(self, model: Any, *, members: bool = True) -> None:
        super().__init__()
        self.actor = torch.nn.Sequential(Plain(model.actor))
        self.critics = Plain(model.critics) if members else PlainPair(model.critics)


class Plain(torch.nn.Module):
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *inputs: Any) -> Any:
        return self.inner(*inputs)


class PlainPair(Plain):
    def forward(self, obs: Any, action: Any) -> Any:
        return self.inner(obs, action)


@pytest.mark.parametrize("accelerated", [False, True])
@each_algo
@double_precision()
def test_a_custom_network_learns_the_same(algo: str, accelerated: bool, one_thread: None) -> None:
    """Accelerated, packaged networks have kernels of the losses, custom ones of their layers."""
    packaged = make(algo, policy_delay=1)
    kind, _ = KINDS[algo]
    model = Custom(make(algo).model, members=algo == "redq")
    custom = kind(model, packaged.hyper, precise_spec(SPEC), seed=0)
    for agent in (packaged, custom) if accelerated else ():
        accelerate(agent)
        assert bool(agent.critic_optimizer.kernels) == (agent is packaged)
    for seed in range(3):
        batch = random_batch(32, seed)
        metrics = [agent.update(batch, LEARNING).metrics for agent in (packaged, custom)]
        for name in metrics[0]:
            assert float(metrics[0][name]) == pytest.approx(float(metrics[1][name])), name
    assert_close(parameters(packaged), parameters(custom))


class Shared(torch.nn.Module):
    def __init__(self, *, beside: bool) -> None:
        super().__init__()
        model = make("sac").model
        self.actor, self.critics = model.actor, model.critics
        if beside:
            self.encoder = torch.nn.Linear(3, 3)
        else:
            self.critics.borrowed = self.actor.layers


@pytest.mark.parametrize(
    ("algo", "network", "message"),
    [
        ("sac", lambda: torch.nn.Linear(3, 4), "expected a module named actor, found none"),
        ("sac", lambda: Shared(beside=False), "actor and critics share parameters"),
        ("sac", lambda: Shared(beside=True), "found others, which would not be trained"),
        ("tqc", lambda: make("sac").model, r"expected \(critics, batch, outputs\) \(5, 1, 25\)"),
        (
            "redq",
            lambda: Custom(make("redq").model, members=False),
            r"members \[0, 1\]\): expected",
        ),
    ],
)
def test_a_network_that_does_not_fit_is_refused(algo: str, network: Any, message: str) -> None:
    kind, config = KINDS[algo]
    with pytest.raises(ConfigError, match=message):
        kind(network(), config(), SPEC)
