"""DrQ-v2 (Yarats et al., 2021): a deterministic actor from shifted images, with n-step returns.

As in the authors' code: one encoder, which the critics' loss alone trains and of which there is no
target copy; noise on actions whose spread follows a schedule, clipped in targets and in the actor's
loss, where its clamp to the bounds passes gradients as if it were not there; no entropy.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Acting, Algorithm, UpdateResult
from rl_training.algorithms.checks import check_encoded
from rl_training.algorithms.drqv2_config import DrQv2Config
from rl_training.algorithms.functional.shapes import expect_shapes
from rl_training.algorithms.generators import derived_seeds, normal_noise, uniform_noise
from rl_training.algorithms.optimization import Optimizer, TargetNetwork
from rl_training.algorithms.random_shifts import RandomShifts
from rl_training.data.metrics import Metrics
from rl_training.data.types import Batch, EnvSpec, Moment, PolicyState
from rl_training.experiment.config import scheduled_value

METRICS = ("critic_loss", "q_value_mean", "target_q_mean", "actor_loss")
BOUND = 1 - 1e-6  # of actions, so that they stay inside the squashing's range


def drqv2_loss(q_values: Tensor, target: Tensor) -> Tensor:
    """Squared error of values [E, B], averaged over the batch and summed over the critics."""
    expect_shapes("E B, B", q_values, target)
    return ((q_values - target) ** 2).mean(1).sum()


class DrQv2(Algorithm):
    """Data-regularised Q, version 2."""

    step_functions = ()

    def __init__(
        self,
        model: nn.Module,
        hyper: DrQv2Config,
        spec: EnvSpec,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(device)
        self.hyper = hyper
        self.model = cast("Any", model.to(self.device))
        check_encoded(self.model, spec, hyper)
        self.optimizers = {
            name: Optimizer(getattr(self.model, name)) for name in ("encoder", "actor", "critics")
        }
        own = self.optimizers["critics"]
        self.target = TargetNetwork(self.model.critics, own, tau=hyper.tau)
        seeds = derived_seeds(seed, 3)
        self.noise = normal_noise(seeds[0], spec.action_dim)
        self.random = uniform_noise(seeds[1], spec.action_dim)
        self.shifts = RandomShifts(seeds[2], hyper.pad, spec.obs_shape)
        self.parts = {
            "model": self.model,
            "target": self.target,
            **{f"{name}_optimizer": optimizer for name, optimizer in self.optimizers.items()},
            "noise": self.noise,
            "random": self.random,
            "shifts": self.shifts,
        }

    def act(
        self,
        obs: np.ndarray,
        state: PolicyState,
        first: np.ndarray,  # noqa: ARG002 - feed-forward
        moment: Moment,
        *,
        explore: bool,
    ) -> Acting:
        """The actor's actions, with noise if exploring; uniform ones during warm-up."""
        if explore and moment.warming_up:
            return Acting(self.random.step(len(obs)), state)
        self.set_training(self.model, False)
        action = self.output(lambda images: self.model.actor(self.model.encoder(images)), obs)
        if explore:
            spread = self.schedules(moment)["noise"]
            action = (action + spread * self.noise.step(len(obs))).clip(-1, 1).astype(np.float32)
        return Acting(action, state)

    def schedules(self, moment: Moment) -> dict[str, float]:
        """The learning rate and the spread of the noise."""
        when = (moment.env_steps, moment.horizon)
        return {
            "learning_rate": scheduled_value(self.hyper.learning_rate, *when),
            "noise": scheduled_value(self.hyper.noise, *when),
        }

    def update(self, batch: Batch, moment: Moment) -> UpdateResult:
        """One step of the critics and the encoder, one of the actor, and one of the targets."""
        now = self.schedules(moment)
        self.set_training(self.model, True)
        seen = self.model.encoder(self.shifts(batch.obs))
        with torch.no_grad():
            following = self.model.encoder(self.shifts(batch.next_obs))
            action = self._noisy(self.model.actor(following), now["noise"])
            value = self.target.module(following, action).amin(0)[:, 0]
            target = batch.reward + batch.discount * value
        q_values = self.model.critics(seen, batch.action)[:, :, 0]
        critic_loss = drqv2_loss(q_values, target)
        self._step(critic_loss, ("encoder", "critics"), now["learning_rate"])
        seen = seen.detach()
        action = self._noisy(self.model.actor(seen), now["noise"])
        actor_loss = -self.model.critics(seen, action).amin(0).mean()
        self._step(actor_loss, ("actor",), now["learning_rate"])
        self.target.update(moment)
        numbers = torch.stack([critic_loss, q_values.mean(), target.mean(), actor_loss])
        return UpdateResult(Metrics(METRICS, numbers.detach()))

    def _step(self, loss: Tensor, names: tuple[str, ...], learning_rate: float) -> None:
        """Move some networks against the gradient of a loss."""
        whole = [p for name in names for p in getattr(self.model, name).parameters()]
        parameters = [p for p in whole if p.requires_grad]
        grads = torch.autograd.grad(loss, parameters, allow_unused=True)
        for parameter, grad in zip(parameters, grads, strict=True):
            assert parameter.grad is not None
            parameter.grad.zero_() if grad is None else parameter.grad.copy_(grad)
        for name in names:
            self.optimizers[name].step(learning_rate)

    def _noisy(self, mean: Tensor, spread: float) -> Tensor:
        """Actions with clipped noise, held within the bounds without holding back gradients."""
        noise = torch.from_numpy(self.noise.step(len(mean))).to(self.device) * spread
        action = mean + noise.clip(-self.hyper.noise_clip, self.hyper.noise_clip)
        return action - action.detach() + action.detach().clip(-BOUND, BOUND)
