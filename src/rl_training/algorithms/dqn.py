"""DQN (Mnih et al., 2015), with double Q-learning (van Hasselt et al., 2016) as an option.

Deviations from the paper: Adam by default instead of RMSprop, intervals in environment
transitions, and a gradient-norm bound of 10.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn
from typing_extensions import Self

from rl_training.algorithms.base import Acting, Algorithm, UpdateResult, check_network
from rl_training.algorithms.exploration import EpsilonGreedy
from rl_training.algorithms.functional.td import chosen, q_target
from rl_training.algorithms.optimization import Optimizer, OptimizerName, TargetNetwork
from rl_training.data.types import Batch, EnvSpec, Moment, PolicyState
from rl_training.experiment.config import (
    LearningRate,
    OffPolicyHyperParameters,
    Probability,
    Schedule,
    check,
    scheduled_value,
)


class DQNConfig(OffPolicyHyperParameters):
    """Hyper-parameters of DQN."""

    learning_rate: LearningRate = Field(2.5e-4, description="step size of the optimiser")
    replay_ratio: float = Field(
        0.25, gt=0, le=1000, description="gradient steps per environment transition"
    )
    epsilon: Probability = Field(
        Schedule(initial=1.0, final=0.05, fraction=0.1),
        description="share of random actions while training",
    )
    double: bool = Field(False, description="choose the next action with the online network")
    loss: Literal["huber", "mse"] = Field(
        "huber", description="of the temporal-difference error; mse is half its square"
    )
    optimizer: OptimizerName = Field(
        "adam", description="rmsprop is the centred one of the 2015 paper"
    )
    optimizer_eps: float = Field(
        1e-8, gt=0, le=1, description="added to the denominator of the optimiser"
    )
    max_grad_norm: float | None = Field(
        10.0, gt=0, le=1e6, description="bound on the norm of the gradient; null for none"
    )
    tau: float = Field(1.0, gt=0, le=1, description="1 copies the target network, less follows it")
    target_update_interval: int | None = Field(
        None, ge=1, le=10**12, description="environment transitions between copies; default 500"
    )

    @model_validator(mode="after")
    def _one_way_to_update_the_target(self) -> Self:
        check(
            self.tau == 1.0 or self.target_update_interval is None,
            "tau < 1 moves the target network at every update; leave target_update_interval out",
        )
        return self


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


class DQN(Algorithm):
    """Q-learning with a neural network, a target network and epsilon-greedy exploration."""

    def __init__(
        self,
        model: nn.Module,
        hyper: DQNConfig,
        spec: EnvSpec,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(device)
        self.hyper = hyper
        self.model = model.to(self.device)
        check_network(self.model, spec, (spec.num_actions,))
        self.optimizer = Optimizer(
            self.model,
            name=hyper.optimizer,
            eps=hyper.optimizer_eps,
            max_grad_norm=hyper.max_grad_norm,
        )
        self.target = TargetNetwork(
            self.model,
            self.optimizer,
            tau=hyper.tau,
            interval=hyper.target_update_interval or 500,
        )
        self.exploration = EpsilonGreedy(spec.num_actions, seed)
        self.parts = {
            "model": self.model,
            "target": self.target,
            "optimizer": self.optimizer,
            "exploration": self.exploration,
        }

    def epsilon(self, moment: Moment) -> float:
        """Share of random actions; all of them during warm-up."""
        if moment.warming_up:
            return 1.0
        return scheduled_value(self.hyper.epsilon, moment.env_steps, moment.horizon)

    def learning_rate(self, moment: Moment) -> float:
        """The optimiser's step size."""
        return scheduled_value(self.hyper.learning_rate, moment.env_steps, moment.horizon)

    def schedules(self, moment: Moment) -> dict[str, float]:
        """Epsilon and the learning rate."""
        return {"epsilon": self.epsilon(moment), "learning_rate": self.learning_rate(moment)}

    def act(
        self,
        obs: np.ndarray,
        state: PolicyState,
        first: np.ndarray,  # noqa: ARG002 - feed-forward
        moment: Moment,
        *,
        explore: bool,
    ) -> Acting:
        """Epsilon-greedy actions with a coin per row, or greedy ones."""
        if not explore:
            return Acting(self.greedy(obs), state)
        explores, action = self.exploration.draw(self.epsilon(moment), len(obs))
        if not explores.all():
            action = np.where(explores, action, self.greedy(obs))
        return Acting(action, state)

    @torch.inference_mode()
    def greedy(self, obs: np.ndarray) -> np.ndarray:
        """The action with the highest Q-value in each row."""
        self.set_training(self.model, False)
        best: np.ndarray = self.model(self.to_tensor(obs)).argmax(-1).cpu().numpy()
        return best

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
