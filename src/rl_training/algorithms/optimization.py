"""Parameters in one flat buffer, their optimiser, and target networks that follow them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Loss
from rl_training.config.value_based import OptimizerName
from rl_training.data.types import Clock
from rl_training.errors import ConfigError, DivergenceError, UsageError
from rl_training.storage.state import Stateful

RMSPROP_DECAY = 0.95


def flatten(module: nn.Module, *, gradients: bool) -> nn.Parameter:
    """Make all trainable parameters of `module` views into one buffer, and return the buffer.

    One fused optimiser call, one norm and one copy then serve the whole network. With `gradients`
    the gradients live in a second such buffer.
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    if kinds := sorted({str(p.dtype) for p in parameters} - {"torch.float32", "torch.float64"}):
        raise ConfigError(f"network: expected parameters of float32 or float64, found {kinds[0]}")
    if len({p.dtype for p in parameters}) > 1:
        raise ConfigError("network: expected parameters of one type, found float32 and float64")
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


class Optimizer(Stateful):
    """Adam, or centred RMSprop, over a network's flat parameters, with gradient-norm clipping.

    Works on tensors, not through `torch.optim`'s classes: their first step imports the compiler,
    which takes seconds, and each later one costs more than the arithmetic of a small network.
    """

    state_fields = ("_mean", "_square", "_steps")
    acts = False

    def __init__(
        self,
        module: nn.Module,
        *,
        name: OptimizerName = "adam",
        eps: float = 1e-8,
        max_grad_norm: float | None = None,
    ) -> None:
        self.module = module
        self.flat = flatten(module, gradients=True)
        # Loss function -> kernel, filled by `fast.accelerate`, empty otherwise.
        self.kernels: dict[Callable[..., Any], Callable[..., Loss]] = {}
        self.leaves: list[Tensor] = [p for p in module.parameters() if p.requires_grad]
        self._flat_views = [(p, p.detach(), p.grad) for p in self.leaves]
        # True: a kernel has written the flat gradient itself; there is nothing to sync.
        self._grad_from_kernel = False
        self.eps = eps
        self.max_grad_norm = max_grad_norm
        self._apply = self._adam if name == "adam" else self._rmsprop
        self._values = self.flat.detach()
        assert self.flat.grad is not None
        self._grad = self.flat.grad
        self._host_grad = self._grad.numpy() if self._grad.device.type == "cpu" else None
        self._mean, self._square = torch.zeros_like(self._values), torch.zeros_like(self._values)
        self._steps = torch.zeros((), device=self._values.device)
        self._host_steps = self._steps.numpy() if self._host_grad is not None else None

    def descend(
        self, loss: Callable[..., Loss | Tensor], *inputs: object, learning_rate: float
    ) -> Loss:
        """One gradient-descent step on `loss(*inputs)`.

        Takes the function, not its value, so that a kernel can stand in for it (`differentiate`).
        """
        result = self.differentiate(loss, *inputs)
        self.step(learning_rate, result)
        return result

    def differentiate(self, loss: Callable[..., Loss | Tensor], *inputs: object) -> Loss:
        """Leave the gradient of `loss(*inputs)` in the parameters' `grad`.

        If `fast.accelerate` registered a hand-written gradient for this loss (a kernel, see
        docs/architecture.md), that runs instead of autograd.
        """
        kernel = self.kernels.get(getattr(loss, "__func__", loss))
        self._grad_from_kernel = kernel is not None
        if kernel is not None:
            return kernel(*inputs)
        result = Loss.of(loss(*inputs), getattr(loss, "__name__", "loss"))
        self.zero_grad()
        backward(result, self.leaves)
        return result

    def zero_grad(self) -> None:
        """Zero the flat gradient, and rebind every parameter's `grad` to it."""
        for parameter, _, grad in self._flat_views:
            if parameter.grad is not grad:
                parameter.grad = grad
        self._grad.zero_()

    def step(self, learning_rate: float, loss: Loss | None = None) -> None:
        """Clip the gradient norm, then apply Adam or RMSprop.

        On a CPU a gradient that is not finite raises DivergenceError before it reaches a weight;
        the `loss` it comes from is named if that is the origin. A GPU would have to be waited for.
        """
        if not self._grad_from_kernel:
            self._sync_flat_buffers()
        self._grad_from_kernel = False
        if (grad := self._host_grad) is not None:
            square = grad.dot(grad)
            if not square < math.inf:
                self._refuse_non_finite(loss)
            if self.max_grad_norm is not None and (norm := math.sqrt(square)) > self.max_grad_norm:
                grad *= self.max_grad_norm / (norm + 1e-6)
        elif self.max_grad_norm is not None:  # without waiting for the device
            length = torch.linalg.vector_norm(self._grad)
            self._grad.mul_((self.max_grad_norm / (length + 1e-6)).clamp(max=1.0))
        self._apply(self._grad, learning_rate)

    def _sync_flat_buffers(self) -> None:
        """Copy gradients or values that outside code put elsewhere back into the flat buffers.

        `module.zero_grad()` and `p.data = ...` rebind a parameter's memory.
        """
        for parameter, values, grad in self._flat_views:
            if parameter.grad is not grad:
                assert grad is not None
                grad.copy_(torch.zeros(()) if parameter.grad is None else parameter.grad)
                parameter.grad = grad
            if parameter.data_ptr() != values.data_ptr():
                values.copy_(parameter.detach())
                parameter.data = values

    def _refuse_non_finite(self, loss: Loss | None) -> None:
        """Raise, naming what became non-finite first; return if only the norm overflowed."""
        named = dict(self.module.named_parameters())
        origins = (
            [(f"weight {name}", parameter) for name, parameter in named.items()],
            [(f"training metric {name!r}", value) for name, value in loss.metrics.items()]
            if loss is not None
            else [],
            [(f"gradient of {name}", p.grad) for name, p in named.items() if p.grad is not None],
        )
        for what, values in (pair for pairs in origins for pair in pairs):
            if not bool(torch.isfinite(torch.as_tensor(values)).all()):
                raise DivergenceError(what)

    def _adam(self, grad: Tensor, learning_rate: float) -> None:
        if self._host_steps is not None:  # an addition by NumPy, which takes a third of the time
            self._host_steps += 1
        else:
            self._steps += 1
        fused_adam(
            self._values, grad, self._mean, self._square, self._steps, learning_rate, self.eps
        )

    def _rmsprop(self, grad: Tensor, learning_rate: float) -> None:
        """Centred, with the decay of Mnih et al. (2015)."""
        self._mean.lerp_(grad, 1 - RMSPROP_DECAY)
        self._square.mul_(RMSPROP_DECAY).addcmul_(grad, grad, value=1 - RMSPROP_DECAY)
        spread = (self._square - self._mean**2).clamp_(min=0.0).sqrt_().add_(self.eps)
        self._values.addcdiv_(grad, spread, value=-learning_rate)


