"""SAC's target, losses and update by hand and by definition; what all soft actor-critics share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from rl_training.algorithms.functional.squashed_gaussian import squashed_sample
from rl_training.algorithms.sac import SACConfig, sac_loss, soft_target
from rl_training.data.types import Moment
from soft_batches import KINDS, LEARNING, SPEC, make, parameters, random_batch

each_algo = pytest.mark.parametrize("algo", KINDS)


def test_the_target_by_hand_and_no_entropy_after_a_termination() -> None:
    batch = random_batch(2)._replace(
        reward=torch.tensor([1.0, 2.0]), discount=torch.tensor([0.5, 0.0])
    )
    value, cost = torch.tensor([10.0, 1e6]), torch.tensor([-4.0, -1e6])
    # 1 + 0.5 * (10 + 4); the second row terminated: neither value nor entropy follows.
    assert soft_target(batch, value, cost).tolist() == [8.0, 2.0]


def test_the_loss_by_hand() -> None:
    q_values = torch.tensor([[[1.0], [2.0]], [[3.0], [0.0]]])
    target = torch.tensor([2.0, 1.0])
    # Errors -1, 1 and 1, -1: half the squares, over two rows, summed over the critics.
    result = sac_loss(q_values, target)
    assert result.numbers.tolist() == [1.0, 1.5, 1.5]
    assert result.gradient.tolist() == [[[-0.5], [0.5]], [[0.5], [-0.5]]]


def test_a_loss_of_shapes_that_would_broadcast_is_refused() -> None:
    with pytest.raises(ValueError, match="expected"):
        sac_loss(torch.zeros(2, 3, 1), torch.zeros(4))


def test_an_update_is_its_definition() -> None:
    """One update of SAC from networks, automatic differentiation and Adam's first step."""
    agent, batch, rate = make("sac", alpha=0.3, learning_rate=0.01), random_batch(), 0.01
    twin = make("sac", alpha=0.3)
    noise = [torch.from_numpy(twin.noise.step(8).copy()) for _ in range(2)]
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

    stepped(critic_loss, model.critics)
    policy = squashed_sample(model.actor(batch.obs), noise[1])
    value = model.critics(batch.obs, policy.action).amin(0)[:, 0]
    actor_loss = (0.3 * policy.log_prob - value).mean()
    stepped(actor_loss, model.actor)
    result = agent.update(batch, LEARNING)
    assert_close(parameters(agent), parameters(twin), rtol=0, atol=2e-4)
    found = {name: float(x) for name, x in result.metrics.items()}
    assert found["critic_loss"] == pytest.approx(critic_loss.item(), rel=1e-5)
    assert found["actor_loss"] == pytest.approx(actor_loss.item(), rel=1e-4)
    assert found["target_q_mean"] == pytest.approx(aim.mean().item(), rel=1e-5)
    assert found["entropy"] == pytest.approx(-policy.log_prob.mean().item(), rel=1e-4)
    assert found["alpha"] == pytest.approx(0.3)


@each_algo
def test_arrays_and_tensors_give_the_same_update(algo: str) -> None:
    on_arrays, on_tensors = make(algo, policy_delay=1), make(algo, policy_delay=1)
    assert on_arrays.learns_on_host
    on_tensors.learns_on_host = False
    for seed in range(5):
        batch = random_batch(32, seed)
        metrics = [agent.update(batch, LEARNING).metrics for agent in (on_arrays, on_tensors)]
        assert_close(torch.as_tensor(metrics[0].numbers), metrics[1].numbers, rtol=1e-4, atol=1e-5)
    assert_close(parameters(on_arrays), parameters(on_tensors), rtol=0, atol=1e-5)


@each_algo
def test_the_actor_moves_every_so_many_updates_and_the_targets_each_time(algo: str) -> None:
    agent, batch = make(algo, policy_delay=3, tau=0.5), random_batch()
    for number in range(1, 7):
        actor = agent.actor_optimizer.flat.detach().clone()
        target = agent.target._values.clone()
        metrics = agent.update(batch, LEARNING).metrics
        moved = not torch.equal(actor, agent.actor_optimizer.flat.detach())
        assert moved == ("actor_loss" in metrics) == (number % 3 == 0)
        expected = target.lerp(agent.critic_optimizer.flat.detach(), 0.5)
        assert_close(agent.target._values, expected, rtol=0, atol=1e-7)


@each_algo
@pytest.mark.parametrize(("entropy", "grows"), [(50.0, True), (-50.0, False)])
def test_the_temperature_follows_the_entropy(algo: str, entropy: float, grows: bool) -> None:
    agent, batch = make(algo, target_entropy=entropy, policy_delay=1), random_batch()
    alphas = [float(agent.update(batch, LEARNING).metrics["alpha"]) for _ in range(5)]
    assert alphas[0] == pytest.approx(1.0)
    assert alphas == sorted(alphas, reverse=not grows)
    assert len(set(alphas)) == 5


def test_the_temperatures_first_steps_by_hand() -> None:
    agent = make("sac")
    log_prob = torch.tensor([1.0, 2.0])
    agent.temperature.step(log_prob, 0.1)
    # The slope -(1.5 - 2) is positive: Adam's first step takes 0.1 off log alpha.
    assert float(agent.temperature.alpha(log_prob)) == pytest.approx(math.exp(-0.1), rel=1e-5)
    assert float(agent.temperature.alpha(log_prob.numpy())) == pytest.approx(math.exp(-0.1))


@pytest.mark.parametrize("algo", KINDS)
def test_a_fixed_temperature_stays(algo: str) -> None:
    agent = make(algo, alpha=0.25, policy_delay=1)
    for _ in range(3):
        assert float(agent.update(random_batch(), LEARNING).metrics["alpha"]) == pytest.approx(0.25)


def test_target_entropy_is_minus_the_dimensions_unless_given() -> None:
    assert SACConfig().entropy_for(SPEC) == -2.0
    assert SACConfig(target_entropy=-0.5).entropy_for(SPEC) == -0.5


@each_algo
def test_acting(algo: str) -> None:
    agent = make(algo)
    obs = np.random.default_rng(0).normal(size=(4000, 3)).astype(np.float32)
    first = np.zeros(4000, np.bool_)

    def act(moment: Moment, *, explore: bool) -> np.ndarray:
        return agent.act(obs, (), first, moment, explore=explore).action

    warming, learning = Moment(0, 100, 10), Moment(10, 100, 10)
    random = act(warming, explore=True)
    assert np.abs(random).max() <= 1
    assert abs(random.mean()) < 0.03
    assert random.var() == pytest.approx(1 / 3, rel=0.05)  # uniform in [-1, 1]
    means = act(warming, explore=False)
    np.testing.assert_array_equal(means, act(learning, explore=False))
    with torch.no_grad():
        expected = agent.actor(torch.from_numpy(obs))[:, :2].tanh()
    np.testing.assert_allclose(means, expected, rtol=0, atol=1e-6)
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


@each_algo
@pytest.mark.parametrize("options", [{"layer_norm": True}, {"dropout": 0.1}])
def test_regularised_critics_learn_too(algo: str, options: dict[str, Any]) -> None:
    agent, batch = make(algo, learning_rate=0.01, policy_delay=5, **options), random_batch(32)
    assert not agent.learns_on_host
    fixed = batch._replace(discount=torch.zeros(32))  # the target is the reward
    losses = [float(agent.update(fixed, LEARNING).metrics["critic_loss"]) for _ in range(150)]
    assert losses[-1] < 0.3 * losses[0]
