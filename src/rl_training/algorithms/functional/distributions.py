"""Action distributions over a network's output, one class per kind of action space.

Each has `sample`, `mode`, `log_prob` and `entropy`, with a row per environment or batch row, and
the gradient of the last two written out. Log-probabilities and entropies are summed over the parts
of an action. A sample is a function of the output and of noise drawn on the host, and stays there,
where the environments are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

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

    def gradient(
        self, action: Tensor, by_log_prob: Tensor, by_entropy: float
    ) -> tuple[Tensor, ...]:
        """Gradient with respect to the output, and to the log standard deviation if there is one.

        `by_log_prob` [B] and `by_entropy` are the derivatives of the loss by each row's
        log-probability and entropy.
        """


class Categorical:
    """One of A choices, from logits [B, A]; actions [B]."""

    def __init__(self, logits: Tensor) -> None:
        self.log_probs = logits.log_softmax(-1)
        self.probs = self.log_probs.exp()

    def sample(self, noise: Tensor) -> Tensor:
        """The largest of logits plus Gumbel noise: each choice with its probability."""
        return (self.log_probs.cpu() + noise).argmax(-1)

    def mode(self) -> Tensor:
        """The most likely choice."""
        return self.log_probs.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-probability of the choice."""
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """Entropy in nats."""
        return -(self.probs * self.log_probs).sum(-1)

    def gradient(self, action: Tensor, by_log_prob: Tensor, by_entropy: float) -> tuple[Tensor]:
        """Of a log-probability: one for the choice, minus the probabilities."""
        rows = by_log_prob.unsqueeze(-1)
        scale = rows
        if by_entropy:
            scale = rows + by_entropy * (self.log_probs + self.entropy().unsqueeze(-1))
        return ((-self.probs * scale).scatter_add_(-1, action.unsqueeze(-1), rows),)


class MultiCategorical:
    """Several independent choices, from concatenated logits [B, sum of sizes]; actions [B, K]."""

    def __init__(self, logits: Tensor, sizes: tuple[int, ...]) -> None:
        self.sizes = list(sizes)
        self.parts = [Categorical(part) for part in torch.split(logits, self.sizes, -1)]

    def sample(self, noise: Tensor) -> Tensor:
        """A random choice per part."""
        noises = zip(self.parts, torch.split(noise, self.sizes, -1), strict=True)
        return torch.stack([part.sample(own) for part, own in noises], -1)

    def mode(self) -> Tensor:
        """The most likely choice per part."""
        return torch.stack([part.mode() for part in self.parts], -1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Sum over the parts."""
        chosen = zip(self.parts, action.unbind(-1), strict=True)
        return torch.stack([part.log_prob(choice) for part, choice in chosen], -1).sum(-1)

    def entropy(self) -> Tensor:
        """Sum over the parts."""
        return torch.stack([part.entropy() for part in self.parts], -1).sum(-1)

    def gradient(self, action: Tensor, by_log_prob: Tensor, by_entropy: float) -> tuple[Tensor]:
        """Side by side."""
        chosen = zip(self.parts, action.unbind(-1), strict=True)
        grads = [part.gradient(choice, by_log_prob, by_entropy)[0] for part, choice in chosen]
        return (torch.cat(grads, -1),)


class Bernoulli:
    """Independent switches, from logits [B, K]; actions [B, K] of 0 and 1."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def sample(self, noise: Tensor) -> Tensor:
        """On where the logit plus logistic noise is positive: with the switch's probability."""
        return (self.logits.cpu() + noise > 0).long()

    def mode(self) -> Tensor:
        """The more likely position."""
        return (self.logits > 0).long()

    def log_prob(self, action: Tensor) -> Tensor:
        """Sum over the switches."""
        signed = torch.where(action.bool(), self.logits, -self.logits)
        return torch.nn.functional.logsigmoid(signed).sum(-1)

    def entropy(self) -> Tensor:
        """Sum over the switches."""
        p = self.logits.sigmoid()
        # H = softplus(l) - l * p, stable for any logit.
        return (torch.nn.functional.softplus(self.logits) - self.logits * p).sum(-1)

    def gradient(self, action: Tensor, by_log_prob: Tensor, by_entropy: float) -> tuple[Tensor]:
        """Of a log-probability: the position minus its probability."""
        p = self.logits.sigmoid()
        grad = by_log_prob.unsqueeze(-1) * (action - p)
        return (grad - by_entropy * self.logits * p * (1 - p),)


class DiagonalGaussian:
    """Independent normals with means [B, K] and one log standard deviation [K] for all rows."""

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        self.mean = mean
        self.log_std = log_std

    def sample(self, noise: Tensor) -> Tensor:
        """Mean plus scaled normal noise; the action bounds clip it at the boundary."""
        return self.mean.cpu() + self.log_std.exp().cpu() * noise

    def mode(self) -> Tensor:
        """The mean."""
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-density of the unclipped action, summed over dimensions."""
        z = (action - self.mean) * (-self.log_std).exp()
        return (-0.5 * z * z - self.log_std - _LOG_SQRT_2PI).sum(-1)

    def entropy(self) -> Tensor:
        """Entropy in nats, the same for every row."""
        return (self.log_std + 0.5 + _LOG_SQRT_2PI).sum().expand(self.mean.shape[:-1])

    def gradient(
        self, action: Tensor, by_log_prob: Tensor, by_entropy: float
    ) -> tuple[Tensor, Tensor]:
        """Of a log-density: z / std for the mean, z^2 - 1 for the log standard deviation."""
        rows, scale = by_log_prob.unsqueeze(-1), (-self.log_std).exp()
        z = (action - self.mean) * scale
        by_log_std = (rows * (z * z - 1)).sum(0) + by_entropy * len(z)
        return rows * z * scale, by_log_std


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
    kinds: dict[str, str] = {"continuous": "normal", "multi_binary": "logistic"}
    name = kinds.get(spec.action_kind, "gumbel")

    def draw(rng: np.random.Generator, rows: int) -> np.ndarray:
        noise: np.ndarray = getattr(rng, name)(size=(rows, spec.policy_outputs))
        return noise.astype(np.float32)

    return draw
