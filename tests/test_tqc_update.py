"""TQC's pooled atoms and loss, and where it is SAC."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from rl_training.algorithms.tqc import tqc_loss, truncated_atoms
from rl_training.config.actor_critic import TQCConfig
from rounding import double_precision
from soft_batches import LEARNING, make, random_batch


def test_atoms_are_pooled_before_the_highest_are_dropped() -> None:
    atoms = torch.tensor([[[1.0, 9.0, 8.0]], [[2.0, 3.0, 0.0]]])  # one row, two critics
    assert truncated_atoms(atoms, 0).tolist() == [[0, 1, 2, 3, 8, 9]]
    # One per critic: the two highest are both the first critic's.
    assert truncated_atoms(atoms, 1).tolist() == [[0, 1, 2, 3]]
    assert truncated_atoms(atoms, 2).tolist() == [[0, 1]]


def by_definition(quantiles: torch.Tensor, atoms: torch.Tensor) -> torch.Tensor:
    count = quantiles.shape[-1]
    shares = (torch.arange(count) + 0.5) / count
    error = atoms[None, :, None, :] - quantiles[..., None]
    huber = torch.where(error.abs() <= 1, 0.5 * error**2, error.abs() - 0.5)
    return ((shares[:, None] - (error < 0).float()).abs() * huber).mean()


@double_precision()
def test_the_loss_is_its_definition_a_mean_over_everything() -> None:
    quantiles, atoms = torch.randn(3, 4, 5, requires_grad=True), 2 * torch.randn(4, 7)
    expected = by_definition(quantiles, atoms)
    (gradient,) = torch.autograd.grad(expected, quantiles)
    target = atoms.requires_grad_()  # which carries no gradient
    loss, metrics, _ = tqc_loss(quantiles, target)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item())
    assert float(metrics["critic_loss"]) == loss.item()
    assert float(metrics["q_value_mean"]) == pytest.approx(quantiles.mean().item())
    assert float(metrics["target_q_mean"]) == pytest.approx(atoms.mean().item())
    assert_close(quantiles.grad, gradient)
    assert target.grad is None


@double_precision()
def test_one_critic_with_one_quantile_is_sac_with_half_a_huber_loss() -> None:
    tqc = make("tqc", num_critics=1, num_quantiles=1, dropped_quantiles=0)
    sac = make("sac", num_critics=1)
    batch = random_batch()
    small = batch._replace(reward=0.1 * batch.reward, discount=0.1 * batch.discount)
    found = [agent.update(small, LEARNING).metrics for agent in (tqc, sac)]
    assert float(found[0]["target_q_mean"]) == pytest.approx(float(found[1]["target_q_mean"]))
    # Errors are within 1, where Huber is the half square; one quantile weighs either side by 1/2.
    assert float(found[0]["critic_loss"]) == pytest.approx(float(found[1]["critic_loss"]) / 2)
    critics = [agent.critic_optimizer.flat.grad for agent in (tqc, sac)]
    assert_close(critics[0], critics[1] / 2)
    assert float(critics[0].abs().max()) > 0
    # After the critics' step, which Adam makes of equal size, the actors' gradients are equal too.
    actors = [agent.actor_optimizer.flat.grad for agent in (tqc, sac)]
    assert_close(actors[0], actors[1])


def test_the_actor_follows_the_mean_without_truncation() -> None:
    values = torch.randn(2, 3, 4, requires_grad=True)
    value = make("tqc", num_critics=2, num_quantiles=4).actor_value(values)
    value.sum().backward()
    assert_close(value, values.mean((0, 2)))
    assert values.grad is not None
    assert torch.equal(values.grad, torch.full((2, 3, 4), 1 / 8))


def test_something_must_be_left_of_a_target() -> None:
    with pytest.raises(ValueError, match="dropped_quantiles must be less than num_quantiles, 5"):
        TQCConfig(num_quantiles=5, dropped_quantiles=5)
    assert TQCConfig(num_quantiles=5, dropped_quantiles=4).critic_outputs == 5
