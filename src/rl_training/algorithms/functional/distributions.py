"""Action distributions over a network's output, on tensors or arrays, one class per action space.

Each has `sample`, `mode`, `log_prob` and `entropy`, with a row per environment or batch row, and
the gradient of the last two written out. Log-probabilities and entropies are summed over the parts
of an action. A sample is a function of the output and of noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
from torch import Tensor

from rl_training.data.arrays import Array, as_float, like, log_softmax, namespace, rows_of
from rl_training.data.types import EnvSpec

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class ActionDistribution(Protocol):
    """What a policy needs of a distribution."""

    def sample(self, noise: Array) -> Array:
        """A random action per row, from noise in the shape of the network's output."""

    def mode(self) -> Array:
        """The most likely action per row; the mean of a Gaussian."""

    def log_prob(self, action: Array) -> Array:
        """Log-probability (or log-density) of an action per row."""

    def entropy(self) -> Array:
        """Entropy per row."""

    def gradient(self, action: Array, by_log_prob: Array, by_entropy: float) -> tuple[Array, ...]:
        """Gradient with respect to the output, and to the log standard deviation if there is one.

        `by_log_prob` [B] and `by_entropy` are the derivatives of the loss by each row's
        log-probability and entropy.
        """


class Categorical:
    """One of A choices, from logits [B, A]; actions [B]."""

    def __init__(self, logits: Array) -> None:
        self.logits = logits
        self._log_probs: Array = None

    @property
    def log_probs(self) -> Array:
        """Log-probabilities [B, A]; a sample needs none."""
        if self._log_probs is None:
            self._log_probs = log_softmax(self.logits)
        return self._log_probs

    def sample(self, noise: Array) -> Array:
        """The largest of logits plus Gumbel noise: each choice with its probability."""
        return (self.logits + noise).argmax(-1)

    def mode(self) -> Array:
        """The most likely choice."""
        return self.logits.argmax(-1)

    def log_prob(self, action: Array) -> Array:
        """Log-probability of the choice."""
        return self.log_probs[rows_of(action), action]

    def entropy(self) -> Array:
        """Entropy in nats."""
        return -(namespace(self.logits).exp(self.log_probs) * self.log_probs).sum(-1)

    def gradient(self, action: Array, by_log_prob: Array, by_entropy: float) -> tuple[Array]:
        """Of a log-probability: one for the choice, minus the probabilities."""
        scale = by_log_prob[:, None]
        if by_entropy:
            scale = scale + by_entropy * (self.log_probs + self.entropy()[:, None])
        grad = -namespace(self.logits).exp(self.log_probs) * scale
        grad[rows_of(action), action] += by_log_prob
        return (grad,)


class MultiCategorical:
    """Several independent choices, from concatenated logits [B, sum of sizes]; actions [B, K]."""

    def __init__(self, logits: Array, sizes: tuple[int, ...]) -> None:
        self._xp, self._sizes = namespace(logits), sizes
        self.parts = [Categorical(part) for part in self._split(logits)]

    def _split(self, columns: Array) -> list[Array]:
        ends = np.cumsum(self._sizes)
        return [columns[:, end - size : end] for end, size in zip(ends, self._sizes, strict=True)]

    def sample(self, noise: Array) -> Array:
        """A random choice per part."""
        noises = zip(self.parts, self._split(noise), strict=True)
        return self._xp.stack([part.sample(own) for part, own in noises], -1)

    def mode(self) -> Array:
        """The most likely choice per part."""
        return self._xp.stack([part.mode() for part in self.parts], -1)

    def log_prob(self, action: Array) -> Array:
        """Sum over the parts."""
        return sum(part.log_prob(action[:, k]) for k, part in enumerate(self.parts))

    def entropy(self) -> Array:
        """Sum over the parts."""
        return sum(part.entropy() for part in self.parts)

    def gradient(self, action: Array, by_log_prob: Array, by_entropy: float) -> tuple[Array]:
        """Side by side."""
        parts = enumerate(self.parts)
        grads = [part.gradient(action[:, k], by_log_prob, by_entropy)[0] for k, part in parts]
        return (self._xp.concatenate(grads, -1),)


