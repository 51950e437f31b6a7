"""Packaged networks on NumPy arrays, with their backward passes written out.

On a CPU a call into NumPy costs a third of a call into torch, and small networks spend their time
on calls. A kernel reads and writes the memory of the network's parameters and gradients: `forward`
gives the outputs, `vjp` the outputs and the backward pass from their gradient. Each is equal to
autograd of its module in `models`, which a test holds; without them everything means the same.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from rl_training.models.blocks import MLP, DuelingMLP, EnsembleMLP, Layers
from rl_training.models.mlp_actor_critic import MLPActorCritic
from rl_training.models.mlp_actor_q_ensemble import MLPActor, MLPCritics
from rl_training.models.mlp_categorical_q_network import MLPCategoricalQNetwork
from rl_training.models.mlp_q_network import MLPQNetwork
from rl_training.models.mlp_qr_q_network import MLPQRQNetwork
from rl_training.models.recurrent.actor_critic import Memory
from rl_training.models.recurrent.core import RecurrentCore

Array = np.ndarray
Backward = Callable[[Array], Any]
"""From the gradient of an output to that of the input, or None where it was not asked for.

The parameters' gradients are overwritten on the way, and so is the argument.
"""

NORM_EPS = 1e-5  # of torch's layer normalisation
_ZEROS = np.zeros(262_144, np.float32)


class Buffers:
    """Flat arrays of a module's parameters and, if it is trained, of their gradients."""

    def __init__(self, values: Array, grads: Array | None = None) -> None:
        self.values = values
        self.grads = np.empty_like(values) if grads is None else grads

    def views(self, layers: Sequence[tuple[nn.Parameter, nn.Parameter]], array: Array) -> Any:
        """Weights and biases in one of the arrays."""
        return [(view_of(array, weight), view_of(array, bias)) for weight, bias in layers]


def view_of(flat: Array, parameter: Tensor) -> Array:
    """Where a parameter lies in a flat array of its module."""
    start = int(parameter.storage_offset())
    return flat[start : start + parameter.numel()].reshape(tuple(parameter.shape))


class NormKernel:
    """Of the layer normalisation between a linear layer and its activation."""

    def __init__(self, pair: tuple[Any, Any], grads: tuple[Any, Any]) -> None:
        (self._scale, self._shift), (self._by_scale, self._by_shift) = pair, grads
        size = len(self._scale)
        self._mean = np.full(size, 1 / size, self._scale.dtype)  # a row times it is its mean

    def forward(self, x: Array) -> Array:
        """The normalised rows, in the memory of `x`."""
        self._standardize(x)
        x *= self._scale
        x += self._shift
        return x

    def vjp(self, x: Array) -> tuple[Array, Backward]:
        """The normalised rows, and the backward pass to `x`, whose memory it needs."""
        deviation = self._standardize(x)
        y = x * self._scale
        y += self._shift

        def backward(grad: Array) -> Array:
            by_row = grad * x
            np.add.reduce(by_row, 0, None, self._by_scale)
            np.add.reduce(grad, 0, None, self._by_shift)
            grad *= self._scale
            np.multiply(grad, x, out=by_row)
            along = x * (by_row @ self._mean)[:, None]
            grad -= (grad @ self._mean)[:, None]
            grad -= along
            grad /= deviation
            return grad

        return y, backward

    def _standardize(self, x: Array) -> Array:
        """Bring each row to mean 0 and variance 1, in place; give the standard deviations."""
        x -= (x @ self._mean)[:, None]
        deviation: Array = np.sqrt((x * x) @ self._mean + NORM_EPS)[:, None]
        x /= deviation
        return deviation


class MLPKernel:
    """Of `MLP`."""

    def __init__(self, module: MLP, buffers: Buffers) -> None:
        self._relu, self._features = module.activation == "relu", module.features
        self._layers = buffers.views(module.layers, buffers.values)
        self._grads = buffers.views(module.layers, buffers.grads)
        norms = (buffers.views(module.norms, x) for x in (buffers.values, buffers.grads))
        self._norms = [NormKernel(*pairs) for pairs in zip(*norms, strict=True)]
        self._activated = len(self._layers) - (not module.features)

    def forward(self, x: Array) -> Array:
        for depth, (weight, bias) in enumerate(self._layers):
            x = _linear(x, weight, bias)
            if depth < self._activated:
                x = self._activate(self._norms[depth].forward(x) if self._norms else x)
        return x

    def vjp(self, x: Array, *, to_input: bool = False) -> tuple[Array, Backward]:
        inputs, to_norms = [x], []
        for depth, (weight, bias) in enumerate(self._layers):
            y = _linear(inputs[-1], weight, bias)
            if depth < self._activated and self._norms:
                y, to_norm = self._norms[depth].vjp(y)
                to_norms.append(to_norm)
            inputs.append(self._activate(y) if depth < self._activated else y)
        return inputs[-1], lambda grad: self._backward(inputs, to_norms, grad, to_input)

    def _backward(
        self, inputs: list[Array], to_norms: list[Backward], grad: Array, to_input: bool
    ) -> Array | None:
        activated = self._features  # whether the layer's output went through the activation
        for depth in reversed(range(len(self._layers))):
            x, y, (by_weight, by_bias) = inputs[depth], inputs[depth + 1], self._grads[depth]
            if activated:
                grad *= y > 0 if self._relu else 1 - y * y
                grad = to_norms[depth](grad) if to_norms else grad
            np.matmul(grad.T, x, out=by_weight)
            np.add.reduce(grad, 0, None, by_bias)
            if not (depth or to_input):
                return None
            grad, activated = grad @ self._layers[depth][0], True
        return grad

    def _activate(self, x: Array) -> Array:
        """The activation, in place."""
        return rectify(x) if self._relu else np.tanh(x, out=x)


