"""Building blocks that the models share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.data.arrays import Array, add_up, namespace

PullBack = Callable[[Array], Array]
"""From the gradient of an output to that of the input, if asked for, else None.

The gradients of the parameters are written into their `grad` on the way.
"""

Activation = Literal["relu", "tanh"]
_ZEROS = np.zeros(262_144, np.float32)


class Layers(nn.Module):
    """Weights and biases of layers, as tensors or seen as arrays, and their gradients."""

    def __init__(self) -> None:
        super().__init__()
        self._layers: list[tuple[nn.Parameter, nn.Parameter]] = []
        self._views, self._grad_views = ArrayViews(), ArrayViews()

    def add_layer(self, weight: nn.Parameter, bias: nn.Parameter) -> None:
        """Take one more layer, the next in depth."""
        depth = len(self._layers)
        self.register_parameter(f"weight{depth}", weight)
        self.register_parameter(f"bias{depth}", bias)
        self._layers.append((weight, bias))

    @torch.no_grad()
    def init_orthogonal(self, *, last_gain: float, gain: float = math.sqrt(2)) -> None:
        """Orthogonal weights and zero biases, with a gain of its own for the last layer."""
        last = self._layers[-1][0]
        for weight, bias in self._layers:
            for matrix in weight.reshape(-1, *weight.shape[-2:]):
                nn.init.orthogonal_(matrix, last_gain if weight is last else gain)
            nn.init.zeros_(bias)

    def _values_for(self, x: Array) -> Sequence[tuple[Array, Array]]:
        """Weights and biases without a graph, as arrays if `x` is one."""
        if isinstance(x, np.ndarray):
            return self._views.of(self._layers)
        return [(weight.detach(), bias.detach()) for weight, bias in self._layers]

    def _grads_for(self, x: Array) -> Sequence[tuple[Array, Array]]:
        """Their gradients, likewise."""
        grads: list[tuple[Any, Any]] = [(w.grad, b.grad) for w, b in self._layers]
        return self._grad_views.of(grads) if isinstance(x, np.ndarray) else grads


class MLP(Layers):
    """Linear layers of the given sizes with an activation between them, on tensors or arrays.

    `features` puts an activation after the last one too. One module for all layers: on a CPU the
    calls from module to module take as long as the arithmetic of a small network. `vjp` is its
    gradient written out, for the same reason. Initialised as PyTorch initialises linear layers,
    uniformly within 1/sqrt(fan_in).
    """

    def __init__(
        self, sizes: Sequence[int], *, activation: Activation = "relu", features: bool = False
    ) -> None:
        super().__init__()
        self._activation = activation
        self._features = features
        for fan_in, fan_out in pairwise(sizes):
            self.add_layer(*nn.Linear(fan_in, fan_out).parameters())

    def forward(self, x: Array) -> Array:
        """Outputs (batch, last size)."""
        *hidden, last = self._values_for(x) if isinstance(x, np.ndarray) else self._layers
        for weight, bias in hidden:
            x = self._activate(_linear(x, weight, bias))
        x = _linear(x, *last)
        return self._activate(x) if self._features else x

    def vjp(self, x: Array, *, to_input: bool = False) -> tuple[Array, PullBack]:
        """Outputs, and the function from their gradient to the parameters' gradients.

        That function overwrites each parameter's `grad`, which must exist, and its argument.
        """
        *hidden, last = layers = self._values_for(x)
        seen = [x]  # by each layer, and last what came out
        for weight, bias in hidden:
            seen.append(self._activate(_linear(seen[-1], weight, bias)))
        output = _linear(seen[-1], *last)
        seen.append(self._activate(output) if self._features else output)
        return seen[-1], lambda grad: self._pull_back(layers, seen, grad, to_input)

    def _pull_back(
        self,
        layers: Sequence[tuple[Array, Array]],
        seen: list[Array],
        grad: Array,
        to_input: bool,
    ) -> Array:
        xp, grads = namespace(grad), self._grads_for(grad)
        activated = self._features  # whether the layer's output went through the activation
        for depth in reversed(range(len(layers))):
            x, y, (by_weight, by_bias) = seen[depth], seen[depth + 1], grads[depth]
            if activated:
                grad *= y > 0 if self._activation == "relu" else 1 - y * y
            xp.matmul(grad.T, x, out=by_weight)
            add_up(grad, out=by_bias)
            grad, activated = grad @ layers[depth][0] if depth or to_input else None, True
        return grad

    def _activate(self, x: Array) -> Array:
        """The activation, in place."""
        if self._activation == "relu":
            return rectify(x)
        return np.tanh(x, out=x) if isinstance(x, np.ndarray) else torch.tanh_(x)


class ArrayViews:
    """Tensors seen as arrays, for as long as they stay where they are."""

    def __init__(self) -> None:
        self._address = 0
        self._views: list[tuple[np.ndarray, np.ndarray]] = []

    def __reduce__(self) -> tuple[type[ArrayViews], tuple[()]]:
        return ArrayViews, ()  # a network that was copied or pickled has memory of its own

    def of(self, tensors: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Their views; an optimiser moves all of them at once, into one buffer."""
        address = tensors[0][0].data_ptr()
        if address != self._address:
            self._views = [(w.detach().numpy(), b.detach().numpy()) for w, b in tensors]
            self._address = address
        return self._views


def rectify(x: Array) -> Array:
    """ReLU, in place."""
    if not isinstance(x, np.ndarray):
        return torch.relu_(x)
    # A zero for each entry of a matrix is three times as fast as one zero for all.
    rows, columns = x.shape[-2:]
    whole = rows * columns <= _ZEROS.size
    zeros = _ZEROS[: rows * columns].reshape(rows, columns) if whole else _ZEROS[:columns]
    return np.maximum(x, zeros, out=x)


def _linear(x: Array, weight: Array, bias: Array) -> Array:
    if not isinstance(x, np.ndarray):
        return F.linear(x, weight, bias)
    outputs = x @ weight.T
    outputs += bias
    return outputs