def descend_together(
    optimizers: Sequence[Optimizer],
    loss: Callable[..., Loss | Tensor],
    *inputs: object,
    learning_rate: float,
) -> Loss:
    """One step of several networks against the gradient of one loss."""
    result = Loss.of(loss(*inputs), getattr(loss, "__name__", "loss"))
    for optimizer in optimizers:
        optimizer.zero_grad()
    backward(result, [leaf for optimizer in optimizers for leaf in optimizer.leaves])
    for optimizer in optimizers:
        optimizer.step(learning_rate, result)
    return result


def backward(loss: Loss, leaves: Sequence[Tensor]) -> None:
    """Add the gradient of a loss to the leaves' `grad`, except to those frozen meanwhile.

    To the leaves alone: an actor's loss goes through the critics and must not train them.
    """
    if loss.value.ndim:
        raise UsageError(f"expected a scalar loss, found the shape {tuple(loss.value.shape)}")
    torch.autograd.backward(loss.value, inputs=[leaf for leaf in leaves if leaf.requires_grad])


def fused_adam(
    values: Tensor,
    grad: Tensor,
    mean: Tensor,
    square: Tensor,
    steps: Tensor,
    learning_rate: float,
    eps: float,
) -> None:
    """Adam's step number `steps` (Kingma & Ba, 2015), in place, with decays 0.9 and 0.999.

    By the private call behind `torch.optim.Adam(fused=True)` where this torch has it.
    """
    kernel = getattr(torch, "_fused_adam_", None)
    if kernel is None:
        adam(values, grad, mean, square, steps, learning_rate, eps)
        return
    kernel(
        [values],
        [grad],
        [mean],
        [square],
        [],
        [steps],
        lr=learning_rate,
        beta1=0.9,
        beta2=0.999,
        weight_decay=0.0,
        eps=eps,
        amsgrad=False,
        maximize=False,
    )


