"""What the algorithms share that learn values from single transitions."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal, NamedTuple

import numpy as np
from torch import nn

from rl_training.algorithms.base import Acting
from rl_training.algorithms.checks import check_network
from rl_training.algorithms.q_learning import LossResult, QLearning
from rl_training.algorithms.value_based_config import ValueBasedConfig
from rl_training.data.arrays import Array
from rl_training.data.types import Batch, EnvSpec, Moment, PolicyState


class Returns(NamedTuple):
    """The distribution of each action's return: `returns` [A, N] and their `probabilities` [A, N].

    It consists of `quantiles` of equal probability, in order, of fixed `atoms`, or of a mean alone
    (`values`, N = 1).
    """

    form: Literal["values", "quantiles", "atoms"]
    returns: np.ndarray
    probabilities: np.ndarray


class ValueBased(QLearning):
    """Q-learning on a network of one observation.

    A subclass writes `loss`, and where its network gives more than Q-values, `per_action`,
    `q_values` and `returns`.
    """

    hyper: ValueBasedConfig

    def check(self, model: nn.Module, hyper: Any, spec: EnvSpec) -> None:
        """Refuse a network whose output is not shaped as `per_action` says."""
        check_network(model, spec, (spec.num_actions, *self.per_action(hyper)))

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
