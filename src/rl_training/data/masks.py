"""Action masks in storage: one bit for each choice.

Set bits are the *illegal* choices, so that memory nobody has written, such as padding and the
older images of a stack, reads as "all legal".
"""

from __future__ import annotations

import numpy as np

from rl_training.data.types import EnvSpec
from rl_training.errors import CheckpointError


def packed(legal: np.ndarray | None, envs: slice | np.ndarray) -> np.ndarray:
    """The masks [N, A] of some environments of a vector step, as bytes [..., ceil(A / 8)]."""
    assert legal is not None, "a step without the masks that the spec of its environment announces"
    return np.packbits(~legal[envs], axis=-1)


def unpacked(stored: np.ndarray, choices: int) -> np.ndarray:
    """Masks [..., A] from their bytes."""
    legal: np.ndarray = np.unpackbits(stored, axis=-1, count=choices) == 0
    return legal


def some_legal(spec: EnvSpec, legal: np.ndarray) -> np.ndarray:
    """Whether masks [..., A] allow an action: a legal choice in each of its parts."""
    if spec.action_kind == "discrete":
        return np.asarray(legal.any(-1))
    starts = np.cumsum((0, *spec.action_sizes[:-1]))
    return np.asarray(np.logical_or.reduceat(legal, starts, axis=-1).all(-1))


def check_stored(spec: EnvSpec, stored: np.ndarray) -> None:
    """Refuse masks of a checkpoint that allow no action: nothing could be learned from them."""
    if not some_legal(spec, unpacked(stored, spec.policy_outputs)).all():
        raise CheckpointError("illegal: expected masks that allow an action, found one without")
