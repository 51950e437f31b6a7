"""PPO's loss, distributions, network and update, against numbers worked out by hand."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributions as reference
from torch import nn
from torch.testing import assert_close

from rl_training.algorithms.base import Loss
from rl_training.algorithms.functional.distributions import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    MultiCategorical,
    distribution,
    sampling_noise,
)
from rl_training.algorithms.ppo import (
    PPO,
    PPOTerms,
    Samples,
    gae,
    normalized,
    ppo_terms,
)
from rl_training.config.ppo import PPOConfig
from rl_training.data.generators import BlockNoise, NumpyGenerator
from rl_training.data.types import Clock, EnvSpec, Rollout
from rl_training.errors import ConfigError
from rl_training.models.mlp_actor_critic import MLPActorCritic
from rounding import double_precision, precise_spec
from value_batches import KERNELS, accelerated

DISCRETE = EnvSpec(env_id="toy", obs_shape=(1,), action_kind="discrete", num_actions=2)
SPECS = {
    "discrete": EnvSpec(env_id="toy", obs_shape=(3,), action_kind="discrete", num_actions=4),
    "continuous": EnvSpec(env_id="toy", obs_shape=(3,), action_kind="continuous", action_dim=2),
    "multi_discrete": EnvSpec(
        env_id="toy",
        obs_shape=(3,),
        action_kind="multi_discrete",
        action_dim=2,
        action_sizes=(3, 2),
    ),
    "multi_binary": EnvSpec(env_id="toy", obs_shape=(3,), action_kind="multi_binary", action_dim=3),
}
START = Clock(env_steps=0, horizon=100)


def old(
    advantage: list[float],
    *,
    value: list[float] | None = None,
    returns: list[float] | None = None,
) -> Samples:
    """Rows whose old log-probability is 0, so that the new one is the log of the ratio."""
    size = len(advantage)
    return Samples(
        obs=torch.ones(size, 1),
        action=torch.zeros(size, dtype=torch.int64),
        log_prob=torch.zeros(size),
        value=torch.tensor(value or [0.0] * size),
        advantage=torch.tensor(advantage),
        returns=torch.tensor(returns or [0.0] * size),
    )


def terms_at(ratio: list[float], advantage: list[float]) -> tuple[PPOTerms, list[float]]:
    """The terms, and the gradient of the policy's loss by the log-probabilities."""
    log_prob = torch.tensor(ratio).log().requires_grad_()
    terms = ppo_terms(log_prob, torch.zeros(len(ratio)), old(advantage), clip_range=0.2)
    terms.policy_loss.mean().backward()
    return terms, log_prob.grad.tolist()


# ratio, advantage, loss by hand, gradient d(-r A)/d(log r) = -r A where it is not clipped
SURROGATES = [
    (1.1, 2.0, -2.2, -2.2),  # inside the range
    (0.9, -2.0, 1.8, 1.8),
    (1.5, 2.0, -2.4, 0.0),  # too far in the good direction: 1.2 * 2 counts, and nothing pulls
    (0.5, -2.0, 1.6, 0.0),  # 0.8 * -2
    (0.5, 2.0, -1.0, -1.0),  # too far in the bad direction: the way back is open
    (1.5, -2.0, 3.0, 3.0),
]


@pytest.mark.parametrize(("ratio", "advantage", "loss", "gradient"), SURROGATES)
@double_precision()
def test_the_clipped_surrogate_by_hand(
    ratio: float, advantage: float, loss: float, gradient: float
) -> None:
    terms, grad = terms_at([ratio], [advantage])
    assert terms.policy_loss.tolist() == pytest.approx([loss])
    assert grad == pytest.approx([gradient])
    assert terms.clip_fraction.tolist() == [float(abs(ratio - 1) > 0.2)]


