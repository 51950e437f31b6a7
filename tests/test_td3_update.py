"""TD3's targets, losses, update and exploration by hand and by definition, and DDPG in it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from rl_training.algorithms.td3 import TD3, td3_loss, td3_target
from rl_training.config.actor_critic import TD3Config
from rl_training.config.schedule import Schedule
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.types import Clock, Transitions
from rl_training.errors import ConfigError
from rl_training.fast.accelerate import accelerate
from rl_training.models.mlp_actor_q_ensemble import MLPActorQEnsemble
from rounding import double_precision, precise_spec
from soft_batches import LEARNING, SPEC, random_batch

DDPG: dict[str, Any] = {"num_critics": 1, "target_noise": 0.0, "policy_delay": 1}


def make(seed: int = 0, **hyper: Any) -> TD3:
    settings = TD3Config(**{"hidden_sizes": (16, 16), **hyper})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = MLPActorQEnsemble.build_deterministic(SPEC, settings)
    return TD3(model, settings, precise_spec(SPEC), seed=seed)


def parameters(agent: TD3) -> Tensor:
    """All numbers the agent has learned, and its targets'."""
    parts = (agent.actor_optimizer, agent.critic_optimizer, agent.target, agent.target_actor)
    return torch.cat([part.flat.detach() for part in parts])


@torch.no_grad()
def set_constant(module: nn.Module, *values: float) -> None:
    """Make a network without hidden layers give these numbers before a squashing."""
    weight, bias = module.layers.parameters()
    weight.zero_()
    bias.copy_(torch.tensor(values).reshape(bias.shape))


def gradient(loss: Tensor, module: nn.Module) -> Tensor:
    grads = torch.autograd.grad(loss, list(module.parameters()), retain_graph=True)
    return torch.cat([grad.flatten() for grad in grads])


def test_the_target_is_the_lowest_critic_and_ends_with_a_termination() -> None:
    batch = random_batch(2)._replace(
        reward=torch.tensor([1.0, 2.0]), discount=torch.tensor([0.5, 0.0])
    )
    # 1 + 0.5 * min(10, 4); the second row terminated.
    assert td3_target(batch, torch.tensor([[10.0, 1e6], [4.0, 1e6]])).tolist() == [3.0, 2.0]
    with pytest.raises(ValueError, match="expected"):
        td3_target(batch, torch.zeros(2, 3))


def test_the_loss_by_hand() -> None:
    q_values = torch.tensor([[1.0, 2.0], [3.0, 0.0]], requires_grad=True)  # two critics, two rows
    target = torch.tensor([2.0, 1.0], requires_grad=True)
    loss, metrics, _ = td3_loss(q_values, target)
    loss.backward()
    # Errors -1, 1 and 1, -1: means over the rows of 1 each, added over the critics.
    assert {name: float(x) for name, x in metrics.items()} == {
        "critic_loss": 2.0,
        "q_value_mean": 1.5,
        "target_q_mean": 1.5,
    }
    assert loss.item() == 2.0
    assert q_values.grad is not None
    assert q_values.grad.tolist() == [[-1.0, 1.0], [1.0, -1.0]]
    assert target.grad is None  # a target carries no gradient
    with pytest.raises(ValueError, match="expected"):
        td3_loss(torch.zeros(2, 3), torch.zeros(2))


def test_target_actions_are_smoothed_within_their_bounds() -> None:
    agent = make(hidden_sizes=(), target_noise=0.2, noise_clip=0.5)
    set_constant(agent.target_actor.module, math.atanh(0.9), math.atanh(-0.2))
    draws = np.array([[10.0, 10.0], [0.5, -0.5], [-10.0, -10.0]], np.float32)
    agent.noise.take = lambda rows: draws[:rows]  # type: ignore[method-assign]
    smoothed: list[Tensor] = []
    inner = agent.target.module.forward
    agent.target.module.forward = lambda obs, action: smoothed.append(action) or inner(obs, action)
    agent.update(random_batch(3), LEARNING)
    # Noise of 0.2 * 10 is held to 0.5, and then the action to 1.
    expected = torch.tensor([[1.0, 0.3], [1.0, -0.3], [0.4, -0.7]])
    assert len(smoothed) == 1
    assert_close(smoothed[0], expected)


@double_precision()
def test_the_update_learns_the_lowest_target_critics_value() -> None:
    agent, batch = make(hidden_sizes=()), random_batch()
    set_constant(agent.target.module, 5.0, 3.0)
    found = agent.update(batch, LEARNING).metrics["target_q_mean"]
    assert float(found) == pytest.approx((batch.reward + 3 * batch.discount).mean().item())


