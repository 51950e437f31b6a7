"""QR-DQN (Dabney et al., 2018): quantiles of the return in place of its mean.

As in the paper the next action has the highest mean of the *target* network's quantiles; `double`
lets the online network choose. Deviations: the defaults of DQN here, so a learning rate of
2.5e-4 (5e-5 in the paper), Adam's epsilon 1e-8 (0.01 / 32), exploration down to 0.05 (0.01), a
target network copied every 500 environment transitions (10,000), and gradient-norm clipping at 10.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from rl_training.algorithms.base import Loss, ReturnDistribution, mask_illegal
from rl_training.algorithms.functional.quantile import quantile_huber_loss
from rl_training.algorithms.value_based import (
    ValueBased,
    action_values,
    bootstrap,
)
from rl_training.config.value_based import QRDQNConfig
from rl_training.data.types import Batch


def qr_dqn_loss(
    quantiles: Tensor,
    next_quantiles: Tensor,
    batch: Batch,
    *,
    selector: Tensor | None = None,
    temperature: float = 0.0,
) -> Loss:
    """Weighted mean over the batch of the quantile Huber loss.

    Shapes: quantiles [B, A, N] of the online network at `obs`, next_quantiles [B, A, M] of the
    target network at `next_obs`; `selector` [B, A] chooses the next action among the legal ones, by
    default by the mean of `next_quantiles`. A row's priority is the absolute difference of the
    means. With a temperature, each quantile is averaged over the next actions, as in Munchausen IQN
    (Vieillard et al., 2020).
    """
    selector = next_quantiles.mean(-1) if selector is None else selector
    selector = mask_illegal(selector, batch.next_legal)
    next_samples, bonus = bootstrap(next_quantiles, selector, temperature)
    samples = batch.reward[:, None] + batch.discount[:, None] * (next_samples + bonus[:, None])
    samples = samples.detach()
    predicted = action_values(quantiles, batch.action)
    loss = (quantile_huber_loss(predicted, samples) * batch.weight).mean()
    value, target = predicted.detach().mean(-1), samples.mean(-1)
    td_error = (value - target).abs()
    metrics = {
        "loss": loss.detach(),
        "q_value_mean": value.mean(),
        "target_mean": target.mean(),
        "td_error_mean": td_error.mean(),
    }
    return Loss(loss, metrics, td_error)


class QRDQN(ValueBased):
    """Q-learning on quantiles of the return."""

    hyper: QRDQNConfig

    def loss(self, batch: Batch) -> Loss:
        """`qr_dqn_loss`; with `double` the online network chooses the next action."""
        next_quantiles, selector = self.target(batch.next_obs), self.selector(batch.next_obs)
        return qr_dqn_loss(
            self.model(batch.obs),
            next_quantiles,
            batch,
            selector=selector,
            temperature=self.hyper.temperature,
        )

    @staticmethod
    def output_shape_per_action(hyper: QRDQNConfig) -> tuple[int, ...]:
        """One number per quantile."""
        return (hyper.num_quantiles,)

    def q_values(self, output: Tensor) -> Tensor:
        """The mean of each action's quantiles."""
        return output.mean(-1)

    def returns(self, output: np.ndarray) -> ReturnDistribution:
        """Sorted quantiles, as those of a network may cross."""
        return ReturnDistribution(
            "quantiles", np.sort(output), np.full(output.shape, 1 / output.shape[1])
        )
