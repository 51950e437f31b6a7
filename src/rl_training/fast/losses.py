"""Losses on NumPy arrays, with their gradients written out; the definitions are in `algorithms`."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from rl_training.algorithms.soft_actor_critic import LOG_STD_RANGE
from rl_training.data.types import EnvSpec

Array = np.ndarray
CHUNK = 65_536  # pairs of quantiles compared at once: what stays in a processor's cache
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_LOWEST = -1e30  # log-probability of what is impossible; finite, so that 0 * log 0 is 0


class BatchArrays(NamedTuple):
    """The fields of a `Batch` as arrays, in its order."""

    obs: Array
    action: Array
    reward: Array
    next_obs: Array
    discount: Array
    weight: Array
    slots: Array
    legal: Array | None = None
    next_legal: Array | None = None


class ValueLoss(NamedTuple):
    """Gradient with respect to the network's output, metrics in order, priorities of the rows."""

    gradient: Array
    metrics: Array
    priority: Array


@lru_cache(maxsize=64)
def rows_of(count: int) -> Array:
    """0 to count - 1, to pick one entry of each row."""
    return np.arange(count)


@lru_cache(maxsize=64)
def _averaging(count: int) -> Array:
    return np.full(count, 1 / count, np.float32)


def means(*vectors: Array) -> Array:
    """The mean of each vector, as one vector."""
    return np.array(vectors) @ _averaging(len(vectors[0]))


def softmax(x: Array) -> Array:
    """Probabilities over the last axis."""
    powers = np.exp(x - x.max(-1, keepdims=True))
    probabilities: Array = powers / powers.sum(-1, keepdims=True)
    return probabilities


def log_softmax(x: Array) -> Array:
    """Logarithm of the softmax over the last axis."""
    shifted = x - x.max(-1, keepdims=True)
    logs: Array = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return logs


def mask_illegal(values: Array, legal: Array | None) -> Array:
    """Kernel of `algorithms.base.mask_illegal`."""
    return values if legal is None else np.where(legal, values, np.float32(-np.inf))


# Value-based


def soft_bootstrap(outputs: Array, q: Array, temperature: float) -> tuple[Array, Array]:
    """Kernel of `algorithms.value_based.bootstrap` above temperature 0."""
    log_policy = log_softmax(q / temperature)
    policy = np.exp(log_policy)
    bonus = -temperature * (policy * np.maximum(log_policy, _LOWEST)).sum(1)
    return np.einsum("ba...,ba->b...", outputs, policy), bonus


def dqn_loss(
    q: Array,
    next_q: Array,
    batch: BatchArrays,
    *,
    selector: Array | None,
    temperature: float,
    huber: bool,
) -> ValueLoss:
    """Kernel of `algorithms.dqn.dqn_loss`."""
    rows = rows_of(len(q))
    if temperature:
        selector = mask_illegal(next_q if selector is None else selector, batch.next_legal)
        next_value = np.add(*soft_bootstrap(next_q, selector, temperature))
    elif selector is None:
        legal_q = mask_illegal(next_q, batch.next_legal)
        next_value = np.maximum.reduce(legal_q.T.copy(), 0)  # NumPy is slow on a short last axis
    else:
        next_value = next_q[rows, mask_illegal(selector, batch.next_legal).argmax(1)]
    target = batch.reward + batch.discount * next_value
    value = q[rows, batch.action]
    error = value - target
    # Huber's derivative is the error held within 1, and Huber itself slope * (error - slope / 2);
    # the half square is the same without the bound.
    slope = error.clip(-1.0, 1.0) if huber else error
    weighted = slope * batch.weight
    td_error = abs(error)
    metrics = means(weighted * (error - 0.5 * slope), value, target, td_error)
    gradient = np.zeros_like(q)
    gradient[rows, batch.action] = weighted / len(weighted)
    return ValueLoss(gradient, metrics, td_error)


def qr_dqn_loss(
    quantiles: Array,
    next_quantiles: Array,
    batch: BatchArrays,
    *,
    selector: Array | None,
    temperature: float,
) -> ValueLoss:
    """Kernel of `algorithms.qr_dqn.qr_dqn_loss`."""
    rows = rows_of(len(quantiles))
    selector = next_quantiles.mean(-1) if selector is None else selector
    selector = mask_illegal(selector, batch.next_legal)
    if temperature:
        next_samples, bonus = soft_bootstrap(next_quantiles, selector, temperature)
        next_samples += bonus[:, None]
    else:
        next_samples = next_quantiles[rows, selector.argmax(1)]
    samples = batch.reward[:, None] + batch.discount[:, None] * next_samples
    predicted = quantiles[rows, batch.action]
    losses, grad_quantiles = quantile_huber(predicted, samples)
    value, target = predicted.mean(-1), samples.mean(-1)
    error = abs(value - target)
    metrics = means(losses * batch.weight, value, target, error)
    gradient = np.zeros_like(quantiles)
    gradient[rows, batch.action] = grad_quantiles * (batch.weight / len(rows))[:, None]
    return ValueLoss(gradient, metrics, error)


