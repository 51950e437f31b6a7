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

from rl_training.models.blocks import MLP, DuelingMLP, EnsembleMLP
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


class LayerNormKernel:
    """Kernel of the layer normalisation between a linear layer and its activation."""

    def __init__(self, pair: tuple[Any, Any], grads: tuple[Any, Any]) -> None:
        (self._scale, self._shift), (self._grad_scale, self._grad_shift) = pair, grads
        size = len(self._scale)
        self._ones_over_n = np.full(size, 1 / size, self._scale.dtype)  # row @ it: the row's mean

    def forward(self, x: Array) -> Array:
        """The normalised rows, in the memory of `x`."""
        self._standardize(x)
        x *= self._scale
        x += self._shift
        return x

    def vjp(self, x: Array) -> tuple[Array, Backward]:
        """The normalised rows, and the backward pass to `x`, whose memory it needs."""
        std = self._standardize(x)
        y = x * self._scale
        y += self._shift

        # With g = grad * scale and x standardised: dx = (g - mean(g) - x * mean(g * x)) / std.
        def backward(grad: Array) -> Array:
            product = grad * x
            # np.add.reduce is np.sum without its Python wrapper.
            np.add.reduce(product, 0, None, self._grad_scale)
            np.add.reduce(grad, 0, None, self._grad_shift)
            grad *= self._scale
            np.multiply(grad, x, out=product)
            along_x = x * (product @ self._ones_over_n)[:, None]
            grad -= (grad @ self._ones_over_n)[:, None]
            grad -= along_x
            grad /= std
            return grad

        return y, backward

    def _standardize(self, x: Array) -> Array:
        """Bring each row to mean 0 and variance 1, in place; give the standard deviations."""
        x -= (x @ self._ones_over_n)[:, None]
        std: Array = np.sqrt((x * x) @ self._ones_over_n + NORM_EPS)[:, None]
        x /= std
        return std


class MLPKernel:
    """Kernel of `MLP`."""

    def __init__(self, module: MLP, buffers: Buffers) -> None:
        self._relu, self._activate_last = module.activation == "relu", module.activate_last
        self._layers = buffers.views(module.linears, buffers.values)
        self._grads = buffers.views(module.linears, buffers.grads)
        norms = (buffers.views(module.norms, x) for x in (buffers.values, buffers.grads))
        self._norms = [LayerNormKernel(*pairs) for pairs in zip(*norms, strict=True)]
        self._activated = len(self._layers) - (not module.activate_last)

    def forward(self, x: Array) -> Array:
        for depth, (weight, bias) in enumerate(self._layers):
            x = _linear(x, weight, bias)
            if depth < self._activated:
                x = self._activate(self._norms[depth].forward(x) if self._norms else x)
        return x

    def vjp(self, x: Array, *, input_grad: bool = False) -> tuple[Array, Backward]:
        inputs, norm_backwards = [x], []
        for depth, (weight, bias) in enumerate(self._layers):
            y = _linear(inputs[-1], weight, bias)
            if depth < self._activated and self._norms:
                y, norm_backward = self._norms[depth].vjp(y)
                norm_backwards.append(norm_backward)
            inputs.append(self._activate(y) if depth < self._activated else y)
        return inputs[-1], lambda grad: self._backward(inputs, norm_backwards, grad, input_grad)

    def _backward(
        self, inputs: list[Array], norm_backwards: list[Backward], grad: Array, input_grad: bool
    ) -> Array | None:
        activated = self._activate_last  # whether the layer's output went through the activation
        for depth in reversed(range(len(self._layers))):
            x, y, (grad_weight, grad_bias) = inputs[depth], inputs[depth + 1], self._grads[depth]
            if activated:
                grad *= y > 0 if self._relu else 1 - y * y
                grad = norm_backwards[depth](grad) if norm_backwards else grad
            np.matmul(grad.T, x, out=grad_weight)
            np.add.reduce(grad, 0, None, grad_bias)
            if not (depth or input_grad):
                return None
            grad, activated = grad @ self._layers[depth][0], True
        return grad

    def _activate(self, x: Array) -> Array:
        """The activation, in place."""
        return relu_(x) if self._relu else np.tanh(x, out=x)


class DuelingKernel:
    """Kernel of `DuelingMLP`."""

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
        return self._combine(self._value.forward(x), self._advantage.forward(x))

    def vjp(self, x: Array, *, input_grad: bool = False) -> tuple[Array, Backward]:
        trunk_backward: Backward | None = None
        if self._trunk is not None:
            x, trunk_backward = self._trunk.vjp(x, input_grad=input_grad)
        value, value_backward = self._value.vjp(x, input_grad=True)
        advantage, advantage_backward = self._advantage.vjp(x, input_grad=True)

        def backward(grad: Array) -> Array | None:
            grad_action = grad.reshape(self._shape)
            grad_value = grad_action.sum(1)
            grad_advantage = grad_action - grad_value[:, None] / self._shape[1]
            grad_features = advantage_backward(grad_advantage.reshape(grad.shape))
            grad_features = grad_features + value_backward(grad_value)
            return grad_features if trunk_backward is None else trunk_backward(grad_features)

        return self._combine(value, advantage), backward

    def _combine(self, value: Array, advantage: Array) -> Array:
        per_action = advantage.reshape(self._shape)
        mean = per_action.sum(1) / self._shape[1]
        return (per_action + (value - mean)[:, None]).reshape(advantage.shape)


