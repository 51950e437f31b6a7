"""Perceptrons side by side: one product per layer for all members of an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.data.arrays import Array, namespace
from rl_training.models.blocks import Layers, rectify

Backward = Callable[[Array], Any]


class EnsembleMLP(Layers):
    """`members` perceptrons with ReLU layers; their weights are (members, in, out).

    Each member is initialised on its own, as PyTorch initialises a linear layer. Inputs (batch, in)
    go to all members, inputs (members, batch, in) to one each; outputs are (members, batch, out).
    """

    def __init__(self, members: int, sizes: Sequence[int]) -> None:
        super().__init__()
        self.members = members
        for fan_in, fan_out in pairwise(sizes):
            linears = [nn.Linear(fan_in, fan_out) for _ in range(members)]
            weight = nn.Parameter(torch.stack([linear.weight.detach().T for linear in linears]))
            bias = nn.Parameter(torch.stack([linear.bias.detach()[None] for linear in linears]))
            self.add_layer(weight, bias)

    def forward(self, x: Array, members: Array | None = None) -> Array:
        """Outputs of all members, or of those with the given numbers."""
        layers = self._values_for(x) if isinstance(x, np.ndarray) else self._layers
        if members is not None:
            layers = [(weight[members], bias[members]) for weight, bias in layers]
        *hidden, last = layers
        for weight, bias in hidden:
            x = rectify(_linear(x, weight, bias))
        return _linear(x, *last)

    def vjp(self, x: Array) -> tuple[Array, Backward]:
        """Outputs, and the function from their gradient to the parameters' gradients.

        That function overwrites each parameter's `grad`, which must exist, and its argument.
        """
        layers, seen = self._run(x)

        def pull_back(grad: Array) -> None:
            xp, grads = namespace(grad), self._grads_for(grad)
            for depth in reversed(range(len(layers))):
                (by_weight, by_bias), x = grads[depth], seen[depth]
                xp.matmul(_transposed(x), grad, out=by_weight)
                by_bias[...] = grad.sum(1)[:, None]
                if depth:
                    grad = _behind(grad, layers[depth][0], x)

        return seen[-1], pull_back

    def input_vjp(self, x: Array, columns: slice) -> tuple[Array, Backward]:
        """Outputs, and the function from their gradient to that of some columns of the input."""
        layers, seen = self._run(x)

        def pull_back(grad: Array) -> Array:
            for depth in reversed(range(1, len(layers))):
                grad = _behind(grad, layers[depth][0], seen[depth])
            return (grad @ _transposed(layers[0][0][:, columns])).sum(0)

        return seen[-1], pull_back

    def _run(self, x: Array) -> tuple[Sequence[tuple[Array, Array]], list[Array]]:
        """The layers, and what each of them saw; last what came out."""
        *hidden, last = layers = self._values_for(x)
        seen = [x]
        for weight, bias in hidden:
            seen.append(rectify(_linear(seen[-1], weight, bias)))
        seen.append(_linear(seen[-1], *last))
        return layers, seen


def _linear(x: Array, weight: Array, bias: Array) -> Array:
    if isinstance(x, Tensor):
        return torch.baddbmm(bias, x.expand(len(weight), *x.shape[-2:]), weight)
    outputs = np.matmul(x, weight)
    outputs += bias
    return outputs


def _transposed(x: Array) -> Array:
    return x.mT if isinstance(x, Tensor) else np.swapaxes(x, -1, -2)


def _behind(grad: Array, weight: Array, outputs: Array) -> Array:
    """The gradient behind a layer whose inputs were a ReLU's outputs."""
    # A product with a single column is one of two vectors, for which NumPy has no fast routine.
    weight = _transposed(weight)
    grad = grad * weight if grad.shape[-1] == 1 else grad @ weight
    grad *= outputs > 0
    return grad
