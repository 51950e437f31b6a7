"""DrQ's loss, targets and gradients; where it is SAC; and convolutions that stay tied."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from rl_training.algorithms.drq import DrQ, drq_critic_loss, drq_loss
from rl_training.algorithms.functional.random_shift import random_shift
from rl_training.algorithms.sac import SAC
from rl_training.algorithms.soft_actor_critic import soft_actor_loss, squashed_sample
from rl_training.config.actor_critic import DrQConfig, DrQv2Config, SACConfig
from rl_training.config.hyper_parameters import HyperParameters
from rl_training.config.train_config import check_hyper_parameters
from rl_training.data.types import Batch, Clock, EnvSpec
from rl_training.errors import ConfigError
from rl_training.models.cnn.drq import CNNDrQModel
from rl_training.models.cnn.encoders import Convolutions
from rounding import double_precision, precise

SPEC = EnvSpec(
    env_id="toy",
    obs_shape=(6, 20, 20),
    obs_dtype="uint8",
    frames=2,
    action_kind="continuous",
    action_dim=2,
)
LEARNING = Clock(100, 1000, 10)
ROWS = 5


def precise_images(model: torch.nn.Module) -> Any:
    """Images go through its convolutions in the precision that tensors are made in."""
    for module in model.modules():
        if isinstance(module, Convolutions):  # which makes bytes numbers of single precision
            module.layers[0].register_forward_pre_hook(lambda _, inputs: precise(inputs))
    return model


def make(seed: int = 0, **hyper: Any) -> DrQ:
    settings = DrQConfig(**{"hidden_sizes": (8,), "feature_size": 7, "policy_delay": 1, **hyper})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = precise_images(CNNDrQModel.build(SPEC, settings))
    return DrQ(model, settings, SPEC, seed=seed)


def random_batch(seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def images() -> Tensor:
        shape = (ROWS, *SPEC.obs_shape)
        return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)

    return Batch(
        obs=images(),
        action=torch.rand(ROWS, 2, generator=generator) * 2 - 1,
        reward=torch.randn(ROWS, generator=generator),
        next_obs=images(),
        discount=torch.where(torch.arange(ROWS) % 3 == 0, 0.0, 0.9),
        weight=torch.ones(ROWS),
        slots=np.zeros(ROWS, np.int64),
    )


def gradient(loss: Tensor, module: torch.nn.Module) -> Tensor:
    grads = torch.autograd.grad(loss, list(module.parameters()))
    return torch.cat([grad.flatten() for grad in grads])


def test_the_loss_by_hand() -> None:
    q_values = torch.tensor([[[1.0, 2.0], [3.0, 0.0]]])  # one critic, two shifts, two rows
    target, value = torch.tensor([2.0, 1.0]), torch.tensor([5.0, 3.0])
    loss = drq_loss(q_values, target, value, torch.tensor([-1.0, 3.0]), 0.5)
    # Errors -1, 1 and 1, -1: four squares over two rows; over shifts they are added. The actor's
    # rows are -0.5 - 5 and 1.5 - 3.
    assert (float(loss.critic), float(loss.actor)) == (2.0, -3.5)
    assert {name: float(x) for name, x in loss.metrics.items()} == {
        "critic_loss": 2.0,
        "q_value_mean": 1.5,
        "target_q_mean": 1.5,
        "actor_loss": -3.5,
        "entropy": -1.0,
        "alpha": 0.5,
    }
    with pytest.raises(ValueError, match="expected"):
        drq_loss(torch.zeros(2, 3, 4), torch.zeros(5), torch.zeros(5), torch.zeros(5), 0.1)


def test_the_critics_loss_by_hand() -> None:
    q_values = torch.tensor([[[1.0, 2.0], [3.0, 0.0]]], requires_grad=True)
    target = torch.tensor([2.0, 1.0], requires_grad=True)
    loss, metrics, _ = drq_critic_loss(q_values, target)
    loss.backward()
    assert (loss.item(), float(metrics["critic_loss"])) == (2.0, 2.0)
    assert q_values.grad is not None
    assert q_values.grad.tolist() == [[[-1.0, 1.0], [1.0, -1.0]]]
    assert target.grad is None  # a target carries no gradient


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("augmentations", [(1, 1), (2, 2), (3, 2)])
@double_precision()
def test_an_update_is_its_definition(augmentations: tuple[int, int], tied: bool) -> None:
    """K targets, each with a shift and an action of its own; M shifts learn their mean."""
    learned, targets = augmentations
    options = {
        "alpha": 0.3,
        "num_augmentations": learned,
        "num_target_augmentations": targets,
        "pad": 2,
        "tied_convolutions": tied,
    }
    agent, twin, batch = make(**options), make(**options), random_batch()

    def shifted(images: Tensor, times: int) -> list[Tensor]:
        offsets = twin.shifts.numpy.integers(0, 5, (times * ROWS, 2)).reshape(times, ROWS, 2)
        return [random_shift(images, torch.from_numpy(offset), 2) for offset in offsets]

    current = shifted(batch.obs, learned)
    following = shifted(batch.next_obs, targets)
    noise = torch.from_numpy(twin.noise.take(targets * ROWS).copy()).reshape(targets, ROWS, 2)
    aims = []
    for images, draws in zip(following, noise, strict=True):
        policy = squashed_sample(twin.actor(images), draws)
        value = twin.target.module(images, policy.action).amin(0)[:, 0]
        aims.append(batch.reward + batch.discount * (value - 0.3 * policy.log_prob))
    aim = torch.stack(aims).mean(0).detach()
    values = [twin.critics(images, batch.action)[:, :, 0] for images in current]
    critic_loss = torch.stack([((value - aim) ** 2).mean(1).sum() for value in values]).sum()
    result = agent.update(batch, LEARNING)
    expected = gradient(critic_loss, twin.critics)
    assert_close(agent.critic_optimizer.flat.grad, expected)
    assert float(result.metrics["critic_loss"]) == pytest.approx(critic_loss.item())
    # The actor sees the first shift alone, and the critics as they are after their step, whose
    # convolutions are its own if they are tied.
    twin.critics.load_state_dict(agent.critics.state_dict())
    policy = squashed_sample(twin.actor(current[0]), torch.from_numpy(twin.noise.take(ROWS).copy()))
    value = twin.critics(current[0], policy.action).amin(0)[:, 0]
    whole = drq_loss(torch.stack(values, 1), aim, value, policy.log_prob, 0.3)
    for name, number in whole.metrics.items():
        assert float(result.metrics[name]) == pytest.approx(number.item()), name
    grad_actor = gradient(whole.actor, twin.actor)
    assert_close(agent.actor_optimizer.flat.grad, grad_actor)


@double_precision()
def test_without_shifts_it_is_sac_on_the_same_networks() -> None:
    drq = make(alpha=0.2, pad=0, num_augmentations=1, num_target_augmentations=1)
    settings = SACConfig(
        alpha=0.2, hidden_sizes=(8,), learning_rate=1e-3, tau=drq.hyper.tau, gamma=drq.hyper.gamma
    )
    sac = SAC(copy.deepcopy(make().model), settings, SPEC, seed=0)
    batch = random_batch()
    found = [agent.update(batch, LEARNING).metrics for agent in (drq, sac)]
    # SAC's loss has a half that DrQ's has not.
    assert float(found[0]["critic_loss"]) == pytest.approx(2 * float(found[1]["critic_loss"]))
    for name in ("target_q_mean", "q_value_mean", "entropy", "actor_loss"):
        assert float(found[0][name]) == pytest.approx(float(found[1][name]))
    gradients = [agent.critic_optimizer.flat.grad for agent in (drq, sac)]
    assert_close(gradients[0], 2 * gradients[1])
    # Adam's step does not depend on a gradient's scale, so the actors saw the same critics.
    gradients = [agent.actor_optimizer.flat.grad for agent in (drq, sac)]
    assert_close(gradients[0], gradients[1])


@pytest.mark.parametrize("tied", [False, True])
def test_the_actors_step_leaves_the_critics_encoder_alone(tied: bool) -> None:
    agent, batch = make(tied_convolutions=tied), random_batch()
    seen: dict[str, Tensor] = {}
    step, critics = agent.critic_optimizer.step, agent.critic_optimizer.flat
    assert critics.grad is not None

    def watched(*inputs: Any) -> None:
        step(*inputs)
        seen.update(weights=critics.detach().clone(), grad=critics.grad.clone())  # type: ignore[union-attr]

    agent.critic_optimizer.step = watched  # type: ignore[method-assign]
    agent.update(batch, LEARNING)  # whose actor's step comes after the critics'
    assert torch.equal(seen["weights"], critics.detach())
    assert torch.equal(seen["grad"], critics.grad)
    own = [name for name, _ in agent.actor.named_parameters() if "convolutions" in name]
    assert bool(own) != tied


@double_precision()
def test_weights_start_orthogonal() -> None:
    model = make(hidden_sizes=(8, 8)).model
    for convolutions in (model.actor.convolutions, model.critics.convolutions):
        for layer in convolutions.layers:
            rows = layer.weight.detach().reshape(len(layer.weight), -1)
            assert_close(rows @ rows.T, 2 * torch.eye(len(rows)))
    layers = (model.actor.layers, model.critics.layers)
    square = [w.detach() for each in layers for w in each.parameters() if w.shape[-2:] == (8, 8)]
    matrices = torch.cat([weight.reshape(-1, 8, 8) for weight in square])
    assert_close(matrices @ matrices.mT, torch.eye(8).expand(3, 8, 8))


def test_a_learned_temperature_starts_where_the_paper_starts_it() -> None:
    agent, batch = make(alpha="auto"), random_batch()
    assert float(agent.update(batch, LEARNING).metrics["alpha"]) == pytest.approx(0.1)
    agent = make(alpha="auto", initial_alpha=0.7)
    assert float(agent.update(batch, LEARNING).metrics["alpha"]) == pytest.approx(0.7)
    for fixed in ({}, {"alpha": 0.2}):  # as it is by default
        with pytest.raises(ConfigError, match=r"initial_alpha would have no .* set alpha: auto"):
            check_hyper_parameters(DrQConfig, {"initial_alpha": 0.7, **fixed})


@pytest.mark.parametrize(
    ("config", "option", "value"),
    [
        (DrQConfig, "encoder", "nature"),
        (DrQConfig, "feature_size", 7),
        (DrQConfig, "critic_hidden_sizes", (8,)),
        (DrQConfig, "tied_convolutions", True),
        (DrQv2Config, "encoder", "nature"),
        (DrQv2Config, "feature_size", 7),
    ],
)
def test_what_shapes_the_default_network_is_refused_beside_another(
    config: type[HyperParameters], option: str, value: Any
) -> None:
    check_hyper_parameters(config, {option: value})
    with pytest.raises(ConfigError, match=f"{option} configure the default network"):
        check_hyper_parameters(config, {option: value, "network": "a:b"})


def test_the_actors_loss_by_hand() -> None:
    value, log_prob = torch.tensor([5.0, 3.0]), torch.tensor([-1.0, 3.0])
    value.requires_grad_()
    log_prob.requires_grad_()
    loss, metrics, _ = soft_actor_loss(value, log_prob, 0.5)
    loss.backward()
    assert loss.item() == -3.5  # rows -0.5 - 5 and 1.5 - 3
    assert {name: float(x) for name, x in metrics.items()} == {
        "actor_loss": -3.5,
        "entropy": -1.0,
        "alpha": 0.5,
    }
    assert value.grad is not None
    assert log_prob.grad is not None
    assert (value.grad.tolist(), log_prob.grad.tolist()) == ([-0.5, -0.5], [0.25, 0.25])
    with pytest.raises(ValueError, match="expected"):
        soft_actor_loss(value[:, None], log_prob, 0.5)


def test_shifts_that_leave_nothing_of_an_image_are_refused() -> None:
    make(pad=19)
    with pytest.raises(ConfigError, match="pad: expected less than the 20 x 20 pixels"):
        make(pad=20)


def test_tied_convolutions_stay_tied_after_copy_save_and_load() -> None:
    agent, other = make(tied_convolutions=True), make(1, tied_convolutions=True)
    images = random_batch().obs
    other.load_state_dict(agent.state_dict())
    for each in (agent, other):
        assert each.actor._borrowed[0] is each.critics.convolutions
        each.update(random_batch(1), LEARNING)
    assert_close(agent.actor(images), other.actor(images))
    copied = copy.deepcopy(agent.model)
    assert copied.actor._borrowed[0] is copied.critics.convolutions
    assert copied.actor._borrowed[0] is not agent.critics.convolutions


def test_an_actor_with_tied_convolutions_is_saved_whole() -> None:
    agent, other = make(tied_convolutions=True), make(1, tied_convolutions=True)
    images = random_batch().obs
    assert not torch.equal(agent.actor(images), other.actor(images))
    other.actor.load_state_dict(agent.actor.state_dict())
    assert_close(agent.actor(images), other.actor(images))
    assert other.actor._borrowed[0] is other.critics.convolutions
    lacking = {name: x for name, x in agent.actor.state_dict().items() if "convol" not in name}
    with pytest.raises(RuntimeError, match="Missing key"):
        other.actor.load_state_dict(lacking)


def test_shifts_go_on_where_they_stopped() -> None:
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