@double_precision()
def test_losses_are_means_and_the_kl_estimate_is_ratio_minus_one_minus_its_log() -> None:
    ratios, advantages, each, _ = zip(*SURROGATES, strict=True)
    terms, grad = terms_at(list(ratios), list(advantages))
    assert terms.policy_loss.tolist() == pytest.approx(list(each))
    assert grad[0] == pytest.approx(-2.2 / 6)
    by_hand = [0.1 - 0.0953102, -0.1 + 0.1053605, 0.5 - 0.4054651, -0.5 + 0.6931472]
    by_hand += [-0.5 + 0.6931472, 0.5 - 0.4054651]
    # The logarithms by hand have seven digits.
    assert terms.approx_kl.tolist() == pytest.approx(by_hand, abs=1e-7)
    assert terms.clip_fraction.tolist() == [0, 0, 1, 1, 1, 1]
    assert not terms.approx_kl.requires_grad


def test_the_value_loss_is_the_mean_square_and_clipping_takes_the_larger_error() -> None:
    value = torch.tensor([3.0, 3.0, 0.1]).requires_grad_()
    rows = old([0.0] * 3, value=[0.0, 0.0, 0.0], returns=[4.0, 0.0, 1.0])
    plain = ppo_terms(torch.zeros(3), value, rows, clip_range=0.2).value_loss
    assert plain.tolist() == pytest.approx([1, 9, 0.81])
    # The first may move by 0.5 only: (0.5 - 4)^2 = 12.25 beats 1, and no gradient is left. The
    # second: (0.5 - 0)^2 loses to 9. The third is within its range.
    clipped = ppo_terms(
        torch.zeros(3), value, rows, clip_range=0.2, value_clip_range=0.5
    ).value_loss
    assert clipped.tolist() == pytest.approx([12.25, 9, 0.81])
    for terms, first in ((plain, -2 / 3), (clipped, 0.0)):
        (gradient,) = torch.autograd.grad(terms.mean(), value)
        assert gradient.tolist() == pytest.approx([first, 2 * 3 / 3, 2 * -0.9 / 3], rel=1e-5)


def test_shapes_that_would_broadcast_are_refused() -> None:
    with pytest.raises(ValueError, match=r"argument 1: expected \[B\], found \(2, 1\)"):
        ppo_terms(torch.zeros(2), torch.zeros(2, 1), old([0.0, 0.0]), clip_range=0.2)


def test_advantages_are_normalised_to_mean_0_and_deviation_1() -> None:
    # Mean 2, sample deviation sqrt((1 + 0 + 1) / 2) = 1.
    assert_close(normalized(torch.tensor([1.0, 2.0, 3.0])), torch.tensor([-1.0, 0.0, 1.0]))
    assert normalized(torch.tensor([5.0])).tolist() == [5.0]
    assert normalized(torch.tensor([5.0, 5.0])).tolist() == [0.0, 0.0]


# Advantages: gamma 0.5 and lambda 0.5, so a trace of 0.25, along one environment's four steps.

REWARD = [1.0, 2.0, 4.0, 8.0]
VALUE = [1.0, 3.0, 2.0, 5.0]


def advantages(
    next_value: list[float], *, terminated: int | None, ended: int | None
) -> list[float]:
    """Of four steps, of which one may end an episode, by terminating or otherwise."""
    discount = [0.0 if t == terminated else 0.5 for t in range(4)]
    trace = [0.0 if t == ended else 0.25 for t in range(4)]
    columns = (torch.tensor(x)[:, None] for x in (REWARD, VALUE, next_value, discount, trace))
    found: list[float] = gae(*columns)[:, 0].tolist()
    return found


def test_advantages_are_discounted_sums_of_temporal_differences() -> None:
    # Differences 1 + 1.5 - 1 = 1.5, 2 + 1 - 3 = 0, 4 + 2.5 - 2 = 4.5 and 8 + 2 - 5 = 5, and from
    # the back 5, 4.5 + 1.25, 0 + 5.75 / 4, 1.5 + 1.4375 / 4.
    found = advantages([3.0, 2.0, 5.0, 4.0], terminated=None, ended=None)
    assert found == [1.859375, 1.4375, 5.75, 5.0]


def test_the_trace_does_not_cross_a_truncation_which_bootstraps() -> None:
    # The second step is cut off where the value would be 10, which is not the next row's 2: its
    # difference is 2 + 5 - 3 = 4, and nothing of the later 5.75 reaches it. Before it
    # 1.5 + 4 / 4 = 2.5.
    found = advantages([3.0, 10.0, 5.0, 4.0], terminated=None, ended=1)
    assert found == [2.5, 4.0, 5.75, 5.0]


