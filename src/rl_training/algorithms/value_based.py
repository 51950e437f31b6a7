"""What the value-based algorithms share: hyper-parameters, exploration, and greedy acting."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import nn
from typing_extensions import Self

from rl_training.algorithms.base import Acting, Algorithm
from rl_training.algorithms.exploration import EpsilonGreedy
from rl_training.algorithms.gradients import vjp_of
from rl_training.algorithms.optimization import Optimizer, OptimizerName, TargetNetwork
from rl_training.data.arrays import Array
from rl_training.data.types import EnvSpec, Moment, PolicyState
from rl_training.experiment.config import (
    LearningRate,
    OffPolicyHyperParameters,
    Probability,
    Schedule,
    check,
    scheduled_value,
)

TARGET_UPDATE_INTERVAL = 500


class ValueBasedConfig(OffPolicyHyperParameters):
    """Hyper-parameters of every algorithm that acts greedily on values."""

    learning_rate: LearningRate = Field(2.5e-4, description="step size of the optimiser")
    replay_ratio: float = Field(
        0.25, gt=0, le=1000, description="gradient steps per environment transition"
    )
    epsilon: Probability = Field(
        Schedule(initial=1.0, final=0.05, fraction=0.1),
        description="share of random actions while training",
    )
    double: bool = Field(False, description="choose the next action with the online network")
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
        None,
        ge=1,
        le=10**12,
        description=f"environment transitions between copies; null is {TARGET_UPDATE_INTERVAL}",
    )

    @model_validator(mode="after")
    def _one_way_to_update_the_target(self) -> Self:
        check(
            self.tau == 1.0 or self.target_update_interval is None,
            "tau < 1 moves the target network at every update; leave target_update_interval out",
        )
        return self


class ValueBased(Algorithm):
    """An online network, its optimiser, a target network and epsilon-greedy exploration.

    A subclass writes `update`, and `q_values` if its network gives more than Q-values.
    """

    def __init__(
        self,
        model: nn.Module,
        hyper: ValueBasedConfig,
        spec: EnvSpec,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(device)
        self.model = model.to(self.device)
        self.optimizer = Optimizer(
            self.model,
            name=hyper.optimizer,
            eps=hyper.optimizer_eps,
            max_grad_norm=hyper.max_grad_norm,
        )
        self.vjp = vjp_of(self.model)
        self.use_arrays(self.model)
        interval = hyper.target_update_interval or TARGET_UPDATE_INTERVAL
        self.target = TargetNetwork(self.model, self.optimizer, tau=hyper.tau, interval=interval)
        self.exploration = EpsilonGreedy(spec.num_actions, seed)
        self._epsilon, self._learning_rate = hyper.epsilon, hyper.learning_rate
        self.parts = {
            "model": self.model,
            "target": self.target,
            "optimizer": self.optimizer,
            "exploration": self.exploration,
        }

    def q_values(self, output: Array) -> Array:
        """Q-values [B, A] from the network's output."""
        return output

    def epsilon(self, moment: Moment) -> float:
        """Share of random actions; all of them during warm-up."""
        if moment.warming_up:
            return 1.0
        return scheduled_value(self._epsilon, moment.env_steps, moment.horizon)

    def learning_rate(self, moment: Moment) -> float:
        """The optimiser's step size."""
        return scheduled_value(self._learning_rate, moment.env_steps, moment.horizon)

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
        epsilon = self.epsilon(moment)
        return Acting(self.exploration.act(epsilon, len(obs), lambda: self.greedy(obs)), state)

    def greedy(self, obs: np.ndarray) -> np.ndarray:
        """The action with the highest Q-value in each row."""
        self.set_training(self.model, False)
        best: np.ndarray = self.q_values(self.output(self.model, obs)).argmax(-1)
        return best
