"""What SAC, TQC, REDQ and DrQ share: a squashed-Gaussian actor, critics, and a temperature.

An update is one step of the critics towards `reward + discount * (value - alpha * log_prob)`, with
a fresh action in the next state and the target critics' value of it; every `policy_delay` updates a
step of the actor and of the temperature; and then the target critics move. `discount` is zero after
a termination, so neither value nor entropy follows one. The algorithms differ in how the critics
are reduced to a value, and in their loss.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rl_training.algorithms.base import UpdateResult
from rl_training.algorithms.checks import check_actor_and_critics
from rl_training.algorithms.functional.entropy import soft_actor_loss
from rl_training.algorithms.functional.squashed_gaussian import squashed_gradient, squashed_sample
from rl_training.algorithms.generators import derived_seeds, normal_noise, uniform_noise
from rl_training.algorithms.gradients import action_vjp_of, vjp_of, writes_out_its_gradient
from rl_training.algorithms.optimization import Optimizer, TargetNetwork, UpdateCount
from rl_training.algorithms.soft_acting import SoftActing
from rl_training.algorithms.soft_config import SoftActorCriticConfig
from rl_training.algorithms.temperature import Temperature
from rl_training.data.arrays import Array, constant, namespace
from rl_training.data.metrics import JoinedMetrics, Metrics
from rl_training.data.types import Batch, EnvSpec, Moment
from rl_training.experiment.config import scheduled_value

CRITIC_METRICS = ("critic_loss", "q_value_mean", "target_q_mean")
ACTOR_METRICS = ("actor_loss", "entropy", "alpha")


class CriticLoss(NamedTuple):
    """The gradient of the critics' loss by what they gave [E, B, O], and `CRITIC_METRICS`."""

    gradient: Array
    numbers: Array


class SoftActorCritic(SoftActing):
    """Maximises return and entropy, off-policy, for continuous actions.

    A subclass writes `critic_loss` and `actor_value`, `members` if its targets come from some of
    the critics, and `views` if they see more than the batch.
    """

    step_functions = ("_critic_gradient", "_actor_gradient")
    vjps = ("critic_vjp", "actor_vjp", "action_vjp")

    def __init__(
        self,
        model: nn.Module,
        hyper: SoftActorCriticConfig,
        spec: EnvSpec,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(device)
        self.hyper = hyper
        self.model = model.to(self.device)
        check_actor_and_critics(self.model, spec, hyper)
        self.actor, self.critics = self.model.actor, self.model.critics
        limits: dict[str, Any] = {"eps": hyper.optimizer_eps, "max_grad_norm": hyper.max_grad_norm}
        self.actor_optimizer = Optimizer(self.actor, **limits)
        self.critic_optimizer = Optimizer(self.critics, **limits)
        self.target = TargetNetwork(self.critics, self.critic_optimizer, tau=hyper.tau)
        if getattr(hyper, "dropout", 0):
            self.target.module.train()  # the targets drop units too (Hiraoka et al., 2022)
        self.temperature = Temperature(hyper, hyper.entropy_for(spec), self.device)
        self.actor_vjp, self.critic_vjp = vjp_of(self.actor), vjp_of(self.critics)
        self.action_vjp = action_vjp_of(self.critics)
        self.use_arrays(self.model)
        seeds = derived_seeds(seed, 2)
        self.noise = normal_noise(seeds[0], spec.action_dim)
        self.random = uniform_noise(seeds[1], spec.action_dim)
        self.count = UpdateCount()
        self.parts = {
            "model": self.model,
            "target": self.target,
            "actor_optimizer": self.actor_optimizer,
            "critic_optimizer": self.critic_optimizer,
            "temperature": self.temperature,
            "noise": self.noise,
            "random": self.random,
            "updates": self.count,
        }

    def use_arrays(self, network: Any) -> None:
        """Compute on NumPy arrays if actor and critics can, and if their memory is the host's."""
        super().use_arrays(network.actor)
        self.learns_on_host &= writes_out_its_gradient(network.critics)

    def schedules(self, moment: Moment) -> dict[str, float]:
        """The learning rate."""
        when = (moment.env_steps, moment.horizon)
        return {"learning_rate": scheduled_value(self.hyper.learning_rate, *when)}

    def update(self, batch: Batch, moment: Moment) -> UpdateResult:
        """One step of the critics, of actor and temperature where due, and of the targets."""
        learning_rate = self.schedules(moment)["learning_rate"]
        self.set_training(self.actor, True)
        self.set_training(self.critics, True)
        self.count.number += 1
        with self.quietly():
            batch = self.to_learn_from(batch)
            alpha = self.temperature.alpha(batch.reward)
            views, obs = self.views(batch)
            noise = self._noise_for(views.next_obs)
            numbers = self._critic_gradient(batch, views, noise, alpha, self.members())
            self.critic_optimizer.step(learning_rate)
            metrics: Mapping[str, Tensor] = Metrics(CRITIC_METRICS, numbers)
            if self.count.number % self.hyper.actor_interval == 0:
                more, log_prob = self._actor_gradient(obs, self._noise_for(obs), alpha)
                self.actor_optimizer.step(learning_rate)
                self.temperature.step(log_prob, learning_rate)
                metrics = JoinedMetrics(metrics, Metrics(ACTOR_METRICS, more))
        self.target.update(moment)
        return UpdateResult(metrics)

    def members(self) -> Array | None:
        """The critics that the next targets come from; None for all of them."""
        return None

    def views(self, batch: Batch) -> tuple[Batch, Array]:
        """A batch as the critics see it, and its observations as the actor sees them."""
        return batch, batch.obs

    @abstractmethod
    def critic_loss(self, output: Array, following: Array, cost: Array, batch: Batch) -> CriticLoss:
        """The critics' loss: `output` [E, B, O] at the batch, `following` of the target critics.

        `cost` [B] is what the next action's log-probability takes off its value.
        """

    @abstractmethod
    def actor_value(self, values: Array) -> tuple[Array, Array]:
        """What the critics' values [E, B, O] are to the actor [B], and the derivative by them."""

    def _noise_for(self, obs: Array) -> Array:
        noise = self.noise.step(len(obs))
        return noise if self.learns_on_host else torch.from_numpy(noise).to(self.device)

    def _critic_gradient(
        self, batch: Batch, views: Batch, noise: Array, alpha: Any, members: Array | None
    ) -> Array:
        """Leave the gradient of the critics' loss in their parameters; gives `CRITIC_METRICS`."""
        policy = squashed_sample(self.actor(views.next_obs), noise)
        chosen = () if members is None else (members,)
        following = self.target.module(views.next_obs, policy.action, *chosen)
        output, pull_back = self.critic_vjp(views.obs, views.action)
        result = self.critic_loss(output, following, alpha * policy.log_prob, batch)
        pull_back(result.gradient)
        return result.numbers

    def _actor_gradient(self, obs: Array, noise: Array, alpha: Any) -> tuple[Array, Array]:
        """Leave the gradient of the actor's loss; gives its metrics and log-probabilities."""
        output, pull_back = self.actor_vjp(obs)
        policy = squashed_sample(output, noise)
        values, to_action = self.action_vjp(obs, policy.action)
        value, slope = self.actor_value(values)
        xp, share = namespace(value), 1 / len(value)
        by_log_prob = xp.full_like(value, share) * alpha
        pull_back(squashed_gradient(policy, to_action(slope * -share), by_log_prob))
        loss, entropy = soft_actor_loss(value, policy.log_prob, alpha)
        return constant(xp.stack([loss, entropy, xp.ones_like(entropy) * alpha])), policy.log_prob
