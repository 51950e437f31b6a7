"""Parameters in one flat buffer, their optimiser, and target networks that follow them."""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rl_training.data.types import Moment

OptimizerName = Literal["adam", "rmsprop"]


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
    """Adam or RMSprop over a network's flat parameters, with gradient-norm clipping."""

    def __init__(
        self,
        module: nn.Module,
        *,
        name: OptimizerName = "adam",
        eps: float = 1e-8,
        max_grad_norm: float | None = None,
    ) -> None:
        self.flat = flatten(module, gradients=True)
        self.max_grad_norm = max_grad_norm
        self._optimizer: torch.optim.Optimizer
        if name == "adam":
            self._optimizer = torch.optim.Adam([self.flat], eps=eps, fused=True)
        else:  # centred, with the decay of Mnih et al. (2015)
            self._optimizer = torch.optim.RMSprop([self.flat], alpha=0.95, eps=eps, centered=True)

    def step(self, loss: Tensor, learning_rate: float) -> None:
        """Backpropagate `loss` and move the parameters."""
        grad = self.flat.grad
        assert grad is not None
        grad.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        if self.max_grad_norm is not None:
            # Scaling by a tensor keeps the device free of a host sync.
            grad.mul_((self.max_grad_norm / (grad.norm() + 1e-6)).clamp(max=1.0))
        self._optimizer.param_groups[0]["lr"] = learning_rate
        self._optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """The moments of the flat buffer."""
        return {"moments": dict(self._optimizer.state[self.flat])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the moments."""
        groups = self._optimizer.state_dict()["param_groups"]
        slots = {0: state["moments"]} if state["moments"] else {}
        self._optimizer.load_state_dict({"state": slots, "param_groups": groups})


class TargetNetwork:
    """A frozen copy of a network: copied from it every `interval` transitions, or following it.

    With `tau` below 1 every update moves the copy a share `tau` of the way; otherwise the first
    update after each multiple of `interval` environment transitions copies the network.
    """

    def __init__(self, module: nn.Module, source: Optimizer, *, tau: float, interval: int) -> None:
        self.module = copy.deepcopy(module).eval()
        self.tau = tau
        self.interval = interval
        self._flat = flatten(self.module, gradients=False)
        self.module.requires_grad_(False)
        self._source_flat = source.flat
        self._source_buffers = list(module.buffers())
        self._intervals_seen = 0

    @torch.no_grad()
    def update(self, moment: Moment) -> None:
        """Copy or move the parameters if that is due."""
        if self.tau < 1.0:
            self._flat.lerp_(self._source_flat, self.tau)
        elif moment.env_steps // self.interval > self._intervals_seen:
            self._flat.copy_(self._source_flat)
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
