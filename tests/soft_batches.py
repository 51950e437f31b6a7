"""Batches and agents for the tests of soft actor-critics."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.redq import REDQ
from rl_training.algorithms.sac import SAC
from rl_training.algorithms.soft_actor_critic import SoftActorCritic
from rl_training.algorithms.tqc import TQC
from rl_training.config.actor_critic import REDQConfig, SACConfig, TQCConfig
from rl_training.data.types import Batch, Clock, EnvSpec
from rl_training.models.mlp_actor_q_ensemble import MLPActorQEnsemble
from rounding import precise_spec

SPEC = EnvSpec(env_id="toy", obs_shape=(3,), action_kind="continuous", action_dim=2)
LEARNING = Clock(100, 1000, 10)
KINDS: dict[str, tuple[type[SoftActorCritic], Any]] = {
    "sac": (SAC, SACConfig),
    "tqc": (TQC, TQCConfig),
    "redq": (REDQ, REDQConfig),
}


def make(algo: str, seed: int = 0, **hyper: Any) -> SoftActorCritic:
    """A small agent, the same for the same seed."""
    algorithm, config = KINDS[algo]
    settings = config(**{"hidden_sizes": (16, 16), **hyper})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = MLPActorQEnsemble.build(SPEC, settings)
    return algorithm(model, settings, precise_spec(SPEC), seed=seed)


def random_batch(rows: int = 8, seed: int = 0) -> Batch:
    """Transitions of which every third terminates."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    return Batch(
        obs=numbers(rows, 3),
        action=numbers(rows, 2).tanh(),
        reward=numbers(rows),
        next_obs=numbers(rows, 3),
        discount=torch.where(torch.arange(rows) % 3 == 0, 0.0, 0.9),
        weight=torch.ones(rows),
        slots=np.zeros(rows, np.int64),
    )


def parameters(agent: SoftActorCritic) -> Tensor:
    """All numbers the agent has learned."""
    return torch.cat([p.detach().flatten() for p in agent.model.parameters()])