class DuelingKernel:
    """Of `DuelingMLP`."""

    def __init__(self, module: DuelingMLP, buffers: Buffers) -> None:
        self._trunk = None if module.trunk is None else MLPKernel(module.trunk, buffers)
        assert isinstance(module.value, MLP)
        assert isinstance(module.advantage, MLP)
        self._value = MLPKernel(module.value, buffers)
        self._advantage = MLPKernel(module.advantage, buffers)
        self._shape = module.shape

    def forward(self, x: Array) -> Array:
        if self._trunk is not None:
            x = self._trunk.forward(x)
        return self._joined(self._value.forward(x), self._advantage.forward(x))

    def vjp(self, x: Array, *, to_input: bool = False) -> tuple[Array, Backward]:
        to_trunk: Backward | None = None
        if self._trunk is not None:
            x, to_trunk = self._trunk.vjp(x, to_input=to_input)
        value, to_value = self._value.vjp(x, to_input=True)
        advantage, to_advantage = self._advantage.vjp(x, to_input=True)

        def backward(grad: Array) -> Array | None:
            by_action = grad.reshape(self._shape)
            by_value = by_action.sum(1)
            by_advantage = by_action - by_value[:, None] / self._shape[1]
            by_features = to_advantage(by_advantage.reshape(grad.shape)) + to_value(by_value)
            return by_features if to_trunk is None else to_trunk(by_features)

        return self._joined(value, advantage), backward

    def _joined(self, value: Array, advantage: Array) -> Array:
        by_action = advantage.reshape(self._shape)
        mean = by_action.sum(1) / self._shape[1]
        return (by_action + (value - mean)[:, None]).reshape(advantage.shape)


class EnsembleKernel:
    """Of `EnsembleMLP`."""

    def __init__(self, module: EnsembleMLP, buffers: Buffers) -> None:
        self._layers = buffers.views(module.layers, buffers.values)
        self._grads = buffers.views(module.layers, buffers.grads)

    def forward(self, x: Array, members: Array | None = None) -> Array:
        layers = self._layers
        if members is not None:
            layers = [(weight[members], bias[members]) for weight, bias in layers]
        *hidden, last = layers
        for weight, bias in hidden:
            x = rectify(_ensemble_linear(x, weight, bias))
        return _ensemble_linear(x, *last)

    def vjp(self, x: Array, *, to_input: bool = False) -> tuple[Array, Backward]:
        inputs = self._run(x)

        def backward(grad: Array) -> Array | None:
            for depth in reversed(range(len(self._layers))):
                (by_weight, by_bias), x = self._grads[depth], inputs[depth]
                np.matmul(_transposed(x), grad, out=by_weight)
                by_bias[...] = grad.sum(1)[:, None]
                if depth:
                    grad = _behind(grad, self._layers[depth][0], x)
            if not to_input:
                return None
            by_member = grad @ _transposed(self._layers[0][0])
            return by_member.sum(0) if inputs[0].ndim == 2 else by_member

        return inputs[-1], backward

    def columns_vjp(self, x: Array, columns: slice) -> tuple[Array, Backward]:
        """Outputs, and the backward pass to some columns of the input alone."""
        inputs = self._run(x)

        def backward(grad: Array) -> Array:
            for depth in reversed(range(1, len(self._layers))):
                grad = _behind(grad, self._layers[depth][0], inputs[depth])
            by_columns: Array = (grad @ _transposed(self._layers[0][0][:, columns])).sum(0)
            return by_columns

        return inputs[-1], backward

    def _run(self, x: Array) -> list[Array]:
        """The input of each layer, and last the output."""
        *hidden, last = self._layers
        inputs = [x]
        for weight, bias in hidden:
            inputs.append(rectify(_ensemble_linear(inputs[-1], weight, bias)))
        inputs.append(_ensemble_linear(inputs[-1], *last))
        return inputs


class ReshapedKernel:
    """Of a network that gives its layers' outputs in another shape."""

    def __init__(
        self,
        module: MLPQNetwork | MLPQRQNetwork | MLPCategoricalQNetwork | MLPActor,
        buffers: Buffers,
    ) -> None:
        layers = module.layers
        self._layers: MLPKernel | DuelingKernel
        if isinstance(layers, DuelingMLP):
            self._layers = DuelingKernel(layers, buffers)
        else:
            assert isinstance(layers, MLP)
            self._layers = MLPKernel(layers, buffers)
        self._shape = (-1, *getattr(module, "shape", ()))

    def forward(self, x: Array) -> Array:
        output = self._layers.forward(x)
        return output if len(self._shape) == 1 else output.reshape(self._shape)

    def vjp(self, x: Array, *, to_input: bool = False) -> tuple[Array, Backward]:
        output, backward = self._layers.vjp(x, to_input=to_input)
        if len(self._shape) == 1:
            return output, backward
        return output.reshape(self._shape), lambda grad: backward(grad.reshape(output.shape))


