"""PPO with a memory: the policy and its value go through sequences.

The state of the policy is stored at every step. A rollout is cut into sequences of nearly equal
length, each from the state it was played with, and a minibatch is made of whole sequences. What the
network gives for rows that are no transitions is dropped before anything is computed from it, so
losses, advantage statistics and the KL estimate are PPO's own, over valid rows alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from typing_extensions import Self

from rl_training.algorithms.base import Acting
from rl_training.algorithms.functional.surrogate import Samples
from rl_training.algorithms.ppo import PPO
from rl_training.algorithms.ppo_config import PPOConfig
from rl_training.algorithms.recurrent import Recurrent, RecurrentConfig
from rl_training.algorithms.recurrent_checks import check_recurrent_actor_critic
from rl_training.data.arrays import Array
from rl_training.data.types import EnvSpec, Moment, PolicyState, Rollout
from rl_training.experiment.config import HiddenSizes, check


class RecurrentPPOConfig(PPOConfig, RecurrentConfig):
    """Hyper-parameters of recurrent PPO."""

    hidden_sizes: HiddenSizes = Field((64,), description="layers before the recurrent one")
    shared_core: bool = Field(False, description="one memory for policy and value")
    sequence_length: int = Field(
        32, ge=1, le=1_000_000, description="longest sequence that a rollout is cut into"
    )

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """Sizes of the parts of the policy state: the policy's, then the value's."""
        return super().state_sizes * (1 if self.shared_core else 2)

    @model_validator(mode="after")
    def _minibatches_hold_a_sequence(self) -> Self:
        length = min(self.sequence_length, self.num_steps)
        check(
            self.batch_size >= length,
            f"batch_size must be at least the length of a sequence, {length}; found "
            f"{self.batch_size}",
        )
        return self


class Sequences(NamedTuple):
    """Observations [L, S, ...], the state before them, where episodes start, and valid rows [M].

    The valid rows are flat indices l * S + s.
    """

    obs: Tensor
    state: tuple[Tensor, ...]
    first: Tensor
    rows: Tensor


class RecurrentPPO(Recurrent, PPO):
    """Several epochs of minibatches of sequences on each rollout."""

    hyper: RecurrentPPOConfig

    def check(self, model: nn.Module, hyper: RecurrentPPOConfig, spec: EnvSpec) -> None:
        """Refuse a network that does not fit."""
        check_recurrent_actor_critic(model, spec, hyper.state_sizes)

    def act(
        self,
        obs: np.ndarray,
        state: PolicyState,
        first: np.ndarray,
        moment: Moment,  # noqa: ARG002 - exploration is the policy's own
        *,
        explore: bool,
    ) -> Acting:
        """Sampled actions, or the most likely ones, and what is remembered."""
        self.set_training(self.model, False)
        output, after = self.output_and_state(obs, state, first)
        policy = self.policy(output)
        action = policy.sample(self.actions.step(len(obs))) if explore else policy.mode()
        return Acting(action, after)

    def _forward(self, obs: Sequences) -> tuple[Tensor, Tensor]:
        """Policy outputs and values of the valid rows of sequences."""
        seen = self.model.sequence(obs.obs, obs.state, obs.first)
        return seen.policy.flatten(0, 1)[obs.rows], seen.value.flatten()[obs.rows]

    def _seen(self, rollout: Any, obs: Array) -> tuple[Array, Array, Array]:  # noqa: ARG002
        """Policy outputs of all rows, values [T, N], and values after the rows to bootstrap."""
        seen = self.model.sequence(rollout.obs, self._parts(rollout.state[0]), rollout.first)
        if not len(rollout.bootstrap_rows):
            return seen.policy.flatten(0, 1), seen.value, seen.value.new_zeros(0)
        going_on = torch.zeros_like(rollout.bootstrap_rows, dtype=torch.bool)
        last = rollout.bootstrap_obs, self._parts(rollout.bootstrap_state), going_on
        bootstrap = self.model.sequence(last[0][None], last[1], last[2][None]).value[0]
        return seen.policy.flatten(0, 1), seen.value, bootstrap

    def _samples(self, rollout: Rollout) -> Samples:
        """The valid rows of a rollout, which itself stands in for their observations."""
        return super()._samples(rollout)._replace(obs=rollout)

    def _minibatches(self, samples: Samples) -> Iterator[Samples]:
        """Whole sequences, shuffled, in pieces of nearly equal number."""
        rollout: Any = samples.obs
        valid = rollout.valid.cpu().numpy()
        length = equal_length(len(valid), self.hyper.sequence_length)
        sequences = cut(valid, length)
        count = len(samples.value)
        pieces = max(1, min(-(-count // self.hyper.batch_size), len(sequences), count // 2))
        # Where each valid row of the rollout is among the samples.
        number = np.cumsum(valid.reshape(-1)).reshape(valid.shape) - 1
        for _ in range(self.hyper.epochs):
            order = self.shuffling.numpy.permutation(len(sequences))
            for chosen in np.array_split(order, pieces):
                yield self._minibatch(samples, sequences[chosen], length, valid, number)

    def _minibatch(
        self,
        samples: Samples,
        chosen: np.ndarray,
        length: int,
        valid: np.ndarray,
        number: np.ndarray,
    ) -> Samples:
        """The sequences that start at the given steps and environments [S, 2]."""
        rollout: Any = samples.obs
        start, env = chosen.T
        step = start + np.arange(length)[:, None]
        inside = step < len(valid)
        step = np.minimum(step, len(valid) - 1)  # what is past the end is dropped
        rows = np.flatnonzero(valid[step, env] & inside)
        index, where = self._index(number[step, env].reshape(-1)[rows]), self._index(step)
        column, begin = self._index(env), self._index(start)
        sequences = Sequences(
            obs=rollout.obs[where, column],
            state=self._parts(rollout.state[begin, column]),
            first=rollout.first[where, column],
            rows=self._index(rows),
        )
        return Samples(sequences, *(x[index] for x in samples[1:]))

    def _parts(self, state: Tensor) -> tuple[Tensor, ...]:
        return torch.split(state, list(self.hyper.state_sizes), -1)

    def _index(self, rows: np.ndarray) -> Tensor:
        return torch.from_numpy(rows).to(self.device)


def equal_length(steps: int, longest: int) -> int:
    """The length of nearly equal sequences that so many steps are cut into."""
    pieces = -(-steps // longest)
    return -(-steps // pieces)


def cut(valid: np.ndarray, length: int) -> np.ndarray:
    """Steps and environments [S, 2] at which the sequences of a rollout start.

    `valid` is [T, N]; a sequence without any valid row is left out.
    """
    starts = np.arange(0, len(valid), length)
    found = [
        (start, env)
        for env in range(valid.shape[1])
        for start in starts
        if valid[start : start + length, env].any()
    ]
    return np.array(found)
