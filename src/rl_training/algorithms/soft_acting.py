"""How SAC, TQC, REDQ and DrQ act: by a squashed Gaussian, whose randomness is the exploration."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from rl_training.algorithms.base import Acting, Algorithm
from rl_training.algorithms.functional.squashed_gaussian import squashed_mode, squashed_sample
from rl_training.algorithms.generators import BlockNoise
from rl_training.algorithms.temperature import Temperature
from rl_training.data.types import Moment, PolicyState


class Expectation(NamedTuple):
    """Sampled actions [B, A], the critics' mean value of them [B], and alpha * log_prob [B]."""

    action: np.ndarray
    value: np.ndarray
    cost: np.ndarray


class SoftActing(Algorithm):
    """Actions of a network `actor`, valued by `critics`."""

    model: Any
    actor: Any
    critics: Any
    temperature: Temperature
    noise: BlockNoise
    random: BlockNoise

    def act(
        self,
        obs: np.ndarray,
        state: PolicyState,
        first: np.ndarray,  # noqa: ARG002 - feed-forward
        moment: Moment,
        *,
        explore: bool,
    ) -> Acting:
        """Sampled actions, uniform ones during warm-up, or the squashed means."""
        if explore and moment.warming_up:
            return Acting(self.random.step(len(obs)), state)
        self.set_training(self.actor, False)
        output = self.output(self.actor, obs)
        if not explore:
            return Acting(squashed_mode(output), state)
        return Acting(squashed_sample(output, self.noise.step(len(obs))).action, state)

    @torch.no_grad()
    def expectation(self, obs: np.ndarray, noise: np.ndarray) -> Expectation:
        """What the critics expect of actions that `noise` [B, A] draws; changes nothing."""
        self.set_training(self.actor, False)
        self.set_training(self.critics, False)
        rows, draws = (torch.from_numpy(x).to(self.device) for x in (obs, noise))
        policy = squashed_sample(self.actor(rows), draws)
        value = self.critics(rows, policy.action).mean((0, 2))
        cost = self.temperature.alpha(value) * policy.log_prob
        return Expectation(*(x.cpu().numpy() for x in (policy.action, value, cost)))
