"""Parameters in one flat buffer, their optimiser, and target networks that follow them."""

from __future__ import annotations

import copy
import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rl_training.data.types import Moment

OptimizerName = Literal["adam", "rmsprop"]
RMSPROP_DECAY = 0.95


def flatten(module: nn.Module, *, gradients: bool) -> nn.Parameter:
    """Make all trainable parameters of `module` views into one buffer, and return the buffer.

    One fused optimiser call, one norm and one copy then serve the whole network. With `gradients`
    the gradients live in a second such buffer.
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    flat = nn.Parameter(torch.cat([p.detach().reshape(-1) for p in parameters]), gradients)
    flat_grad = torch.zeros_like(flat, requires_grad=False)
    start = 0
    for p in parameters:
        stop = start + p.numel()
        p.data = flat.detach()[start:stop].view_as(p)
        p.grad = flat_grad[start:stop].view_as(p) if gradients else None
        start = stop
    flat.grad = flat_grad if gradients else None
    return flat


class Optimizer:
    """Adam, or centred RMSprop, over a network's flat parameters, with gradient-norm clipping.

    Works on tensors, not through `torch.optim`'s classes: their first step imports the compiler,
    which takes seconds, and each later one costs more than the arithmetic of a small network.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        name: OptimizerName = "adam",
        eps: float = 1e-8,
        max_grad_norm: float | None = None,
    ) -> None:
        self.flat = flatten(module, gradients=True)
        self.eps = eps
        self.max_grad_norm = max_grad_norm
        self._move = self._adam if name == "adam" else self._rmsprop
        self._values = self.flat.detach()
        assert self.flat.grad is not None
        self._grad = self.flat.grad
        self._host_grad = self._grad.numpy() if self._grad.device.type == "cpu" else None
        self._mean, self._square = torch.zeros_like(self._values), torch.zeros_like(self._values)
        self._steps = torch.zeros((), device=self._values.device)
        self._host_steps = self._steps.numpy() if self._host_grad is not None else None

    def step(self, learning_rate: float) -> None:
        """Move the parameters against their gradients."""
        if self.max_grad_norm is not None:
            self._clip(self.max_grad_norm)
        self._move(self._grad, learning_rate)

    def _clip(self, limit: float) -> None:
        if (grad := self._host_grad) is not None:
            if (length := math.sqrt(grad.dot(grad))) > limit:
                grad *= limit / (length + 1e-6)
        else:  # without waiting for the device
            norm = torch.linalg.vector_norm(self._grad)
            self._grad.mul_((limit / (norm + 1e-6)).clamp(max=1.0))

    def _adam(self, grad: Tensor, learning_rate: float) -> None:
        if self._host_steps is not None:  # an addition by NumPy, which takes a third of the time
            self._host_steps += 1
        else:
            self._steps += 1
        torch._fused_adam_(
            [self._values],
            [grad],
            [self._mean],
            [self._square],
            [],
            [self._steps],
            lr=learning_rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )

    def _rmsprop(self, grad: Tensor, learning_rate: float) -> None:
        """Centred, with the decay of Mnih et al. (2015)."""
        self._mean.lerp_(grad, 1 - RMSPROP_DECAY)
        self._square.mul_(RMSPROP_DECAY).addcmul_(grad, grad, value=1 - RMSPROP_DECAY)
        spread = (self._square - self._mean**2).clamp_(min=0.0).sqrt_().add_(self.eps)
        self._values.addcdiv_(grad, spread, value=-learning_rate)

    def state_dict(self) -> dict[str, Any]:
        """The moments of the flat buffer."""
        return {"mean": self._mean, "square": self._square, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the moments."""
        self._mean.copy_(state["mean"])
        self._square.copy_(state["square"])
        self._steps.copy_(state["steps"])


class TargetNetwork:
    """A frozen copy of a network: copied from it every `interval` transitions, or following it.

    With `tau` below 1, or without an `interval`, every update moves the copy a share `tau` of the
    way; otherwise the first update after each multiple of `interval` environment transitions copies
    the network.
    """

    def __init__(
        self, module: nn.Module, source: Optimizer, *, tau: float, interval: int | None = None
    ) -> None:
        self.module: Any = copy.deepcopy(module).eval()
        self.tau = tau
        self.interval = interval
        self._values = flatten(self.module, gradients=False).detach()
        self.module.requires_grad_(False)
        self._source_values = source.flat.detach()
        self._source_buffers = list(module.buffers())
        self._intervals_seen = 0

    def update(self, moment: Moment) -> None:
        """Copy or move the parameters if that is due."""
        if self.tau < 1.0 or self.interval is None:
            self._values.lerp_(self._source_values, self.tau)
        elif moment.env_steps // self.interval > self._intervals_seen:
            self._values.copy_(self._source_values)
            self._intervals_seen = moment.env_steps // self.interval
        else:
            return
        # Running statistics are copied, never averaged.
        for mine, source in zip(self.module.buffers(), self._source_buffers, strict=True):
            mine.copy_(source)

    def state_dict(self) -> dict[str, Any]:
        """The copy's parameters and buffers, and the phase of its interval."""
        return {
            "module": dict(self.module.state_dict()),
            "intervals_seen": self._intervals_seen,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the copy in place."""
        self.module.load_state_dict(state["module"])
        self._intervals_seen = state["intervals_seen"]


class UpdateCount:
    """How many updates there have been."""

    def __init__(self) -> None:
        self.number = 0

    def state_dict(self) -> dict[str, Any]:
        """The number."""
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""
        self.number = state["number"]