def adam(
    values: Tensor,
    grad: Tensor,
    mean: Tensor,
    square: Tensor,
    steps: Tensor,
    learning_rate: float,
    eps: float,
) -> None:
    """The same step written out."""
    mean.lerp_(grad, 0.1)
    square.mul_(0.999).addcmul_(grad, grad, value=0.001)
    scale = (1 - 0.999**steps).sqrt()
    values.sub_(learning_rate / (1 - 0.9**steps) * mean / (square.sqrt() / scale + eps))


class TargetNetwork(Stateful):
    """A frozen copy of a network, updated hard or softly.

    With an `interval`, the first update after each multiple of it (in environment transitions)
    copies the network; without one, every update is a Polyak step of size `tau`. `source` is the
    online network's optimiser, whose flat buffer makes either one operation.
    """

    state_fields: ClassVar[tuple[str, ...]] = ("module", "intervals_passed")
    acts: ClassVar[bool] = False
    state_counts: ClassVar[tuple[str, ...]] = ("intervals_passed",)

    def __init__(self, source: Optimizer, *, tau: float, interval: int | None = None) -> None:
        self.module: Any = copy.deepcopy(source.module).eval()
        self.tau = tau
        self.interval = interval
        self.flat = flatten(self.module, gradients=False)
        self._values = self.flat.detach()
        self.module.requires_grad_(False)
        self._source_values = source.flat.detach()
        self._source_buffers = list(source.module.buffers())
        self.intervals_passed = 0

    @torch.no_grad()
    def __call__(self, *inputs: Tensor) -> Tensor:
        """The copy's output, without a gradient."""
        output: Tensor = self.module(*inputs)
        return output

    @torch.no_grad()
    def copy_source(self) -> None:
        """Copy the current weights of the source."""
        self._values.copy_(self._source_values)
        for buffer, source in zip(self.module.buffers(), self._source_buffers, strict=True):
            buffer.copy_(source)

    def update(self, clock: Clock) -> None:
        """Make the hard or soft update if it is due."""
        if self.interval is None:
            self._values.lerp_(self._source_values, self.tau)
        elif clock.env_steps // self.interval > self.intervals_passed:
            self._values.copy_(self._source_values)
            self.intervals_passed = clock.env_steps // self.interval
        else:
            return
        # Buffers (running statistics) are copied, never averaged. So is the noise of noisy layers,
        # which is never used: the next update draws new noise for both networks first.
        for buffer, source in zip(self.module.buffers(), self._source_buffers, strict=True):
            buffer.copy_(source)


class AveragedNetwork(TargetNetwork):
    """A running average of a network's weights over its updates (Polyak & Juditsky, 1992).

    The mean of all of them during the first 1 / (1 - decay) updates, so that the initial weights
    do not linger, and exponential from then on.
    """

    state_fields: ClassVar[tuple[str, ...]] = ("updates",)
    acts: ClassVar[bool] = True
    state_counts: ClassVar[tuple[str, ...]] = ("updates",)

    def __init__(self, source: Optimizer, *, decay: float) -> None:
        super().__init__(source, tau=1 - decay)
        self.decay = decay
        self.updates = 0

    def update(self, clock: Clock) -> None:
        """Move the average towards the weights."""
        self.updates += 1
        self.tau = max(1 - self.decay, 1 / self.updates)
        super().update(clock)
