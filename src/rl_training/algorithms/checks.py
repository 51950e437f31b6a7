"""Refusal of networks that do not fit their algorithm, before training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    _check_log_std(model, spec)


def check_actor_and_critics(model: Any, spec: EnvSpec, hyper: Any) -> None:
    """Refuse a network without a fitting `actor(obs)` and `critics(obs, action)`.

    Where targets come from a subset of the critics, `critics(obs, action, members)` gives theirs.
    """
    for name in ("actor", "critics"):
        if not isinstance(getattr(model, name, None), nn.Module):
            raise ConfigError(f"network: expected a module named {name}, found none")
    actor, critics = (set(part.parameters()) for part in (model.actor, model.critics))
    if actor & critics:
        raise ConfigError(
            "network: actor and critics share parameters, and each has an optimiser of its own; "
            "give each its own layers"
        )
    if any(p.requires_grad for p in set(model.parameters()) - actor - critics):
        raise ConfigError(
            "network: expected all parameters in actor and critics, found others, which would not "
            "be trained; move them there"
        )
    _check_output(model.actor, model.actor, "network.actor", spec, (2 * spec.action_dim,))
    _check_critics(model.critics, spec, (hyper.num_critics, 1, hyper.critic_outputs))
    if subset := getattr(hyper, "subset_size", 0):
        _check_critics(model.critics, spec, (subset, 1, hyper.critic_outputs), torch.arange(subset))


@torch.no_grad()
def _check_critics(
    critics: nn.Module, spec: EnvSpec, expected: tuple[int, ...], members: Tensor | None = None
) -> None:
    device = _expect_parameters(critics)[0].device
    critics.eval()
    shapes = (1, *spec.obs_shape), (1, spec.action_dim)
    inputs = [torch.zeros(shape, device=device) for shape in shapes]
    call = f"network.critics(obs {shapes[0]}, action {shapes[1]}"
    if members is not None:
        inputs.append(members.to(device))
        call += f", members {members.tolist()}"
    try:
        found = tuple(critics(*inputs).shape)
    except Exception as error:
        raise ConfigError(f"{call}): expected {expected}, but it raised: {error}") from error
    if found != expected:
        raise ConfigError(f"{call}): expected (critics, batch, outputs) {expected}, found {found}")


def _check_log_std(model: nn.Module, spec: EnvSpec) -> None:
    shape = (spec.policy_outputs,)
    log_std = getattr(model, "log_std", None)
    learned = isinstance(log_std, nn.Parameter) and log_std.shape == shape
    if spec.action_kind == "continuous" and not learned:
        raise ConfigError(
            f"network: expected a parameter log_std of shape {shape} for {spec.env_id}"
        )


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
    first = torch.zeros(2, 1, dtype=torch.bool, device=_expect_parameters(model)[0].device)
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
    _check_log_std(model, spec)


def _expect_parameters(model: nn.Module) -> list[nn.Parameter]:
    trainable = [p for p in model.parameters() if p.requires_grad]
    if not trainable:
        raise ConfigError("network: expected trainable parameters, found none")
    return trainable


@torch.no_grad()
def _check_output(
    model: nn.Module, call: Callable[..., Any], name: str, spec: EnvSpec, output: tuple[int, ...]
) -> None:
    sizes = "".join(f", {size}" for size in output)
    expected = f"(batch{sizes}) for observations (batch, {spec.obs_dim})"
    trainable = _expect_parameters(model)
    model.eval()
    try:
        found = call(torch.zeros(1, *spec.obs_shape, device=trainable[0].device))
    except Exception as error:
        raise ConfigError(f"{name}: expected {expected}, but calling it raised: {error}") from error
    shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
    if shape != (1, *output):
        raise ConfigError(f"{name}: expected {expected}, found {shape} for one observation")
