"""My algorithm: Q-learning with another loss.

rl-training train --config my_algo.yaml
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from rl_training.algorithms import DQN, DQNConfig, Loss, action_values, dqn_loss, mask_illegal
from rl_training.data import Batch
from rl_training.runtime import DQN_SPEC


class MyAlgoConfig(DQNConfig):
    """DQN's hyper-parameters and those below; each needs a default, bounds and a description."""

    conservatism: float = Field(
        0.0, ge=0, le=100, description="penalty on the values of actions not taken; 0 is DQN"
    )


class MyAlgo(DQN):
    """Everything DQN has (exploration, optimiser, target network, replay) with another loss."""

    hyper: MyAlgoConfig

    def loss(self, batch: Batch) -> Loss:
        """The loss of a batch in plain torch, a function of `self.model`; autograd follows.

        Shapes: obs and next_obs [B, D]; action, reward, discount and weight [B]. `discount` is
        gamma to the power of the rewards summed, and 0 after a termination: it replaces the usual
        `gamma * (1 - done)`. `weight` is 1 unless `prioritized` is set. `legal` and `next_legal`
        [B, A] are the action masks of the two observations, or None if there are none.
        """
        q = self.model(batch.obs)  # [B, A]
        next_q = self.target(batch.next_obs)  # [B, A], the target network's
        selector = self.selector(batch.next_obs)  # with `double`, the online network's
        base = dqn_loss(
            q,
            next_q,
            batch,
            selector=selector,
            temperature=self.hyper.temperature,
            kind=self.hyper.loss,
        )
        # An example of another term: conservative Q-learning (Kumar et al., 2020, Eq. 4).
        rows = mask_illegal(q, batch.legal).logsumexp(1) - action_values(q, batch.action)
        penalty = (batch.weight * rows).mean()
        loss = base.value + self.hyper.conservatism * penalty
        # Metrics are detached scalars, logged as train/<name>.
        metrics = {**base.metrics, "loss": loss.detach(), "penalty": penalty.detach()}
        return Loss(loss, metrics, priority=base.priority)


# Whatever is not replaced is DQN's: its network, replay buffer, loop and spaces.
SPEC = replace(
    DQN_SPEC,
    name="my_algo",
    title="My algorithm",
    paper="",
    hyper=MyAlgoConfig,
    algorithm=MyAlgo,
)
