"""QR-DQN and C51 learn a return of two peaks whose distribution is known, and DQN its mean.

Four states, discount 0.9. The first action leads from `start` (reward 1) to `fork` (reward 0), from
there to `win` or `lose` with probability 1/2 each, and there to the end with reward 10 or 0. The
second action ends an episode anywhere with reward -1. So with the better actions the return is

    10 or 0 at win and lose,  9 or 0 at fork,  1 + 0.9 * (9 or 0) = 9.1 or 1 at start,

and what is known at `start` has come through the target network twice.
"""

from __future__ import annotations

from functools import lru_cache
from math import log

import numpy as np
import pytest
import torch

from rl_training.algorithms.c51 import C51
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.functional.quantile import midpoints
from rl_training.algorithms.qr_dqn import QRDQN
from rl_training.algorithms.value_based import ValueBased
from rl_training.config.value_based import C51Config, DQNConfig, QRDQNConfig
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.types import Clock, EnvSpec, Transitions
from rl_training.models.mlp_categorical_q_network import MLPCategoricalQNetwork
from rl_training.models.mlp_q_network import MLPQNetwork
from rl_training.models.mlp_qr_q_network import MLPQRQNetwork

START, FORK, WIN, LOSE, END = range(5)
SPEC = EnvSpec(env_id="fork", obs_shape=(4,), action_kind="discrete", num_actions=2)
Row = tuple[int, int, float, int]  # state, action, reward, next state
EPISODES: list[list[Row]] = [
    [(START, 0, 1.0, FORK), (FORK, 0, 0.0, WIN), (WIN, 0, 10.0, END)],
    [(START, 0, 1.0, FORK), (FORK, 0, 0.0, LOSE), (LOSE, 0, 0.0, END)],
    *[[(state, 1, -1.0, END)] for state in (START, FORK, WIN, LOSE)],
]
MEAN = 5.05  # of 1 and 9.1
UPDATES = 3000
COMMON = {
    "hidden_sizes": (),  # a table: the observations are unit vectors
    "learning_rate": {"initial": 0.1, "final": 0.001, "kind": "exponential"},
    "target_update_interval": 50,
}


def unit(state: int) -> np.ndarray:
    return np.eye(5, 4, dtype=np.float32)[state : state + 1]  # the end is zero


def replay() -> ReplayBuffer:
    """Every transition as often as it comes."""
    buffer = ReplayBuffer(SPEC, capacity=100, gamma=0.9)
    for episode in EPISODES:
        for number, (state, action, reward, following) in enumerate(episode):
            step = Transitions(
                obs=unit(state),
                action=np.array([action]),
                reward=np.float32([reward]),
                next_obs=unit(following),
                terminated=np.array([following == END]),
                truncated=np.array([False]),
                first=np.array([number == 0]),
                valid=np.array([True]),
            )
            buffer.add(step)
    return buffer


def trained(algorithm: ValueBased) -> ValueBased:
    buffer = replay()
    for number in range(UPDATES):
        algorithm.update(buffer.sample(64), Clock(number, UPDATES))
    return algorithm


def output(algorithm: ValueBased, state: int) -> np.ndarray:
    """What the network says of the first action."""
    with torch.no_grad():
        found: np.ndarray = algorithm.model(torch.from_numpy(unit(state)))[0, 0].numpy()
    return found


@lru_cache(maxsize=1)
def dqn() -> ValueBased:
    torch.manual_seed(0)
    hyper = DQNConfig(loss="mse", **COMMON)  # Huber's minimum need not be the mean
    return trained(DQN(MLPQNetwork.build(SPEC, hyper), hyper, SPEC))


@lru_cache(maxsize=1)
def qr_dqn() -> ValueBased:
    torch.manual_seed(0)
    hyper = QRDQNConfig(num_quantiles=20, **COMMON)
    return trained(QRDQN(MLPQRQNetwork.build(SPEC, hyper), hyper, SPEC))


@lru_cache(maxsize=1)
def c51() -> ValueBased:
    torch.manual_seed(0)
    hyper = C51Config(num_atoms=15, v_min=-2, v_max=12, **COMMON)  # at -2, -1, ..., 12
    return trained(C51(MLPCategoricalQNetwork.build(SPEC, hyper), hyper, SPEC))


