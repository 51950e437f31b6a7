"""My algorithm: a soft actor-critic with another loss.

rl-training train --config my_algo.yaml
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from rl_training.algorithms import SAC, Loss, SACConfig, min_over_critics, soft_target
from rl_training.data import Batch
from rl_training.runtime import SAC_SPEC


class MyAlgoConfig(SACConfig):
    """SAC's hyper-parameters and those below; each needs a default, bounds and a description."""

    huber_delta: float = Field(
        10.0, gt=0, le=1e6, description="error beyond which the loss of the critics is linear"
    )


class MyAlgo(SAC):
    """Everything SAC has (actor, temperature, target critics, replay) with another critic loss.

    `actor_loss(batch, noise)` can be replaced in the same way.
    """

    hyper: MyAlgoConfig

    def critic_loss(self, batch: Batch, noise: Tensor) -> Loss:
        """The loss of a batch in plain torch, a function of `self.critics`; autograd follows.

        Shapes: obs and next_obs [B, D], action [B, A], reward and discount [B]. `discount` is gamma
        to the power of the rewards summed, and 0 after a termination: it replaces the usual
        `gamma * (1 - done)`. `noise` [B, A] is standard normal.
        """
        # A fresh action of the policy in the next state, and alpha times its log-probability.
        next_action, alpha_log_prob = self.next_action(batch, noise)
        next_value = min_over_critics(self.target(batch.next_obs, next_action))  # [B]
        # reward + discount * (next_value - alpha_log_prob)
        target = soft_target(batch, next_value, alpha_log_prob).detach()
        q = self.critics(batch.obs, batch.action)[:, :, 0]  # [E, B], a row per critic
        # An example of another loss: SAC's is half the square, which a huge delta gives too.
        error = F.huber_loss(q, target.expand_as(q), reduction="none", delta=self.hyper.huber_delta)
        loss = error.mean(1).sum()  # each critic has its share of the gradient
        # Metrics are detached scalars, logged as train/<name>.
        metrics = {
            "critic_loss": loss.detach(),
            "q_value_mean": q.detach().mean(),
            "target_q_mean": target.mean(),
        }
        return Loss(loss, metrics)


# Whatever is not replaced is SAC's: its networks, replay buffer, loop and spaces.
SPEC = replace(
    SAC_SPEC,
    name="my_algo",
    title="My algorithm",
    paper="",
    hyper=MyAlgoConfig,
    algorithm=MyAlgo,
)
