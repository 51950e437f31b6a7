"""Building blocks that the models share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PullBack = Callable[[Tensor], None]
"""From the gradient of an output to the gradients of the parameters, written into their `grad`."""

Activation = Literal["relu", "tanh"]

# Each in place, and its derivative times a gradient, from its output.
_ACTIVATE = {"relu": torch.relu_, "tanh": torch.tanh_}
_DERIVE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda grad, output: torch.ops.aten.threshold_backward(grad, output, 0.0),
    "tanh": torch.ops.aten.tanh_backward,
}
NARROW = 16  # BLAS is slow at a product whose result is no wider


class MLP(nn.Module):
    """Linear layers of the given sizes with an activation between them.

    One module for all layers: on a CPU the calls from module to module take as long as the
    arithmetic of a small network. `vjp` is its gradient written out, for the same reason.
    Initialised as PyTorch initialises linear layers, uniformly within 1/sqrt(fan_in).
    """

    def __init__(self, sizes: Sequence[int], *, activation: Activation = "relu") -> None:
        super().__init__()
        self._activate, self._derive = _ACTIVATE[activation], _DERIVE[activation]
        self._layers: list[tuple[nn.Parameter, nn.Parameter]] = []
        for depth, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            weight, bias = nn.Linear(fan_in, fan_out).parameters()
            self.register_parameter(f"weight{depth}", weight)
            self.register_parameter(f"bias{depth}", bias)
            self._layers.append((weight, bias))

    @torch.no_grad()
    def init_orthogonal(self, *, last_gain: float, gain: float = math.sqrt(2)) -> None:
        """Orthogonal weights and zero biases, with a gain of its own for the last layer."""
        last = self._layers[-1][0]
        for weight, bias in self._layers:
            nn.init.orthogonal_(weight, last_gain if weight is last else gain)
            nn.init.zeros_(bias)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (batch, last size)."""
        *hidden, last = self._layers
        for weight, bias in hidden:
            x = self._activate(F.linear(x, weight, bias))
        return F.linear(x, *last)

    @torch.no_grad()
    def vjp(self, x: Tensor) -> tuple[Tensor, PullBack]:
        """Outputs, and the function from their gradient to the parameters' gradients.

        That function overwrites each parameter's `grad`, which must exist.
        """
        *hidden, last = self._layers
        inputs = [x]  # of every layer
        for weight, bias in hidden:
            inputs.append(self._activate(F.linear(inputs[-1], weight, bias)))
        return F.linear(inputs[-1], *last), lambda grad: self._pull_back(inputs, grad)

    @torch.no_grad()
    def _pull_back(self, inputs: list[Tensor], grad: Tensor) -> None:
        for depth in reversed(range(len(inputs))):
            weight, bias = self._layers[depth]
            assert weight.grad is not None
            assert bias.grad is not None
            if weight.shape[1] <= NARROW:
                weight.grad.copy_((inputs[depth].t() @ grad).t())
            else:
                torch.mm(grad.t(), inputs[depth], out=weight.grad)
            torch.sum(grad, 0, out=bias.grad)
            if depth:
                grad = self._derive(grad @ weight, inputs[depth])
