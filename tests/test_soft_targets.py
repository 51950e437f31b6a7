"""Soft Q-learning (`temperature`) in the targets of the value family, by hand and in whole runs."""

from __future__ import annotations

from math import exp, log
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from rl_training.algorithms.c51 import c51_loss
from rl_training.algorithms.dqn import dqn_loss, td_target
from rl_training.algorithms.drqn import drqn_loss
from rl_training.algorithms.qr_dqn import qr_dqn_loss
from rl_training.algorithms.value_based import bootstrap
from rl_training.data.types import SequenceBatch
from rl_training.errors import ConfigError
from rl_training.experiment.registry import train_config
from rounding import double_precision
from training import FAMILY, final_state, tiny_config
from value_batches import make_batch

# At temperature 2 the softmax of (0, 2 log 3) has the probabilities 1/4 and 3/4, and its entropy is
# log 4 - 3/4 log 3. So the soft value is 3/4 * 2 log 3 + 2 * (log 4 - 3/4 log 3) = 2 log 4, which
# is 2 * logsumexp(0, log 3).
TEMPERATURE = 2.0
NEXT_Q = torch.tensor([[0.0, 2 * log(3)]], dtype=torch.float64)
BONUS = 2 * (log(4) - 0.75 * log(3))


@double_precision()
def test_the_soft_value_is_a_logsumexp() -> None:
    value, bonus = bootstrap(NEXT_Q, NEXT_Q, TEMPERATURE)
    assert_close(bonus, torch.tensor([BONUS]))
    assert_close(value + bonus, torch.tensor([2 * log(4)]))


@double_precision()
def test_with_a_selector_its_policy_meets_the_target_networks_values() -> None:
    # The selector's policy is (1/4, 3/4), the target network's values are 8 and 4: 2 + 3 = 5.
    target = td_target(
        torch.tensor([1.0]),
        torch.tensor([0.5]),
        torch.tensor([[8.0, 4.0]]),
        NEXT_Q,
        TEMPERATURE,
    )
    assert_close(target, torch.tensor([1 + 0.5 * (5 + BONUS)]))


@double_precision()
def test_dqn_bootstraps_from_the_soft_value_unless_terminated() -> None:
    batch = make_batch([0, 0], [1.0, 1.0], [0.5, 0.0])
    q = torch.zeros(2, 2)
    result = dqn_loss(q, NEXT_Q.repeat(2, 1), batch, temperature=TEMPERATURE)
    assert_close(result.priority, torch.tensor([1 + 0.5 * 2 * log(4), 1.0]))


@double_precision()
def test_qr_dqn_averages_quantiles_of_one_level_over_the_next_actions() -> None:
    # Quantiles (-1, 1) around 0 and (-2, 2) around 2 log 3: 1/4 of the first, 3/4 of the second.
    next_quantiles = torch.tensor([[[-1.0, 1.0], [2 * log(3) - 2, 2 * log(3) + 2]]])
    shift = 0.75 * 2 * log(3) + BONUS
    samples = [1 + 0.5 * (-0.25 - 1.5 + shift), 1 + 0.5 * (0.25 + 1.5 + shift)]
    batch, quantiles = make_batch([0], [1.0], [0.5]), torch.zeros(1, 2, 2)
    result = qr_dqn_loss(quantiles, next_quantiles, batch, temperature=TEMPERATURE)
    # Both samples lie more than 1 above both quantiles, 0: Huber gives x - 1/2, levels 1/4 + 3/4.
    assert_close(result.value, torch.tensor(sum(samples) / 2 - 0.5))
    assert_close(result.priority, torch.tensor([1 + 0.5 * 2 * log(4)]))


@double_precision()
def test_c51_mixes_the_next_actions_and_moves_the_mixture_by_the_bonus() -> None:
    # Returns 0 and 8; the actions' expectations must be 0 and 2 log 3 for the policy (1/4, 3/4).
    support, share = torch.tensor([0.0, 8.0]), 2 * log(3) / 8
    next_logits = torch.tensor([[[60.0, 0.0], [log(1 - share), log(share)]]])
    result = c51_loss(
        torch.zeros(1, 2, 2),
        next_logits,
        make_batch([0], [1.0], [0.5]),
        support,
        temperature=TEMPERATURE,
    )
    # exp(-60) of probability on 8 in place of none moves nothing that double precision shows.
    assert_close(result.metrics["target_mean"], torch.tensor(1 + 0.5 * 2 * log(4)))


