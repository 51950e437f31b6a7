"""REDQ's loss, subsets and actor, and where it is SAC."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from rl_training.algorithms.redq import REDQ, random_subset, redq_loss
from rl_training.config.actor_critic import REDQConfig
from rl_training.models.mlp_actor_q_ensemble import MLPActorQEnsemble
from rounding import double_precision
from soft_batches import LEARNING, SPEC, make, random_batch


def test_the_loss_by_hand() -> None:
    q_values = torch.tensor([[1.0, 3.0, 2.0], [2.0, 0.0, 1.0]], requires_grad=True)
    target = torch.tensor([2.0, 1.0], requires_grad=True)
    loss, metrics, _ = redq_loss(q_values, target)
    loss.backward()
    # Errors -1, 1, 0 and 1, -1, 0: four squares over two rows.
    assert loss.item() == 2.0
    assert q_values.grad is not None
    assert q_values.grad.tolist() == [[-1.0, 1.0, 0.0], [1.0, -1.0, 0.0]]
    assert target.grad is None  # a target carries no gradient
    found = {name: float(x) for name, x in metrics.items()}
    assert found == {"critic_loss": 2.0, "q_value_mean": 1.5, "target_q_mean": 1.5}


@double_precision()
def test_the_gradient_is_twice_the_error_over_the_rows() -> None:
    q_values, target = torch.randn(7, 5, requires_grad=True), torch.randn(7)
    redq_loss(q_values, target).value.backward()
    assert_close(q_values.grad, 2 / 7 * (q_values.detach() - target[:, None]))


def test_a_loss_of_shapes_that_would_broadcast_is_refused() -> None:
    with pytest.raises(ValueError, match="expected"):
        redq_loss(torch.zeros(5, 5), torch.zeros(1))


def test_subsets_have_no_duplicates_and_every_pair_is_as_likely() -> None:
    rng = np.random.default_rng(0)
    drawn = [tuple(sorted(random_subset(rng, 5, 2))) for _ in range(10_000)]
    assert all(a != b for a, b in drawn)
    pairs, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(pairs) == 10
    assert np.abs(counts - 1000).max() < 5 * 30  # a standard deviation of 30


def test_one_subset_serves_the_whole_update_and_the_next_has_another() -> None:
    agent = make("redq", num_critics=6, subset_size=2)
    seen = []
    inner = agent.target.module.forward
    agent.target.module.forward = lambda *x: seen.append(tuple(x[2].tolist())) or inner(*x)
    for _ in range(20):
        agent.update(random_batch(), LEARNING)
    assert len(seen) == 20
    assert all(len(set(subset)) == 2 for subset in seen)
    assert len(set(seen)) > 5


@double_precision()
def test_with_two_critics_both_in_the_subset_the_target_is_sacs() -> None:
    settings = {"num_critics": 2, "replay_ratio": 1.0, "subset_size": 2}
    redq, sac = make("redq", **settings), make("sac")
    for mine, theirs in ((redq.model, sac.model), (redq.target.module, sac.target.module)):
        mine.load_state_dict(theirs.state_dict())
    assert REDQConfig(**settings).effective_policy_delay == 1
    batch = random_batch()
    found = [agent.update(batch, LEARNING).metrics for agent in (redq, sac)]
    assert float(found[0]["target_q_mean"]) == pytest.approx(float(found[1]["target_q_mean"]))
    # SAC's loss has a half that REDQ's has not, and so has its gradient.
    assert float(found[0]["critic_loss"]) == pytest.approx(2 * float(found[1]["critic_loss"]))
    gradients = [agent.critic_optimizer.flat.grad for agent in (redq, sac)]
    assert_close(gradients[0], 2 * gradients[1])


def test_the_actor_follows_the_mean_of_all_critics() -> None:
    agent = make("redq", num_critics=3)
    values = torch.randn(3, 4, 1, requires_grad=True)
    value = agent.actor_value(values)
    value.sum().backward()
    assert_close(value, values.mean(0)[:, 0])
    assert values.grad is not None
    assert torch.equal(values.grad, torch.full((3, 4, 1), 1 / 3))


def test_q_values_have_a_column_per_critic() -> None:
    hyper = REDQConfig(hidden_sizes=(8,))
    model = MLPActorQEnsemble.build(SPEC, hyper)
    obs, action = torch.randn(5, 3), torch.randn(5, 2)
    found = model.q_values(obs, action)
    assert found.shape == (5, 10)
    assert_close(found[:, 7], model.critics(obs, action)[7, :, 0])
    assert isinstance(REDQ(model, hyper, SPEC), REDQ)


def test_weights_start_as_the_authors_have_them() -> None:
    model = make("redq", hidden_sizes=(300, 200)).model
    for name, parameter in model.named_parameters():
        if "bias" in name:
            assert not parameter.any()
    hidden = model.critics.layers.weight1.detach()  # 300 to 200: within sqrt(6 / 500)
    bound = (6 / 500) ** 0.5
    assert float(hidden.abs().max()) == pytest.approx(bound, rel=1e-3)
    assert float(hidden.std()) == pytest.approx(bound / 3**0.5, rel=0.01)
    assert float(model.actor.layers.weight1.detach().std()) == pytest.approx(
        bound / 3**0.5, rel=0.02
    )
    assert not torch.equal(hidden[0], hidden[1])


def test_defaults_are_the_papers() -> None:
    hyper = REDQConfig()
    assert (hyper.num_critics, hyper.subset_size, hyper.replay_ratio) == (10, 2, 20.0)
    assert (hyper.effective_policy_delay, hyper.learning_starts, hyper.tau) == (20, 5_000, 0.005)
    assert REDQConfig(replay_ratio=5).effective_policy_delay == 5
    assert REDQConfig(replay_ratio=5, policy_delay=2).effective_policy_delay == 2
    assert [REDQConfig(replay_ratio=r).effective_policy_delay for r in (0.5, 1.5, 2.6)] == [1, 2, 3]
    with pytest.raises(ValueError, match="subset_size must be at most num_critics, 2; found 3"):
        REDQConfig(num_critics=2, subset_size=3)
