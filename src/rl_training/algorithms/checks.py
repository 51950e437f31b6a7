"""Refusal of networks that do not fit their algorithm, before training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        if callable(both := getattr(model, "policy_and_value", None)):
            place, call = ("policy", "value").index(name), "network.policy_and_value"
            _check_output(model, lambda x, at=place: both(x)[at], call, spec, output)
    check_log_std(model, spec)


def check_parts(model: Any, names: Sequence[str]) -> None:
    """Refuse a network that has parameters outside these modules, or in two of them."""
    for name in names:
        if not isinstance(getattr(model, name, None), nn.Module):
            raise ConfigError(f"network: expected a module named {name}, found none")
    known: set[nn.Parameter] = set()
    listed = " and ".join(names)
    for name in names:
        parameters = set(getattr(model, name).parameters())
        if known & parameters:
            raise ConfigError(
                f"network: {listed} share parameters, and each has an optimiser of its own; give "
                "each its own layers"
            )
        known |= parameters
    if any(p.requires_grad for p in set(model.parameters()) - known):
        raise ConfigError(
            f"network: expected all parameters in {listed}, found others, which would not be "
            "trained; move them there"
        )


def check_actor_and_critics(model: Any, spec: EnvSpec, hyper: Any) -> None:
    """Refuse a network without a fitting `actor(obs)` and `critics(obs, action)`.

    Where targets come from a subset of the critics, `critics(obs, action, members)` gives theirs.
    """
    check_parts(model, ("actor", "critics"))
    _check_output(model.actor, model.actor, "network.actor", spec, (2 * spec.action_dim,))
    _check_critics(model.critics, spec, (hyper.num_critics, 1, hyper.critic_outputs))
    if subset := getattr(hyper, "subset_size", 0):
        _check_critics(model.critics, spec, (subset, 1, hyper.critic_outputs), torch.arange(subset))


@torch.no_grad()
def check_encoded(model: Any, spec: EnvSpec, hyper: Any) -> None:
    """Refuse a network without a fitting `encoder(images)`, `actor(seen)`, `critics(seen, a)`."""
    check_parts(model, ("encoder", "actor", "critics"))
    for part in (model.encoder, model.actor, model.critics):
        device = expect_parameters(part)[0].device
    model.eval()
    action = torch.zeros(1, spec.action_dim, device=device)
    try:
        seen = model.encoder(_observation(spec, device))
        found = tuple(model.actor(seen).shape), tuple(model.critics(seen, action).shape)
    except Exception as error:
        raise ConfigError(f"network: calling its encoder, actor and critics: {error}") from error
    expected = (1, spec.action_dim), (hyper.num_critics, 1, 1)
    if found != expected:
        raise ConfigError(
            f"network: expected the actor to give {expected[0]} and the critics {expected[1]} for "
            f"one observation, found {found[0]} and {found[1]}"
        )


def _observation(spec: EnvSpec, device: torch.device) -> Tensor:
    """A batch of one, of the type that a network will see."""
    return torch.zeros(1, *spec.obs_shape, dtype=getattr(torch, spec.obs_dtype), device=device)


@torch.no_grad()
def _check_critics(
    critics: nn.Module, spec: EnvSpec, expected: tuple[int, ...], members: Tensor | None = None
) -> None:
    device = expect_parameters(critics)[0].device
    critics.eval()
    shapes = (1, *spec.obs_shape), (1, spec.action_dim)
    inputs = [_observation(spec, device), torch.zeros(shapes[1], device=device)]
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


def check_log_std(model: nn.Module, spec: EnvSpec) -> None:
    """Refuse a policy of continuous actions without its `log_std`."""
    shape = (spec.policy_outputs,)
    log_std = getattr(model, "log_std", None)
    learned = isinstance(log_std, nn.Parameter) and log_std.shape == shape
    if spec.action_kind == "continuous" and not learned:
        raise ConfigError(
            f"network: expected a parameter log_std of shape {shape} for {spec.env_id}"
        )


def expect_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Those that are trained; refuse a network without."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    if not trainable:
        raise ConfigError("network: expected trainable parameters, found none")
    return trainable


@torch.no_grad()
def _check_output(
    model: nn.Module, call: Callable[..., Any], name: str, spec: EnvSpec, output: tuple[int, ...]
) -> None:
    sizes = "".join(f", {size}" for size in output)
    shown = ", ".join(map(str, ("batch", *spec.obs_shape)))
    expected = f"(batch{sizes}) for observations ({shown})"
    trainable = expect_parameters(model)
    model.eval()
    try:
        found = call(_observation(spec, trainable[0].device))
    except Exception as error:
        raise ConfigError(f"{name}: expected {expected}, but calling it raised: {error}") from error
    shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
    if shape != (1, *output):
        raise ConfigError(f"{name}: expected {expected}, found {shape} for one observation")
