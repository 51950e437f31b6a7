"""Whole gradient steps of packaged algorithms on packaged networks, on NumPy arrays.

Each kernel stands in for autograd of one loss, and for the method with which the algorithm acts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import is_
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import Loss
from rl_training.algorithms.c51 import C51
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.ppo import PPO
from rl_training.algorithms.qr_dqn import QRDQN
from rl_training.algorithms.redq import REDQ
from rl_training.algorithms.soft_actor_critic import SoftActorCritic
from rl_training.algorithms.tqc import TQC
from rl_training.data.metrics import Metrics
from rl_training.data.types import Batch, Rollout
from rl_training.fast import losses
from rl_training.fast.networks import ActorCriticKernel, CriticsKernel, ReshapedKernel

Array = np.ndarray
VALUE_METRICS = ("loss", "q_value_mean", "target_mean", "td_error_mean")
CRITIC_METRICS = ("critic_loss", "q_value_mean", "target_q_mean")
ACTOR_METRICS = ("actor_loss", "entropy", "alpha")
PPO_METRICS = ("loss", "policy_loss", "value_loss", "approx_kl", "clip_fraction", "entropy")
Record = TypeVar("Record", bound=NamedTuple)
Arrays = TypeVar("Arrays", bound=NamedTuple)


def _reported(names: tuple[str, ...], numbers: Array, priority: Tensor | None = None) -> Loss:
    """The loss whose gradient is in place; its value is the first of the metrics."""
    value = torch.from_numpy(numbers[:1].reshape(()))  # a view is cheaper than an index of torch
    return Loss(value, Metrics(names, numbers), priority)


class ArrayViews(Generic[Arrays]):
    """Records with their tensors viewed as arrays.

    Replay gives the same tensors with other contents each time, so the last views are kept.
    """

    def __init__(self, kind: Callable[..., Arrays]) -> None:
        self._kind = kind
        self._last: tuple[object, ...] = ()
        self._arrays: Arrays | None = None

    def of(self, record: tuple[object, ...]) -> Arrays:
        """The record with arrays in place of tensors."""
        known, last = self._arrays, self._last
        if known is None or len(record) != len(last) or not all(map(is_, record, last)):
            self._last = record
            known = self._kind(*(x.numpy() if isinstance(x, Tensor) else x for x in record))
            self._arrays = known
        return known


class ValueKernel:
    """Kernel of DQN, QR-DQN and C51."""

    def __init__(
        self,
        algorithm: DQN | QRDQN | C51,
        model: ReshapedKernel,
        target: ReshapedKernel,
        average: ReshapedKernel | None = None,
    ) -> None:
        self._algorithm = algorithm
        self._model, self._target, self._policy = model, target, average or model
        self._views = ArrayViews(losses.BatchArrays)
        self._q_values, self._loss = _value_functions(algorithm)

    def differentiate(self, batch: Batch) -> Loss:
        """Leave the loss's gradient in the parameters."""
        with np.errstate(all="ignore"):  # what is not finite is found by the metrics
            arrays = self._views.of(batch)
            after = self._target.forward(arrays.next_obs)
            selector, hyper = None, self._algorithm.hyper
            if hyper.double:
                selector = self._q_values(self._model.forward(arrays.next_obs))
            output, backward = self._model.vjp(arrays.obs)
            result = self._loss(
                output, after, arrays, selector=selector, temperature=hyper.temperature
            )
            backward(result.gradient)
        return _reported(VALUE_METRICS, result.metrics, torch.from_numpy(result.priority))

    def greedy(self, obs: Array, *, averaged: bool = False, legal: Array | None = None) -> Array:
        """The action with the highest Q-value in each row, of the legal ones."""
        network = self._policy if averaged else self._model
        with np.errstate(all="ignore"):
            q = self._q_values(network.forward(obs))
            best: Array = losses.mask_illegal(q, legal).argmax(-1)
        return best


