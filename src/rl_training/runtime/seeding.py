"""Seeds by name, so that no two parts of a run share a stream, and the global generators' state."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import torch


def derive_seed(seed: int, *names: str | int) -> int:
    """A seed for one named purpose, below 2**31; a pure function of its arguments."""
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


def global_generator_state() -> dict[str, Any]:
    """The state of Python's, NumPy's and torch's global generators."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "python": {"version": version, "words": list(words), "gauss": gauss},
        "numpy": {
            "kind": kind,
            "keys": np.asarray(keys),
            "position": position,
            "has_gauss": has_gauss,
            "cached": cached,
        },
        "torch": torch.get_rng_state(),
        # Looking at a device that was never used would start it up.
        "cuda": torch.cuda.get_rng_state_all() if _cuda_in_use() else [],
    }


def _cuda_in_use() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def restore_global_generators(state: dict[str, Any]) -> None:
    """Put the global generators back; the last thing a resume does."""
    python, legacy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"]), python["gauss"]))
    np.random.set_state(
        (legacy["kind"], legacy["keys"], legacy["position"], legacy["has_gauss"], legacy["cached"])
    )
    torch.set_rng_state(state["torch"])
    for device in range(min(len(state["cuda"]), torch.cuda.device_count())):
        torch.cuda.set_rng_state(state["cuda"][device], device)
