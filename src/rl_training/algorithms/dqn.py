"""DQN (Mnih et al., 2015), with double Q-learning (van Hasselt et al., 2016) as an option.

Deviations from the paper: Adam by default instead of RMSprop, intervals in environment
transitions, and a gradient-norm bound of 10.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rl_training.algorithms.functional.shapes import expect_shapes
from rl_training.algorithms.functional.td import chosen, q_target
from rl_training.algorithms.q_learning import METRICS, LossResult
from rl_training.algorithms.value_based import ValueBased
from rl_training.algorithms.value_based_config import ValueBasedConfig
from rl_training.data.arrays import Array, constant, means, namespace, rows_of
from rl_training.data.metrics import Metrics
from rl_training.data.types import Batch


class DQNConfig(ValueBasedConfig):
    """Hyper-parameters of DQN."""

    loss: Literal["huber", "mse"] = Field(
        "huber", description="of the temporal-difference error; mse is half its square"
    )


def dqn_loss(
    q: Array,
    next_q: Array,
    batch: Batch,
    *,
    selector: Array | None = None,
    kind: Literal["huber", "mse"] = "huber",
) -> LossResult:
    """Weighted mean over the batch of the Huber (or half squared) temporal-difference error.

    Shapes: q, next_q and selector [B, A]. `q` is the online network at `obs`, `next_q` the target
    network at `next_obs`; `selector` chooses the next action, by default `next_q` itself.
    """
    target = constant(q_target(batch.reward, batch.discount, next_q, selector))
    value = chosen(q, batch.action)
    expect_shapes("B, B, B", value, target, batch.weight)
    error = value - target
    # Huber's derivative is the error held within 1, and Huber itself slope * (error - slope / 2);
    # the half square is the same without the bound.
    slope = error.clip(-1.0, 1.0) if kind == "huber" else error
    weighted = slope * batch.weight
    rows = weighted * (error - 0.5 * slope)
    td_error = constant(abs(error))
    numbers = means(rows, value, target, td_error)
    gradient = namespace(q).zeros_like(q)
    gradient[rows_of(q), batch.action] = constant(weighted) / len(weighted)
    return LossResult(numbers[0], gradient, Metrics(METRICS, numbers), td_error)


class DQN(ValueBased):
    """Q-learning with a neural network and a target network."""

    hyper: DQNConfig

    def loss(self, output: Array, following: Array, selector: Array, batch: Batch) -> LossResult:
        """`dqn_loss` of the kind that was asked for."""
        selector = selector if self.hyper.double else None
        return dqn_loss(output, following, batch, selector=selector, kind=self.hyper.loss)
