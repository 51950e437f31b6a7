"""Refusal of networks with a memory that do not fit their algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_training.algorithms.checks import check_log_std, expect_parameters
from rl_training.data.types import EnvSpec
from rl_training.errors import ConfigError


def check_recurrent(
    model: Any,
    spec: EnvSpec,
    method: str,
    fields: Mapping[str, tuple[int, ...]],
    sizes: Sequence[int],
    *,
    state_after: bool = True,
) -> None:
    """Refuse a network that does not act step by step and go through sequences with `method`.

    Both take (obs, state, first). `act` gives the first of `fields` first and the state last, whose
    parts have the given sizes; `method` gives all fields, and the state too if `state_after`.
    `fields` has the shape of each for one row.
    """
    model.eval()
    for name in ("initial_state", "act", method):
        if not callable(getattr(model, name, None)):
            raise ConfigError(f"network: expected a method {name}, found none")
    first = torch.zeros(2, 1, dtype=torch.bool, device=expect_parameters(model)[0].device)
    obs = torch.zeros(2, 1, *spec.obs_shape, device=first.device)
    wanted: dict[str, Any] = {name: (2, 1, *shape) for name, shape in fields.items()}
    state = {"state": [(1, size) for size in sizes]}
    _check_call(model, method, (obs, first), wanted | (state if state_after else {}))
    leading = next(iter(fields))
    _check_call(model, "act", (obs[0], first[0]), {leading: wanted[leading][1:], **state})


@torch.no_grad()
def _check_call(
    model: Any, method: str, inputs: tuple[Tensor, Tensor], expected: dict[str, Any]
) -> None:
    """Refuse a network whose method gives other shapes; first and last go by their place."""
    obs, first = inputs
    shapes = ", ".join(f"{name} {shape}" for name, shape in expected.items())
    call = f"network.{method}(obs {tuple(obs.shape)}, state, first): expected {shapes}"
    try:
        found = getattr(model, method)(obs, model.initial_state(1), first)
        leading, *others = expected
        seen: dict[str, Any] = {leading: tuple(found[0].shape)}
        for name in others:
            if name == "state":
                seen[name] = [tuple(part.shape) for part in found[-1]]
            else:
                seen[name] = tuple(getattr(found, name).shape)
    except Exception as error:
        raise ConfigError(f"{call}, but calling it raised: {error}") from error
    if seen != expected:
        shown = ", ".join(f"{name} {shape}" for name, shape in seen.items())
        raise ConfigError(f"{call}, found {shown}")


def check_recurrent_actor_critic(model: nn.Module, spec: EnvSpec, sizes: Sequence[int]) -> None:
    """Refuse a network without a fitting method `sequence`, or without `log_std`."""
    fields = {"policy": (spec.policy_outputs,), "value": ()}
    check_recurrent(model, spec, "sequence", fields, sizes, state_after=False)
    check_log_std(model, spec)
