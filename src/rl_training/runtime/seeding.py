"""Seeds derived by name, so that no two parts of a run share a stream; global generators."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from rl_training.errors import CheckpointError
from rl_training.storage.checks import saved_value
from rl_training.storage.generators import generator_state, set_generator_state

# The objects behind the functions of the two modules.
_PYTHON: random.Random = random.random.__self__  # type: ignore[attr-defined]  # a bound method
_NUMPY: np.random.RandomState = np.random.get_state.__self__  # type: ignore[attr-defined]


def derive_seed(seed: int, *names: str | int) -> int:
    """A seed below 2**31 for one named purpose; a pure function of its arguments."""
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def env_seeds(seed: int, num_envs: int, *names: str | int) -> list[int]:
    """One seed per environment."""
    return [derive_seed(seed, "env", *names, index) for index in range(num_envs)]


def seed_global_generators(seed: int) -> None:
    """Seed the generators that are not ours, for environments and networks that draw from them."""
    random.seed(derive_seed(seed, "python"))
    np.random.seed(derive_seed(seed, "numpy"))
    torch.manual_seed(derive_seed(seed, "torch"))


@contextmanager
def global_generators_seeded(seed: int) -> Iterator[None]:
    """Seed the generators that are not ours for what is built inside; put them back afterwards."""
    before = global_generator_state()
    seed_global_generators(seed)
    try:
        yield
    finally:
        restore_global_generators(before)


def global_generator_state() -> dict[str, Any]:
    """The state of Python's, NumPy's and torch's global generators."""
    return {
        "python": generator_state(_PYTHON),
        "numpy": generator_state(_NUMPY),
        "torch": torch.get_rng_state(),
        # Looking at a device that was never used would start it up.
        "cuda": torch.cuda.get_rng_state_all() if _cuda_in_use() else [],
    }


def _cuda_in_use() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def restore_global_generators(state: dict[str, Any]) -> None:
    """Restore the global generators; the last step of a resume, since the others may draw."""
    set_generator_state(_PYTHON, saved_value(state, "python"))
    set_generator_state(_NUMPY, saved_value(state, "numpy"))
    try:
        torch.set_rng_state(saved_value(state, "torch"))
        devices = list(saved_value(state, "cuda"))
        for device in range(min(len(devices), torch.cuda.device_count())):
            torch.cuda.set_rng_state(devices[device], device)
    except (TypeError, RuntimeError, AttributeError) as error:
        raise CheckpointError(f"the state of torch's generators is malformed: {error}") from error
