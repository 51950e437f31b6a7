"""Action distributions over a network's output, one class per kind of action space.

Each has `sample`, `mode`, `log_prob` and `entropy`, with a row per environment or batch row.
Log-probabilities and entropies are summed over the parts of an action. Samples are drawn with a
generator of the host and stay there, where the environments are.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Generator, Tensor

from rl_training.data.types import EnvSpec

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class ActionDistribution(Protocol):
    """What a policy needs of a distribution."""

    def sample(self, generator: Generator) -> Tensor:
        """A random action per row."""

    def mode(self) -> Tensor:
        """The most likely action per row; the mean of a Gaussian."""

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-probability (or log-density) of an action per row."""

    def entropy(self) -> Tensor:
        """Entropy per row."""


class Categorical:
    """One of A choices, from logits [B, A]; actions [B]."""

    def __init__(self, logits: Tensor) -> None:
        self.log_probs = logits.log_softmax(-1)

    def sample(self, generator: Generator) -> Tensor:
        """A random choice per row."""
        return torch.multinomial(self.log_probs.exp().cpu(), 1, generator=generator).squeeze(-1)

    def mode(self) -> Tensor:
        """The most likely choice."""
        return self.log_probs.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-probability of the choice."""
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """Entropy in nats."""
        return -(self.log_probs.exp() * self.log_probs).sum(-1)


class MultiCategorical:
    """Several independent choices, from concatenated logits [B, sum of sizes]; actions [B, K]."""

    def __init__(self, logits: Tensor, sizes: tuple[int, ...]) -> None:
        self.parts = [Categorical(part) for part in torch.split(logits, list(sizes), dim=-1)]

    def sample(self, generator: Generator) -> Tensor:
        """A random choice per part."""
        return torch.stack([part.sample(generator) for part in self.parts], -1)

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


class Bernoulli:
    """Independent switches, from logits [B, K]; actions [B, K] of 0 and 1."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def sample(self, generator: Generator) -> Tensor:
        """A random position per switch."""
        return torch.bernoulli(self.logits.sigmoid().cpu(), generator=generator).long()

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


class DiagonalGaussian:
    """Independent normals with means [B, K] and one log standard deviation [K] for all rows."""

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        self.mean = mean
        self.log_std = log_std

    def sample(self, generator: Generator) -> Tensor:
        """A random point; it may lie outside the action bounds, which clip it at the boundary."""
        noise = torch.empty(self.mean.shape).normal_(generator=generator)
        return (self.mean + self.log_std.exp() * noise.to(self.mean.device)).cpu()

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