def test_a_truncation_bootstraps_and_a_termination_does_not() -> None:
    """From the buffer on: each row has a reward of 1, and the targets expect 10."""
    hyper = TD3Config(gamma=0.5, buffer_size=50)
    replay = ReplayBuffer.build(SPEC, hyper, num_envs=3, seed=0, device=torch.device("cpu"))
    flags, ones = np.zeros(3, np.bool_), np.ones(3, np.float32)
    replay.add(
        Transitions(
            obs=np.array([[1, 0, 0], [2, 0, 0], [3, 0, 0]], np.float32),
            action=np.zeros((3, 2), np.float32),
            reward=ones,
            next_obs=np.zeros((3, 3), np.float32),
            terminated=np.array([True, False, False]),
            truncated=np.array([False, True, False]),
            first=~flags,
            valid=~flags,
        )
    )
    batch = replay.sample(64, LEARNING)
    target = td3_target(batch, torch.full((2, 64), 10.0))
    by_row = {int(row): float(number) for row, number in zip(batch.obs[:, 0], target, strict=True)}
    assert by_row == {1: 1.0, 2: 6.0, 3: 6.0}


@double_precision()
def test_an_update_is_its_definition() -> None:
    """Networks, automatic differentiation and Adam's first step, with the actor at every update."""
    options: dict[str, Any] = {"learning_rate": 0.01, "policy_delay": 1, "tau": 0.1}
    agent, twin, batch, rate = make(**options), make(**options), random_batch(), 0.01
    model = twin.model
    noise = (0.2 * torch.from_numpy(twin.noise.take(8).copy())).clip(-0.5, 0.5)
    action = (twin.target_actor.module(batch.next_obs) + noise).clip(-1, 1)
    lowest = twin.target.module(batch.next_obs, action).amin(0)[:, 0]
    aim = (batch.reward + batch.discount * lowest).detach()
    q_values = model.critics(batch.obs, batch.action)[:, :, 0]
    critic_loss = ((q_values - aim) ** 2).mean(1).sum()
    critic_grad = gradient(critic_loss, model.critics)
    before = parameters(twin)

    def stepped(grad: Tensor, module: nn.Module) -> None:
        with torch.no_grad():
            for p, part in zip(
                module.parameters(),
                grad.split([p.numel() for p in module.parameters()]),
                strict=True,
            ):
                p -= (rate * part / (part.abs() + 1e-8)).view_as(p)

    stepped(critic_grad, model.critics)
    # The actor follows the first critic, as it is after its step.
    actor_loss = -model.critics(batch.obs, model.actor(batch.obs))[0].mean()
    actor_grad = gradient(actor_loss, model.actor)
    stepped(actor_grad, model.actor)
    result = agent.update(batch, LEARNING)
    # Adam's first step has the same size whatever the gradient's, so that is compared as well.
    assert_close(agent.critic_optimizer.flat.grad, critic_grad)
    assert_close(agent.actor_optimizer.flat.grad, actor_grad)
    online, targets = parameters(twin).chunk(2)
    expected = torch.cat([online, *polyak(before, online, agent)])
    assert_close(parameters(agent), expected)
    assert torch.equal(targets, before.chunk(2)[1])  # the twin's own have not moved
    found = {name: float(x) for name, x in result.metrics.items()}
    assert found == pytest.approx(
        {
            "critic_loss": critic_loss.item(),
            "q_value_mean": q_values.mean().item(),
            "target_q_mean": aim.mean().item(),
            "actor_loss": actor_loss.item(),
        }
    )


def polyak(before: Tensor, online: Tensor, agent: TD3) -> list[Tensor]:
    """The targets, critics first, a tenth of the way from the networks before to those now."""
    sizes = [agent.actor_optimizer.flat.numel(), agent.critic_optimizer.flat.numel()]
    actor, critics = online.split(sizes)
    old_actor, old_critics = before[: len(online)].split(sizes)
    return [0.9 * old_critics + 0.1 * critics, 0.9 * old_actor + 0.1 * actor]


