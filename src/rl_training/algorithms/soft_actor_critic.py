"""Base of SAC, TQC, REDQ and DrQ: a squashed-Gaussian actor, critics, and a temperature.

An update is one step of the critics towards `reward + discount * (value - alpha * log_prob)`, with
a fresh action in the next state and the target critics' value of it; every `policy_delay` updates a
step of the actor and of the temperature; and then the target critics move. `discount` is zero after
a termination, so neither value nor entropy follows one. The algorithms differ in how the critics
are reduced to a value, and in their loss. The actor and its entropy are those of Haarnoja et al.
(2018a), the learned temperature is that of Haarnoja et al. (2018b, arXiv:1812.05905).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import (
    GRID,
    NORMAL_QUANTILES,
    ActionSpread,
    ActResult,
    Algorithm,
    Loss,
    SampledValues,
    UpdateResult,
    check_output,
    described_input,
    example_observation,
    modules_of,
    trainable_parameters,
    values_along,
)
from rl_training.algorithms.optimization import Optimizer, TargetNetwork
from rl_training.config.actor_critic import SoftActorCriticConfig
from rl_training.config.schedule import scheduled_value
from rl_training.data.examples import example_batch
from rl_training.data.generators import derived_seeds, normal_noise, uniform_noise
from rl_training.data.metrics import JoinedMetrics
from rl_training.data.types import Batch, Clock, EnvSpec, PolicyState, expect_shapes
from rl_training.storage.state import Stateful

LOG_STD_RANGE = (-20.0, 2.0)
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class SquashedSample(NamedTuple):
    """Actions [B, A] in [-1, 1] and their log-probabilities [B]."""

    action: Tensor
    log_prob: Tensor


def squashed_sample(output: Tensor, noise: Tensor) -> SquashedSample:
    """Gaussian actions squashed by tanh (Haarnoja et al., 2018a, Appendix C), one per row.

    `output` [B, 2A] has means and log stds, `noise` [B, A] is standard normal. The log-probability
    is computed before the squashing, and so stays exact where tanh has reached its bounds.
    """
    mean, log_std = output.chunk(2, dim=1)
    expect_shapes("B A, B A, B A", mean, log_std, noise)
    log_std = log_std.clip(*LOG_STD_RANGE)
    pre_tanh = mean + log_std.exp() * noise
    log_density = -0.5 * noise**2 - log_std - _LOG_SQRT_2PI
    log_prob = (log_density - log_tanh_derivative(pre_tanh)).sum(1)
    return SquashedSample(pre_tanh.tanh(), log_prob)


def log_tanh_derivative(x: Tensor) -> Tensor:
    """log(1 - tanh(x)^2) = 2 (log 2 - |x| - log(1 + exp(-2 |x|)))."""
    size = x.abs()
    return 2 * (math.log(2) - size - torch.log1p(torch.exp(-2 * size)))


def soft_target(batch: Batch, value: Tensor, alpha_log_prob: Tensor) -> Tensor:
    """Soft Bellman target `reward + discount * (value - alpha_log_prob)`; all are [B].

    `alpha_log_prob` is alpha times the next action's log-probability. `discount` is 0 after a
    termination, which removes value and entropy. With `n_step` > 1 the entropy of the intermediate
    actions is left out, as usual.
    """
    expect_shapes("B, B, B, B", batch.reward, batch.discount, value, alpha_log_prob)
    return batch.reward + batch.discount * (value - alpha_log_prob)


def min_over_critics(values: Tensor) -> Tensor:
    """The lowest of the critics' values: [E, B, 1] gives [B]."""
    return values.amin(0)[:, 0]


def soft_actor_loss(value: Tensor, log_prob: Tensor, alpha: float | Tensor) -> Loss:
    """Mean of `alpha * log_prob - value`, both [B]."""
    expect_shapes("B, B", value, log_prob)
    loss = (alpha * log_prob - value).mean()
    entropy = -log_prob.detach().mean()
    metrics = {
        "actor_loss": loss.detach(),
        "entropy": entropy,
        "alpha": torch.as_tensor(alpha, dtype=entropy.dtype, device=entropy.device),
    }
    return Loss(loss, metrics)


class LogAlpha(nn.Module):
    """The logarithm of the temperature, as the one parameter of a module."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(math.log(start)))


class Temperature(Stateful):
    """`alpha`, the weight of the entropy: fixed, or learned to keep the policy's entropy.

    "auto" starts at `initial_alpha` and descends `log(alpha) * (entropy - target_entropy)`
    (Haarnoja et al., 2018b, arXiv:1812.05905): alpha grows while the policy's entropy is below the
    target.
    """

    state_fields = ("log_alpha", "_optimizer")

    def __init__(
        self, hyper: SoftActorCriticConfig, target_entropy: float, device: torch.device
    ) -> None:
        self.fixed = None if hyper.alpha == "auto" else float(hyper.alpha)
        self._target_entropy = target_entropy
        module = LogAlpha(hyper.initial_alpha).to(device)
        self._optimizer = Optimizer(module)
        self._trained_log_alpha = module.value
        # Taken only now: the optimiser has moved the parameter's memory into its flat buffer, and
        # this shares it, without a gradient.
        self.log_alpha = module.value.detach()

    @property
    def alpha(self) -> float | Tensor:
        """A tensor if learned, so that reading it needs no device sync; else a float."""
        return self.log_alpha.exp() if self.fixed is None else self.fixed

    @property
    def learned(self) -> bool:
        """False if `alpha` is fixed."""
        return self.fixed is None

    def loss(self, entropy: Tensor) -> Tensor:
        """`log(alpha) * (entropy - target_entropy)`."""
        return self._trained_log_alpha * (entropy - self._target_entropy)

    def update(self, entropy: Tensor, learning_rate: float) -> None:
        """One step at the policy's current entropy."""
        self._optimizer.descend(self.loss, entropy, learning_rate=learning_rate)


