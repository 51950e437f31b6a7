"""QR-DQN (Dabney et al., 2018): quantiles of the return in place of its mean.

As in the paper the next action has the highest mean of the *target* network's quantiles; `double`
lets the online network choose. Deviations: the defaults of DQN here, so a learning rate of
2.5e-4 (5e-5 in the paper), Adam's epsilon 1e-8 (0.01 / 32), exploration down to 0.05 (0.01), a
target network copied every 500 environment transitions (10,000), and a gradient-norm bound of 10.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from rl_training.algorithms.functional.quantile import quantile_huber
from rl_training.algorithms.functional.td import chosen
from rl_training.algorithms.q_learning import METRICS, LossResult
from rl_training.algorithms.value_based import Returns, ValueBased
from rl_training.algorithms.value_based_config import ValueBasedConfig
from rl_training.data.arrays import Array, constant, means, namespace, rows_of
from rl_training.data.metrics import Metrics
from rl_training.data.types import Batch


class QRDQNConfig(ValueBasedConfig):
    """Hyper-parameters of QR-DQN."""

    num_quantiles: int = Field(200, ge=1, le=10_000, description="quantiles of each action")


def qr_dqn_loss(
    quantiles: Array, following: Array, batch: Batch, *, selector: Array | None = None
) -> LossResult:
    """Weighted mean over the batch of the quantile Huber loss.

    Shapes: quantiles [B, A, N] of the online network at `obs`, following [B, A, M] of the target
    network at `next_obs`; `selector` [B, A] chooses the next action, by default by the mean of
    `following`. A row's priority is how far the means are apart.
    """
    xp, rows = namespace(quantiles), rows_of(quantiles)
    best = (following.mean(-1) if selector is None else selector).argmax(1)
    samples = batch.reward[:, None] + batch.discount[:, None] * chosen(following, best)
    mine = chosen(quantiles, batch.action)
    losses = quantile_huber(mine, samples)
    value, target = mine.mean(-1), constant(samples.mean(-1))
    error = constant(abs(value - target))
    numbers = means(losses.rows * batch.weight, value, target, error)
    gradient = xp.zeros_like(quantiles)
    gradient[rows, batch.action] = losses.gradient * (batch.weight / len(rows))[:, None]
    return LossResult(numbers[0], gradient, Metrics(METRICS, numbers), error)


class QRDQN(ValueBased):
    """Q-learning on quantiles of the return."""

    @staticmethod
    def per_action(hyper: QRDQNConfig) -> tuple[int, ...]:
        """One number per quantile."""
        return (hyper.num_quantiles,)

    def q_values(self, output: Array) -> Array:
        """The mean of each action's quantiles."""
        return output.mean(-1)

    def returns(self, output: np.ndarray) -> Returns:
        """Quantiles in order; a network's own may cross."""
        return Returns("quantiles", np.sort(output), np.full(output.shape, 1 / output.shape[1]))

    def loss(self, output: Array, following: Array, selector: Array, batch: Batch) -> LossResult:
        """`qr_dqn_loss`."""
        return qr_dqn_loss(output, following, batch, selector=selector)