@pytest.mark.parametrize("delay", [1, 2, 3])
@double_precision()
def test_actor_and_both_targets_move_once_in_so_many_updates(delay: int) -> None:
    agent, batch = make(policy_delay=delay, tau=0.25), random_batch()
    pairs = ((agent.target, agent.critic_optimizer), (agent.target_actor, agent.actor_optimizer))
    for number in range(1, 7):
        actor = agent.actor_optimizer.flat.detach().clone()
        critics = agent.critic_optimizer.flat.detach().clone()
        targets = [target.flat.detach().clone() for target, _ in pairs]
        metrics = agent.update(batch, LEARNING).metrics
        due = number % delay == 0
        assert ("actor_loss" in metrics) == due
        assert torch.equal(actor, agent.actor_optimizer.flat.detach()) != due
        assert not torch.equal(critics, agent.critic_optimizer.flat.detach())
        for before, (target, online) in zip(targets, pairs, strict=True):
            if due:
                assert_close(target.flat.detach(), before.lerp(online.flat.detach(), 0.25))
            else:
                assert torch.equal(target.flat, before)


def test_the_actors_loss_leaves_the_critics_alone() -> None:
    agent = make(policy_delay=1)
    watched: dict[str, Tensor] = {}
    step, critics = agent.critic_optimizer.step, agent.critic_optimizer.flat

    def watch(*inputs: Any) -> None:
        step(*inputs)
        watched.update(weights=critics.detach().clone(), grad=critics.grad.clone())  # type: ignore[union-attr]

    agent.critic_optimizer.step = watch  # type: ignore[method-assign]
    agent.update(random_batch(), LEARNING)  # whose actor's step comes after the critics'
    assert torch.equal(watched["weights"], critics.detach())
    assert critics.grad is not None
    assert torch.equal(watched["grad"], critics.grad)


@double_precision()
def test_ddpg_is_the_plain_deterministic_policy_gradient() -> None:
    """Silver et al. (2014), Theorem 1: the mean of grad_a Q(s, a) at a = mu(s), times grad mu."""
    agent, twin, batch = make(**DDPG), make(**DDPG), random_batch()
    agent.critic_optimizer.step = lambda *_: None  # type: ignore[method-assign]
    with torch.no_grad():
        action = twin.target_actor.module(batch.next_obs)  # without noise
        aim = batch.reward + batch.discount * twin.target.module(batch.next_obs, action)[0, :, 0]
    action = twin.actor(batch.obs)
    leaf = action.detach().requires_grad_()
    (grad_action,) = torch.autograd.grad(twin.critics(batch.obs, leaf).sum(), leaf)
    ascent = torch.autograd.grad(action, list(twin.actor.parameters()), grad_action / len(action))
    found = agent.update(batch, LEARNING).metrics
    assert float(found["target_q_mean"]) == pytest.approx(aim.mean().item())
    expected = torch.cat([-part.flatten() for part in ascent])
    assert_close(agent.actor_optimizer.flat.grad, expected)
    assert float(expected.abs().max()) > 1e-4


@double_precision()
def test_the_measured_value_is_the_critics_mean_at_the_actors_action() -> None:
    agent = make(hidden_sizes=())
    set_constant(agent.actor, *[0.5] * SPEC.action_dim)
    set_constant(agent.critics, 1.0, 4.0)
    obs, noise = np.ones((2, SPEC.obs_dim)), np.ones((2, SPEC.action_dim))
    action, value, alpha_log_prob = agent.sampled_values(obs, noise)
    assert action == pytest.approx(np.full(noise.shape, math.tanh(0.5)))  # no noise in it
    assert value.tolist() == [2.5, 2.5]
    assert alpha_log_prob.tolist() == [0.0, 0.0]


@double_precision()
def test_exploration() -> None:
    agent = make(noise=Schedule(initial=0.2, final=0.0, fraction=0.5))
    obs = np.random.default_rng(0).normal(size=(4000, 3))
    first = np.zeros(4000, np.bool_)

    def act(step: int, *, explore: bool, of: TD3 = agent) -> np.ndarray:
        return of.act(obs, (), first, Clock(step, 1000, 10), explore=explore).action

    random = act(0, explore=True)
    assert np.abs(random).max() <= 1
    assert abs(random.mean()) < 0.03
    assert random.var() == pytest.approx(1 / 3, rel=0.05)  # uniform in [-1, 1]
    means = act(0, explore=False)
    with torch.no_grad():
        np.testing.assert_allclose(means, agent.actor(torch.from_numpy(obs)), rtol=0, atol=1e-7)
    assert np.abs(means).max() < 0.6  # so that noise is not cut off at the bounds
    noise = act(250, explore=True) - means  # half of 0.2
    assert abs(noise.mean()) < 0.005
    assert noise.std() == pytest.approx(0.1, rel=0.03)
    assert agent.schedules(Clock(250, 1000, 10))["noise"] == pytest.approx(0.1)
    np.testing.assert_array_equal(act(500, explore=True), means.astype(np.float32))
    wide = act(20, explore=True, of=make(noise=50.0))
    assert np.abs(wide).max() == 1.0  # what goes into replay is what the environment is given
    assert wide.dtype == np.float32


