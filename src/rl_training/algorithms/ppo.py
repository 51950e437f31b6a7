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
from pydantic import Field
from torch import Tensor, nn

from rl_training.algorithms.base import Acting, Algorithm, UpdateResult
from rl_training.algorithms.checks import check_actor_critic
from rl_training.algorithms.functional import distributions
from rl_training.algorithms.functional.gae import explained_variance, gae
from rl_training.algorithms.functional.surrogate import Samples, normalized, ppo_losses
from rl_training.algorithms.generators import BlockNoise, NumpyGenerator
from rl_training.algorithms.gradients import vjp_of
from rl_training.algorithms.optimization import Optimizer
from rl_training.data.types import EnvSpec, Moment, PolicyState, Rollout
from rl_training.experiment.config import (
    HiddenSizes,
    LearningRate,
    OnPolicyHyperParameters,
    Probability,
    scheduled_value,
)

KL_MARGIN = 1.5  # an update stops where the KL estimate passes this multiple of the target


class PPOConfig(OnPolicyHyperParameters):
    """Hyper-parameters of PPO."""

    learning_rate: LearningRate = Field(3e-4, description="step size of the optimiser")
    hidden_sizes: HiddenSizes = Field((64, 64), description="width of each hidden layer")
    clip_range: Probability = Field(0.2, description="how far the probability ratio may leave 1")
    value_clip_range: float | None = Field(
        None, gt=0, le=1e6, description="how far a value may leave the old one; null for any"
    )
    value_coef: float = Field(0.5, ge=0, le=1e6, description="weight of the value loss")
    entropy_coef: float = Field(0.0, ge=0, le=1e6, description="weight of the entropy bonus")
    normalize_advantages: bool = Field(True, description="in each minibatch, to mean 0 and std 1")
    target_kl: float | None = Field(
        None, gt=0, le=1e6, description="ends an update at 1.5 times this KL; null for never"
    )
    max_grad_norm: float | None = Field(
        0.5, gt=0, le=1e6, description="bound on the norm of the gradient; null for none"
    )
    optimizer_eps: float = Field(1e-5, gt=0, le=1, description="Adam's epsilon")
    log_std_init: float = Field(
        0.0, ge=-20, le=2, description="log standard deviation of continuous actions at the start"
    )


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
        self.model: Any = model.to(self.device)  # has policy(obs) and value(obs)
        check_actor_critic(self.model, spec)
        self.optimizer = Optimizer(
            self.model, eps=hyper.optimizer_eps, max_grad_norm=hyper.max_grad_norm
        )
        self.vjp = vjp_of(self.model, self._outputs)
        self.actions = BlockNoise(seed, distributions.sampling_noise(spec))
        self.shuffling = NumpyGenerator(seed)
        self.parts = {"model": self.model, "optimizer": self.optimizer}
        self.parts |= {"actions": self.actions, "shuffling": self.shuffling}

    def policy(self, output: Tensor) -> distributions.ActionDistribution:
        """The distribution of actions over the network's policy output."""
        return distributions.distribution(self.spec, output, getattr(self.model, "log_std", None))

    def _outputs(self, obs: Tensor) -> list[Tensor]:
        """What the loss is a function of: policy outputs, values, log_std where there is one."""
        log_std = [self.model.log_std] if self.spec.action_kind == "continuous" else []
        return [self.model.policy(obs), self.model.value(obs), *log_std]

    @torch.inference_mode()
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
        policy = self.policy(self.model.policy(self.to_tensor(obs)))
        noise = torch.from_numpy(self.actions.step(len(obs))) if explore else None
        action = policy.mode() if noise is None else policy.sample(noise)
        return Acting(action.cpu().numpy(), state)

    def schedules(self, moment: Moment) -> dict[str, float]:
        """The learning rate and the clip range."""
        scheduled = {name: getattr(self.hyper, name) for name in ("learning_rate", "clip_range")}
        when = (moment.env_steps, moment.horizon)
        return {name: scheduled_value(value, *when) for name, value in scheduled.items()}

    @torch.no_grad()
    def update(self, rollout: Rollout, moment: Moment) -> UpdateResult:
        """All epochs over one rollout; a target KL may end them early."""
        samples, scheduled = self._samples(rollout), self.schedules(moment)
        self.set_training(self.model, True)
        hyper, seen, steps = self.hyper, [], 0
        for minibatch in self._minibatches(samples):
            metrics = self._gradient(minibatch, scheduled["clip_range"])
            seen.append(metrics)
            # Reading the estimate waits for the device, so it is read only where it decides.
            if hyper.target_kl and float(metrics["approx_kl"]) > KL_MARGIN * hyper.target_kl:
                break
            self.optimizer.step(scheduled["learning_rate"])
            steps += 1
        means = {name: torch.stack([m[name] for m in seen]).mean() for name in metrics}
        loss = means["policy_loss"] + hyper.value_coef * means["value_loss"]
        means["loss"] = loss - hyper.entropy_coef * means["entropy"]
        means["explained_variance"] = explained_variance(samples.value, samples.returns)
        return UpdateResult(means, steps)

    @torch.no_grad()
    def _samples(self, rollout: Rollout) -> Samples:
        """The valid rows with the old policy's view of them, values and advantages."""
        self.set_training(self.model, False)  # as when it acted
        hyper, (steps, envs) = self.hyper, rollout.reward.shape
        obs, action = rollout.obs.flatten(0, 1), rollout.action.flatten(0, 1)
        values = self.model.value(torch.cat([obs, rollout.bootstrap_obs]))
        value, bootstrap = values[: steps * envs].view(steps, envs), values[steps * envs :]
        next_value = torch.cat([value[1:], value[-1:]]).flatten()
        next_value[rollout.bootstrap_rows] = bootstrap
        discount = hyper.gamma * (~rollout.terminated).float()
        trace = hyper.gamma * hyper.gae_lambda * (~rollout.ended).float()
        advantage = gae(rollout.reward, value, next_value.view(steps, envs), discount, trace)
        log_prob = self.policy(self.model.policy(obs)).log_prob(action)
        columns = (value.flatten(), advantage.flatten(), (advantage + value).flatten())
        rows = rollout.valid.flatten().nonzero().squeeze(1)
        return Samples(*(x.index_select(0, rows) for x in (obs, action, log_prob, *columns)))

    def _minibatches(self, samples: Samples) -> Iterator[Samples]:
        """Shuffled rows in pieces of nearly equal size; a single row could not be normalised."""
        count = len(samples.obs)
        pieces = max(1, min(-(-count // self.hyper.batch_size), count // 2))
        for _ in range(self.hyper.epochs):
            order = torch.from_numpy(self.shuffling.numpy.permutation(count)).to(self.device)
            shuffled = (x.index_select(0, order).tensor_split(pieces) for x in samples)
            yield from map(Samples, *shuffled)

    def _gradient(self, old: Samples, clip_range: float) -> dict[str, Tensor]:
        """Leave the gradient of the minibatch's loss in the parameters; gives the loss's parts."""
        hyper = self.hyper
        if hyper.normalize_advantages:
            old = old._replace(advantage=normalized(old.advantage))
        (output, value, *_), pull_back = self.vjp(old.obs)
        policy = self.policy(output)
        log_prob = policy.log_prob(old.action)
        losses = ppo_losses(log_prob, value, old, clip_range, hyper.value_clip_range)
        by_entropy = -hyper.entropy_coef / len(value)
        by_policy = policy.gradient(old.action, losses.by_log_prob, by_entropy)
        pull_back((by_policy[0], hyper.value_coef * losses.by_value, *by_policy[1:]))
        return losses.metrics | {"entropy": policy.entropy().mean()}