class SoftActorCritic(Algorithm):
    """Maximises return and entropy, off-policy, for continuous actions.

    A subclass writes `critic_loss` and `actor_value`, and `augment` if it learns from more than the
    batch.
    """

    state_fields: ClassVar[tuple[str, ...]] = (
        "model",
        "target",
        "actor_optimizer",
        "critic_optimizer",
        "temperature",
        "noise",
        "random",
        "updates",
    )
    state_counts: ClassVar[tuple[str, ...]] = ("updates",)
    losses = ("critic_loss", "actor_loss")

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
        self.hyper, self.spec = hyper, spec
        self.model = model.to(self.device)
        self.actor, self.critics = modules_of(self.model, "actor", "critics")
        self.check_network()
        optimizer_options: dict[str, Any] = {
            "eps": hyper.optimizer_eps,
            "max_grad_norm": hyper.max_grad_norm,
        }
        self.actor_optimizer = Optimizer(self.actor, **optimizer_options)
        self.critic_optimizer = Optimizer(self.critics, **optimizer_options)
        self.target = TargetNetwork(self.critic_optimizer, tau=hyper.tau)
        if hyper.has_dropout:
            # Dropout stays on in the target critics (Hiraoka et al., 2022).
            self.target.module.train()
        target_entropy = hyper.target_entropy_for(spec.action_dim)
        self.temperature = Temperature(hyper, target_entropy, self.device)
        seeds = derived_seeds(seed, 2)
        self.noise = normal_noise(seeds[0], spec.action_dim)
        self.random = uniform_noise(seeds[1], spec.action_dim)  # actions of the warm-up
        self.updates = 0

    def update(self, batch: Batch, clock: Clock) -> UpdateResult:
        """One step of the critics, of actor and temperature where due, and of the targets."""
        rate = self.learning_rate(clock)
        self.set_training(self.actor, True)
        self.set_training(self.critics, True)
        self.updates += 1
        batch = self.augment(batch)
        # DrQ's `augment` repeats obs, action and next_obs; reward keeps one row per transition.
        noise = self.draw_noise(len(batch.next_obs))
        critic = self.critic_optimizer.descend(self.critic_loss, batch, noise, learning_rate=rate)
        metrics = critic.metrics
        if self.updates % self.hyper.effective_policy_delay == 0:
            noise = self.draw_noise(len(batch.reward))
            actor = self.actor_optimizer.descend(self.actor_loss, batch, noise, learning_rate=rate)
            if self.temperature.learned:
                self.temperature.update(self._entropy(actor, batch, noise), rate)
            # Joined, not merged: a kernel reports one vector, and splitting it costs more than
            # computing it.
            metrics = JoinedMetrics(metrics, actor.metrics)
        self.target.update(clock)
        return UpdateResult(metrics)

    @abstractmethod
    def critic_loss(self, batch: Batch, noise: Tensor) -> Loss:
        """The critics' loss; `noise` is standard normal, a row for each of `batch.next_obs`."""

    def actor_loss(self, batch: Batch, noise: Tensor) -> Loss:
        """`soft_actor_loss` of fresh actions; `noise` is standard normal, a row per transition."""
        obs = batch.obs[: len(batch.reward)]  # one row per transition
        action, log_prob = self.policy(obs, noise)
        value = self.actor_value(self.critics(obs, action))
        return soft_actor_loss(value, log_prob, self.temperature.alpha)

    @abstractmethod
    def actor_value(self, values: Tensor) -> Tensor:
        """The value [B] that the actor maximises, from the critics' values [E, B, O]."""

    def policy(self, obs: Tensor, noise: Tensor) -> SquashedSample:
        """Reparameterised actions for observations and `noise`, and their log-probabilities."""
        return squashed_sample(self.actor(obs), noise)

    @torch.no_grad()
    def next_action(self, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Fresh actions in the next states [B, A], and alpha times their log-probabilities [B]."""
        action, log_prob = self.policy(batch.next_obs, noise)
        return action, self.temperature.alpha * log_prob

    def augment(self, batch: Batch) -> Batch:
        """The batch that is learned from; the actor takes its first rows, one per transition."""
        return batch

    def draw_noise(self, rows: int) -> Tensor:
        """Standard normal numbers [rows, A]."""
        return self.tensor(self.noise.take(rows))

    def example_inputs(self) -> dict[str, tuple[Any, ...]]:
        """A batch, augmented, and noise for each loss."""
        batch = self.augment(example_batch(self.spec, self.device))
        return {
            "critic_loss": (batch, self.draw_noise(len(batch.next_obs))),
            "actor_loss": (batch, self.draw_noise(len(batch.reward))),
        }

    def _entropy(self, actor: Loss, batch: Batch, noise: Tensor) -> Tensor:
        """The policy's entropy at the batch, which a custom loss need not report."""
        if "entropy" in actor.metrics:
            return actor.metrics["entropy"]
        with torch.no_grad():
            return -self.policy(batch.obs[: len(batch.reward)], noise).log_prob.mean()

    def act(
        self,
        obs: np.ndarray,
        state: PolicyState,
        first: np.ndarray,  # noqa: ARG002 - feed-forward
        clock: Clock,
        *,
        explore: bool,
    ) -> ActResult:
        """Sampled actions, uniform ones during warm-up, or the squashed means."""
        if explore and clock.warming_up:
            return ActResult(self.random.take(len(obs)), state)
        self.set_training(self.actor, False)
        return ActResult(self.actions(obs, self.noise.take(len(obs)) if explore else None), state)

    @torch.no_grad()
    def actions(self, obs: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
        """Actions sampled with `noise`, or the squashed means without it."""
        output = self.actor(self.obs_tensor(obs))
        if noise is None:
            squashed = output.chunk(2, dim=1)[0].tanh()
        else:
            squashed = squashed_sample(output, self.tensor(noise)).action
        array: np.ndarray = squashed.cpu().numpy()
        return array

    @torch.no_grad()
    def sampled_values(self, obs: np.ndarray, noise: np.ndarray) -> SampledValues:
        """Actions sampled with `noise` [B, A] and the critics' values of them; changes nothing."""
        self.set_training(self.actor, False)
        self.set_training(self.critics, False)
        rows = self.obs_tensor(obs)
        action, log_prob = self.policy(rows, self.tensor(noise))
        value = self.critics(rows, action).mean((0, 2))
        alpha_log_prob = self.temperature.alpha * log_prob
        return SampledValues(*(x.cpu().numpy() for x in (action, value, alpha_log_prob)))

    @torch.no_grad()
    def first_actions(
        self,
        obs: np.ndarray,
        clock: Clock,  # noqa: ARG002 - exploration is the policy's own
        legal: np.ndarray | None = None,  # noqa: ARG002 - of discrete actions
    ) -> ActionSpread:
        """The squashed means, their quantiles, and the critics' values of returns as they are."""
        self.set_training(self.actor, False)
        self.set_training(self.critics, False)
        mean, log_std = self.actor(self.obs_tensor(obs)).chunk(2, dim=1)
        normal = torch.tensor(NORMAL_QUANTILES, device=self.device)[:, None]
        quantiles = (mean + log_std.clip(*LOG_STD_RANGE).exp() * normal).tanh()
        value, along = values_along(
            lambda actions: self.critics(self.obs_tensor(obs.repeat(len(actions), 0)), actions),
            mean.tanh(),
        )
        scale = self.hyper.reward_scale
        action = mean.tanh()[0].cpu().numpy()
        return ActionSpread(action, quantiles.cpu().numpy(), value / scale, GRID, along / scale)

    def learning_rate(self, clock: Clock) -> float:
        """The step size of all optimisers."""
        return scheduled_value(self.hyper.learning_rate, clock.env_steps, clock.horizon)

    def schedules(self, clock: Clock) -> dict[str, float]:
        """The learning rate."""
        return {"learning_rate": self.learning_rate(clock)}

    def check_network(self) -> None:
        """Refuse a network without a fitting `actor(obs)` and `critics(obs, action)`."""
        spec, actor = self.spec, self.actor
        trainable_parameters(actor)  # refuses a network without any
        obs = example_observation(spec, self.device)
        outputs = (1, 2 * spec.action_dim)
        shapes = f"(batch, {outputs[1]}) for observations {described_input(spec)}"
        check_output(actor, actor, [obs], outputs, name="network.actor", shapes=shapes)
        self.check_critics(self.hyper.num_critics)

    def check_critics(self, count: int, members: Tensor | None = None) -> None:
        """Refuse critics that do not give (critics, batch, outputs)."""
        critics, spec = self.critics, self.spec
        trainable_parameters(critics)
        obs = example_observation(spec, self.device)
        inputs = [obs, torch.zeros(1, spec.action_dim, device=self.device)]
        call = f"network.critics(obs {tuple(obs.shape)}, action {tuple(inputs[1].shape)}"
        if members is not None:
            inputs.append(members.to(self.device))
            call += f", members {members.tolist()}"
        expected = (count, 1, self.hyper.critic_outputs)
        shapes = f"(critics, batch, outputs) {expected}"
        check_output(critics, critics, inputs, expected, name=f"{call})", shapes=shapes)