def test_a_saved_agent_goes_on_as_if_never_stopped() -> None:
    straight, stopped, resumed = (make(seed, policy_delay=3) for seed in (0, 0, 9))
    for number in range(8):
        straight.update(random_batch(8, number), LEARNING)
    for number in range(4):  # within a delay of the actor
        stopped.update(random_batch(8, number), LEARNING)
    resumed.load_state_dict(stopped.state_dict())
    for number in range(4, 8):
        resumed.update(random_batch(8, number), LEARNING)
    assert torch.equal(parameters(straight), parameters(resumed))
    obs, first = random_batch().obs.numpy(), np.zeros(8, np.bool_)
    actions = [
        agent.act(obs, (), first, LEARNING, explore=True).action for agent in (straight, resumed)
    ]
    np.testing.assert_array_equal(*actions)


@pytest.mark.parametrize("options", [{}, {"layer_norm": True}, DDPG])
@double_precision()
def test_kernels_of_its_layers_learn_the_same(options: dict[str, Any]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    plain, accelerated = make(**options), make(**options)
    accelerate(accelerated)
    torch.set_num_threads(before)
    for seed in range(4):
        for agent in (plain, accelerated):
            agent.update(random_batch(32, seed), LEARNING)
    assert_close(parameters(plain), parameters(accelerated))


@pytest.mark.parametrize("options", [{}, {"layer_norm": True}])
def test_the_critics_learn_rewards(options: dict[str, Any]) -> None:
    agent, batch = make(learning_rate=0.01, **options), random_batch(32)
    fixed = batch._replace(discount=torch.zeros(32))  # the target is the reward
    losses = [float(agent.update(fixed, LEARNING).metrics["critic_loss"]) for _ in range(200)]
    assert losses[-1] < 0.1 * losses[0]


def test_layers_are_as_asked() -> None:
    agent = make(hidden_sizes=(7,), critic_hidden_sizes=(5, 4), num_critics=3)
    shapes = [tuple(p.shape) for p in agent.critics.parameters() if p.shape[-2] > 1]
    assert shapes == [(3, 5, 5), (3, 5, 4), (3, 4, 1)]
    assert [tuple(p.shape) for p in agent.actor.parameters() if p.ndim == 2] == [(7, 3), (2, 7)]
    actions = agent.actor(100 * torch.randn(50, 3))
    assert float(actions.detach().abs().max()) <= 1.0


def test_the_defaults_are_the_authors() -> None:
    hyper = TD3Config()
    assert (hyper.learning_rate, hyper.batch_size, hyper.tau) == (3e-4, 256, 0.005)
    assert (hyper.noise, hyper.target_noise, hyper.noise_clip) == (0.1, 0.2, 0.5)
    assert (hyper.policy_delay, hyper.num_critics, hyper.learning_starts) == (2, 2, 25_000)
    assert (hyper.hidden_sizes, hyper.gamma, hyper.replay_ratio) == ((256, 256), 0.99, 1.0)


class Pair(nn.Module):
    """An actor and critics of the given sizes."""

    def __init__(self, actions: int = 2, critics: int = 2) -> None:
        super().__init__()
        hyper = TD3Config(num_critics=critics, hidden_sizes=(4,))
        self.critics = MLPActorQEnsemble.build_deterministic(SPEC, hyper).critics
        self.actor = nn.Linear(3, actions)


def test_a_custom_network_is_checked() -> None:
    TD3(Pair(), TD3Config(), SPEC)
    with pytest.raises(ConfigError, match=r"actor\(obs\): expected .* \(1, 2\), found \(1, 3\)"):
        TD3(Pair(actions=3), TD3Config(), SPEC)
    with pytest.raises(ConfigError, match=r"critics\(obs, action\): .* \(2, 1, 1\), found \(5, "):
        TD3(Pair(critics=5), TD3Config(), SPEC)
    with pytest.raises(ConfigError, match="expected a module named actor, found none"):
        TD3(nn.Linear(3, 2), TD3Config(), SPEC)
    with pytest.raises(ValueError, match="layer_norm configure the default network"):
        TD3Config(network="a:b", layer_norm=True)