class Bernoulli:
    """Independent switches, from logits [B, K]; actions [B, K] of 0 and 1."""

    def __init__(self, logits: Array) -> None:
        self.logits = logits

    @property
    def _probs(self) -> Array:
        return namespace(self.logits).exp(-self._softplus(-self.logits))

    @staticmethod
    def _softplus(x: Array) -> Array:
        """log(1 + exp(x)), for any x."""
        xp = namespace(x)
        return xp.logaddexp(xp.zeros_like(x), x)

    def sample(self, noise: Array) -> Array:
        """On where the logit plus logistic noise is positive: with the switch's probability."""
        return _as_choices(self.logits + noise > 0)

    def mode(self) -> Array:
        """The more likely position."""
        return _as_choices(self.logits > 0)

    def log_prob(self, action: Array) -> Array:
        """Sum over the switches."""
        sign = 1 - 2 * as_float(action)  # the log-sigmoid of the logit where on, of its minus else
        return -self._softplus(sign * self.logits).sum(-1)

    def entropy(self) -> Array:
        """Sum over the switches."""
        # H = softplus(l) - l * p, stable for any logit.
        return (self._softplus(self.logits) - self.logits * self._probs).sum(-1)

    def gradient(self, action: Array, by_log_prob: Array, by_entropy: float) -> tuple[Array]:
        """Of a log-probability: the position minus its probability."""
        p = self._probs
        grad = by_log_prob[:, None] * (as_float(action) - p)
        return (grad - by_entropy * self.logits * p * (1 - p),)


def _as_choices(switches: Array) -> Array:
    return switches.astype(np.int64) if isinstance(switches, np.ndarray) else switches.long()


class DiagonalGaussian:
    """Independent normals with means [B, K] and one log standard deviation [K] for all rows."""

    def __init__(self, mean: Array, log_std: Array) -> None:
        self.mean = mean
        self.log_std = log_std
        self._precision = namespace(mean).exp(-log_std)

    def sample(self, noise: Array) -> Array:
        """Mean plus scaled normal noise; the action bounds clip it at the boundary."""
        return self.mean + noise / self._precision

    def mode(self) -> Array:
        """The mean."""
        return self.mean

    def log_prob(self, action: Array) -> Array:
        """Log-density of the unclipped action, summed over dimensions."""
        z = (action - self.mean) * self._precision
        return (-0.5 * z * z - self.log_std - _LOG_SQRT_2PI).sum(-1)

    def entropy(self) -> Array:
        """Entropy in nats, the same for every row."""
        each_row = namespace(self.mean).zeros_like(self.mean[:, 0])
        return each_row + (self.log_std + 0.5 + _LOG_SQRT_2PI).sum()

    def gradient(self, action: Array, by_log_prob: Array, by_entropy: float) -> tuple[Array, Array]:
        """Of a log-density: z / std for the mean, z^2 - 1 for the log standard deviation."""
        z, rows = (action - self.mean) * self._precision, by_log_prob[:, None]
        by_log_std = (rows * (z * z - 1)).sum(0) + by_entropy * len(z)
        return rows * z * self._precision, by_log_std


def distribution(spec: EnvSpec, output: Array, log_std: Tensor | None) -> ActionDistribution:
    """The distribution of `spec`'s kind of action over a policy's output."""
    if spec.action_kind == "discrete":
        return Categorical(output)
    if spec.action_kind == "multi_discrete":
        return MultiCategorical(output, spec.action_sizes)
    if spec.action_kind == "multi_binary":
        return Bernoulli(output)
    assert log_std is not None
    return DiagonalGaussian(output, like(log_std, output))


def sampling_noise(spec: EnvSpec) -> Callable[[np.random.Generator, int], np.ndarray]:
    """Draws the noise that `sample` takes for `spec`'s kind of action, a row per action."""
    kinds: dict[str, str] = {"continuous": "normal", "multi_binary": "logistic"}
    name = kinds.get(spec.action_kind, "gumbel")

    def draw(rng: np.random.Generator, rows: int) -> np.ndarray:
        noise: np.ndarray = getattr(rng, name)(size=(rows, spec.policy_outputs))
        return noise.astype(np.float32)

    return draw