class EnsembleKernel:
    """Kernel of `EnsembleMLP`."""

    def __init__(self, module: EnsembleMLP, buffers: Buffers) -> None:
        self._layers = buffers.views(module.linears, buffers.values)
        self._grads = buffers.views(module.linears, buffers.grads)

    def forward(self, x: Array, members: Array | None = None) -> Array:
        layers = self._layers
        if members is not None:
            layers = [(weight[members], bias[members]) for weight, bias in layers]
        *hidden, last = layers
        for weight, bias in hidden:
            x = relu_(_ensemble_linear(x, weight, bias))
        return _ensemble_linear(x, *last)

    def vjp(self, x: Array, *, input_grad: bool = False) -> tuple[Array, Backward]:
        inputs = self._layer_inputs(x)

        def backward(grad: Array) -> Array | None:
            for depth in reversed(range(len(self._layers))):
                (grad_weight, grad_bias), x = self._grads[depth], inputs[depth]
                np.matmul(_transposed(x), grad, out=grad_weight)
                grad_bias[...] = grad.sum(1)[:, None]
                if depth:
                    grad = _backward_through_relu(grad, self._layers[depth][0], x)
            if not input_grad:
                return None
            grad_members = grad @ _transposed(self._layers[0][0])
            return grad_members.sum(0) if inputs[0].ndim == 2 else grad_members

        return inputs[-1], backward

    def columns_vjp(self, x: Array, columns: slice) -> tuple[Array, Backward]:
        """Outputs, and the backward pass to some columns of the input alone."""
        inputs = self._layer_inputs(x)

        def backward(grad: Array) -> Array:
            for depth in reversed(range(1, len(self._layers))):
                grad = _backward_through_relu(grad, self._layers[depth][0], inputs[depth])
            grad_columns: Array = (grad @ _transposed(self._layers[0][0][:, columns])).sum(0)
            return grad_columns

        return inputs[-1], backward

    def _layer_inputs(self, x: Array) -> list[Array]:
        """The input of each layer, and last the output."""
        *hidden, last = self._layers
        inputs = [x]
        for weight, bias in hidden:
            inputs.append(relu_(_ensemble_linear(inputs[-1], weight, bias)))
        inputs.append(_ensemble_linear(inputs[-1], *last))
        return inputs


class ReshapedKernel:
    """Kernel of a network that gives its layers' outputs in another shape."""

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

    def vjp(self, x: Array, *, input_grad: bool = False) -> tuple[Array, Backward]:
        output, backward = self._layers.vjp(x, input_grad=input_grad)
        if len(self._shape) == 1:
            return output, backward
        return output.reshape(self._shape), lambda grad: backward(grad.reshape(output.shape))


class CriticsKernel:
    """Kernel of `MLPCritics`."""

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
    """Kernel of `MLPActorCritic`: policy outputs and values, and the gradient of `log_std`."""

    def __init__(self, module: MLPActorCritic, buffers: Buffers) -> None:
        self._actor = MLPKernel(module.actor, buffers)
        self._critic = MLPKernel(module.critic, buffers)
        self.log_std: Array | None = None
        if (log_std := getattr(module, "log_std", None)) is not None:
            self.log_std = view_of(buffers.values, log_std)
            self._grad_log_std = view_of(buffers.grads, log_std)

    def policy(self, obs: Array) -> Array:
        return self._actor.forward(obs)

    def value(self, obs: Array) -> Array:
        values: Array = self._critic.forward(obs).squeeze(-1)
        return values

    def vjp(self, obs: Array) -> tuple[tuple[Array, Array], Callable[[Sequence[Array]], None]]:
        """Outputs and values, and the backward pass from their gradients and that of `log_std`."""
        outputs, actor_backward = self._actor.vjp(obs)
        values, critic_backward = self._critic.vjp(obs)

        def backward(grads: Sequence[Array]) -> None:
            actor_backward(grads[0])
            critic_backward(grads[1][:, None])
            if self.log_std is not None:
                self._grad_log_std[...] = grads[2]

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
    return known and not (_shares_parameters(module) or any(map(_is_altered, module.modules())))


def _shares_parameters(module: nn.Module) -> bool:
    """Whether a parameter occurs twice: a kernel's second gradient would overwrite the first."""
    named = sum(1 for _ in module.named_parameters(remove_duplicate=False))
    return named > len(list(module.parameters()))


def _is_altered(module: nn.Module) -> bool:
    """Whether a module or one of its parameters has hooks, or the forward pass was replaced."""
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
        *(p._backward_hooks for p in module._parameters.values() if p is not None),
        *(p._post_accumulate_grad_hooks for p in module._parameters.values() if p is not None),
    )
    return any(hooks) or "forward" in vars(module)


def relu_(x: Array) -> Array:
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


def _backward_through_relu(grad: Array, weight: Array, outputs: Array) -> Array:
    """The gradient before a ReLU, from that after the linear layer which follows it."""
    # A product with a single column is one of two vectors, for which NumPy has no fast routine.
    weight = _transposed(weight)
    grad = grad * weight if grad.shape[-1] == 1 else grad @ weight
    grad *= outputs > 0
    return grad
