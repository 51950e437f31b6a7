"""DRQN (Hausknecht & Stone, 2015): Q-learning with a memory, from sequences.

What R2D2 (Kapturowski et al., 2019) added is here too: sequences start from the state the policy
was in when they were played, and with `burn_in` both networks first go over the rows before them,
without learning, to forget what is stale in it. `initial_state: zero` and `burn_in: 0` is the
plain algorithm. `n_step` sums several rewards inside a sequence, uncorrected for the policy having
changed. Left out of R2D2: distributed replay, priorities, value rescaling.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from typing_extensions import Self

from rl_training.algorithms.base import Acting
from rl_training.algorithms.functional.shapes import expect_shapes
from rl_training.algorithms.functional.td import sequence_target
from rl_training.algorithms.q_learning import METRICS, LossResult, QLearning
from rl_training.algorithms.recurrent import Recurrent, RecurrentConfig
from rl_training.algorithms.recurrent_checks import check_recurrent
from rl_training.algorithms.value_based_config import QLearningConfig
from rl_training.data.metrics import Metrics
from rl_training.data.types import EnvSpec, Moment, PolicyState, SequenceBatch
from rl_training.experiment.config import HiddenSizes, check

Sequences = tuple[Tensor, tuple[Tensor, ...], Tensor]
"""Observations [T, B, ...], the state before them, and which of them start an episode [T, B]."""


class DRQNConfig(QLearningConfig, RecurrentConfig):
    """Hyper-parameters of DRQN."""

    batch_size: int = Field(32, ge=1, le=1_000_000, description="sequences in one gradient step")
    hidden_sizes: HiddenSizes = Field((128,), description="layers before the recurrent one")
    sequence_length: int = Field(
        16, ge=1, le=100_000, description="transitions of a sequence to learn from"
    )
    burn_in: int = Field(
        0, ge=0, le=100_000, description="rows before them that only warm up the state"
    )
    overlap: int = Field(0, ge=0, description="transitions a sequence shares with the next one")
    initial_state: Literal["stored", "zero"] = Field(
        "stored", description="where a sequence starts: as it was played, or from zeros"
    )
    n_step: int = Field(
        1, ge=1, le=1000, description="rewards summed before the value of what follows"
    )
    loss: Literal["huber", "mse"] = Field(
        "huber", description="of the temporal-difference error; mse is half its square"
    )

    @model_validator(mode="after")
    def _fits_into_a_sequence(self) -> Self:
        length = self.sequence_length
        check(
            self.overlap < length,
            f"overlap must be less than sequence_length, {length}; found {self.overlap}",
        )
        check(
            self.n_step <= length,
            f"n_step must be at most sequence_length, {length}; found {self.n_step}",
        )
        return self


def drqn_loss(
    q_values: Tensor,
    target_values: Tensor,
    batch: SequenceBatch,
    *,
    double: bool = False,
    n_step: int = 1,
    kind: Literal["huber", "mse"] = "huber",
) -> LossResult:
    """Mean over the rows of the mask of the Huber (or half squared) temporal-difference error.

    Shapes: `target_values` [T + 1, B, A] of the target network, the last row being the successor of
    the last transition, and `q_values` [T, B, A] of the online one; `batch` has T rows. With
    `double` the online network chooses the action whose value follows, and its values go as far.
    """
    expect_shapes("T B, T B, T B", batch.reward, batch.discount, batch.mask)
    mask, taken = batch.mask.to(batch.reward.dtype), batch.action.unsqueeze(-1)
    following = target_values[1:].amax(-1)
    if double:
        best = q_values[1:].argmax(-1, keepdim=True)
        following = target_values[1:].gather(-1, best).squeeze(-1)
    target = sequence_target(batch, following, n_step).detach()
    value = q_values[: len(mask)].gather(-1, taken).squeeze(-1)
    error = value - target
    slope = error.clip(-1.0, 1.0) if kind == "huber" else error
    share = mask / mask.sum().clamp(min=1.0)
    rows = torch.stack([slope * (error - 0.5 * slope), value, target, error.abs()])
    numbers = rows.flatten(1) @ share.flatten()
    by_value = torch.zeros_like(q_values)
    by_value[: len(mask)].scatter_(-1, taken, (slope * share).detach().unsqueeze(-1))
    return LossResult(numbers[0], by_value, Metrics(METRICS, numbers))


class DRQN(Recurrent, QLearning):
    """Deep recurrent Q-network."""

    hyper: DRQNConfig

    def check(self, model: nn.Module, hyper: DRQNConfig, spec: EnvSpec) -> None:
        """Refuse a network that does not fit."""
        fields = {"q_values": (spec.num_actions,)}
        check_recurrent(model, spec, "q_values_sequence", fields, hyper.state_sizes)

    def act(
        self,
        obs: np.ndarray,
        state: PolicyState,
        first: np.ndarray,
        moment: Moment,
        *,
        explore: bool,
    ) -> Acting:
        """Epsilon-greedy actions with a coin per row, or greedy ones; either way it remembers."""
        self.set_training(self.model, False)
        q_values, after = self.output_and_state(obs, state, first)
        action = q_values.argmax(-1)
        if explore:
            greedy = action
            action = self.exploration.act(self.epsilon(moment), len(obs), lambda: greedy)
        return Acting(action, after)

    def outputs(self, inputs: Sequences) -> Tensor:
        """Q-values [T, B, A] of sequences."""
        q_values: Tensor = self.model.q_values_sequence(*inputs)[0]
        return q_values

    def _gradient(self, batch: SequenceBatch) -> LossResult:
        """Leave the gradient of the batch's loss in the parameters."""
        state = following = batch.state
        if self.hyper.initial_state == "zero":
            state = following = tuple(torch.zeros_like(part) for part in state)
        if rows := self.hyper.burn_in:
            context = batch.obs[:rows], state, batch.first[:rows]
            following = self.target.module.q_values_sequence(*context)[1]
            state = self.model.q_values_sequence(*context)[1]
            batch = batch.from_row(rows, state)
        target_values, _ = self.target.module.q_values_sequence(batch.obs, following, batch.first)
        hyper, rows = self.hyper, len(batch.reward) + self.hyper.double
        q_values, pull_back = self.vjp((batch.obs[:rows], state, batch.first[:rows]))
        result = drqn_loss(
            q_values,
            target_values,
            batch,
            double=hyper.double,
            n_step=hyper.n_step,
            kind=hyper.loss,
        )
        pull_back(result.gradient)
        return result
