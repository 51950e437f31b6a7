"""DQN (Mnih et al., 2015), with double Q-learning (van Hasselt et al., 2016) as an option.

Deviations from the paper: Adam by default instead of RMSprop, intervals in environment
transitions, and a gradient-norm bound of 10.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from rl_training.algorithms.base import UpdateResult
from rl_training.algorithms.checks import check_network
from rl_training.algorithms.functional.shapes import expect_shapes
from rl_training.algorithms.functional.td import chosen, q_target
from rl_training.algorithms.value_based import ValueBased, ValueBasedConfig
from rl_training.data.types import Batch, EnvSpec, Moment


class DQNConfig(ValueBasedConfig):
    """Hyper-parameters of DQN."""

    loss: Literal["huber", "mse"] = Field(
        "huber", description="of the temporal-difference error; mse is half its square"
    )


class LossResult(NamedTuple):
    """A loss with its metrics, and the absolute error of each row."""

    loss: Tensor
    metrics: dict[str, Tensor]
    td_error: Tensor


def dqn_loss(
    q: Tensor,
    next_q: Tensor,
    batch: Batch,
    *,
    selector: Tensor | None = None,
    kind: Literal["huber", "mse"] = "huber",
) -> LossResult:
    """Weighted mean over the batch of the Huber (or half squared) temporal-difference error.

    Shapes: q, next_q and selector [B, A]. `q` is the online network at `obs`, `next_q` the target
    network at `next_obs`; `selector` chooses the next action, by default `next_q` itself.
    """
    target = q_target(
        batch.reward, batch.discount, next_q, next_q if selector is None else selector
    )
    value = chosen(q, batch.action)
    expect_shapes("B, B", value, batch.weight)
    if kind == "huber":
        error = F.huber_loss(value, target, reduction="none")
    else:
        error = 0.5 * F.mse_loss(value, target, reduction="none")
    loss = (batch.weight * error).mean()
    td_error = (target - value.detach()).abs()
    metrics = {
        "loss": loss.detach(),
        "q_value_mean": value.detach().mean(),
        "target_mean": target.mean(),
        "td_error_mean": td_error.mean(),
    }
    return LossResult(loss, metrics, td_error)


class DQN(ValueBased):
    """Q-learning with a neural network and a target network."""

    def __init__(
        self,
        model: nn.Module,
        hyper: DQNConfig,
        spec: EnvSpec,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        check_network(model, spec, (spec.num_actions,))
        super().__init__(model, hyper, spec, seed=seed, device=device)
        self.hyper = hyper

    def update(self, batch: Batch, moment: Moment) -> UpdateResult:
        """One gradient step, then the target network if it is due."""
        self.set_training(self.model, True)
        with torch.no_grad():
            next_q = self.target.module(batch.next_obs)
            selector = self.model(batch.next_obs) if self.hyper.double else None
        result = dqn_loss(
            self.model(batch.obs), next_q, batch, selector=selector, kind=self.hyper.loss
        )
        self.optimizer.step(result.loss, self.learning_rate(moment))
        self.target.update(moment)
        return UpdateResult(result.metrics, priorities=result.td_error)
