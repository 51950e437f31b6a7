"""Kernels of building blocks inside autograd, for losses that have no kernel.

The blocks of a network (perceptrons, dueling streams, ensembles) compute on arrays, forward and
backward; autograd differentiates the loss and whatever else the network has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.fast.networks import (
    Buffers,
    DuelingKernel,
    EnsembleKernel,
    MLPKernel,
    has_kernel,
    view_of,
)
from rl_training.models.blocks import MLP, DuelingMLP, EnsembleMLP

BLOCKS: dict[type[nn.Module], Callable[[Any, Buffers], Any]] = {
    MLP: MLPKernel,
    DuelingMLP: DuelingKernel,
    EnsembleMLP: EnsembleKernel,
}


def attach_kernels(module: nn.Module, flat: Tensor) -> None:
    """Let the blocks of a network whose parameters lie in a flat buffer compute with kernels."""
    for block in blocks_of(module, flat):
        block.forward = BlockForward(block, flat)


def blocks_of(module: nn.Module, flat: Tensor) -> Iterator[nn.Module]:
    """The outermost blocks that have a kernel, all of whose parameters lie in the flat buffer.

    Frozen parameters do not: they are not trained, and their memory is elsewhere.
    """
    if has_kernel(module, BLOCKS):
        memory = flat.untyped_storage().data_ptr()
        if all(p.untyped_storage().data_ptr() == memory for p in module.parameters()):
            yield module
        return
    for child in module.children():
        yield from blocks_of(child, flat)


class BlockForward:
    """A block's forward pass on arrays, known to autograd."""

    def __init__(self, block: nn.Module, flat: Tensor) -> None:
        self._block = block
        self.parameters = list(block.parameters())
        grads = np.zeros_like(flat.detach().numpy())
        self._grads = [view_of(grads, parameter) for parameter in self.parameters]
        self.kernel = BLOCKS[type(block)](block, Buffers(flat.detach().numpy(), grads))
        self._trained = flat.requires_grad
        self.reads_output = isinstance(block, MLP) and block.activate_last
        self._dimensions = (2, 3) if isinstance(block, EnsembleMLP) else (2,)

    def __call__(self, x: Tensor, members: Tensor | None = None) -> Tensor:
        """Outputs for inputs in host memory."""
        differentiable = torch.is_grad_enabled() and (self._trained or x.requires_grad)
        if x.dim() not in self._dimensions or (differentiable and members is not None):
            arguments = (x,) if members is None else (x, members)
            output: Tensor = type(self._block).forward(self._block, *arguments)
            return output
        if differentiable:
            return _Block.apply(x, self, *self.parameters)  # type: ignore[no-untyped-call]  # torch's
        array, subset = x.detach().numpy(), () if members is None else (members.numpy(),)
        return torch.from_numpy(self.kernel.forward(array, *subset))

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy of the network has other memory, which this kernel does not know.
        return _plain_forward, (self._block,)

    def gradients(self) -> list[Tensor]:
        """The gradients of the block's parameters, which the next backward pass overwrites."""
        return [torch.from_numpy(grad.copy()) for grad in self._grads]

    def differentiable_gradients(
        self, x: Tensor, grad: Tensor, needed: Sequence[bool]
    ) -> tuple[Tensor | None, ...]:
        """What `_Block.backward` returns, by the definition, so that it has a gradient itself."""
        output = type(self._block).forward(self._block, x)
        inputs = (x, *self.parameters)
        wanted = (needed[0], *needed[2:])  # `needed[1]` stands for the block
        found = iter(
            torch.autograd.grad(
                output,
                [tensor for tensor, needs in zip(inputs, wanted, strict=True) if needs],
                grad,
                create_graph=True,
            )
        )
        grad_input, *grad_parameters = [next(found) if needs else None for needs in wanted]
        return grad_input, None, *grad_parameters


def _plain_forward(block: nn.Module) -> MethodType:
    return MethodType(type(block).forward, block)


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, block: BlockForward, *_parameters: Tensor) -> Tensor:
        with np.errstate(all="ignore"):
            outputs, ctx.backward_pass = block.kernel.vjp(
                x.detach().numpy(), input_grad=ctx.needs_input_grad[0]
            )
        ctx.block, output = block, torch.from_numpy(outputs)
        # Autograd is to notice if what the backward pass reads is overwritten.
        ctx.save_for_backward(x, *([output] if block.reads_output else ()))
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, *_ = ctx.saved_tensors  # raises if one was overwritten
        if torch.is_grad_enabled():  # of which a penalty, say, will take the gradient again
            return ctx.block.differentiable_gradients(x, grads[0], ctx.needs_input_grad)
        with np.errstate(all="ignore"):
            # The backward pass overwrites its argument, which may be another node's.
            grad_input = ctx.backward_pass(grads[0].numpy().copy())
        if grad_input is not None:
            grad_input = torch.from_numpy(grad_input)
        return grad_input, None, *ctx.block.gradients()
