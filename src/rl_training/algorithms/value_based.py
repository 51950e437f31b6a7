"""What the value-based algorithms share: exploration, greedy acting, and the update."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import nn

from rl_training.algorithms.base import Acting, Algorithm, UpdateResult
from rl_training.algorithms.checks import check_network
from rl_training.algorithms.exploration import EpsilonGreedy
from rl_training.algorithms.gradients import vjp_of
from rl_training.algorithms.optimization import Optimizer, TargetNetwork
from rl_training.algorithms.value_based_config import TARGET_UPDATE_INTERVAL, ValueBasedConfig
from rl_training.data.arrays import Array
from rl_training.data.metrics import Metrics
from rl_training.data.types import Batch, EnvSpec, Moment, PolicyState
from rl_training.experiment.config import scheduled_value

METRICS = ("loss", "q_value_mean", "target_mean", "td_error_mean")


class LossResult(NamedTuple):
    """A loss, its gradient with respect to the network's output, metrics, and rows' priorities."""

    loss: Array
    gradient: Array
    metrics: Metrics
    priority: Array


class Returns(NamedTuple):
    """The distribution of each action's return: `returns` [A, N] and their `probabilities` [A, N].

    It consists of `quantiles` of equal probability, in order, of fixed `atoms`, or of a mean alone
    (`values`, N = 1).
    """

    form: Literal["values", "quantiles", "atoms"]
    returns: np.ndarray
    probabilities: np.ndarray


class ValueBased(Algorithm):
    """An online network, its optimiser, a target network and epsilon-greedy exploration.

    A subclass writes `loss`, and where its network gives more than Q-values, `per_action`,
    `q_values` and `returns`.
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
        check_network(model, spec, (spec.num_actions, *self.per_action(hyper)))
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
        self.hyper = hyper
        self.parts = {
            "model": self.model,
            "target": self.target,
            "optimizer": self.optimizer,
            "exploration": self.exploration,
        }

    @staticmethod
    def per_action(hyper: Any) -> tuple[int, ...]:  # noqa: ARG004 - one number by default
        """The shape of what the network gives for each action."""
        return ()

    def q_values(self, output: Array) -> Array:
        """Q-values [B, A] from the network's output."""
        return output

    def returns(self, output: np.ndarray) -> Returns:
        """What the network's output for one observation says of each action's return."""
        return Returns("values", output[:, None], np.ones((len(output), 1)))

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
        epsilon = self.epsilon(moment)
        return Acting(self.exploration.act(epsilon, len(obs), lambda: self.greedy(obs)), state)

    def greedy(self, obs: np.ndarray) -> np.ndarray:
        """The action with the highest Q-value in each row."""
        self.set_training(self.model, False)
        best: np.ndarray = self.q_values(self.output(self.model, obs)).argmax(-1)
        return best

    def update(self, batch: Batch, moment: Moment) -> UpdateResult:
        """One gradient step, then the target network if it is due."""
        self.set_training(self.model, True)
        with self.quietly():
            result = self._gradient(self.to_learn_from(batch))
            self.optimizer.step(self.learning_rate(moment))
        self.target.update(moment)
        return UpdateResult(result.metrics, priorities=result.priority)

    def _gradient(self, batch: Batch) -> LossResult:
        """Leave the gradient of the batch's loss in the parameters."""
        following = self.target.module(batch.next_obs)
        choosing = self.model(batch.next_obs) if self.hyper.double else following
        output, pull_back = self.vjp(batch.obs)
        result = self.loss(output, following, self.q_values(choosing), batch)
        pull_back(result.gradient)
        return result

    @abstractmethod
    def loss(self, output: Array, following: Array, selector: Array, batch: Batch) -> LossResult:
        """The loss of a batch.

        `output` is the online network's at `obs` and `following` the target network's at
        `next_obs`; the action with the highest `selector` [B, A] is the one that follows.
        """