@double_precision()
def test_drqn_bootstraps_every_row_from_the_soft_value() -> None:
    batch = SequenceBatch(
        obs=torch.zeros(3, 1, 3),
        action=torch.zeros(2, 1, dtype=torch.int64),
        reward=torch.tensor([[1.0], [2.0]]),
        discount=torch.tensor([[0.5], [0.0]]),
        first=torch.zeros(3, 1, dtype=torch.bool),
        mask=torch.ones(2, 1, dtype=torch.bool),
        state=(),
    )
    values = NEXT_Q.expand(3, 1, 2)
    for double in (False, True):
        q = values if double else values[:2]
        result = drqn_loss(q, values, batch, double=double, temperature=TEMPERATURE)
        expected = (1 + 0.5 * 2 * log(4) + 2.0) / 2
        assert_close(result.metrics["target_mean"], torch.tensor(expected))


@given(
    q=st.lists(st.floats(-100, 100), min_size=2, max_size=5),
    temperature=st.floats(1e-3, 100),
)
@double_precision()
def test_the_soft_value_lies_between_the_maximum_and_a_bonus_above_it(
    q: list[float], temperature: float
) -> None:
    values = torch.tensor([q])
    value, bonus = bootstrap(values, values, temperature)
    soft, best = float(value + bonus), max(q)
    rounding = 1e-13 * (100 + temperature)
    assert best - rounding <= soft <= best + temperature * log(len(q)) + rounding
    assert 0 <= float(bonus) <= temperature * log(len(q)) + rounding


def test_at_temperature_0_it_is_the_greedy_action_to_the_bit() -> None:
    outputs = torch.randn(50, 4, 3, generator=torch.Generator().manual_seed(0))
    q = outputs.mean(-1)
    value, bonus = bootstrap(outputs, q)
    best = q.argmax(1).tolist()
    assert torch.equal(value, torch.stack([outputs[row, best[row]] for row in range(50)]))
    assert not bonus.any()


def test_a_small_temperature_stays_finite() -> None:
    values = torch.tensor([[1e4, -1e4, 0.0]])
    value, bonus = bootstrap(values, values, 1e-6)
    assert (value.item(), bonus.item()) == (1e4, 0.0)


def test_more_good_actions_are_worth_more() -> None:
    """Why it keeps a policy away from the brink: states with one way out are worth less."""

    def soft(*q: float) -> float:
        values = torch.tensor([q], dtype=torch.float64)
        value, bonus = bootstrap(values, values, 0.5)
        return float(value + bonus)

    assert soft(1.0, 1.0) == pytest.approx(1 + 0.5 * log(2))
    assert soft(1.0, -1.0) == pytest.approx(1 + 0.5 * log(1 + exp(-4)))
    assert soft(1.0, 1.0) > soft(1.0, -1.0) > 1


def run(algo: str, tmp_path: Path, **hyper: Any) -> dict[str, str]:
    """The hashes of the final state of a short run."""
    config = tiny_config(algo, tmp_path, algo_kwargs=hyper, eval_interval=0, final_eval_episodes=0)
    return final_state(train_config(config).run_dir)


@pytest.mark.parametrize("algo", [*FAMILY, "drqn"])
def test_every_algorithm_of_the_family_learns_with_it(algo: str, tmp_path: Path) -> None:
    # Learning fast enough for errors to come within the Huber threshold.
    hard, soft, double = (
        run(algo, tmp_path, temperature=temperature, double=double, learning_rate=0.03)["agent"]
        for temperature, double in ((0.0, False), (0.5, False), (0.5, True))
    )
    assert len({hard, soft, double}) == 3  # not taken and then ignored, with `double` either


@pytest.mark.parametrize("wrong", [-0.1, float("nan"), float("inf"), "warm"])
def test_what_is_no_temperature_is_refused(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"algo_kwargs\.temperature"):
        run("dqn", tmp_path, temperature=wrong)


def test_the_target_has_no_gradient() -> None:
    q = torch.zeros(1, 2, requires_grad=True)
    next_q: Tensor = torch.ones(1, 2, requires_grad=True)
    loss = dqn_loss(q, next_q, make_batch([0], [1.0], [0.5]), temperature=TEMPERATURE)
    loss.value.backward()
    assert next_q.grad is None
