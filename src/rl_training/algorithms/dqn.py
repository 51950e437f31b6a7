"""DQN (Mnih et al., 2015), with double Q-learning (van Hasselt et al., 2016) as an option.

Defaults that deviate, with the paper's (Extended Data Table 1) in parentheses: Adam with epsilon
1e-8 (centred RMSprop); minibatches of 64 (32); learning starts after 1,000 transitions (50,000); a
target network copied every 500 environment transitions (10,000 updates); exploration down to 0.05
within a tenth of the run (0.1, within 1,000,000 frames); gradient-norm clipping at 10 (none).
`optimizer: rmsprop` adds `optimizer_eps` outside the root, where the authors add 0.01 inside it.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn import functional as F

from rl_training.algorithms.base import Loss, mask_illegal
from rl_training.algorithms.value_based import ValueBased, action_values, bootstrap
from rl_training.config.value_based import DQNConfig
from rl_training.data.types import Batch, expect_shapes


def td_target(
    reward: Tensor,
    discount: Tensor,
    next_q: Tensor,
    selector: Tensor | None = None,
    temperature: float = 0.0,
) -> Tensor:
    """Target `reward + discount * next_q[argmax selector]`, or its soft version.

    Shapes: reward [B], discount [B], next_q and selector [B, A]. Without a selector this is
    Q-learning's maximum; with the online network's values it is double Q-learning
    (van Hasselt et al., 2016, Eq. 4).
    """
    selector = next_q if selector is None else selector
    next_value, bonus = bootstrap(next_q, selector, temperature)
    expect_shapes("B, B, B, B", reward, discount, next_value, bonus)
    return reward + discount * (next_value + bonus)


def dqn_loss(
    q: Tensor,
    next_q: Tensor,
    batch: Batch,
    *,
    selector: Tensor | None = None,
    temperature: float = 0.0,
    kind: Literal["huber", "mse"] = "huber",
) -> Loss:
    """Mean over the batch of the weighted Huber (or half squared) temporal-difference error.

    Shapes: q, next_q and selector [B, A]. `q` is the online network at `obs`, `next_q` the target
    network at `next_obs`; `selector` chooses the next action among the legal ones, by default
    `next_q` itself.
    """
    selector = mask_illegal(next_q if selector is None else selector, batch.next_legal)
    target = td_target(batch.reward, batch.discount, next_q, selector, temperature).detach()
    value = action_values(q, batch.action)
    expect_shapes("B, B, B", value, target, batch.weight)
    if kind == "huber":
        row_losses = F.huber_loss(value, target, reduction="none")
    else:
        row_losses = 0.5 * (value - target) ** 2
    loss = (row_losses * batch.weight).mean()
    td_error = (value.detach() - target).abs()
    metrics = {
        "loss": loss.detach(),
        "q_value_mean": value.detach().mean(),
        "target_mean": target.mean(),
        "td_error_mean": td_error.mean(),
    }
    return Loss(loss, metrics, td_error)


class DQN(ValueBased):
    """Q-learning with a neural network and a target network."""

    hyper: DQNConfig

    def loss(self, batch: Batch) -> Loss:
        """`dqn_loss`; with `double` the online network chooses the next action."""
        next_q, selector = self.target(batch.next_obs), self.selector(batch.next_obs)
        return dqn_loss(
            self.model(batch.obs),
            next_q,
            batch,
            selector=selector,
            temperature=self.hyper.temperature,
            kind=self.hyper.loss,
        )
