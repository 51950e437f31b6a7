"""C51 (Bellemare et al., 2017): a distribution over fixed returns in place of its mean.

As in the paper the next action has the highest expected return by the *target* network; `double`
lets the online network choose. Deviations: the defaults of DQN here, so Adam's epsilon is
1e-8 (0.01 / 32 in the paper), exploration goes down to 0.05 (0.01), the target network is copied
every 500 environment transitions (10,000), and the norm of the gradient is bounded by 10.
"""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import nn
from typing_extensions import Self

from rl_training.algorithms.functional.categorical import project
from rl_training.algorithms.functional.td import chosen
from rl_training.algorithms.q_learning import METRICS, LossResult
from rl_training.algorithms.value_based import Returns, ValueBased
from rl_training.algorithms.value_based_config import ValueBasedConfig
from rl_training.data.arrays import (
    Array,
    constant,
    log_softmax,
    means,
    namespace,
    on_host,
    rows_of,
    softmax,
)
from rl_training.data.metrics import Metrics
from rl_training.data.types import Batch, EnvSpec
from rl_training.experiment.config import check


class C51Config(ValueBasedConfig):
    """Hyper-parameters of C51."""

    num_atoms: int = Field(51, ge=2, le=10_000, description="returns of the distribution")
    v_min: float = Field(-10.0, ge=-1e6, le=1e6, description="the lowest of them")
    v_max: float = Field(10.0, ge=-1e6, le=1e6, description="the highest")

    @model_validator(mode="after")
    def _a_range_of_returns(self) -> Self:
        apart = (self.v_max - self.v_min) / (self.num_atoms - 1)
        check(
            apart > 1e-5 * max(abs(self.v_min), abs(self.v_max)),
            f"expected v_min below v_max, so far that {self.num_atoms} returns between them can be "
            f"told apart, found {self.v_min} and {self.v_max}; widen the range, or lower num_atoms",
        )
        return self


def c51_loss(
    logits: Array,
    following: Array,
    batch: Batch,
    support: Array,
    *,
    selector: Array | None = None,
) -> LossResult:
    """Weighted mean over the batch of the cross-entropy with the projected target distribution.

    Shapes: logits [B, A, K] of the online network at `obs`, following [B, A, K] logits of the
    target network at `next_obs`, support [K]; `selector` [B, A] chooses the next action, by default
    by the expectation of `following`. A row's priority is the cross-entropy beyond the target's own
    entropy (Kullback-Leibler), as in Rainbow.
    """
    xp, rows = namespace(logits), rows_of(logits)
    if selector is None:
        selector = softmax(following) @ support
    next_probabilities = softmax(chosen(following, selector.argmax(1)))
    target = constant(project(next_probabilities, batch.reward, batch.discount, support))
    log_probabilities = log_softmax(chosen(logits, batch.action))
    probabilities = xp.exp(log_probabilities)
    value, target_value = probabilities @ support, target @ support
    crossed = -(target * log_probabilities).sum(-1)
    entropy = -(target * xp.log(target.clip(1e-30, 1.0))).sum(-1)
    error = constant(abs(value - target_value))
    numbers = means(crossed * batch.weight, value, target_value, error)
    gradient = xp.zeros_like(logits)
    # The gradient of a cross-entropy with respect to its logits.
    pull = (constant(probabilities) - target) * (batch.weight / len(rows))[:, None]
    gradient[rows, batch.action] = pull
    divergence = constant(crossed - entropy).clip(0.0, None)
    return LossResult(numbers[0], gradient, Metrics(METRICS, numbers), divergence)


class C51(ValueBased):
    """Q-learning on a categorical distribution of the return."""

    def __init__(
        self,
        model: nn.Module,
        hyper: C51Config,
        spec: EnvSpec,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(model, hyper, spec, seed=seed, device=device)
        self._tensor = torch.linspace(hyper.v_min, hyper.v_max, hyper.num_atoms).to(self.device)
        self._array = on_host(self._tensor)

    @staticmethod
    def per_action(hyper: C51Config) -> tuple[int, ...]:
        """One number per return."""
        return (hyper.num_atoms,)

    def support(self, x: Array) -> Array:
        """The returns of the distribution, as an array if `x` is one."""
        return self._array if isinstance(x, np.ndarray) else self._tensor

    def q_values(self, output: Array) -> Array:
        """The expected return of each action."""
        return softmax(output) @ self.support(output)

    def returns(self, output: np.ndarray) -> Returns:
        """Probabilities of the fixed returns."""
        atoms = np.broadcast_to(self.support(output), output.shape)
        return Returns("atoms", atoms, softmax(output))

    def loss(self, output: Array, following: Array, selector: Array, batch: Batch) -> LossResult:
        """`c51_loss` on the algorithm's support."""
        return c51_loss(output, following, batch, self.support(output), selector=selector)
