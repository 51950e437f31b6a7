"""Running normalisation of observations and rewards, with statistics that can be saved."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from rl_training.data.observations import NamedParts, named, without_names
from rl_training.data.types import Batch, EnvSpec, Rollout, SequenceBatch
from rl_training.storage.checks import saved_value
from rl_training.storage.state import Part, Stateful

OBSERVATIONS = frozenset({"obs", "next_obs", "bootstrap_obs"})
CLIP = 10.0
EPS = 1e-8

Data = TypeVar("Data", Batch, Rollout, SequenceBatch)


class RunningMoments(Stateful):
    """Mean and variance of a stream of rows, merged in batches (Chan et al., 1979), in float64."""

    state_fields = ("mean", "variance", "count")
    state_counts = ("count",)

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean = np.zeros(shape)
        self.variance = np.ones(shape)
        self.count = 0

    def add(self, rows: np.ndarray) -> None:
        """Take a batch of rows into account."""
        if not len(rows):
            return
        mean, variance, count = rows.mean(0, np.float64), rows.var(0, np.float64), len(rows)
        if self.count == 0:
            self.mean[...], self.variance[...], self.count = mean, variance, count
            return
        total, shift = self.count + count, mean - self.mean
        spread = self.variance * self.count + variance * count
        self.variance[...] = (spread + shift**2 * self.count * count / total) / total
        self.mean += shift * count / total
        self.count = total


class Normalizer(Part, Protocol):
    """Normalises observations for acting (arrays) and for updates (tensors)."""

    def observe(self, obs: np.ndarray, valid: np.ndarray) -> None:
        """Take the valid rows of training experience into account; not called by evaluations."""

    def array(self, obs: np.ndarray) -> np.ndarray:
        """Rows on the host, normalised with the current statistics."""

    def batch(self, data: Data) -> Data:
        """A batch or rollout with its observations normalised with the current statistics."""


class NoNormalizer(Stateful):
    """Leaves observations unchanged."""

    def observe(self, obs: np.ndarray, valid: np.ndarray) -> None:
        """Nothing to learn."""

    def array(self, obs: np.ndarray) -> np.ndarray:
        """The same rows."""
        return obs

    def batch(self, data: Data) -> Data:
        """The same data."""
        return data


class ObservationNormalizer(Stateful):
    """To mean 0 and standard deviation 1 by running statistics, clipped to 10 either way."""

    state_fields = ("_moments",)

    def __init__(self, obs_shape: tuple[int, ...]) -> None:
        self._moments = RunningMoments(obs_shape)
        self._refresh()

    def _refresh(self) -> None:
        self._shift = self._moments.mean.astype(np.float32)
        self._scale = (1 / np.sqrt(self._moments.variance + EPS)).astype(np.float32)

    def observe(self, obs: np.ndarray, valid: np.ndarray) -> None:
        """Take the valid rows into account."""
        self._moments.add(obs[valid])
        self._refresh()

    def array(self, obs: np.ndarray) -> np.ndarray:
        """Normalised rows."""
        rows: np.ndarray = np.clip((obs - self._shift) * self._scale, -CLIP, CLIP)
        return rows

    def batch(self, data: Data) -> Data:
        """The data with normalised observations."""
        shift = torch.from_numpy(self._shift).to(data.obs.device)
        scale = torch.from_numpy(self._scale).to(data.obs.device)
        fields: dict[str, Any] = {
            name: self._tensor(getattr(data, name), shift, scale)
            for name in data._fields
            if name in OBSERVATIONS
        }
        return data._replace(**fields)

    def _tensor(self, obs: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        rows = ((obs - shift) * scale).clamp_(-CLIP, CLIP)
        return named(rows, obs.parts) if isinstance(obs, NamedParts) else rows

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the statistics and what is computed from them."""
        super().load_state_dict(state)
        self._refresh()


class VectorPartNormalizer(ObservationNormalizer):
    """The same for the numbers of observations that have images too, which stay as they are."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__((spec.vector_dim,))
        self._spec = spec

    def observe(self, obs: np.ndarray, valid: np.ndarray) -> None:
        """Take the numbers of the valid rows into account."""
        super().observe(self._numbers(obs), valid)

    def array(self, obs: np.ndarray) -> np.ndarray:
        """Rows with normalised numbers."""
        rows: np.ndarray = obs.copy()
        numbers = self._numbers(rows)
        numbers[...] = super().array(numbers)
        return rows

    def _numbers(self, rows: np.ndarray) -> np.ndarray:
        numbers: np.ndarray = self._spec.floats(rows)[..., : self._spec.vector_dim]
        return numbers

    def _tensor(self, obs: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        rows = obs.clone()
        columns: Tensor = without_names(rows)
        if columns.dtype is torch.uint8:
            columns = columns[..., : self._spec.float_bytes].view(torch.float32)
        numbers = columns[..., : self._spec.vector_dim]
        numbers.sub_(shift).mul_(scale).clamp_(-CLIP, CLIP)
        return rows


def observation_normalizer(spec: EnvSpec) -> ObservationNormalizer:
    """The normaliser of an environment's observations, of which some numbers are in no image."""
    return VectorPartNormalizer(spec) if spec.has_images else ObservationNormalizer(spec.obs_shape)


class RewardNormalizer(Stateful):
    """Divides rewards by the standard deviation of the running discounted return; no mean is taken.

    The return starts afresh with every episode, however the last one ended; the clip is 10.
    """

    state_fields = ("_moments", "_returns")

    def __init__(self, num_envs: int, gamma: float) -> None:
        self.gamma = gamma
        self._moments = RunningMoments(())
        self._returns = np.zeros(num_envs)

    def take_moments(self, saved: dict[str, Any]) -> None:
        """Take over the statistics alone of a saved state; the returns in progress stay."""
        self._moments.load_state_dict(saved_value(saved, "moments"))

    def __call__(self, reward: np.ndarray, first: np.ndarray, valid: np.ndarray) -> np.ndarray:
        """Scaled rewards of a rollout [T, N], after its returns were taken into account."""
        returns = np.zeros(reward.shape)
        for t in range(len(reward)):
            before = np.where(first[t], 0.0, self._returns)
            self._returns = np.where(valid[t], self.gamma * before + reward[t], before)
            returns[t] = self._returns
        self._moments.add(returns[valid])
        scale = np.sqrt(self._moments.variance + EPS)
        return np.clip(reward / scale, -CLIP, CLIP).astype(np.float32)
