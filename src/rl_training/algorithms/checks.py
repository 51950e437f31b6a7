"""Refusal of networks that do not fit their algorithm, before training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rl_training.data.types import EnvSpec
from rl_training.errors import ConfigError


def check_network(model: nn.Module, spec: EnvSpec, output: tuple[int, ...]) -> None:
    """Refuse a network whose output for one observation is not shaped (1, *output)."""
    _check_output(model, model, "network", spec, output)


def check_actor_critic(model: nn.Module, spec: EnvSpec) -> None:
    """Refuse a network without fitting methods `policy` and `value`, or without `log_std`."""
    for name, output in (("policy", (spec.policy_outputs,)), ("value", ())):
        method = getattr(model, name, None)
        if not callable(method):
            raise ConfigError(f"network: expected a method {name}(obs), found none")
        _check_output(model, method, f"network.{name}", spec, output)
    shape = (spec.policy_outputs,)
    log_std = getattr(model, "log_std", None)
    learned = isinstance(log_std, nn.Parameter) and log_std.shape == shape
    if spec.action_kind == "continuous" and not learned:
        raise ConfigError(
            f"network: expected a parameter log_std of shape {shape} for {spec.env_id}"
        )


@torch.no_grad()
def _check_output(
    model: nn.Module, call: Callable[..., Any], name: str, spec: EnvSpec, output: tuple[int, ...]
) -> None:
    sizes = "".join(f", {size}" for size in output)
    expected = f"(batch{sizes}) for observations (batch, {spec.obs_dim})"
    trainable = [p for p in model.parameters() if p.requires_grad]
    if not trainable:
        raise ConfigError("network: expected trainable parameters, found none")
    model.eval()
    try:
        found = call(torch.zeros(1, *spec.obs_shape, device=trainable[0].device))
    except Exception as error:
        raise ConfigError(f"{name}: expected {expected}, but calling it raised: {error}") from error
    shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
    if shape != (1, *output):
        raise ConfigError(f"{name}: expected {expected}, found {shape} for one observation")
