"""What all Q-learning shares: a network with its optimiser and target, exploration, the update."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import torch
from torch import nn

from rl_training.algorithms.base import Algorithm, UpdateResult
from rl_training.algorithms.exploration import EpsilonGreedy
from rl_training.algorithms.gradients import vjp_of
from rl_training.algorithms.optimization import Optimizer, TargetNetwork
from rl_training.algorithms.value_based_config import TARGET_UPDATE_INTERVAL, QLearningConfig
from rl_training.data.arrays import Array
from rl_training.data.metrics import Metrics
from rl_training.data.types import EnvSpec, Moment
from rl_training.experiment.config import scheduled_value

METRICS = ("loss", "q_value_mean", "target_mean", "td_error_mean")


class LossResult(NamedTuple):
    """A loss, its gradient with respect to the network's output, metrics, and rows' priorities."""

    loss: Array
    gradient: Array
    metrics: Metrics
    priority: Array | None = None


class QLearning(Algorithm):
    """An online network, its optimiser, a target network and epsilon-greedy exploration.

    A subclass writes `check`, `act` and `_gradient`, and `outputs` if its network is not simply
    called with observations.
    """

    def __init__(
        self,
        model: nn.Module,
        hyper: QLearningConfig,
        spec: EnvSpec,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(device)
        self.check(model, hyper, spec)
        self.model: Any = model.to(self.device)
        self.optimizer = Optimizer(
            self.model,
            name=hyper.optimizer,
            eps=hyper.optimizer_eps,
            max_grad_norm=hyper.max_grad_norm,
        )
        self.vjp = vjp_of(self.model, self.outputs)
        self.use_arrays(self.model)
        interval = hyper.target_update_interval or TARGET_UPDATE_INTERVAL
        self.target = TargetNetwork(self.model, self.optimizer, tau=hyper.tau, interval=interval)
        self.exploration = EpsilonGreedy(spec.num_actions, seed)
        self.hyper = hyper
        self.parts = {
            "model": self.model,
            "target": self.target,
            "optimizer": self.optimizer,
            "exploration": self.exploration,
        }

    @abstractmethod
    def check(self, model: nn.Module, hyper: Any, spec: EnvSpec) -> None:
        """Refuse a network that does not fit."""

    def outputs(self, inputs: Any) -> Any:
        """What the loss is a function of."""
        return self.model(inputs)

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

    def update(self, batch: Any, moment: Moment) -> UpdateResult:
        """One gradient step, then the target network if it is due."""
        self.set_training(self.model, True)
        with self.quietly():
            result = self._gradient(self.to_learn_from(batch))
            self.optimizer.step(self.learning_rate(moment))
        self.target.update(moment)
        return UpdateResult(result.metrics, priorities=result.priority)

    @abstractmethod
    def _gradient(self, batch: Any) -> LossResult:
        """Leave the gradient of the batch's loss in the parameters."""