def test_after_a_termination_there_is_neither_value_nor_trace() -> None:
    # The second step's difference is 2 - 3 = -1, whatever comes next; before it 1.5 - 1 / 4.
    found = advantages([3.0, 10.0, 5.0, 4.0], terminated=1, ended=1)
    assert found == [1.25, -1.0, 5.75, 5.0]


def test_an_update_bootstraps_a_truncation_and_lets_no_trace_cross_it() -> None:
    """The same four steps as a rollout: the network's value of an observation is itself."""

    class Identity(TwoLogits):
        def value(self, obs: torch.Tensor) -> torch.Tensor:
            return obs[:, 0] + 0 * self.v

    rollout = bandit([0, 0, 0, 0], REWARD)
    nothing = torch.zeros(4, 1, dtype=torch.bool)
    ended = nothing.clone()
    ended[1] = True
    rollout = rollout._replace(
        obs=torch.tensor(VALUE)[:, None, None],
        terminated=nothing,
        ended=ended,
        bootstrap_rows=torch.tensor([1, 3]),
        bootstrap_obs=torch.tensor([[10.0], [4.0]]),
    )
    ppo = PPO(Identity(), PPOConfig(gamma=0.5, gae_lambda=0.5), DISCRETE)
    samples = ppo.samples(rollout)
    assert samples.advantage.tolist() == [2.5, 4.0, 5.75, 5.0]
    assert samples.returns.tolist() == [3.5, 7.0, 7.75, 10.0]
    terminated = ppo.samples(
        rollout._replace(
            terminated=ended, bootstrap_rows=torch.tensor([3]), bootstrap_obs=torch.tensor([[4.0]])
        )
    )
    assert terminated.advantage.tolist() == [1.25, -1.0, 5.75, 5.0]


# Distributions.

LOGITS = torch.tensor([[0.3, -1.2, 2.0, 0.0, 1.0], [5.0, 5.0, -5.0, -0.5, 0.25]])


def test_categorical_agrees_with_torch() -> None:
    mine, other = Categorical(LOGITS), reference.Categorical(logits=LOGITS)
    for action in (torch.tensor([2, 0]), torch.tensor([1, 4])):
        assert_close(mine.log_prob(action), other.log_prob(action))
    assert_close(mine.entropy(), other.entropy())
    assert mine.mode().tolist() == [2, 0]


def test_several_categoricals_agree_with_torch_part_by_part() -> None:
    mine = MultiCategorical(LOGITS, (3, 2))
    parts = [
        reference.Categorical(logits=LOGITS[:, :3]),
        reference.Categorical(logits=LOGITS[:, 3:]),
    ]
    action = torch.tensor([[2, 0], [1, 1]])
    expected = sum(part.log_prob(action[:, k]) for k, part in enumerate(parts))
    assert_close(mine.log_prob(action), expected)
    assert_close(mine.entropy(), sum(part.entropy() for part in parts))
    assert mine.mode().tolist() == [[2, 1], [0, 1]]


def test_bernoulli_agrees_with_torch() -> None:
    mine, other = Bernoulli(LOGITS), reference.Bernoulli(logits=LOGITS)
    action = torch.tensor([[1, 0, 1, 0, 0], [0, 1, 1, 1, 0]])
    assert_close(mine.log_prob(action), other.log_prob(action.float()).sum(-1))
    assert_close(mine.entropy(), other.entropy().sum(-1))
    assert mine.mode().tolist() == [[1, 0, 1, 0, 1], [1, 1, 0, 0, 1]]
    extreme = Bernoulli(torch.tensor([[200.0, -200.0]]))
    assert extreme.entropy().tolist() == [0.0]
    assert extreme.log_prob(torch.tensor([[1, 0]])).tolist() == [0.0]
    assert extreme.log_prob(torch.tensor([[0, 0]])).tolist() == [-200.0]


