"""DrQ-v2's loss, targets, gradients and noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from rl_training.algorithms.drqv2 import BOUND, DrQv2, bounded, drqv2_loss
from rl_training.algorithms.functional.random_shift import random_shift
from rl_training.config.actor_critic import DrQv2Config
from rl_training.config.schedule import Schedule
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.types import Clock
from rl_training.errors import ConfigError
from rl_training.models.cnn.drqv2 import CNNDrQv2Model
from rounding import double_precision, rounding
from test_drq_update import LEARNING, ROWS, SPEC, gradient, precise_images, random_batch


def make(seed: int = 0, **hyper: Any) -> DrQv2:
    settings = DrQv2Config(**{"hidden_sizes": (8,), "feature_size": 7, "pad": 2, **hyper})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = precise_images(CNNDrQv2Model.build(SPEC, settings))
    return DrQv2(model, settings, SPEC, seed=seed)


def test_the_loss_by_hand() -> None:
    q_values = torch.tensor([[1.0, 2.0], [3.0, 0.0]], requires_grad=True)  # two critics, two rows
    target = torch.tensor([2.0, 1.0], requires_grad=True)
    loss, metrics, _ = drqv2_loss(q_values, target)
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
        drqv2_loss(torch.zeros(2, 3), torch.zeros(2))


@double_precision()
def test_an_update_is_its_definition() -> None:
    options: dict[str, Any] = {"noise": 0.5, "noise_clip": 0.3}
    agent, twin, batch = make(**options), make(**options), random_batch()

    def shifted(images: Tensor) -> Tensor:
        offsets = twin.shifts.numpy.integers(0, 5, (ROWS, 2))
        return random_shift(images, torch.from_numpy(offsets), 2)

    def noise() -> Tensor:
        return (0.5 * torch.from_numpy(twin.noise.take(ROWS).copy())).clip(-0.3, 0.3)

    images, following = shifted(batch.obs), shifted(batch.next_obs)
    with torch.no_grad():
        # The next features come from the online encoder: there is no target copy of it.
        seen = twin.model.encoder(following)
        action = (twin.model.actor(seen) + noise()).clip(-BOUND, BOUND)
        value = twin.target.module(seen, action).amin(0)[:, 0]
        target = batch.reward + batch.discount * value
    q_values = twin.model.critics(twin.model.encoder(images), batch.action)[:, :, 0]
    loss = drqv2_loss(q_values, target).value
    trained = {"encoder": agent.encoder_optimizer, "critics": agent.critic_optimizer}
    expected = {name: gradient_of(loss, twin, name) for name in trained}
    result = agent.update(batch, LEARNING)
    for name, grad in expected.items():
        assert_close(trained[name].flat.grad, grad)
    assert float(result.metrics["critic_loss"]) == pytest.approx(loss.item())
    assert float(result.metrics["target_q_mean"]) == pytest.approx(target.mean().item())
    # The actor sees the features from before the encoder's step, and the critics after theirs.
    features = twin.model.encoder(images).detach()
    draws = noise()
    mean = twin.model.actor(features)
    action = mean + draws
    held = action + (action.clip(-BOUND, BOUND) - action).detach()
    actor_loss = -agent.model.critics(features, held).amin(0).mean()
    grad_actor = gradient(actor_loss, twin.model.actor)
    assert_close(agent.actor_optimizer.flat.grad, grad_actor)
    assert float(result.metrics["actor_loss"]) == pytest.approx(actor_loss.item())


@double_precision()
def test_the_target_critics_follow_slowly() -> None:
    agent = make(tau=0.1, learning_rate=0.1)
    before = [p.detach().clone() for p in agent.target.module.parameters()]
    agent.update(random_batch(), LEARNING)
    online = list(agent.model.critics.parameters())
    for old, new, found in zip(before, online, agent.target.module.parameters(), strict=True):
        assert_close(found.detach(), 0.9 * old + 0.1 * new.detach())
    assert any(not torch.equal(old, new) for old, new in zip(before, online, strict=True))


def gradient_of(loss: Tensor, agent: DrQv2, name: str) -> Tensor:
    parameters = list(getattr(agent.model, name).parameters())
    grads = torch.autograd.grad(loss, parameters, retain_graph=True)
    return torch.cat([grad.flatten() for grad in grads])


def test_the_actors_loss_does_not_train_the_encoder() -> None:
    agent = make()
    encoder = agent.encoder_optimizer
    assert encoder.flat.grad is not None
    seen: dict[str, Tensor] = {}
    step = agent.actor_optimizer.step

    def watched(*inputs: Any) -> None:
        seen.update(weights=encoder.flat.detach().clone(), grad=encoder.flat.grad.clone())  # type: ignore[union-attr]
        step(*inputs)

    agent.actor_optimizer.step = watched  # type: ignore[method-assign]
    before = encoder.flat.detach().clone()
    agent.update(random_batch(), LEARNING)
    assert not torch.equal(before, seen["weights"])  # the critics' loss has moved it
    assert torch.equal(seen["weights"], encoder.flat.detach())
    assert torch.equal(seen["grad"], encoder.flat.grad)
    own = set(agent.model.actor.parameters()) & set(agent.model.encoder.parameters())
    assert not own


def test_noise_is_clipped_and_bounds_let_gradients_through() -> None:
    agent = make(noise_clip=0.3)
    mean = torch.tensor([[0.99, -0.99]] * 200, requires_grad=True)
    action = bounded(mean + agent.clipped_noise(len(mean), 5.0))
    assert float(action.detach().max()) <= BOUND
    assert float(action.detach().min()) >= -BOUND
    assert float((action - mean).detach().abs().max()) <= 0.3 + 1e-6
    action.sum().backward()
    assert mean.grad is not None
    assert torch.equal(mean.grad, torch.ones_like(mean))  # also where the bound holds the action


def test_noise_while_acting_follows_its_schedule() -> None:
    agent = make(noise=Schedule(initial=1.0, final=0.0, fraction=0.5))
    images = random_batch().obs.numpy()
    first = np.zeros(ROWS, np.bool_)

    def distance(step: int) -> float:
        clock = Clock(step, 1000, 10)
        greedy = agent.act(images, (), first, clock, explore=False).action
        noisy = [agent.act(images, (), first, clock, explore=True).action for _ in range(100)]
        return float(np.mean([np.abs(action - greedy).mean() for action in noisy]))

    wide = make(noise=50.0).act(images, (), first, Clock(500, 1000, 10), explore=True).action
    assert np.abs(wide).max() == 1.0  # what goes into replay is what the environment is given
    assert agent.schedules(Clock(250, 1000, 10))["noise"] == pytest.approx(0.5)
    assert distance(500) == 0.0
    assert distance(490) == pytest.approx(0.02 * np.sqrt(2 / np.pi), rel=0.2)
    warming = agent.act(images, (), first, Clock(5, 1000, 10), explore=True).action
    assert np.abs(warming).max() <= 1.0


def test_it_learns_from_three_rewards_at_once() -> None:
    buffer = ReplayBuffer.build(SPEC, DrQv2Config(buffer_size=50), num_envs=1, seed=0, device="cpu")
    assert (buffer.n_step, buffer.gamma) == (3, 0.99)


def test_it_goes_on_where_it_stopped() -> None:
    straight, stopped, resumed = make(), make(), make(9)
    for number in range(4):
        straight.update(random_batch(number), LEARNING)
    for number in range(2):
        stopped.update(random_batch(number), LEARNING)
    resumed.load_state_dict(stopped.state_dict())
    for number in range(2, 4):
        resumed.update(random_batch(number), LEARNING)
    for mine, other in zip(straight.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_termination_ends_the_target() -> None:
    """With a discount of zero the target is the reward, whatever follows."""
    agent, batch = make(), random_batch()
    ended = batch._replace(discount=torch.zeros(ROWS))
    found = agent.update(ended, LEARNING).metrics["target_q_mean"]
    # Either mean is rounded as often as it has terms, by a share of their mean size.
    size = batch.reward.abs().mean().item()
    assert float(found) == pytest.approx(batch.reward.mean().item(), abs=rounding(ROWS, size))


@double_precision()
def test_weights_start_orthogonal() -> None:
    model = make(hidden_sizes=(8, 8)).model
    for layer in model.encoder.layers:
        rows = layer.weight.detach().reshape(len(layer.weight), -1)
        assert_close(rows @ rows.T, 2 * torch.eye(len(rows)))
    square = [w.detach() for w in model.critics.layers.parameters() if w.shape[-2:] == (8, 8)]
    square += [w.detach() for w in model.actor.layers.parameters() if w.shape[-2:] == (8, 8)]
    matrices = torch.cat([weight.reshape(-1, 8, 8) for weight in square])
    assert len(matrices) == 3  # of two critics and an actor
    assert_close(matrices @ matrices.mT, torch.eye(8).expand(3, 8, 8))
    assert not torch.equal(matrices[0], matrices[1])


class Unfit(torch.nn.Module):
    """An encoder, an actor and critics of the given output sizes."""

    def __init__(self, actions: int = 2, critics: int = 2, *, shared: bool = False) -> None:
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Flatten(), Scaled())
        self.actor = torch.nn.LazyLinear(actions)
        self.critics = Critics(critics)
        if shared:
            self.critics.layer = self.actor
        self(torch.zeros(1, *SPEC.obs_shape, dtype=torch.uint8))

    def forward(self, images: Tensor) -> Tensor:
        seen = self.encoder(images)
        return self.actor(seen), self.critics(seen, torch.zeros(1, 2))


class Scaled(torch.nn.Module):
    """Eight features of uint8 images, and of nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.LazyLinear(8)

    def forward(self, images: Tensor) -> Tensor:
        assert images.dtype == torch.uint8
        return self.layer(images / 255)


