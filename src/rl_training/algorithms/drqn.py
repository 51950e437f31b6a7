"""DRQN (Hausknecht & Stone, 2015): Q-learning with a recurrent network, from sequences.

Two ideas of R2D2 (Kapturowski et al., 2019) are included: sequences start from the recurrent state
that was stored when they were collected, and with `burn_in` both networks are first unrolled over
the preceding steps, without learning from them, to refresh a stale state. `initial_state: zero` and
`burn_in: 0` is the plain algorithm. `n_step` sums several rewards within a sequence, without
off-policy correction. Left out of R2D2: distributed replay, priorities, value rescaling.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rl_training.algorithms.base import (
    ActResult,
    Loss,
    Recurrent,
    check_recurrent,
    mask_illegal,
)
from rl_training.algorithms.value_based import ValueBased, bootstrap
from rl_training.config.value_based import DRQNConfig
from rl_training.data.examples import example_sequences
from rl_training.data.types import Clock, PolicyState, SequenceBatch, expect_shapes


def sequence_target(batch: SequenceBatch, next_value: Tensor, n_step: int) -> Tensor:
    """Targets [T, B] of sequences: up to `n_step` rewards, then the value of their successor.

    `next_value` is [T, B]. A sum ends early at the last row, and where the next row is padding or
    belongs to another episode.
    """
    reward, discount = batch.reward, batch.discount
    expect_shapes("T B, T B, T B", reward, discount, next_value)
    target = reward + discount * next_value
    if n_step > 1:
        continues = batch.mask[1:] & ~batch.first[1 : len(reward)]
    for _ in range(n_step - 1):
        next_target = torch.where(continues, target[1:], next_value[:-1])
        target = reward + discount * torch.cat([next_target, next_value[-1:]])
    return target


def drqn_loss(
    q_values: Tensor,
    target_values: Tensor,
    batch: SequenceBatch,
    *,
    double: bool = False,
    temperature: float = 0.0,
    n_step: int = 1,
    kind: Literal["huber", "mse"] = "huber",
) -> Loss:
    """Mean over the valid rows of the Huber (or half squared) temporal-difference error.

    Shapes: `target_values` [T + 1, B, A] of the target network, the last row being the successor of
    the last transition, and `q_values` [T, B, A] of the online one; `batch` has T rows. With
    `double` the online network chooses the next action, and `q_values` has T + 1 rows too. Only
    actions that are legal in the next row are chosen.
    """
    expect_shapes("T B, T B, T B", batch.reward, batch.discount, batch.mask)
    mask = batch.mask.to(batch.reward.dtype)
    next_q = target_values[1:].flatten(0, 1)
    selector = q_values[1:].detach().flatten(0, 1) if double else next_q
    next_legal = None if batch.legal is None else batch.legal[1:].flatten(0, 1)
    selector = mask_illegal(selector, next_legal)
    next_value, bonus = bootstrap(next_q, selector, temperature)
    next_value = (next_value + bonus).view_as(batch.reward)
    target = sequence_target(batch, next_value, n_step).detach()
    value = q_values[: len(mask)].gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
    if kind == "huber":
        row_losses = F.huber_loss(value, target, reduction="none")
    else:
        row_losses = 0.5 * (value - target) ** 2
    weight = mask / mask.sum().clamp(min=1.0)
    loss = (row_losses * weight).sum()
    metrics = {
        "loss": loss.detach(),
        "q_value_mean": (value.detach() * weight).sum(),
        "target_mean": (target * weight).sum(),
        "td_error_mean": ((value.detach() - target).abs() * weight).sum(),
    }
    return Loss(loss, metrics)


class DRQN(Recurrent, ValueBased):
    """Deep recurrent Q-network."""

    hyper: DRQNConfig

    def loss(self, batch: SequenceBatch) -> Loss:
        """`drqn_loss` of the rows after the burn-in."""
        hyper, rows = self.hyper, self.hyper.burn_in
        state = target_state = batch.state
        if hyper.initial_state == "zero":
            state = target_state = tuple(torch.zeros_like(part) for part in state)
        target = self.target.module
        with torch.no_grad():
            if rows:
                context, starts = batch.obs[:rows], batch.first[:rows]
                target_state = target.q_values_sequence(context, target_state, starts)[1]
                state = self.model.q_values_sequence(context, state, starts)[1]
                batch = batch.from_row(rows, state)
            target_values = target.q_values_sequence(batch.obs, target_state, batch.first)[0]
        length = len(batch.reward) + hyper.double
        q_values = self.model.q_values_sequence(batch.obs[:length], state, batch.first[:length])[0]
        return drqn_loss(
            q_values,
            target_values,
            batch,
            double=hyper.double,
            temperature=hyper.temperature,
            n_step=hyper.n_step,
            kind=hyper.loss,
        )

    def example_inputs(self) -> dict[str, tuple[Any, ...]]:
        """A batch of sequences, of two rows each after the burn-in."""
        sizes, length = self.hyper.state_sizes, self.hyper.burn_in + 2
        return {"loss": (example_sequences(self.spec, sizes, length, self.device),)}

    def act(
        self,
        obs: np.ndarray,
        state: PolicyState,
        first: np.ndarray,
        clock: Clock,
        *,
        explore: bool,
        legal: np.ndarray | None = None,
    ) -> ActResult:
        """Epsilon-greedy actions, or greedy ones; the state moves on."""
        self.set_exploring(explore)
        network = self.model if explore else self.policy_network
        q_values, after = self.output_and_state(obs, state, first, network)
        if legal is not None:
            q_values = np.where(legal, q_values, -np.inf)
        greedy = q_values.argmax(-1)
        if not explore:
            return ActResult(greedy, after)
        epsilon = self.epsilon(clock)
        return ActResult(self.exploration.act(epsilon, len(obs), lambda: greedy, legal), after)

    def first_output(self, obs: np.ndarray) -> Tensor:
        """Q-values for observations that begin episodes."""
        self.set_exploring(False)
        state, first = self.initial_state(len(obs)), np.ones(len(obs), np.bool_)
        return self.tensor(self.output_and_state(obs, state, first, self.policy_network)[0])

    def check_network(self) -> None:
        """Refuse a network that does not fit."""
        fields = {"q_values": (self.spec.num_actions,)}
        sizes = self.hyper.state_sizes
        check_recurrent(self.model, self.spec, "q_values_sequence", fields, sizes)
