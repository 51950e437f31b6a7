"""Plays scripted actions in a vector environment and records what it answers, to the bit."""

from __future__ import annotations

import copy
import random
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

Venv = VectorEnv[Any, Any, Any]


def random_actions(venv: Venv, number: int, *, seed: int) -> list[Any]:
    """Batches of random actions; the environment's own generator is left alone."""
    space = copy.deepcopy(venv.action_space)
    space.seed(seed)
    return [space.sample() for _ in range(number)]


def play(venv: Venv, actions: Sequence[Any]) -> list[Any]:
    """Step through the actions; the record holds all that training would see."""
    disabled = venv.metadata.get("autoreset_mode") is AutoresetMode.DISABLED
    record = []
    for action in actions:
        obs, reward, terminated, truncated, info = venv.step(action)
        record.append([obs, reward, terminated, truncated, info.get("final_obs")])
        done = np.logical_or(terminated, truncated)
        if disabled and done.any():
            record.append(venv.reset(options={"reset_mask": done})[0])
        record[-1] = copy.deepcopy(record[-1])  # the environment may reuse its arrays
    return record


def play_episode(venv: Venv, actions: Sequence[Any], *, seed: int | None) -> list[Any]:
    """Reset, then play."""
    obs, _ = venv.reset(seed=seed)
    return [copy.deepcopy(obs), *play(venv, actions)]


def same(left: Any, right: Any) -> bool:
    """Whether two records are equal to the bit, NaN included."""
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray) and left.dtype != object:
        if left.dtype != right.dtype or left.shape != right.shape:
            return False
        return left.tobytes() == right.tobytes()
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple, np.ndarray)) and isinstance(right, type(left)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def close(venv: Venv) -> None:
    """Close the environment, whatever state it is in."""
    try:
        venv.close()
    except Exception:
        # A worker is gone; Gymnasium's own close would wait for it again when it is collected.
        venv.unwrapped.closed = True
        for process in getattr(venv.unwrapped, "processes", ()):
            process.kill()
            process.join()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Put the global generators back at the end, and keep warnings for the real environments."""
    before = random.getstate(), np.random.get_state(), _torch_state()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        if before[2] is not None:
            sys.modules["torch"].set_rng_state(before[2])


def global_generators() -> list[Any]:
    """The state of Python's, NumPy's and torch's global generators, to compare."""
    torch_state = _torch_state()
    numpy_state = np.random.get_state(legacy=False)
    return [random.getstate(), numpy_state, None if torch_state is None else torch_state.numpy()]


def _torch_state() -> Any:
    # Not imported here: as long as nobody has, nobody can have drawn from it.
    torch = sys.modules.get("torch")
    return None if torch is None else torch.get_rng_state()