def test_gaussian_agrees_with_torch() -> None:
    mean, log_std = LOGITS[:, :3], torch.tensor([-1.0, 0.0, 0.5])
    mine, other = DiagonalGaussian(mean, log_std), reference.Normal(mean, log_std.exp())
    action = torch.tensor([[0.0, 1.0, -2.0], [5.0, 5.5, 9.0]])
    assert_close(mine.log_prob(action), other.log_prob(action).sum(-1))
    assert_close(mine.entropy(), other.entropy().sum(-1))
    assert torch.equal(mine.mode(), mean)


def noise_for(spec: EnvSpec, rows: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(sampling_noise(spec)(np.random.default_rng(seed), rows))


@pytest.mark.parametrize("kind", SPECS)
def test_samples_have_their_probabilities(kind: str) -> None:
    spec, rows = SPECS[kind], 40_000
    output = LOGITS[:1, : spec.policy_outputs].expand(rows, -1)
    log_std = torch.tensor([0.0, -1.0])
    chosen = distribution(spec, output, log_std)
    sample = chosen.sample(noise_for(spec, rows))
    assert tuple(sample.shape[1:]) == spec.action_shape
    # The mean log-probability of samples is minus the entropy, whatever the distribution.
    assert float(chosen.log_prob(sample).mean()) == pytest.approx(
        -float(chosen.entropy()[0]), abs=0.03
    )
    numbers = sample.double()
    if kind == "discrete":
        found = torch.bincount(sample, minlength=4) / rows
        assert_close(found, output[0].softmax(-1), atol=0.01, rtol=0)
    elif kind == "multi_discrete":
        found = torch.bincount(sample[:, 0], minlength=3) / rows
        assert_close(found, output[0, :3].softmax(-1), atol=0.01, rtol=0)
        assert float(numbers[:, 1].mean()) == pytest.approx(1 / (1 + math.exp(-1)), abs=0.01)
    elif kind == "multi_binary":
        assert_close(numbers.mean(0).float(), output[0].sigmoid(), atol=0.01, rtol=0)
    else:
        assert_close(numbers.mean(0).float(), output[0], atol=0.02, rtol=0)
        assert_close(numbers.std(0).float(), log_std.exp(), atol=0.02, rtol=0)


# The network.


@double_precision()
def test_weights_are_orthogonal_with_their_gains_and_biases_zero() -> None:
    network = MLPActorCritic(4, 2, (8, 16), gaussian=True, log_std_init=-0.5)
    for layers, last_gain in ((network.actor, 0.01), (network.critic, 1.0)):
        parameters = list(layers.parameters())
        gains = (math.sqrt(2), math.sqrt(2), last_gain)
        for weight, bias, gain in zip(parameters[::2], parameters[1::2], gains, strict=True):
            # The rows or the columns are orthogonal, whichever are fewer.
            rows = weight.detach() if weight.shape[0] <= weight.shape[1] else weight.detach().T
            assert_close(rows @ rows.T, gain**2 * torch.eye(len(rows)))
            assert bias.tolist() == [0.0] * len(bias)
    assert network.log_std.tolist() == [-0.5, -0.5]
    shared = {p.data_ptr() for p in network.actor.parameters()}
    assert shared.isdisjoint(p.data_ptr() for p in network.critic.parameters())
    assert not hasattr(MLPActorCritic(4, 2), "log_std")


def test_network_is_sized_by_the_environment() -> None:
    for kind, outputs in (("discrete", 4), ("continuous", 2), ("multi_discrete", 5)):
        network = MLPActorCritic.build(SPECS[kind], PPOConfig(hidden_sizes=[], log_std_init=-1))
        policy, value = network(torch.zeros(7, 3))
        assert policy.shape == (7, outputs)
        assert value.shape == (7,)
        assert hasattr(network, "log_std") == (kind == "continuous")


def test_networks_that_do_not_fit_are_refused() -> None:
    spec = SPECS["continuous"]
    with pytest.raises(ConfigError, match=r"a method policy\(obs\)"):
        PPO(nn.Linear(3, 2), PPOConfig(), spec)
    with pytest.raises(ConfigError, match=r"log_std of shape \(2,\)"):
        PPO(MLPActorCritic(3, 2), PPOConfig(), spec)
    with pytest.raises(ConfigError, match=r"network.policy: expected \(batch, 2\).*\(1, 5\)"):
        PPO(MLPActorCritic(3, 5, gaussian=True), PPOConfig(), spec)
    with pytest.raises(ConfigError, match=r"network.policy: .* calling it raised"):
        PPO(MLPActorCritic(4, 2, gaussian=True), PPOConfig(), spec)


# The update.


class TwoLogits(nn.Module):
    """The same two logits and value everywhere: three numbers that a step can be followed in."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(2))
        self.v = nn.Parameter(torch.zeros(1))

    def policy(self, obs: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(len(obs), 2)

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        return self.v.expand(len(obs))


def bandit(action: list[int], reward: list[float]) -> Rollout:
    """Episodes of one step each: the advantage is the reward less the value."""
    shape = (len(action), 1)
    over = torch.ones(shape, dtype=torch.bool)
    return Rollout(
        obs=torch.ones(*shape, 1),
        action=torch.tensor(action)[:, None],
        reward=torch.tensor(reward)[:, None],
        terminated=over,
        ended=over,
        first=over,
        valid=over,
        bootstrap_rows=torch.zeros(0, dtype=torch.int64),
        bootstrap_obs=torch.zeros(0, 1),
    )


def tiny(**hyper: Any) -> PPO:
    defaults = {"epochs": 1, "learning_rate": 0.01, "normalize_advantages": False}
    return PPO(TwoLogits(), PPOConfig(**(defaults | hyper)), DISCRETE)


def test_one_step_moves_towards_the_better_action_and_the_returns() -> None:
    ppo = tiny()
    result = ppo.update(bandit([0, 1], [1.0, -1.0]), START)
    assert result.gradient_steps == 1
    # Policy gradient: -mean(A * d log p) = (-0.5, 0.5); value gradient: 0, for the mean return is
    # 0. Adam's first step is the learning rate times the sign.
    assert ppo.model.logits.tolist() == pytest.approx([0.01, -0.01], abs=1e-5)
    assert ppo.model.v.item() == 0.0
    expected = {
        "loss": 0.5 * 1.0,  # policy loss -mean(1, -1) = 0, value loss mean(1, 1) times 0.5
        "policy_loss": 0.0,
        "value_loss": 1.0,
        "entropy": math.log(2),
        "approx_kl": 0.0,
        "clip_fraction": 0.0,
        "explained_variance": 0.0,
    }
    found = {name: float(value) for name, value in result.metrics.items()}
    assert found == pytest.approx(expected, abs=1e-6)
    assert not any(value.requires_grad for value in result.metrics.values())


def test_gradients_by_hand() -> None:
    # A = (3, 1) for actions (0, 0): d(-mean(r A))/dlogits = -2 * (0.5, -0.5); the value's is
    # value_coef * 2 * (0 - 2).
    for coefficient in (0.5, 0.25):
        ppo = tiny(value_coef=coefficient, max_grad_norm=None)
        ppo.update(bandit([0, 0], [3.0, 1.0]), START)
        assert ppo.model.logits.grad.tolist() == pytest.approx([-1.0, 1.0])
        assert ppo.model.v.grad.tolist() == pytest.approx([coefficient * -4.0])
    clipped = tiny()  # all three by one factor, to norm 0.5
    clipped.update(bandit([0, 0], [3.0, 1.0]), START)
    assert float(clipped.optimizer.flat.grad.norm()) == pytest.approx(0.5, rel=1e-4)
    assert clipped.model.v.grad.item() == pytest.approx(-2 / math.sqrt(6) * 0.5, rel=1e-4)


def test_the_entropy_bonus_flattens_the_policy() -> None:
    def spread(coefficient: float) -> float:
        ppo = tiny(entropy_coef=coefficient)
        with torch.no_grad():
            ppo.model.logits[0] = 1.0
        ppo.update(bandit([0, 1], [0.0, 0.0]), START)  # no advantage: only the bonus acts
        first, second = ppo.model.logits.tolist()
        return first - second

    assert spread(0.0) == 1.0
    assert spread(0.1) == pytest.approx(1.0 - 0.02, abs=1e-4)


def test_advantages_are_normalised_in_each_minibatch() -> None:
    # Rewards in the hundreds: normalised within each pair of rows they are +-0.7071.
    class Watched(PPO):
        def loss(self, batch: Samples, clip_range: float) -> Loss:
            result = super().loss(batch, clip_range)
            policy_losses.append(float(result.metrics["policy_loss"]))
            return result

    policy_losses: list[float] = []
    settings = PPOConfig(epochs=1, learning_rate=0.01, batch_size=2)
    ppo = Watched(TwoLogits(), settings, DISCRETE)
    rewards = [100.0, 300.0, 500.0, 900.0]
    ppo.update(bandit([0, 1, 0, 1], rewards), START)
    # With ratio near 1 the policy loss is minus the mean advantage: 0 in each minibatch, which
    # one mean for all four rows would give to neither.
    assert policy_losses == pytest.approx([0.0, 0.0], abs=0.02)
    plain = tiny(batch_size=2).update(bandit([0, 1, 0, 1], rewards), START)
    assert float(plain.metrics["policy_loss"]) == pytest.approx(-450, rel=0.05)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 64, 129])
@pytest.mark.parametrize("batch_size", [2, 3, 64])
def test_minibatches_cover_each_row_once_per_epoch_and_none_is_lonely(
    count: int, batch_size: int
) -> None:
    ppo = tiny(batch_size=batch_size, epochs=3)
    rows = torch.arange(count)
    numbered = Samples(rows[:, None], rows, *(rows.float() for _ in range(4)))
    minibatches = list(ppo.minibatches(numbered))
    pieces = [minibatch.action.tolist() for minibatch in minibatches]
    for minibatch in minibatches:  # the columns stay together
        columns = [x for x in minibatch if x is not None]  # there are no masks
        assert all(torch.equal(x.flatten().long(), minibatch.action) for x in columns)
    assert len(pieces) % 3 == 0
    each = len(pieces) // 3
    epochs = [pieces[k * each : (k + 1) * each] for k in range(3)]
    for epoch in epochs:
        assert sorted(row for piece in epoch for row in piece) == list(range(count))
    sizes = {len(piece) for piece in pieces}
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= min(count, 2)
    assert max(sizes) <= max(batch_size, 3)
    if count == 129:
        assert epochs[0] != epochs[1]


def test_only_valid_rows_are_learned_from() -> None:
    rollout = bandit([0, 1, 1], [1.0, -1.0, 1e6])
    rollout = rollout._replace(valid=torch.tensor([[True], [True], [False]]))
    one, other = tiny(), tiny()
    one.update(rollout, START)
    other.update(bandit([0, 1], [1.0, -1.0]), START)
    assert torch.equal(one.optimizer.flat, other.optimizer.flat)


@pytest.mark.parametrize("kind", SPECS)
@double_precision()
def test_the_ratio_is_one_before_the_first_step(kind: str) -> None:
    torch.manual_seed(1)
    rollout = random_rollout(SPECS[kind], 32)
    hyper = PPOConfig(epochs=1, batch_size=64, hidden_sizes=[16])
    ppo = PPO(MLPActorCritic.build(SPECS[kind], hyper), hyper, precise_spec(SPECS[kind]))
    ppo.spec = SPECS[kind]  # else doubles would be taken for images, which are evaluated in pieces
    metrics = ppo.update(rollout, START).metrics
    assert float(metrics["approx_kl"]) == pytest.approx(0.0, abs=1e-7)
    assert float(metrics["clip_fraction"]) == 0.0
    assert float(metrics["policy_loss"]) == pytest.approx(0.0, abs=1e-6)


def random_rollout(spec: EnvSpec, steps: int, seed: int = 0) -> Rollout:
    """Two environments with random everything and no ends but the newest rows."""
    rng = torch.Generator().manual_seed(seed)
    output = torch.zeros(steps * 2, spec.policy_outputs)
    policy = distribution(spec, output, torch.zeros(spec.action_dim))
    action = policy.sample(noise_for(spec, steps * 2, seed))
    none = torch.zeros(steps, 2, dtype=torch.bool)
    return Rollout(
        obs=torch.randn(steps, 2, *spec.obs_shape, generator=rng),
        action=action.view(steps, 2, *spec.action_shape),
        reward=torch.randn(steps, 2, generator=rng),
        terminated=none,
        ended=none,
        first=none,
        valid=~none,
        bootstrap_rows=torch.tensor([steps * 2 - 2, steps * 2 - 1]),
        bootstrap_obs=torch.randn(2, *spec.obs_shape, generator=rng),
    )


def test_a_target_kl_stops_before_the_step_that_would_go_on_from_too_far() -> None:
    # The ratio of both actions after k steps of 0.3 in the logits: KL passes 1.5 * target after
    # the second step, so the third is not made.
    rollout = bandit([0, 1], [1.0, -1.0])
    hyper = {"learning_rate": 0.3, "epochs": 10, "clip_range": 1.0, "max_grad_norm": None}
    moved = []
    for steps in (1, 2, 3):
        ppo = tiny(**(hyper | {"epochs": steps}))
        ppo.update(rollout, START)
        moved.append(ppo.model.logits.tolist())
    ratio = [2 * p for p in torch.tensor(moved[1]).softmax(0).tolist()]
    after_two = sum(r - 1 - math.log(r) for r in ratio) / 2
    stopped = tiny(**hyper, target_kl=after_two / 1.5 * 0.99)
    result = stopped.update(rollout, START)
    assert result.gradient_steps == 2
    assert stopped.model.logits.tolist() == moved[1]
    not_yet = tiny(**hyper, target_kl=after_two / 1.5 * 1.01)
    assert not_yet.update(rollout, START).gradient_steps == 3
    assert not_yet.model.logits.tolist() == moved[2]


def test_an_update_that_may_not_even_start_still_reports() -> None:
    """Dropout makes the learning policy differ from the acting one before the first step."""

    class Dropping(TwoLogits):
        def policy(self, obs: torch.Tensor) -> torch.Tensor:
            shift = torch.tensor([5.0, 0.0]) if self.training else torch.zeros(2)
            return super().policy(obs) + shift

    ppo = PPO(Dropping(), PPOConfig(target_kl=0.01), DISCRETE)
    result = ppo.update(bandit([0, 1], [1.0, -1.0]), START)
    assert result.gradient_steps == 0
    assert float(result.metrics["approx_kl"]) > 0.015
    assert ppo.model.logits.tolist() == [0.0, 0.0]


def test_layers_learn_in_training_mode_and_look_back_in_acting_mode() -> None:
    modes: list[bool] = []

    class Watched(TwoLogits):
        def policy(self, obs: torch.Tensor) -> torch.Tensor:
            modes.append(self.training)
            return super().policy(obs)

    ppo = PPO(Watched(), PPOConfig(epochs=2), DISCRETE)
    modes.clear()
    ppo.update(bandit([0, 1], [1.0, -1.0]), START)
    assert modes == [False, True, True]
    ppo.act(np.ones((1, 1), np.float32), (), np.ones(1, np.bool_), START, explore=True)
    assert modes[-1] is False


def test_the_learning_rate_and_the_clip_range_follow_their_schedules() -> None:
    hyper = {
        "learning_rate": {"initial": 0.02, "final": 0.0},
        "clip_range": {"initial": 0.4, "final": 0.2},
    }
    ppo = tiny(**hyper)
    assert ppo.schedules(Clock(75, 100)) == pytest.approx(
        {"learning_rate": 0.005, "clip_range": 0.25}
    )
    ppo.update(bandit([0, 1], [1.0, -1.0]), Clock(75, 100))
    assert ppo.model.logits[0].item() == pytest.approx(0.005, abs=1e-5)
    # The second epoch's ratio is e^0.15 or so after a step of 0.3 / 2: beyond 0.1, within 0.4.
    fractions = []
    for env_steps in (0, 100):
        ppo = tiny(learning_rate=0.3, epochs=2, clip_range={"initial": 0.4, "final": 0.1})
        metrics = ppo.update(bandit([0, 1], [1.0, -1.0]), Clock(env_steps, 100)).metrics
        fractions.append(float(metrics["clip_fraction"]))
    assert fractions == [0.0, 0.5]


def test_acting_samples_the_policy_or_takes_its_mode() -> None:
    ppo = tiny()
    with torch.no_grad():
        ppo.model.logits[1] = math.log(3)  # a share of 3/4
    obs, first = np.ones((20_000, 1), np.float32), np.zeros(20_000, np.bool_)
    assert ppo.act(obs, (), first, START, explore=True).action.mean() == pytest.approx(
        0.75, abs=0.01
    )
    greedy = ppo.act(obs, (), first, START, explore=False).action
    assert greedy.dtype == np.int64
    assert (greedy == 1).all()


@KERNELS
@pytest.mark.parametrize("kind", SPECS)
def test_state_round_trip_continues_bit_for_bit(kind: str, kernels: bool) -> None:
    spec = SPECS[kind]
    hyper = PPOConfig(hidden_sizes=[8], batch_size=16, epochs=2)
    obs, first = np.ones((5, 3), np.float32), np.zeros(5, np.bool_)

    def fresh(seed: int) -> PPO:
        torch.manual_seed(seed)
        ppo = PPO(MLPActorCritic.build(spec, hyper), hyper, spec, seed=seed)
        return accelerated(ppo) if kernels else ppo

    def go_on(ppo: PPO, rounds: range) -> list[np.ndarray]:
        actions = []
        for number in rounds:
            actions.append(ppo.act(obs, (), first, START, explore=True).action)
            ppo.update(random_rollout(spec, 20, seed=number), Clock(number, 100))
        return actions

    straight, half = fresh(0), fresh(0)
    expected = go_on(straight, range(6))[3:]
    go_on(half, range(3))
    resumed = fresh(1)
    resumed.load_state_dict(half.state_dict())
    found = go_on(resumed, range(3, 6))
    assert torch.equal(resumed.optimizer.flat, straight.optimizer.flat)
    assert all(map(np.array_equal, found, expected))


def test_generators_continue_where_they_were_saved() -> None:
    for make, draw in (
        (lambda seed: NumpyGenerator(seed), lambda g: float(g.numpy.random())),
        (
            lambda seed: BlockNoise(seed, lambda rng, rows: rng.random((rows, 2)), width=2),
            lambda g: float(g.take(3)[1, 0]),
        ),
    ):
        generator, other = make(1), make(2)
        draw(generator)
        state = generator.state_dict()
        expected = draw(generator)
        assert draw(other) != expected
        other.load_state_dict(state)
        assert draw(other) == expected


def test_noise_drawn_in_blocks_never_repeats_and_fits_any_number_of_environments() -> None:
    noise = BlockNoise(0, lambda rng, rows: rng.random((rows, 1)), width=1)
    seen = [noise.take(count) for count in (3, 4000, 3, 3000, 10_000, 1)]
    assert [len(rows) for rows in seen] == [3, 4000, 3, 3000, 10_000, 1]
    numbers = np.concatenate(seen)
    assert len(np.unique(numbers)) == len(numbers)


@pytest.mark.parametrize("cut", range(8))
def test_noise_saved_within_a_block_goes_on_alike_for_any_numbers_of_rows(cut: int) -> None:
    def build(seed: int) -> BlockNoise:
        return BlockNoise(seed, lambda rng, rows: rng.random((rows, 2)), width=2)

    # Within the first block, to its very end, over it, into one of its own size, and after that.
    counts = [1, 4000, 95, 3, 5000, 2, 4094, 1, 7, 4096, 9000, 5]
    straight, saved, resumed = build(1), build(1), build(2)
    expected = [straight.take(count).copy() for count in counts]
    for count in counts[:cut]:
        saved.take(count)
    resumed.load_state_dict(copy.deepcopy(saved.state_dict()))
    for count, rows in zip(counts[cut:], expected[cut:], strict=True):
        assert np.array_equal(resumed.take(count), rows)
        assert resumed.state_dict()["used"] <= resumed.state_dict()["rows"]


def test_a_log_std_that_cannot_be_learned_is_refused() -> None:
    spec = EnvSpec(env_id="toy", obs_shape=(1,), action_kind="continuous", action_dim=1)
    model = MLPActorCritic(1, 1, (4,))
    model.log_std = torch.zeros(1)  # a plain tensor is neither trained nor saved
    with pytest.raises(ConfigError, match="expected a parameter log_std"):
        PPO(model, PPOConfig(), spec)