def _value_functions(
    algorithm: DQN | QRDQN | C51,
) -> tuple[Callable[[Array], Array], Callable[..., losses.ValueLoss]]:
    """Q-values of an output, and the loss."""
    if isinstance(algorithm, DQN):
        return (lambda output: output), lambda *args, **options: losses.dqn_loss(
            *args, **options, huber=algorithm.hyper.loss == "huber"
        )
    if isinstance(algorithm, QRDQN):
        return (lambda output: output.mean(-1)), losses.qr_dqn_loss
    support = algorithm.support.numpy()

    def loss(*args: Any, **options: Any) -> losses.ValueLoss:
        return losses.c51_loss(*args, **options, support=support)

    return (lambda output: losses.softmax(output) @ support), loss


class SoftKernel:
    """Kernel of SAC, TQC and REDQ."""

    def __init__(
        self,
        algorithm: SoftActorCritic,
        actor: ReshapedKernel,
        critics: CriticsKernel,
        target: CriticsKernel,
    ) -> None:
        self._algorithm = algorithm
        self._actor, self._critics, self._target = actor, critics, target
        self._views = ArrayViews(losses.BatchArrays)
        self._log_alpha = algorithm.temperature.log_alpha.numpy()

    def differentiate_critics(self, batch: Batch, noise: Tensor) -> Loss:
        """Leave the gradient of the critics' loss in their parameters."""
        with np.errstate(all="ignore"):
            arrays = self._views.of(batch)
            policy = losses.squashed_sample(self._actor.forward(arrays.next_obs), noise.numpy())
            alpha_log_prob = self._alpha() * policy.log_prob
            subset = None
            if isinstance(self._algorithm, REDQ):
                subset = self._algorithm.draw_subset()
            after = self._target.forward(arrays.next_obs, policy.action, subset)
            output, backward = self._critics.vjp(arrays.obs, arrays.action)
            result = self._critic_loss(output, after, alpha_log_prob, arrays)
            backward(result.gradient)
        return _reported(CRITIC_METRICS, result.metrics)

    def _critic_loss(
        self, output: Array, after: Array, alpha_log_prob: Array, batch: losses.BatchArrays
    ) -> losses.CriticLoss:
        if isinstance(self._algorithm, TQC):
            atoms = losses.truncated_atoms(after, self._algorithm.hyper.dropped_quantiles)
            kept = atoms - alpha_log_prob[:, None]
            target = batch.reward[:, None] + batch.discount[:, None] * kept
            return losses.tqc_loss(output, target)
        target = batch.reward + batch.discount * (losses.min_over_critics(after) - alpha_log_prob)
        loss = losses.redq_loss if isinstance(self._algorithm, REDQ) else losses.sac_loss
        return loss(output, target)

    def differentiate_actor(self, batch: Batch, noise: Tensor) -> Loss:
        """Leave the gradient of the actor's loss in its parameters."""
        with np.errstate(all="ignore"):
            arrays, alpha = self._views.of(batch), self._alpha()
            output, backward = self._actor.vjp(arrays.obs)
            policy = losses.squashed_sample(output, noise.numpy())
            values, action_backward = self._critics.input_vjp(arrays.obs, policy.action)
            value, slope = self._actor_value(values)
            share = 1 / len(value)
            grad_log_prob = np.full_like(value, share) * alpha
            grad_action = action_backward(slope * -share)
            backward(losses.squashed_gradient(policy, grad_action, grad_log_prob))
            entropy = -policy.log_prob.mean()
            loss = -alpha * entropy - value.mean()
            metrics = np.stack([loss, entropy, np.ones_like(entropy) * alpha])
        return _reported(ACTOR_METRICS, metrics)

    def _actor_value(self, values: Array) -> tuple[Array, Array]:
        """What the critics' values are to the actor [B], and the derivative by them."""
        if isinstance(self._algorithm, TQC):
            count = values.shape[0] * values.shape[2]
            return values.mean((0, 2)), np.full_like(values, 1 / count)
        if isinstance(self._algorithm, REDQ):
            return values.mean(0)[:, 0], np.full_like(values, 1 / len(values))
        value = losses.min_over_critics(values)
        lowest = values == value[:, None]
        return value, lowest / lowest.sum(0, dtype=np.float32)  # critics that tie share it

    def _alpha(self) -> Any:
        fixed = self._algorithm.temperature.fixed
        return np.exp(self._log_alpha) if fixed is None else fixed

    def actions(self, obs: Array, noise: Array | None) -> Array:
        """Actions that `noise` draws, or the squashed means without it."""
        with np.errstate(all="ignore"):
            output = self._actor.forward(obs)
            if noise is None:
                mode: Array = np.tanh(output[:, : output.shape[1] // 2])
                return mode
            return losses.squashed_sample(output, noise).action


class PPOKernel:
    """Kernel of PPO."""

    def __init__(self, algorithm: PPO, model: ActorCriticKernel) -> None:
        self._algorithm, self._model = algorithm, model

    def samples(self, rollout: Rollout) -> losses.SampleArrays:
        """The valid rows of a rollout with the old policy's view of them, values and advantages."""
        hyper, model = self._algorithm.hyper, self._model
        self._algorithm.set_training(self._algorithm.model, False)
        reward, terminated, ended, valid = (
            x.numpy() for x in (rollout.reward, rollout.terminated, rollout.ended, rollout.valid)
        )
        obs = rollout.obs.flatten(0, 1).numpy()
        action = rollout.action.flatten(0, 1).numpy()
        legal = None if rollout.legal is None else rollout.legal.flatten(0, 1).numpy()
        with np.errstate(all="ignore"):
            values = model.value(np.concatenate([obs, rollout.bootstrap_obs.numpy()]))
            value = values[: len(obs)].reshape(reward.shape)
            next_value = np.concatenate([value[1:], value[-1:]]).reshape(-1)
            next_value[rollout.bootstrap_rows.numpy()] = values[len(obs) :]
            discount = hyper.gamma * (~terminated).astype(np.float32)
            trace = hyper.gamma * hyper.gae_lambda * (~ended).astype(np.float32)
            after = next_value.reshape(reward.shape)
            advantage = losses.gae(reward, value, after, discount, trace)
            log_prob = self._policy(model.policy(obs), legal).log_prob(action)
            returns = (advantage + value).reshape(-1)
            columns = (obs, action, log_prob, value.reshape(-1), advantage.reshape(-1), returns)
            rows = valid.reshape(-1)
            kept: Any = (None if x is None else x[rows] for x in (*columns, legal))
            return losses.SampleArrays(*kept)

    def minibatches(self, samples: losses.SampleArrays) -> Iterator[losses.SampleArrays]:
        """Shuffled rows in pieces of nearly equal size."""
        for rows in self._algorithm.shuffled_rows(len(samples.value)):
            yield samples.at(rows)

    def differentiate(self, old: losses.SampleArrays, clip_range: float) -> Loss:
        """Leave the gradient of a minibatch's loss in the parameters."""
        hyper = self._algorithm.hyper
        with np.errstate(all="ignore"):
            if hyper.normalize_advantages:
                old = old._replace(advantage=losses.normalized(old.advantage))
            (output, value), backward = self._model.vjp(old.obs)
            policy = self._policy(output, old.legal)
            log_prob = policy.log_prob(old.action)
            terms = losses.ppo_terms(log_prob, value, old, clip_range, hyper.value_clip_range)
            grad_entropy = -hyper.entropy_coef / len(value)
            grad_policy = policy.gradient(old.action, terms.grad_log_prob, grad_entropy)
            backward((grad_policy[0], hyper.value_coef * terms.grad_value, *grad_policy[1:]))
            numbers = losses.means(*terms[:4], policy.entropy())
            loss = numbers[0] + hyper.value_coef * numbers[1] - hyper.entropy_coef * numbers[4]
        return _reported(PPO_METRICS, np.append(np.float32(loss), numbers))

    def actions(self, obs: Array, noise: Array | None, legal: Array | None = None) -> Array:
        """Legal actions that `noise` draws, or the most likely ones without it."""
        with np.errstate(all="ignore"):
            policy = self._policy(self._model.policy(obs), legal)
            return policy.mode() if noise is None else policy.sample(noise)

    def _policy(self, output: Array, legal: Array | None) -> losses.ArrayDistribution:
        return losses.distribution(self._algorithm.spec, output, self._model.log_std, legal)
