"""Made-up experience in the shapes and types of an environment, to try losses on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rl_training.data.types import Batch, EnvSpec, Rollout, SequenceBatch

ROWS = 2  # a single one could not be normalised


def example_batch(spec: EnvSpec, device: torch.device) -> Batch:
    """Transitions as replay gives them."""
    return Batch(
        obs=_observations(spec, device, ROWS),
        action=_actions(spec, device, ROWS),
        reward=torch.zeros(ROWS, device=device),
        next_obs=_observations(spec, device, ROWS),
        discount=torch.ones(ROWS, device=device),
        weight=torch.ones(ROWS, device=device),
        slots=np.arange(ROWS),
        legal=_masks(spec, device, ROWS),
        next_legal=_masks(spec, device, ROWS),
    )


def example_sequences(
    spec: EnvSpec, state_sizes: Sequence[int], length: int, device: torch.device
) -> SequenceBatch:
    """Sequences of `length` rows as replay of them gives them."""
    rows = (length, ROWS)
    return SequenceBatch(
        obs=_observations(spec, device, length + 1, ROWS),
        action=_actions(spec, device, *rows),
        reward=torch.zeros(rows, device=device),
        discount=torch.ones(rows, device=device),
        first=torch.zeros(length + 1, ROWS, dtype=torch.bool, device=device),
        mask=torch.ones(rows, dtype=torch.bool, device=device),
        state=tuple(torch.zeros(ROWS, size, device=device) for size in state_sizes),
        legal=_masks(spec, device, length + 1, ROWS),
    )


def example_rollout(spec: EnvSpec, state_sizes: Sequence[int], device: torch.device) -> Rollout:
    """Steps in one environment, the start of an episode that goes on."""
    rows = (ROWS, 1)
    no, size = torch.zeros(rows, dtype=torch.bool, device=device), sum(state_sizes)
    return Rollout(
        obs=_observations(spec, device, *rows),
        action=_actions(spec, device, *rows),
        reward=torch.zeros(rows, device=device),
        terminated=no,
        ended=no,
        first=torch.arange(ROWS, device=device)[:, None] == 0,
        valid=~no,
        bootstrap_rows=torch.tensor([ROWS - 1], device=device),
        bootstrap_obs=_observations(spec, device, 1),
        state=torch.zeros(*rows, size, device=device) if size else None,
        bootstrap_state=torch.zeros(1, size, device=device) if size else None,
        legal=_masks(spec, device, *rows),
    )


def _observations(spec: EnvSpec, device: torch.device, *rows: int) -> Tensor:
    dtype = getattr(torch, spec.obs_dtype)
    return spec.named(torch.zeros(*rows, *spec.obs_shape, dtype=dtype, device=device))


def _actions(spec: EnvSpec, device: torch.device, *rows: int) -> Tensor:
    dtype = getattr(torch, spec.action_dtype)
    return torch.zeros(*rows, *spec.action_shape, dtype=dtype, device=device)


def _masks(spec: EnvSpec, device: torch.device, *rows: int) -> Tensor | None:
    """The first choice of each part is legal, which is the one that `_actions` makes."""
    if not spec.masked:
        return None
    legal = torch.zeros(*rows, spec.policy_outputs, dtype=torch.bool, device=device)
    starts = np.cumsum((0, *spec.action_sizes[:-1]))
    legal[..., torch.from_numpy(starts)] = True
    return legal
