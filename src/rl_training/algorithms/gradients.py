"""Outputs of a network together with the way back from their gradient to its parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Vjp = Callable[..., tuple[Any, Callable[[Any], Any]]]
"""From inputs to the outputs, detached, and the function that pulls their gradient back."""


def vjp_of(network: nn.Module, function: Callable[..., Any] | None = None) -> Vjp:
    """The network's own `vjp`, or automatic differentiation of `function`, by default the network.

    Pulling a gradient back overwrites the parameters' `grad`. A class that derives from a network
    with a `vjp` may have changed what it computes, so it is differentiated.
    """
    if writes_out_its_gradient(network):
        written: Vjp = network.vjp  # type: ignore[assignment]
        return written
    return AutomaticVjp(network, function or network)


class AutomaticVjp:
    """Automatic differentiation of a function of a network's parameters."""

    def __init__(self, network: nn.Module, function: Callable[..., Any]) -> None:
        self._network, self._function = network, function

    def __call__(self, *inputs: Any) -> tuple[Any, Callable[[Any], None]]:
        """Outputs, and the way back from their gradient."""
        with torch.enable_grad():
            outputs = self._function(*inputs)

        def pull_back(grads: Any) -> None:
            parameters = self._network.parameters()
            torch._foreach_zero_([p.grad for p in parameters if p.grad is not None])
            torch.autograd.backward(outputs, grads)

        if isinstance(outputs, Tensor):
            return outputs.detach(), pull_back
        return tuple(output.detach() for output in outputs), pull_back


def action_vjp_of(critics: nn.Module) -> Vjp:
    """The critics' own `action_vjp`, or automatic differentiation by the actions.

    It goes from observations and actions to values, and from their gradient to the actions'.
    """
    if writes_out_its_gradient(critics):
        written: Vjp = critics.action_vjp  # type: ignore[assignment]
        return written
    return AutomaticActionVjp(critics, critics)


class AutomaticActionVjp(AutomaticVjp):
    """Automatic differentiation by a function's second argument."""

    def __call__(self, *inputs: Any) -> tuple[Any, Callable[[Any], Any]]:
        """Values, and the way back from their gradient to the actions'."""
        obs, action = inputs
        action = action.detach().requires_grad_()
        with torch.enable_grad():
            values = self._function(obs, action)
        return values.detach(), lambda grad: torch.autograd.grad(values, action, grad)[0]


def uncompiled(vjp: Vjp) -> Vjp:
    """The same for compiled code to call: what torch records is not for the compiler to see."""
    if not isinstance(vjp, AutomaticVjp):
        return vjp
    hide: Callable[[Any], Any] = torch.compiler.disable

    def hidden(*inputs: Any) -> tuple[Any, Callable[[Any], Any]]:
        outputs, pull_back = vjp(*inputs)
        return outputs, hide(pull_back)

    untraced: Vjp = hide(hidden)
    return untraced


def writes_out_its_gradient(network: nn.Module) -> bool:
    """Whether the network's own class defines `vjp`, for all of its parameters.

    It then computes on arrays too. One with frozen parameters is differentiated.
    """
    trainable = all(parameter.requires_grad for parameter in network.parameters())
    return trainable and "vjp" in vars(type(network))
