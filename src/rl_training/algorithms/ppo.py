"""PPO with a clipped objective (Schulman et al., 2017) and generalised advantage estimation.

Details follow the authors' code where it goes beyond the paper: advantages normalised per
minibatch, Adam's epsilon 1e-5, orthogonal initialisation. Unlike it, truncated episodes bootstrap
from the value of their true last observation. Values and old log-probabilities are computed once
per rollout, after it, in one call each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import (
    GRID,
    NORMAL_QUANTILES,
    ActionSpread,
    ActResult,
    Algorithm,
    Choices,
    Loss,
    UpdateResult,
    check_output,
    described_input,
    example_observation,
    mask_illegal,
    trainable_parameters,
)
from rl_training.algorithms.functional import distributions
from rl_training.algorithms.optimization import Optimizer
from rl_training.config.ppo import PPOConfig
from rl_training.config.schedule import scheduled_value
from rl_training.data.examples import example_rollout
from rl_training.data.generators import BlockNoise, NumpyGenerator
from rl_training.data.metrics import JoinedMetrics, mean_metrics
from rl_training.data.types import Clock, EnvSpec, PolicyState, Rollout, expect_shapes
from rl_training.errors import ConfigError, UsageError

PIECE = 256  # images of a rollout encoded at once
KL_MARGIN = 1.5  # an update stops where the KL estimate passes this multiple of the target


class Samples(NamedTuple):
    """Valid rows of a rollout [B, ...], with log-probabilities and values under the old policy.

    `legal` [B, A] has their action masks, if the environment gives any.
    """

    obs: Any
    action: Tensor
    log_prob: Tensor
    value: Tensor
    advantage: Tensor
    returns: Tensor
    legal: Tensor | None = None

    def at(self, index: Tensor) -> Samples:
        """Some of the rows; observations that are not a tensor stay."""
        columns = {name: x[index] for name, x in self._asdict().items() if isinstance(x, Tensor)}
        return self._replace(**columns)


def gae(
    reward: Tensor, value: Tensor, next_value: Tensor, discount: Tensor, trace: Tensor
) -> Tensor:
    """Advantages of a rollout (Schulman et al., 2016), newest step last; all are [T, N].

    `next_value` is the value of the true successor. `discount` is `gamma * (1 - terminated)`: a
    time limit bootstraps, a termination does not. `trace` is `gamma * lambda * (1 - ended)`: no
    trace crosses the end of an episode, however it ended.
    """
    expect_shapes("T N, T N, T N, T N, T N", reward, value, next_value, discount, trace)
    delta = reward + discount * next_value - value
    advantage = torch.empty_like(delta)
    running = torch.zeros_like(delta[0])
    for t in reversed(range(len(delta))):
        running = delta[t] + trace[t] * running
        advantage[t] = running
    return advantage


def explained_variance(value: Tensor, returns: Tensor) -> Tensor:
    """The share of the variance of returns [B] that the values account for; 1 at best."""
    expect_shapes("B, B", value, returns)
    return 1 - (returns - value).var(correction=0) / (returns.var(correction=0) + 1e-8)


def normalized(advantage: Tensor) -> Tensor:
    """Advantages [B] to mean 0 and standard deviation 1; a single one stays unchanged."""
    if len(advantage) == 1:
        return advantage
    return (advantage - advantage.mean()) / (advantage.std() + 1e-8)


class PPOTerms(NamedTuple):
    """The parts of the objective and how far the policy has moved, per row."""

    policy_loss: Tensor
    value_loss: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


def ppo_terms(
    log_prob: Tensor,
    value: Tensor,
    old: Samples,
    clip_range: float,
    value_clip_range: float | None = None,
) -> PPOTerms:
    """The clipped surrogate (Eq. 7) and the squared value error of each row; all are [B].

    With `value_clip_range` the value is also clipped to within it of the old one, and the larger of
    the two errors counts. KL is estimated by (ratio - 1) - log ratio.
    """
    expect_shapes("B, B, B, B, B", log_prob, value, old.log_prob, old.advantage, old.returns)
    log_ratio = log_prob - old.log_prob
    ratio = log_ratio.exp()
    clipped = ratio.clip(1 - clip_range, 1 + clip_range)
    squared = (value - old.returns) ** 2
    if value_clip_range is not None:
        clipped_value = old.value + (value - old.value).clip(-value_clip_range, value_clip_range)
        squared = torch.maximum(squared, (clipped_value - old.returns) ** 2)
    return PPOTerms(
        policy_loss=-torch.minimum(ratio * old.advantage, clipped * old.advantage),
        value_loss=squared,
        approx_kl=(ratio - 1 - log_ratio).detach(),
        clip_fraction=(clipped != ratio).float(),
    )


class PPO(Algorithm):
    """Several epochs of minibatch updates on each rollout."""

    state_fields = ("model", "optimizer", "noise", "shuffling")
    hyper: PPOConfig

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
        self.hyper, self.spec = hyper, spec
        self.model: Any = model.to(self.device)
        self.check_network()
        self.optimizer = Optimizer(
            self.model, eps=hyper.optimizer_eps, max_grad_norm=hyper.max_grad_norm
        )
        noise = distributions.sampling_noise(spec)
        self.noise = BlockNoise(seed, noise, width=spec.policy_outputs)
        self.shuffling = NumpyGenerator(seed)

    def update(self, rollout: Rollout, clock: Clock) -> UpdateResult:
        """All epochs over one rollout; a target KL may end them early."""
        hyper, now = self.hyper, self.schedules(clock)
        samples = self.samples(rollout)
        self.set_training(self.model, True)
        reported, steps = [], 0
        for minibatch in self.minibatches(samples):
            loss = self.optimizer.differentiate(self.loss, minibatch, now["clip_range"])
            reported.append(loss.metrics)
            # Reading the estimate waits for the device, so it is read only where it decides.
            if hyper.target_kl and self.kl_estimate(loss) > KL_MARGIN * hyper.target_kl:
                break
            self.optimizer.step(now["learning_rate"], loss)
            steps += 1
        fit = explained_variance(torch.as_tensor(samples.value), torch.as_tensor(samples.returns))
        metrics = JoinedMetrics(mean_metrics(reported), {"explained_variance": fit})
        return UpdateResult(metrics, steps)

    def kl_estimate(self, loss: Loss) -> float:
        """How far the policy has moved from the rollout's, as the loss reports it."""
        if "approx_kl" not in loss.metrics:
            names = ", ".join(loss.metrics)
            raise UsageError(
                f"target_kl: expected a metric approx_kl of the loss, found {names}; report it, or "
                "leave target_kl out"
            )
        return float(loss.metrics["approx_kl"])

    def loss(self, batch: Samples, clip_range: float) -> Loss:
        """The clipped surrogate, the value error and the entropy bonus of a minibatch."""
        hyper = self.hyper
        if hyper.normalize_advantages:
            batch = batch._replace(advantage=normalized(batch.advantage))
        output, value = self.policy_and_value(batch.obs)
        policy = self.policy(mask_illegal(output, batch.legal))
        terms = ppo_terms(
            policy.log_prob(batch.action), value, batch, clip_range, hyper.value_clip_range
        )
        means = {name: rows.mean() for name, rows in terms._asdict().items()}
        means["entropy"] = policy.entropy().mean()
        loss = means["policy_loss"] + hyper.value_coef * means["value_loss"]
        loss = loss - hyper.entropy_coef * means["entropy"]
        means["loss"] = loss
        return Loss(loss, {name: mean.detach() for name, mean in means.items()})

    @torch.no_grad()
    def samples(self, rollout: Rollout) -> Samples:
        """The valid rows of a rollout, with values and advantages under the old policy."""
        self.set_training(self.model, False)  # as when it acted
        hyper, shape = self.hyper, rollout.reward.shape
        output, value, bootstrap = self.evaluate_rollout(rollout)
        next_value = torch.cat([value[1:], value[-1:]]).flatten()
        next_value[rollout.bootstrap_rows] = bootstrap
        discount = hyper.gamma * (~rollout.terminated).float()
        trace = hyper.gamma * hyper.gae_lambda * (~rollout.ended).float()
        advantage = gae(rollout.reward, value, next_value.reshape(shape), discount, trace)
        action = rollout.action.flatten(0, 1)
        legal = None if rollout.legal is None else rollout.legal.flatten(0, 1)
        log_prob = self.policy(mask_illegal(output, legal)).log_prob(action)
        returns = (advantage + value).flatten()
        columns = (log_prob, value.flatten(), advantage.flatten(), returns)
        all_rows = Samples(None, action, *columns, legal)
        return all_rows.at(rollout.valid.flatten())._replace(obs=self.observations(rollout))

    def observations(self, rollout: Rollout) -> Any:
        """The observations of the valid rows."""
        return rollout.obs.flatten(0, 1)[rollout.valid.flatten()]

    def evaluate_rollout(self, rollout: Rollout) -> tuple[Tensor, Tensor, Tensor]:
        """Policy outputs of all rows, values [T, N], and values after the rows to bootstrap."""
        obs, shape = rollout.obs.flatten(0, 1), rollout.reward.shape
        whole, rows = torch.cat([obs, rollout.bootstrap_obs]), len(obs)
        if not self.spec.has_images:
            values = self.model.value(whole)
            return self.model.policy(obs), values[:rows].reshape(shape), values[rows:]
        pieces = [self.policy_and_value(piece) for piece in torch.split(whole, PIECE)]
        outputs, values = (torch.cat(column) for column in zip(*pieces, strict=True))
        return outputs[:rows], values[:rows].reshape(shape), values[rows:]

    def example_inputs(self) -> dict[str, tuple[Any, ...]]:
        """A minibatch of a rollout, and a clip range."""
        samples = self.samples(example_rollout(self.spec, self.hyper.state_sizes, self.device))
        clip_range = self.schedules(Clock(0, 1))["clip_range"]
        return {"loss": (next(self.minibatches(samples)), clip_range)}

    def minibatches(self, samples: Samples) -> Iterator[Samples]:
        """Shuffled rows in pieces of nearly equal size; a single row could not be normalised."""
        for rows in self.shuffled_rows(len(samples.value)):
            yield samples.at(self.tensor(rows))

    def shuffled_rows(self, count: int) -> Iterator[np.ndarray]:
        """The indices of the rows in each minibatch of all epochs."""
        pieces = max(1, min(-(-count // self.hyper.batch_size), count // 2))
        for _ in range(self.hyper.epochs):
            yield from np.array_split(self.shuffling.numpy.permutation(count), pieces)

    def policy_and_value(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Policy outputs and values of a minibatch; a network may give both at once."""
        both = getattr(self.model, "policy_and_value", None)
        return both(obs) if both else (self.model.policy(obs), self.model.value(obs))

    def policy(self, output: Tensor) -> distributions.ActionDistribution:
        """The distribution of actions over the network's policy output."""
        return distributions.distribution(self.spec, output, getattr(self.model, "log_std", None))

    def act(
        self,
        obs: np.ndarray,
        state: PolicyState,
        first: np.ndarray,  # noqa: ARG002 - feed-forward
        clock: Clock,  # noqa: ARG002 - exploration is the policy's own
        *,
        explore: bool,
        legal: np.ndarray | None = None,
    ) -> ActResult:
        """Sampled actions, or the most likely ones."""
        self.set_training(self.model, False)
        noise = self.noise.take(len(obs)) if explore else None
        return ActResult(self.actions(obs, noise, legal), state)

    @torch.no_grad()
    def actions(
        self, obs: np.ndarray, noise: np.ndarray | None, legal: np.ndarray | None = None
    ) -> np.ndarray:
        """Legal actions sampled with `noise`, or the most likely ones without it."""
        return self.actions_from(self.model.policy(self.obs_tensor(obs)), noise, legal)

    @torch.no_grad()
    def actions_from(
        self, output: Tensor, noise: np.ndarray | None, legal: np.ndarray | None = None
    ) -> np.ndarray:
        """The same, from the network's policy output."""
        policy = self.policy(mask_illegal(output, None if legal is None else self.tensor(legal)))
        action = policy.mode() if noise is None else policy.sample(self.tensor(noise))
        array: np.ndarray = action.cpu().numpy()
        return array

    @torch.no_grad()
    def first_actions(
        self,
        obs: np.ndarray,
        clock: Clock,  # noqa: ARG002 - exploration is the policy's own
        legal: np.ndarray | None = None,
    ) -> Choices | ActionSpread:
        """The distribution of actions, and the value of the state in units of learned rewards."""
        self.set_training(self.model, False)
        output, value = self.first_output_and_value(obs)
        policy = self.policy(mask_illegal(output, None if legal is None else self.tensor(legal)))
        if isinstance(policy, distributions.DiagonalGaussian):
            normal = torch.tensor(NORMAL_QUANTILES, device=self.device)[:, None]
            quantiles = (policy.mean + policy.log_std.exp() * normal).cpu().numpy()
            action, state_value = policy.mean[0].cpu().numpy(), value.cpu().numpy()
            no_critics = np.zeros((0, len(action), len(GRID)), np.float32)
            return ActionSpread(action, quantiles, state_value, GRID, no_critics)
        assert isinstance(policy, distributions.DISCRETE)
        parts = tuple(part[0].cpu().numpy() for part in policy.probabilities())
        return Choices(parts, float(value[0]))

    def first_output_and_value(self, obs: np.ndarray) -> tuple[Tensor, Tensor]:
        """Policy outputs and values of observations that begin episodes."""
        return self.policy_and_value(self.obs_tensor(obs))

    def schedules(self, clock: Clock) -> dict[str, float]:
        """The learning rate and the clip range."""
        scheduled = {name: getattr(self.hyper, name) for name in ("learning_rate", "clip_range")}
        when = (clock.env_steps, clock.horizon)
        return {name: scheduled_value(value, *when) for name, value in scheduled.items()}

    def check_network(self) -> None:
        """Refuse a network without fitting `policy(obs)` and `value(obs)`, or without `log_std`."""
        model, spec = self.model, self.spec
        obs = example_observation(spec, trainable_parameters(model)[0].device)
        both = getattr(model, "policy_and_value", None)
        for place, (name, outputs) in enumerate(
            (("policy", (spec.policy_outputs,)), ("value", ()))
        ):
            method = getattr(model, name, None)
            if not callable(method):
                raise ConfigError(f"network: expected a method {name}(obs), found none")
            sizes = "".join(f", {size}" for size in outputs)
            shapes = f"(batch{sizes}) for observations {described_input(spec)}"
            check_output(model, method, [obs], (1, *outputs), name=f"network.{name}", shapes=shapes)
            if callable(both):
                call = lambda x, at=place: both(x)[at]  # noqa: E731 - of one of the two
                name = "network.policy_and_value"
                check_output(model, call, [obs], (1, *outputs), name=name, shapes=shapes)
        check_log_std(model, spec)


def check_log_std(model: nn.Module, spec: EnvSpec) -> None:
    """Refuse a policy of continuous actions without its `log_std`."""
    shape = (spec.policy_outputs,)
    log_std = getattr(model, "log_std", None)
    learned = isinstance(log_std, nn.Parameter) and log_std.shape == shape
    if spec.action_kind == "continuous" and not learned:
        raise ConfigError(
            f"network: expected a parameter log_std of shape {shape} for {spec.env_id}"
        )