class Critics(torch.nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.count, self.layer = count, torch.nn.LazyLinear(1)

    def forward(self, seen: Tensor, action: Tensor) -> Tensor:
        del action
        return self.layer(seen)[None, :, :1].expand(self.count, -1, -1)


def test_a_custom_network_is_checked() -> None:
    DrQv2(Unfit(), DrQv2Config(), SPEC)
    with pytest.raises(ConfigError, match=r"the actor to give \(1, 2\).*found \(1, 3\)"):
        DrQv2(Unfit(actions=3), DrQv2Config(), SPEC)
    with pytest.raises(ConfigError, match=r"critics \(2, 1, 1\).*and \(5, 1, 1\)"):
        DrQv2(Unfit(critics=5), DrQv2Config(), SPEC)
    with pytest.raises(ConfigError, match="actor and critics and encoder share parameters"):
        DrQv2(Unfit(shared=True), DrQv2Config(), SPEC)
    with pytest.raises(ConfigError, match="expected a module named actor, found none"):
        DrQv2(torch.nn.Linear(2, 2), DrQv2Config(), SPEC)


def test_frozen_and_unused_layers_stay_as_they_are() -> None:
    settings = DrQv2Config(hidden_sizes=(8,), feature_size=7, pad=2)
    model = CNNDrQv2Model.build(SPEC, settings)
    model.encoder.layers[0].requires_grad_(False)
    model.actor.spare = torch.nn.Linear(2, 2)
    agent = DrQv2(model, settings, SPEC)
    frozen = model.encoder.layers[0].weight.clone()
    trained = model.encoder.layers[1].weight.clone()
    spare = model.actor.spare.weight.detach().clone()
    agent.update(random_batch(), LEARNING)
    assert torch.equal(frozen, model.encoder.layers[0].weight)
    assert torch.equal(spare, model.actor.spare.weight)
    assert not torch.equal(trained, model.encoder.layers[1].weight)
    model.encoder.requires_grad_(False)
    with pytest.raises(ConfigError, match="expected trainable parameters, found none"):
        DrQv2(model, settings, SPEC)