def atoms(state: int) -> dict[int, float]:
    """C51's probabilities by their return."""
    powers = np.exp(output(c51(), state))
    return dict(zip(range(-2, 13), powers / powers.sum(), strict=True))


def distance(quantiles: np.ndarray, low: float, high: float) -> float:
    """Wasserstein-1 distance to `low` or `high` with probability 1/2 each; lowest first."""
    half = len(quantiles) // 2
    return float(np.abs(quantiles - np.repeat([low, high], half)).mean())


# A single peak at the mean, all that DQN knows, is 4.05 away from the true distribution of `start`.


def test_dqn_learns_the_means() -> None:
    assert output(dqn(), START) == pytest.approx(MEAN, abs=0.1)
    assert output(dqn(), FORK) == pytest.approx(4.5, abs=0.1)


def test_the_quantiles_at_the_fork_minimise_the_quantile_huber_loss() -> None:
    """Its minimum is not quite at the quantiles of a sample: it smooths within the threshold of 1.

    For a share t < 1/2 the pull of the far peak, t / 2, and that of the near one,
    (1 - t) * distance / 2, cancel at the distance t / (1 - t); above 1/2 likewise.
    """
    shares = midpoints(20).double().numpy()
    low, high = shares[:10], shares[10:]
    expected = np.concatenate([low / (1 - low), 9 - (1 - high) / high])
    np.testing.assert_allclose(output(qr_dqn(), FORK), expected, atol=0.1)


def test_quantiles_approach_the_true_distribution() -> None:
    # The smoothing costs the integral of t / (1 - t) up to 1/2, twice: 2 log 2 - 1 = 0.386. That
    # happens at the fork, of which 0.9 arrives, and at the start again.
    smoothing = 2 * log(2) - 1
    assert distance(output(qr_dqn(), FORK), 0.0, 9.0) < smoothing + 0.05
    assert distance(output(qr_dqn(), START), 1.0, 9.1) < 1.9 * smoothing + 0.05


def test_quantiles_have_two_peaks_and_dqns_mean() -> None:
    quantiles = output(qr_dqn(), START)
    assert np.count_nonzero(abs(quantiles - 1.0) < 1.6) == 10
    assert np.count_nonzero(abs(quantiles - 9.1) < 1.6) == 10
    assert quantiles.mean() == pytest.approx(MEAN, abs=0.1)
    assert quantiles.mean() == pytest.approx(float(output(dqn(), START)), abs=0.15)


def test_probabilities_are_the_projected_true_distribution() -> None:
    """9 and 0 lie on the support. 9.1 does not: 9/10 of its half goes to 9, 1/10 to 10."""
    for state, expected in ((FORK, {0: 0.5, 9: 0.5}), (START, {1: 0.5, 9: 0.45, 10: 0.05})):
        found = atoms(state)
        for place, probability in found.items():
            assert probability == pytest.approx(expected.get(place, 0.0), abs=0.03)


def test_probabilities_approach_the_true_distribution() -> None:
    # Projection alone moves 0.45 by 0.1 and 0.05 by 0.9: a distance of 0.09.
    found = atoms(START)
    grid = np.linspace(-2, 12, 1401)
    mine = np.array([sum(p for place, p in found.items() if place <= x) for x in grid])
    true = 0.5 * (grid >= 1.0) + 0.5 * (grid >= 9.1)
    assert np.abs(mine - true)[:-1].sum() * 0.01 < 0.09 + 0.07


def test_probabilities_have_two_peaks_and_dqns_mean() -> None:
    found = atoms(START)
    assert found[1] > 0.45
    assert found[9] + found[10] > 0.45
    assert sum(found[place] for place in range(3, 8)) < 0.02
    mean = sum(place * probability for place, probability in found.items())
    assert mean == pytest.approx(MEAN, abs=0.1)
    assert mean == pytest.approx(float(output(dqn(), START)), abs=0.15)


@pytest.mark.parametrize("learner", [dqn, qr_dqn, c51])
def test_all_prefer_to_go_on(learner: type) -> None:
    obs = np.concatenate([unit(state) for state in (START, FORK, WIN, LOSE)])
    assert learner().greedy(obs).tolist() == [0, 0, 0, 0]