def quantile_huber(quantiles: Array, targets: Array) -> tuple[Array, Array]:
    """Kernel of `functional.quantile.quantile_huber_loss`: losses [B] and gradients [B, N]."""
    count = quantiles.shape[1]
    levels = (np.arange(count, dtype=np.float32) + np.float32(0.5)) / np.float32(count)
    # The batch last: long rows without gaps.
    columns, samples = quantiles.T.copy(), targets.T.copy()
    size = max(1, CHUNK // (len(samples) * len(quantiles)))
    starts = range(0, count, size)
    pieces = [_compare(columns[i : i + size], samples, levels[i : i + size]) for i in starts]
    rows, gradients = zip(*pieces, strict=True)
    return np.asarray(sum(rows)), np.concatenate(gradients, 1)


def _compare(quantiles: Array, targets: Array, levels: Array) -> tuple[Array, Array]:
    """The loss [B] of quantiles [N, B], each compared with every sample [M, B], and its gradient.

    Huber's derivative is the error held within 1, and Huber itself slope * (error - slope / 2). A
    positive error counts with the quantile's share of probability and a negative one with the rest:
    slope / 2 + (share - 1/2) * |slope|.
    """
    error = targets - quantiles[:, None]
    half = error.clip(-1.0, 1.0) * 0.5
    weighted = half + abs(half) * (2 * levels - 1)[:, None, None]
    rows = (weighted * (error - half)).sum((0, 1)) / len(targets)
    return rows, weighted.sum(1).T / -len(targets)


def project(probabilities: Array, reward: Array, discount: Array, support: Array) -> Array:
    """Kernel of `algorithms.c51.project`."""
    count = len(support)
    spacing = (support[-1] - support[0]) / (count - 1)
    place = (reward[:, None] + discount[:, None] * support - support[0]) / spacing
    place = place.clip(0, count - 1)
    lower = place.astype(np.int64).clip(0, count - 2)
    upper_share = (place - lower.astype(np.float32)) * probabilities
    lower_share = probabilities - upper_share
    slots = (rows_of(len(reward))[:, None] * count + lower).reshape(-1)
    size = len(reward) * count
    projected = np.bincount(slots, lower_share.reshape(-1), size).astype(np.float32)
    projected += np.bincount(slots + 1, upper_share.reshape(-1), size).astype(np.float32)
    return projected.reshape(probabilities.shape)


def c51_loss(
    logits: Array,
    next_logits: Array,
    batch: BatchArrays,
    *,
    support: Array,
    selector: Array | None,
    temperature: float,
) -> ValueLoss:
    """Kernel of `algorithms.c51.c51_loss`."""
    rows = rows_of(len(logits))
    reward = batch.reward
    if selector is None:
        selector = softmax(next_logits) @ support
    selector = mask_illegal(selector, batch.next_legal)
    if temperature:
        mixture, bonus = soft_bootstrap(softmax(next_logits), selector, temperature)
        reward = reward + batch.discount * bonus
    else:
        mixture = softmax(next_logits[rows, selector.argmax(1)])
    target = project(mixture, reward, batch.discount, support)
    log_probabilities = log_softmax(logits[rows, batch.action])
    probabilities = np.exp(log_probabilities)
    value, target_value = probabilities @ support, target @ support
    crossed = -(target * log_probabilities).sum(-1)
    entropy = -(target * np.log(target.clip(1e-30, 1.0))).sum(-1)
    error = abs(value - target_value)
    metrics = means(crossed * batch.weight, value, target_value, error)
    gradient = np.zeros_like(logits)
    # The gradient of a cross-entropy with respect to its logits.
    grad_logits = (probabilities - target) * (batch.weight / len(rows))[:, None]
    gradient[rows, batch.action] = grad_logits
    return ValueLoss(gradient, metrics, (crossed - entropy).clip(0.0, None))


# Soft actor-critics


class SquashedArrays(NamedTuple):
    """Actions [B, A] and log-probabilities [B], with what their backward pass needs."""

    action: Array
    log_prob: Array
    spread: Array  # std * noise: the derivative of mean + std * noise by the log std
    free: Array  # where the log std is within its range


def squashed_sample(output: Array, noise: Array) -> SquashedArrays:
    """Kernel of `algorithms.soft_actor_critic.squashed_sample`."""
    size = noise.shape[1]
    mean, raw = output[:, :size], output[:, size:]
    log_std = raw.clip(*LOG_STD_RANGE)
    spread = np.exp(log_std) * noise
    pre_tanh = mean + spread
    log_density = -0.5 * noise * noise - log_std - _LOG_SQRT_2PI
    log_prob = (log_density - log_tanh_derivative(pre_tanh)).sum(1)
    return SquashedArrays(np.tanh(pre_tanh), log_prob, spread, raw == log_std)


def log_tanh_derivative(x: Array) -> Array:
    """log(1 - tanh(x)^2), as in the definition."""
    size = abs(x)
    result: Array = 2 * (math.log(2) - size - np.log1p(np.exp(-2 * size)))
    return result


def squashed_gradient(sample: SquashedArrays, grad_action: Array, grad_log_prob: Array) -> Array:
    """Gradient with respect to the output [B, 2A].

    `grad_action` [B, A] and `grad_log_prob` [B] are those of the sample. The derivative of
    -log(1 - tanh(x)^2) is 2 tanh(x).
    """
    action, each = sample.action, grad_log_prob[:, None]
    grad_mean = grad_action * (1 - action * action) + each * (2 * action)
    grad_log_std = (grad_mean * sample.spread - each) * sample.free
    return np.concatenate([grad_mean, grad_log_std], 1)


class CriticLoss(NamedTuple):
    """Gradient with respect to the critics' outputs [E, B, O], and the metrics in order."""

    gradient: Array
    metrics: Array


def min_over_critics(values: Array) -> Array:
    """The lowest of the critics' values: [E, B, 1] gives [B]."""
    return np.amin(values, 0)[:, 0]


def sac_loss(q_values: Array, target: Array) -> CriticLoss:
    """Kernel of `algorithms.sac.sac_loss`."""
    error = q_values - target[:, None]
    rows = len(target)
    metrics = [0.5 * (error * error).sum() / rows, q_values.mean(), target.mean()]
    return CriticLoss(error / rows, np.stack(metrics))


def redq_loss(q_values: Array, target: Array) -> CriticLoss:
    """Kernel of `algorithms.redq.redq_loss`, for values [E, B, 1]."""
    values = q_values[:, :, 0].T
    error = values - target[:, None]
    rows = len(target)
    metrics = [(error * error).sum() / rows, values.mean(), target.mean()]
    return CriticLoss((error * (2 / rows)).T[:, :, None], np.stack(metrics))


def truncated_atoms(atoms: Array, dropped: int) -> Array:
    """Kernel of `algorithms.tqc.truncated_atoms`."""
    critics, rows, count = atoms.shape
    pooled = np.moveaxis(atoms, 0, 1).reshape(rows, critics * count)
    return np.sort(pooled, 1)[:, : critics * (count - dropped)]


def tqc_loss(quantiles: Array, atoms: Array) -> CriticLoss:
    """Kernel of `algorithms.tqc.tqc_loss`."""
    critics, rows, count = quantiles.shape
    targets = np.concatenate([atoms] * critics)
    losses, gradient = quantile_huber(quantiles.reshape(critics * rows, count), targets)
    share = 1 / (critics * rows * count)
    metrics = np.stack([losses.sum() * share, quantiles.mean(), atoms.mean()])
    return CriticLoss(gradient.reshape(quantiles.shape) * share, metrics)


# PPO


def gae(reward: Array, value: Array, next_value: Array, discount: Array, trace: Array) -> Array:
    """Kernel of `algorithms.ppo.gae`."""
    delta = reward + discount * next_value - value
    running, advantages = 0.0 * delta[0], []
    for step, carried in zip(reversed([*delta]), reversed([*trace]), strict=True):
        running = step + carried * running
        advantages.append(running)
    return np.stack(advantages[::-1])


def normalized(advantage: Array) -> Array:
    """Kernel of `algorithms.ppo.normalized`."""
    if len(advantage) == 1:
        return advantage
    centred = advantage - advantage.mean()
    scaled: Array = centred / (((centred * centred).sum() / (len(centred) - 1)) ** 0.5 + 1e-8)
    return scaled


class SampleArrays(NamedTuple):
    """The fields of `algorithms.ppo.Samples` as arrays."""

    obs: Array
    action: Array
    log_prob: Array
    value: Array
    advantage: Array
    returns: Array
    legal: Array | None = None

    def at(self, rows: Array) -> SampleArrays:
        """Some of the rows."""
        columns: Any = (None if x is None else x[rows] for x in self)
        return SampleArrays(*columns)


class PPOArrays(NamedTuple):
    """The terms of the objective per row, and the gradients of their means [B]."""

    policy_loss: Array
    value_loss: Array
    approx_kl: Array
    clip_fraction: Array
    grad_log_prob: Array
    grad_value: Array


def ppo_terms(
    log_prob: Array,
    value: Array,
    old: SampleArrays,
    clip_range: float,
    value_clip_range: float | None,
) -> PPOArrays:
    """Kernel of `algorithms.ppo.ppo_terms`."""
    count = len(value)
    log_ratio = log_prob - old.log_prob
    ratio = np.exp(log_ratio)
    clipped = ratio.clip(1 - clip_range, 1 + clip_range)
    gain, bounded = ratio * old.advantage, clipped * old.advantage
    error = value - old.returns
    squared, grad_value = error * error, 2.0 * error
    if value_clip_range is not None:
        moved = value - old.value
        near = old.value + moved.clip(-value_clip_range, value_clip_range) - old.returns
        grad_near = 2.0 * near * (abs(moved) <= value_clip_range)
        grad_value = np.where(squared >= near * near, grad_value, grad_near)
        squared = np.maximum(squared, near * near)
    return PPOArrays(
        policy_loss=-np.minimum(gain, bounded),
        value_loss=squared,
        approx_kl=ratio - 1 - log_ratio,
        clip_fraction=(clipped != ratio).astype(np.float32),
        # The bounded gain does not change with the policy; where it counts, nothing pulls.
        grad_log_prob=gain * (gain <= bounded) / -count,
        grad_value=grad_value / count,
    )


class ArrayDistribution(Protocol):
    """An action distribution of `functional.distributions` on arrays."""

    def sample(self, noise: Array) -> Array:
        """A random action per row."""

    def mode(self) -> Array:
        """The most likely action per row."""

    def log_prob(self, action: Array) -> Array:
        """Log-probability of an action per row."""

    def entropy(self) -> Array:
        """Entropy per row."""

    def gradient(
        self, action: Array, grad_log_prob: Array, grad_entropy: float
    ) -> tuple[Array, ...]:
        """Gradient with respect to the output, and the log standard deviation if there is one.

        `grad_log_prob` [B] and `grad_entropy` are those of each row's log-probability and entropy.
        """


class CategoricalArrays:
    """One of A choices, from logits [B, A]; actions [B]. Those of a mask are chosen alone."""

    def __init__(self, logits: Array, legal: Array | None = None) -> None:
        self.logits = mask_illegal(logits, legal)
        self._masked = legal is not None
        self._log_probs: Array | None = None

    @property
    def log_probs(self) -> Array:
        """Log-probabilities [B, A]; a sample needs none."""
        if self._log_probs is None:
            self._log_probs = log_softmax(self.logits)
            if self._masked:
                self._log_probs = np.maximum(self._log_probs, _LOWEST)
        return self._log_probs

    def sample(self, noise: Array) -> Array:
        """The largest of logits plus Gumbel noise: each choice with its probability."""
        return (self.logits + noise).argmax(-1)

    def mode(self) -> Array:
        """The most likely choice."""
        return self.logits.argmax(-1)

    def log_prob(self, action: Array) -> Array:
        """Log-probability of the choice."""
        return self.log_probs[rows_of(len(action)), action]

    def entropy(self) -> Array:
        """Entropy in nats."""
        return -(np.exp(self.log_probs) * self.log_probs).sum(-1)

    def gradient(self, action: Array, grad_log_prob: Array, grad_entropy: float) -> tuple[Array]:
        """That of a log-probability is one for the choice, minus the probabilities."""
        scale = grad_log_prob[:, None]
        if grad_entropy:
            scale = scale + grad_entropy * (self.log_probs + self.entropy()[:, None])
        grad = -np.exp(self.log_probs) * scale
        grad[rows_of(len(action)), action] += grad_log_prob
        return (grad,)


class MultiCategoricalArrays:
    """Several independent choices, from concatenated logits [B, sum of sizes]; actions [B, K]."""

    def __init__(self, logits: Array, sizes: tuple[int, ...], legal: Array | None = None) -> None:
        self._sizes = sizes
        masks = [None] * len(sizes) if legal is None else self._split(legal)
        self.parts = list(map(CategoricalArrays, self._split(logits), masks))

    def _split(self, columns: Array) -> list[Array]:
        ends = np.cumsum(self._sizes)
        return [columns[:, end - size : end] for end, size in zip(ends, self._sizes, strict=True)]

    def sample(self, noise: Array) -> Array:
        """A random choice per part."""
        noises = zip(self.parts, self._split(noise), strict=True)
        return np.stack([part.sample(own) for part, own in noises], -1)

    def mode(self) -> Array:
        """The most likely choice per part."""
        return np.stack([part.mode() for part in self.parts], -1)

    def log_prob(self, action: Array) -> Array:
        """Sum over the parts."""
        return np.asarray(sum(part.log_prob(action[:, k]) for k, part in enumerate(self.parts)))

    def entropy(self) -> Array:
        """Sum over the parts."""
        return np.asarray(sum(part.entropy() for part in self.parts))

    def gradient(self, action: Array, grad_log_prob: Array, grad_entropy: float) -> tuple[Array]:
        """Side by side."""
        parts = enumerate(self.parts)
        grads = [part.gradient(action[:, k], grad_log_prob, grad_entropy)[0] for k, part in parts]
        return (np.concatenate(grads, -1),)


class BernoulliArrays:
    """Independent switches, from logits [B, K]; actions [B, K] of 0 and 1."""

    def __init__(self, logits: Array) -> None:
        self.logits = logits

    @property
    def _probs(self) -> Array:
        return np.exp(-self._softplus(-self.logits))

    @staticmethod
    def _softplus(x: Array) -> Array:
        """log(1 + exp(x)), for any x."""
        return np.logaddexp(np.zeros_like(x), x)

    def sample(self, noise: Array) -> Array:
        """On where the logit plus logistic noise is positive: with the switch's probability."""
        return (self.logits + noise > 0).astype(np.int64)

    def mode(self) -> Array:
        """The more likely position."""
        return (self.logits > 0).astype(np.int64)

    def log_prob(self, action: Array) -> Array:
        """Sum over the switches."""
        sign = 1 - 2 * action.astype(
            np.float32
        )  # the log-sigmoid of the logit where on, of its minus else
        return -self._softplus(sign * self.logits).sum(-1)

    def entropy(self) -> Array:
        """Sum over the switches."""
        # H = softplus(l) - l * p, stable for any logit.
        return (self._softplus(self.logits) - self.logits * self._probs).sum(-1)

    def gradient(self, action: Array, grad_log_prob: Array, grad_entropy: float) -> tuple[Array]:
        """That of a log-probability is the position minus its probability."""
        p = self._probs
        grad = grad_log_prob[:, None] * (action.astype(np.float32) - p)
        return (grad - grad_entropy * self.logits * p * (1 - p),)


class DiagonalGaussianArrays:
    """Independent normals with means [B, K] and one log standard deviation [K] for all rows."""

    def __init__(self, mean: Array, log_std: Array) -> None:
        self.mean = mean
        self.log_std = log_std
        self._precision = np.exp(-log_std)

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
        each_row = np.zeros_like(self.mean[:, 0])
        return each_row + (self.log_std + 0.5 + _LOG_SQRT_2PI).sum()

    def gradient(
        self, action: Array, grad_log_prob: Array, grad_entropy: float
    ) -> tuple[Array, Array]:
        """That of a log-density is z / std for the mean, z^2 - 1 for the log standard deviation."""
        z, rows = (action - self.mean) * self._precision, grad_log_prob[:, None]
        grad_log_std = (rows * (z * z - 1)).sum(0) + grad_entropy * len(z)
        return rows * z * self._precision, grad_log_std


def distribution(
    spec: EnvSpec, output: Array, log_std: Array | None, legal: Array | None = None
) -> ArrayDistribution:
    """The distribution of `spec`'s kind of action over a policy's output."""
    if spec.action_kind == "discrete":
        return CategoricalArrays(output, legal)
    if spec.action_kind == "multi_discrete":
        return MultiCategoricalArrays(output, spec.action_sizes, legal)
    if spec.action_kind == "multi_binary":
        return BernoulliArrays(output)
    assert log_std is not None
    return DiagonalGaussianArrays(output, log_std)
