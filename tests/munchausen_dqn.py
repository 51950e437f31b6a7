"""Munchausen DQN (Vieillard et al., 2020), an algorithm declared outside the package."""

from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from rl_training.algorithms import Loss, ValueBased, action_values
from rl_training.config import TransitionValueBasedConfig
from rl_training.data import Batch
from rl_training.runtime import DQN_SPEC

LOWEST = -1.0  # bound on the scaled log-policy, l0 in the paper


class MunchausenConfig(TransitionValueBasedConfig):
    """Hyper-parameters of Munchausen DQN; the defaults are the paper's."""

    double: Literal[False] = Field(False, description="has no meaning here: no action is chosen")
    alpha: float = Field(0.9, ge=0, le=1, description="weight of the log-policy in the reward")
    temperature: float = Field(0.03, gt=0, le=100, description="temperature of the policy")


def munchausen_target(q: Tensor, next_q: Tensor, batch: Batch, hyper: MunchausenConfig) -> Tensor:
    """Eq. 2; `q` and `next_q` [B, A] are the target network's at `obs` and `next_obs`."""
    tau = hyper.temperature
    log_policy = action_values(F.log_softmax(q / tau, 1), batch.action)
    next_log_policy = F.log_softmax(next_q / tau, 1)
    next_value = (next_log_policy.exp() * (next_q - tau * next_log_policy)).sum(1)
    reward = batch.reward + hyper.alpha * (tau * log_policy).clip(LOWEST, 0)
    return reward + batch.discount * next_value


class MunchausenDQN(ValueBased):
    """Q-learning whose reward grows with the log-probability of the action taken."""

    hyper: MunchausenConfig

    def loss(self, batch: Batch) -> Loss:
        """Weighted mean of the Huber loss towards `munchausen_target`."""
        with torch.no_grad():
            q, next_q = self.target(batch.obs), self.target(batch.next_obs)
            target = munchausen_target(q, next_q, batch, self.hyper)
        value = action_values(self.model(batch.obs), batch.action)
        loss = (batch.weight * F.huber_loss(value, target, reduction="none")).mean()
        error = (value - target).detach().abs()
        metrics = {"loss": loss.detach(), "td_error_mean": error.mean()}
        return Loss(loss, metrics, priority=error)


SPEC = replace(
    DQN_SPEC, name="munchausen_dqn", title="Munchausen DQN", paper="Vieillard et al., 2020",
    hyper=MunchausenConfig, algorithm=MunchausenDQN,
)  # fmt: skip