class CriticsKernel:
    """Of `MLPCritics`."""

    def __init__(self, module: MLPCritics, buffers: Buffers) -> None:
        self._layers = EnsembleKernel(module.layers, buffers)

    def forward(self, obs: Array, action: Array, members: Array | None = None) -> Array:
        return self._layers.forward(np.concatenate([obs, action], 1), members)

    def vjp(self, obs: Array, action: Array) -> tuple[Array, Backward]:
        return self._layers.vjp(np.concatenate([obs, action], 1))

    def input_vjp(self, obs: Array, action: Array) -> tuple[Array, Backward]:
        """Outputs, and the backward pass to the actions alone."""
        columns = slice(obs.shape[1], None)
        return self._layers.columns_vjp(np.concatenate([obs, action], 1), columns)


class ActorCriticKernel:
    """Of `MLPActorCritic`: policy outputs and values, and the gradient of `log_std` beside them."""

    def __init__(self, module: MLPActorCritic, buffers: Buffers) -> None:
        self._actor = MLPKernel(module.actor, buffers)
        self._critic = MLPKernel(module.critic, buffers)
        self.log_std: Array | None = None
        if (log_std := getattr(module, "log_std", None)) is not None:
            self.log_std = view_of(buffers.values, log_std)
            self._by_log_std = view_of(buffers.grads, log_std)

    def policy(self, obs: Array) -> Array:
        return self._actor.forward(obs)

    def value(self, obs: Array) -> Array:
        values: Array = self._critic.forward(obs).squeeze(-1)
        return values

    def vjp(self, obs: Array) -> tuple[tuple[Array, Array], Callable[[Sequence[Array]], None]]:
        """Outputs and values, and the backward pass from their gradients and that of `log_std`."""
        outputs, to_actor = self._actor.vjp(obs)
        values, to_critic = self._critic.vjp(obs)

        def backward(grads: Sequence[Array]) -> None:
            to_actor(grads[0])
            to_critic(grads[1][:, None])
            if self.log_std is not None:
                self._by_log_std[...] = grads[2]

        return (outputs, values.squeeze(-1)), backward


KERNELS: dict[type[nn.Module], Callable[[Any, Buffers], Any]] = {
    MLPQNetwork: ReshapedKernel,
    MLPQRQNetwork: ReshapedKernel,
    MLPCategoricalQNetwork: ReshapedKernel,
    MLPActor: ReshapedKernel,
    MLPCritics: CriticsKernel,
}
"""By exact class: one that derives from a packaged network may compute something else."""

PARTS = {MLP, DuelingMLP, EnsembleMLP, Memory, RecurrentCore, nn.LSTM, nn.GRU, nn.ModuleList}
"""What the networks with a kernel consist of; noisy layers have none."""


def has_kernel(module: nn.Module, table: Container[type[nn.Module]] = KERNELS) -> bool:
    """Whether a table has a kernel for the module, and all its parts are those it knows."""
    parts = (type(part) for part in module.modules() if part is not module)
    known = type(module) in table and all(part in PARTS for part in parts)
    return known and not any(map(_is_altered, module.modules()))


def _is_altered(module: nn.Module) -> bool:
    """Whether a module has hooks, a forward pass of its own, or layers that share parameters."""
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    shares = False
    if isinstance(module, Layers):
        shares = len({*module.parameters()}) < 2 * (len(module.layers) + len(module.norms))
    return any(hooks) or "forward" in vars(module) or shares


def rectify(x: Array) -> Array:
    """ReLU, in place."""
    # A zero for each entry of a matrix is three times as fast as one zero for all.
    rows, columns = x.shape[-2:]
    whole = rows * columns <= _ZEROS.size
    zeros = _ZEROS[: rows * columns].reshape(rows, columns) if whole else _ZEROS[:columns]
    return np.maximum(x, zeros, out=x)


def _linear(x: Array, weight: Array, bias: Array) -> Array:
    outputs: Array = x @ weight.T
    outputs += bias
    return outputs


def _ensemble_linear(x: Array, weight: Array, bias: Array) -> Array:
    outputs: Array = np.matmul(x, weight)
    outputs += bias
    return outputs


def _transposed(x: Array) -> Array:
    return np.swapaxes(x, -1, -2)


def _behind(grad: Array, weight: Array, outputs: Array) -> Array:
    """The gradient behind a layer whose inputs were a ReLU's outputs."""
    # A product with a single column is one of two vectors, for which NumPy has no fast routine.
    weight = _transposed(weight)
    grad = grad * weight if grad.shape[-1] == 1 else grad @ weight
    grad *= outputs > 0
    return grad
