"""Mathematics on NumPy arrays and torch tensors alike.

On a CPU a call into NumPy costs a third of a call into torch, and small networks spend their time
on calls. So what is computed at every step is written once, with functions and operators that both
have, and runs on arrays where the memory is the host's and on tensors everywhere else. The modules
are used under the name `xp`, as in SciPy.
"""

from __future__ import annotations

from functools import lru_cache
from operator import is_
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch

Array: TypeAlias = Any
"""A NumPy array or a torch tensor."""

Rows = TypeVar("Rows", bound=NamedTuple)


def namespace(x: Array) -> Any:
    """The module that `x` belongs to: numpy or torch."""
    return np if isinstance(x, np.ndarray) else torch


class HostView:
    """Records with their tensors, which are the host's, seen as arrays.

    Replay gives the same tensors with other contents each time, so the last view is kept.
    """

    def __init__(self) -> None:
        self._seen: tuple[Any, ...] = ()
        self._arrays: list[Any] = []

    def of(self, rows: Rows) -> Rows:
        """The record with arrays in place of tensors."""
        if len(rows) != len(self._seen) or not all(map(is_, rows, self._seen)):
            self._seen = rows
            self._arrays = [x.numpy() if isinstance(x, torch.Tensor) else x for x in rows]
        return type(rows)(*self._arrays)


@lru_cache(maxsize=64)
def _numbers(count: int) -> np.ndarray:
    return np.arange(count)


@lru_cache(maxsize=64)
def _averaging(count: int) -> np.ndarray:
    return np.full(count, 1 / count, np.float32)


def rows_of(x: Array) -> Array:
    """The numbers of the rows of `x`, to pick one entry of each: `x[rows_of(x), index]`."""
    if isinstance(x, np.ndarray):
        return _numbers(len(x))
    return torch.arange(len(x), device=x.device)


def row_max(x: Array) -> Array:
    """The largest entry of each row: [B, A] gives [B]."""
    if isinstance(x, np.ndarray):
        return np.maximum.reduce(x.T.copy(), 0)  # NumPy is slow along a short last axis
    return x.amax(1)


def add_up(x: Array, *, out: Array) -> None:
    """The sum of the rows, into `out`."""
    if isinstance(x, np.ndarray):
        np.add.reduce(x, 0, None, out)
    else:
        torch.sum(x, 0, out=out)


def sums_by_index(index: Array, values: Array, size: int) -> Array:
    """The sum of the values at each index below `size`; index and values are vectors."""
    if isinstance(values, np.ndarray):
        return np.bincount(index, values, size).astype(np.float32)
    return values.new_zeros(size).index_add_(0, index, values)


def as_index(x: Array) -> Array:
    """As whole numbers, rounded towards zero."""
    return x.long() if isinstance(x, torch.Tensor) else x.astype(np.int64)


def means(*vectors: Array) -> Array:
    """The mean of each vector, as one vector."""
    if isinstance(vectors[0], torch.Tensor):
        return torch.stack(vectors).mean(1)
    return np.array(vectors) @ _averaging(len(vectors[0]))


def as_float(x: Array) -> Array:
    """As float32: 1 for true, 0 for false."""
    return x.float() if isinstance(x, torch.Tensor) else x.astype(np.float32)


def like(tensor: torch.Tensor, x: Array) -> Array:
    """The numbers of a tensor without a gradient, as an array if `x` is one."""
    return on_host(tensor) if isinstance(x, np.ndarray) else tensor.detach()


def on_host(x: Array) -> np.ndarray:
    """As an array, wherever it is."""
    return x.detach().cpu().numpy() if isinstance(x, torch.Tensor) else x


def contiguous(x: Array) -> Array:
    """With its last axis in consecutive memory."""
    return x.contiguous() if isinstance(x, torch.Tensor) else x.copy()


def constant(x: Array) -> Array:
    """The same numbers, without a gradient."""
    return x.detach() if isinstance(x, torch.Tensor) else x


def softmax(x: Array) -> Array:
    """Probabilities over the last axis."""
    if isinstance(x, torch.Tensor):
        return x.softmax(-1)
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def log_softmax(x: Array) -> Array:
    """Logarithm of the softmax over the last axis."""
    if isinstance(x, torch.Tensor):
        return x.log_softmax(-1)
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
