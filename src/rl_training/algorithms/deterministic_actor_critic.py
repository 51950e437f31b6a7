"""Base of TD3 and DrQ-v2: a deterministic actor that explores by noise on its actions."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import (
    GRID,
    NORMAL_QUANTILES,
    ActionSpread,
    ActResult,
    Algorithm,
    modules_of,
    values_along,
)
from rl_training.algorithms.optimization import Optimizer, TargetNetwork
from rl_training.config.actor_critic import DeterministicConfig
from rl_training.config.schedule import scheduled_value
from rl_training.data.generators import derived_seeds, normal_noise, uniform_noise
from rl_training.data.types import Clock, EnvSpec, PolicyState, expect_shapes


def squared_error(q_values: Tensor, target: Tensor) -> Tensor:
    """Squared error of values [E, B], averaged over the batch and summed over the critics."""
    expect_shapes("E B, B", q_values, target)
    return ((q_values - target.detach()) ** 2).mean(1).sum()


class DeterministicActorCritic(Algorithm):
    """An actor, critics and their targets, off-policy, for continuous actions.

    A subclass writes `update`, `mean_action` and `check_network`.
    """

    state_fields: ClassVar[tuple[str, ...]] = (
        "model",
        "target",
        "actor_optimizer",
        "critic_optimizer",
        "noise",
        "random",
    )
    module_names: ClassVar[tuple[str, ...]] = ("actor", "critics")
    losses = ("critic_loss", "actor_loss")

    def __init__(
        self,
        model: nn.Module,
        hyper: DeterministicConfig,
        spec: EnvSpec,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(device)
        self.hyper, self.spec = hyper, spec
        self.model = model.to(self.device)
        self.actor, self.critics, *self.others = modules_of(self.model, *self.module_names)
        self.check_network()
        self.actor_optimizer = Optimizer(self.actor)
        self.critic_optimizer = Optimizer(self.critics)
        self.target = TargetNetwork(self.critic_optimizer, tau=hyper.tau)
        seeds = derived_seeds(seed, 2)
        self.noise = normal_noise(seeds[0], spec.action_dim)
        self.random = uniform_noise(seeds[1], spec.action_dim)  # actions of the warm-up

    def act(
        self,
        obs: np.ndarray,
        state: PolicyState,
        first: np.ndarray,  # noqa: ARG002 - feed-forward
        clock: Clock,
        *,
        explore: bool,
    ) -> ActResult:
        """The actor's actions, with noise if exploring; uniform ones during warm-up."""
        if explore and clock.warming_up:
            return ActResult(self.random.take(len(obs)), state)
        self.set_training(self.model, False)
        action = self.mean_action(obs)
        if explore:
            spread = self.noise_scale(clock)
            action = (action + spread * self.noise.take(len(obs))).clip(-1, 1).astype(np.float32)
        return ActResult(action, state)

    @torch.no_grad()
    def mean_action(self, obs: np.ndarray) -> np.ndarray:
        """The actor's actions for host observations."""
        action: np.ndarray = self.actor(self.obs_tensor(obs)).cpu().numpy()
        return action

    @torch.no_grad()
    def first_actions(
        self,
        obs: np.ndarray,
        clock: Clock,
        legal: np.ndarray | None = None,  # noqa: ARG002 - of discrete actions
    ) -> ActionSpread:
        """The actor's action, quantiles of it with the noise of now, and the critics' values."""
        self.set_training(self.model, False)
        action = self.mean_action(obs)
        normal = self.noise_scale(clock) * np.array(NORMAL_QUANTILES, np.float32)[:, None]
        value, along = values_along(partial(self.critic_values, obs), self.tensor(action))
        scale = self.hyper.reward_scale
        quantiles = (action + normal).clip(-1, 1)
        return ActionSpread(action[0], quantiles, value / scale, GRID, along / scale)

    def critic_values(self, obs: np.ndarray, actions: Tensor) -> Tensor:
        """The critics' values [E, B, 1] of several actions at one host observation."""
        values: Tensor = self.critics(self.obs_tensor(obs.repeat(len(actions), 0)), actions)
        return values

    def clipped_noise(self, rows: int, spread: float) -> Tensor:
        """Normal noise [rows, A] of standard deviation `spread`, clipped to `noise_clip`."""
        noise = self.tensor(self.noise.take(rows)) * spread
        return noise.clip(-self.hyper.noise_clip, self.hyper.noise_clip)

    def learning_rate(self, clock: Clock) -> float:
        """The step size of all optimisers."""
        return scheduled_value(self.hyper.learning_rate, clock.env_steps, clock.horizon)

    def noise_scale(self, clock: Clock) -> float:
        """The standard deviation of the exploration noise."""
        return scheduled_value(self.hyper.noise, clock.env_steps, clock.horizon)

    def schedules(self, clock: Clock) -> dict[str, float]:
        """The learning rate and the scale of the noise."""
        return {"learning_rate": self.learning_rate(clock), "noise": self.noise_scale(clock)}

    @abstractmethod
    def check_network(self) -> None:
        """Refuse a network that does not fit."""
