"""PPO with a recurrent policy and value: both go through sequences.

The recurrent state is stored at every step. A rollout is cut into sequences of nearly equal length,
each starting from the state stored with it, and a minibatch consists of whole sequences. Outputs
for padding and reset rows are dropped before anything is computed from them, so losses, advantage
statistics and the KL estimate are PPO's, over valid rows alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import ActResult, Recurrent, check_recurrent
from rl_training.algorithms.ppo import PPO, Samples, check_log_std
from rl_training.config.ppo import RecurrentPPOConfig
from rl_training.data.types import Clock, PolicyState, Rollout


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

    def policy_and_value(self, obs: Sequences) -> tuple[Tensor, Tensor]:
        """Policy outputs and values of the valid rows of sequences."""
        output = self.model.sequence(obs.obs, obs.state, obs.first)
        return output.policy.flatten(0, 1)[obs.rows], output.value.flatten()[obs.rows]

    def evaluate_rollout(self, rollout: Rollout) -> tuple[Tensor, Tensor, Tensor]:
        """Policy outputs of all rows, values [T, N], and values after the rows to bootstrap."""
        assert rollout.state is not None
        assert rollout.bootstrap_state is not None
        output = self.model.sequence(rollout.obs, self._parts(rollout.state[0]), rollout.first)
        policy, value = output.policy.flatten(0, 1), output.value
        if not len(rollout.bootstrap_rows):
            return policy, value, value.new_zeros(0)
        state = self._parts(rollout.bootstrap_state)
        continues = torch.zeros_like(rollout.bootstrap_rows, dtype=torch.bool)
        bootstrap = self.model.sequence(rollout.bootstrap_obs[None], state, continues[None])
        return policy, value, bootstrap.value[0]

    def observations(self, rollout: Rollout) -> Rollout:
        """The rollout itself, for sequences are cut from it."""
        return rollout

    def minibatches(self, samples: Samples) -> Iterator[Samples]:
        """Whole sequences, shuffled, in pieces of nearly equal number."""
        valid = samples.obs.valid.cpu().numpy()
        length = equal_length(len(valid), self.hyper.sequence_length)
        sequences = cut(valid, length)
        count = len(samples.value)
        pieces = max(1, min(-(-count // self.hyper.batch_size), len(sequences), count // 2))
        # Where each valid row of the rollout is among the samples.
        number = np.cumsum(valid.reshape(-1)).reshape(valid.shape) - 1
        for _ in range(self.hyper.epochs):
            order = self.shuffling.numpy.permutation(len(sequences))
            for drawn in np.array_split(order, pieces):
                yield self._minibatch(samples, sequences[drawn], length, valid, number)

    def _minibatch(
        self,
        samples: Samples,
        starts: np.ndarray,
        length: int,
        valid: np.ndarray,
        number: np.ndarray,
    ) -> Samples:
        """The sequences that start at the given steps and environments [S, 2]."""
        rollout = samples.obs
        start, env = starts.T
        step = start + np.arange(length)[:, None]
        inside = step < len(valid)
        step = np.minimum(step, len(valid) - 1)  # what is past the end is dropped
        rows = np.flatnonzero(valid[step, env] & inside)
        index, where = self.tensor(number[step, env].reshape(-1)[rows]), self.tensor(step)
        column, begin = self.tensor(env), self.tensor(start)
        sequences = Sequences(
            obs=rollout.obs[where, column],
            state=self._parts(rollout.state[begin, column]),
            first=rollout.first[where, column],
            rows=self.tensor(rows),
        )
        return samples.at(index)._replace(obs=sequences)

    def act(
        self,
        obs: np.ndarray,
        state: PolicyState,
        first: np.ndarray,
        clock: Clock,  # noqa: ARG002 - exploration is the policy's own
        *,
        explore: bool,
        legal: np.ndarray | None = None,
    ) -> ActResult:
        """Sampled actions, or the most likely ones, and the state after them."""
        self.set_training(self.model, False)
        output, after = self.output_and_state(obs, state, first)
        noise = self.noise.take(len(obs)) if explore else None
        return ActResult(self.actions_from(self.tensor(output), noise, legal), after)

    def first_output_and_value(self, obs: np.ndarray) -> tuple[Tensor, Tensor]:
        """Policy outputs and values of observations that begin episodes."""
        first = torch.ones(1, len(obs), dtype=torch.bool, device=self.device)
        state = self.model.initial_state(len(obs))
        result = self.model.sequence(self.obs_tensor(obs)[None], state, first)
        return result.policy[0], result.value[0]

    def check_network(self) -> None:
        """Refuse a network without a fitting method `sequence`, or without `log_std`."""
        fields = {"policy": (self.spec.policy_outputs,), "value": ()}
        sizes = self.hyper.state_sizes
        check_recurrent(self.model, self.spec, "sequence", fields, sizes, state_after=False)
        check_log_std(self.model, self.spec)

    def _parts(self, state: Tensor) -> tuple[Tensor, ...]:
        return torch.split(state, list(self.hyper.state_sizes), -1)


def equal_length(steps: int, longest: int) -> int:
    """The length of nearly equal sequences into which the steps are cut."""
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
