"""Action distributions over a network's output, one class per action space.

Each has `sample`, `mode`, `log_prob` and `entropy`, with a row per environment or batch row.
Log-probabilities and entropies are summed over the parts of an action. A sample is a function of
the output and of noise. A choice whose logit is minus infinity, as that of an illegal action, has
probability 0: it is never sampled, and adds nothing to an entropy or a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rl_training.data.types import EnvSpec

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class ActionDistribution(Protocol):
    """What a policy needs of a distribution."""

    def sample(self, noise: Tensor) -> Tensor:
        """A random action per row, from noise in the shape of the network's output."""

    def mode(self) -> Tensor:
        """The most likely action per row; the mean of a Gaussian."""

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-probability (or log-density) of an action per row."""

    def entropy(self) -> Tensor:
        """Entropy per row."""


class Categorical:
    """One of A choices, from logits [B, A]; actions [B]."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def sample(self, noise: Tensor) -> Tensor:
        """Gumbel-max sampling: the largest of logits plus Gumbel noise."""
        return (self.logits + noise).argmax(-1)

    def mode(self) -> Tensor:
        """The most likely choice."""
        return self.logits.argmax(-1)

    def probabilities(self) -> list[Tensor]:
        """Of the choices [B, A], of the one part that an action has."""
        return [self.logits.softmax(-1)]

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-probability of the choice."""
        return self.logits.log_softmax(-1).gather(-1, action[:, None])[:, 0]

    def entropy(self) -> Tensor:
        """Entropy in nats."""
        log_probs = self.logits.log_softmax(-1)
        finite = log_probs.clamp(min=-1e30)  # 0 * log 0 is 0
        return -(log_probs.exp() * finite).sum(-1)


class MultiCategorical:
    """Several independent choices, from concatenated logits [B, sum of sizes]; actions [B, K]."""

    def __init__(self, logits: Tensor, sizes: tuple[int, ...]) -> None:
        self._sizes = list(sizes)
        self.parts = [Categorical(part) for part in torch.split(logits, self._sizes, -1)]

    def sample(self, noise: Tensor) -> Tensor:
        """A random choice per part."""
        noises = torch.split(noise, self._sizes, -1)
        samples = [part.sample(x) for part, x in zip(self.parts, noises, strict=True)]
        return torch.stack(samples, -1)

    def mode(self) -> Tensor:
        """The most likely choice per part."""
        return torch.stack([part.mode() for part in self.parts], -1)

    def probabilities(self) -> list[Tensor]:
        """Of the choices of each part."""
        return [choices for part in self.parts for choices in part.probabilities()]

    def log_prob(self, action: Tensor) -> Tensor:
        """Sum over the parts."""
        log_probs = [part.log_prob(action[:, k]) for k, part in enumerate(self.parts)]
        return torch.stack(log_probs).sum(0)

    def entropy(self) -> Tensor:
        """Sum over the parts."""
        return torch.stack([part.entropy() for part in self.parts]).sum(0)


class Bernoulli:
    """Independent switches, from logits [B, K]; actions [B, K] of 0 and 1."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def sample(self, noise: Tensor) -> Tensor:
        """On where logit plus logistic noise is positive: with probability sigmoid(logit)."""
        return (self.logits + noise > 0).long()

    def mode(self) -> Tensor:
        """The more likely position."""
        return (self.logits > 0).long()

    def probabilities(self) -> list[Tensor]:
        """Of off and on, for each switch."""
        on = self.logits.sigmoid()
        return list(torch.stack([1 - on, on], -1).unbind(1))

    def log_prob(self, action: Tensor) -> Tensor:
        """Sum over the switches: log-sigmoid of the logit where on, of its negative elsewhere."""
        return F.logsigmoid((2 * action - 1) * self.logits).sum(-1)

    def entropy(self) -> Tensor:
        """Sum over the switches: H = softplus(l) - l * p, stable for any logit."""
        return (F.softplus(self.logits) - self.logits * self.logits.sigmoid()).sum(-1)


class DiagonalGaussian:
    """Independent normals with means [B, K] and one log standard deviation [K] for all rows."""

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        self.mean, self.log_std = mean, log_std

    def sample(self, noise: Tensor) -> Tensor:
        """Mean plus scaled normal noise; the action bounds clip it at the boundary."""
        return self.mean + noise * self.log_std.exp()

    def mode(self) -> Tensor:
        """The mean."""
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-density of the unclipped action, summed over dimensions."""
        z = (action - self.mean) * (-self.log_std).exp()
        return (-0.5 * z**2 - self.log_std - _LOG_SQRT_2PI).sum(-1)

    def entropy(self) -> Tensor:
        """Entropy in nats, the same for every row."""
        return (self.log_std + 0.5 + _LOG_SQRT_2PI).sum().expand(len(self.mean))


DISCRETE = (Categorical, MultiCategorical, Bernoulli)


def distribution(spec: EnvSpec, output: Tensor, log_std: Tensor | None) -> ActionDistribution:
    """The distribution of `spec`'s kind of action over a policy's output."""
    if spec.action_kind == "discrete":
        return Categorical(output)
    if spec.action_kind == "multi_discrete":
        return MultiCategorical(output, spec.action_sizes)
    if spec.action_kind == "multi_binary":
        return Bernoulli(output)
    assert log_std is not None
    return DiagonalGaussian(output, log_std)


def sampling_noise(spec: EnvSpec) -> Callable[[np.random.Generator, int], np.ndarray]:
    """Draws the noise that `sample` takes for `spec`'s kind of action, a row per action."""
    kinds = {"continuous": "normal", "multi_binary": "logistic"}
    name = kinds.get(spec.action_kind, "gumbel")

    def draw(rng: np.random.Generator, rows: int) -> np.ndarray:
        noise: np.ndarray = getattr(rng, name)(size=(rows, spec.policy_outputs))
        return noise.astype(np.float32)

    return draw
