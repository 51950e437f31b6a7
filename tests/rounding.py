"""What rounding may do to a number, whichever processor computes it.

Processors add up in different orders, with or without fused multiply-adds, and the last bits of
their exponentials differ. A tolerance that holds on all of them comes from the arithmetic, not from
what one of them gave. Where a test compares two ways of computing, it is best not to need one: a
product of powers of two is exact, and double precision is far from where its tolerance is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch

from rl_training.data.types import EnvSpec

EPS = float(np.finfo(np.float32).eps)
Rows = TypeVar("Rows")


def rounding(terms: float, size: float = 1.0) -> float:
    """How far apart two sums of the same `terms` numbers can be in single precision.

    `size` is what the sizes of the terms add up to. In whatever order, each of n operations is
    rounded by at most EPS / 2 of a partial sum, which is at most `size`: one sum is within
    n * EPS / 2 * size of the true one (Higham, Accuracy and Stability, 4.2), two are within twice
    that of each other. A product, a quotient or a function's last bit counts as one more term.
    """
    return terms * EPS * size


@contextmanager
def double_precision() -> Iterator[None]:
    """Networks and tensors are made in double precision; also a decorator of tests.

    Rounding is then some 1e-16 of what is added up, and the 1e-7 that `assert_close` asks for is
    400 million times as much: more than any order of adding up, any network here and a division by
    Adam's 1e-8 can make of it. A wrong formula differs as it does in single precision.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def precise_spec(spec: EnvSpec) -> EnvSpec:
    """An environment whose observations have the precision that tensors are made in."""
    return replace(spec, obs_dtype=str(torch.get_default_dtype()).removeprefix("torch."))


def precise(x: Rows) -> Rows:
    """Tensors and arrays of numbers, also within records, in the precision tensors are made in."""
    if isinstance(x, tuple):
        parts = map(precise, x)
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    if isinstance(x, torch.Tensor) and x.is_floating_point():
        return x.to(torch.get_default_dtype())
    if isinstance(x, np.ndarray) and x.dtype.kind == "f":
        return precise(torch.from_numpy(x)).numpy()
    return x
