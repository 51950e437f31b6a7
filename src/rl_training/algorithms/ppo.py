"""PPO with a clipped objective (Schulman et al., 2017) and generalised advantage estimation.

Details follow the authors' code where it goes beyond the paper: advantages normalised per
minibatch, Adam's epsilon 1e-5, orthogonal initialisation. Unlike it, truncated episodes bootstrap
from the value of their true last observation. Values and old log-probabilities are computed once
per rollout, after it, in one call each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Acting, Algorithm, UpdateResult
from rl_training.algorithms.checks import check_actor_critic
from rl_training.algorithms.functional import distributions
from rl_training.algorithms.functional.gae import explained_variance, gae
from rl_training.algorithms.functional.surrogate import Samples, normalized, ppo_losses
from rl_training.algorithms.generators import BlockNoise, NumpyGenerator
from rl_training.algorithms.gradients import vjp_of
from rl_training.algorithms.optimization import Optimizer
from rl_training.algorithms.ppo_config import PPOConfig
from rl_training.data.arrays import Array, as_float, means, namespace
from rl_training.data.metrics import Metrics
from rl_training.data.types import EnvSpec, Moment, PolicyState, Rollout
from rl_training.experiment.config import scheduled_value

METRICS = ("policy_loss", "value_loss", "approx_kl", "clip_fraction", "entropy")
KL = METRICS.index("approx_kl")
PIECE = 256  # images of a rollout that are seen at once
KL_MARGIN = 1.5  # an update stops where the KL estimate passes this multiple of the target


class PPO(Algorithm):
    """Several epochs of minibatch updates on each rollout."""

    def __init__(
        self,
        model: nn.Module,
        hyper: PPOConfig,
        spec: EnvSpec,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(device)
        self.hyper = hyper
        self.spec = spec
        self.model: Any = model.to(self.device)
        self.check(self.model, hyper, spec)
        self.optimizer = Optimizer(
            self.model, eps=hyper.optimizer_eps, max_grad_norm=hyper.max_grad_norm
        )
        self.vjp = vjp_of(self.model, self._outputs)
        self.use_arrays(self.model)
        noise = distributions.sampling_noise(spec)
        self.actions = BlockNoise(seed, noise, width=spec.policy_outputs)
        self.shuffling = NumpyGenerator(seed)
        self.parts = {"model": self.model, "optimizer": self.optimizer}
        self.parts |= {"actions": self.actions, "shuffling": self.shuffling}

    def check(self, model: nn.Module, hyper: Any, spec: EnvSpec) -> None:  # noqa: ARG002
        """Refuse a network without fitting `policy(obs)` and `value(obs)`."""
        check_actor_critic(model, spec)

    def policy(self, output: Array) -> distributions.ActionDistribution:
        """The distribution of actions over the network's policy output."""
        return distributions.distribution(self.spec, output, getattr(self.model, "log_std", None))

    def _outputs(self, obs: Any) -> list[Tensor]:
        """What the loss is a function of: policy outputs, values, log_std where there is one."""
        log_std = [self.model.log_std] if self.spec.action_kind == "continuous" else []
        return [*self._forward(obs), *log_std]

    def _forward(self, obs: Any) -> tuple[Array, Array]:
        """Policy outputs and values of a minibatch; a network may give both at once."""
        both = getattr(self.model, "policy_and_value", None)
        return both(obs) if both else (self.model.policy(obs), self.model.value(obs))

    def act(
        self,
        obs: np.ndarray,
        state: PolicyState,
        first: np.ndarray,  # noqa: ARG002 - feed-forward
        moment: Moment,  # noqa: ARG002 - exploration is the policy's own
        *,
        explore: bool,
    ) -> Acting:
        """Sampled actions, or the most likely ones."""
        self.set_training(self.model, False)
        policy = self.policy(self.output(self.model.policy, obs))
        action = policy.sample(self.actions.step(len(obs))) if explore else policy.mode()
        return Acting(action, state)

    def schedules(self, moment: Moment) -> dict[str, float]:
        """The learning rate and the clip range."""
        scheduled = {name: getattr(self.hyper, name) for name in ("learning_rate", "clip_range")}
        when = (moment.env_steps, moment.horizon)
        return {name: scheduled_value(value, *when) for name, value in scheduled.items()}

    def update(self, rollout: Rollout, moment: Moment) -> UpdateResult:
        """All epochs over one rollout; a target KL may end them early."""
        with self.quietly():
            samples = self._samples(self.to_learn_from(rollout))
            return self._epochs(samples, **self.schedules(moment))

    def _epochs(self, samples: Samples, learning_rate: float, clip_range: float) -> UpdateResult:
        self.set_training(self.model, True)
        hyper, seen, steps = self.hyper, [], 0
        for minibatch in self._minibatches(samples):
            seen.append(self._gradient(minibatch, clip_range))
            # Reading the estimate waits for the device, so it is read only where it decides.
            if hyper.target_kl and float(seen[-1][KL]) > KL_MARGIN * hyper.target_kl:
                break
            self.optimizer.step(learning_rate)
            steps += 1
        xp = namespace(samples.value)
        numbers = xp.stack(seen).mean(0)
        loss = numbers[0] + hyper.value_coef * numbers[1] - hyper.entropy_coef * numbers[4]
        more = xp.stack([loss, explained_variance(samples.value, samples.returns)])
        names = (*METRICS, "loss", "explained_variance")
        return UpdateResult(Metrics(names, xp.concatenate([numbers, more])), steps)

    def _samples(self, rollout: Rollout) -> Samples:
        """The valid rows with the old policy's view of them, values and advantages."""
        self.set_training(self.model, False)  # as when it acted
        hyper, xp, (steps, envs) = self.hyper, namespace(rollout.obs), rollout.reward.shape
        obs, action = (x.reshape(-1, *x.shape[2:]) for x in (rollout.obs, rollout.action))
        output, value, bootstrap = self._seen(rollout, obs)
        next_value = xp.concatenate([value[1:], value[-1:]]).reshape(-1)
        next_value[rollout.bootstrap_rows] = bootstrap
        discount = hyper.gamma * as_float(~rollout.terminated)
        trace = hyper.gamma * hyper.gae_lambda * as_float(~rollout.ended)
        advantage = gae(rollout.reward, value, next_value.reshape(steps, envs), discount, trace)
        log_prob = self.policy(output).log_prob(action)
        columns = (x.reshape(-1) for x in (value, advantage, advantage + value))
        rows = rollout.valid.reshape(-1)
        return Samples(*(x[rows] for x in (obs, action, log_prob, *columns)))

    def _seen(self, rollout: Rollout, obs: Array) -> tuple[Array, Array, Array]:
        """Policy outputs of all rows, values [T, N], and values after the rows to bootstrap."""
        xp, rows, shape = namespace(obs), len(obs), rollout.reward.shape
        whole = xp.concatenate([obs, rollout.bootstrap_obs])
        if self.spec.obs_dtype == "float32":
            values = self.model.value(whole)
            return self.model.policy(obs), values[:rows].reshape(shape), values[rows:]
        pieces = [self._forward(whole[at : at + PIECE]) for at in range(0, len(whole), PIECE)]
        outputs, values = (xp.concatenate(column) for column in zip(*pieces, strict=True))
        return outputs[:rows], values[:rows].reshape(shape), values[rows:]

    def _minibatches(self, samples: Samples) -> Iterator[Samples]:
        """Shuffled rows in pieces of nearly equal size; a single row could not be normalised."""
        count = len(samples.value)
        pieces = max(1, min(-(-count // self.hyper.batch_size), count // 2))
        for _ in range(self.hyper.epochs):
            for rows in np.array_split(self.shuffling.numpy.permutation(count), pieces):
                index = rows if self.learns_on_host else torch.from_numpy(rows).to(self.device)
                yield Samples(*(x[index] for x in samples))

    def _gradient(self, old: Samples, clip_range: float) -> Array:
        """Leave the gradient of the minibatch's loss in the parameters; gives `METRICS`."""
        hyper = self.hyper
        if hyper.normalize_advantages:
            old = old._replace(advantage=normalized(old.advantage))
        (output, value, *_), pull_back = self.vjp(old.obs)
        policy = self.policy(output)
        new = policy.log_prob(old.action)
        losses = ppo_losses(new, value, old, clip_range, hyper.value_clip_range)
        by_entropy = -hyper.entropy_coef / len(value)
        by_policy = policy.gradient(old.action, losses.by_log_prob, by_entropy)
        pull_back((by_policy[0], hyper.value_coef * losses.by_value, *by_policy[1:]))
        return means(*losses[:4], policy.entropy())
