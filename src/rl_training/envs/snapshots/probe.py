"""Replays scripted actions in an environment and records every answer, to compare them bitwise.

Not by `runtime.episodes`: there is no policy, nothing is encoded, and what an environment or a
vector environment does at the end of an episode is part of the record.
"""

from __future__ import annotations

import copy
import random
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

Env = gym.Env[Any, Any]
Venv = VectorEnv[Any, Any, Any]

_STINT_STEPS = 1_200
_STINT_SECONDS = 0.5
_MAX_KEPT = 4096  # bytes of an array; whole episodes of images would fill the memory


def random_actions(env: Env | Venv, number: int, *, seed: int) -> list[Any]:
    """Random actions, or batches of them for a vector environment."""
    return list(islice(endless_actions(env, seed=seed), number))


def endless_actions(env: Env | Venv, *, seed: int) -> Iterator[Any]:
    """Random actions that depend on the seed alone, and as many as are asked for."""
    space = copy.deepcopy(env.action_space)  # the environment's generator is left alone
    space.seed(seed)
    while True:
        yield space.sample()


class Stint(NamedTuple):
    """The actions of a stretch, all that training would see of it, and how many episodes ended."""

    actions: list[Any]
    record: list[Any]
    ends: int

    def length(self) -> str:
        """In words."""
        return f"{len(self.actions)} steps with {ends_of_episodes(self.ends)}"


def ends_of_episodes(number: int) -> str:
    """So many ends, in words."""
    return f"{number or 'no'} end{'s' * (number != 1)} of episodes"


def play(env: Env | Venv, actions: Iterable[Any]) -> list[Any]:
    """Step through the actions; the record holds all that training would see."""
    return [part for action in actions for part in _step(env, action)[0]]


def play_on(env: Env | Venv, actions: Iterator[Any], *, beyond: int) -> Stint:
    """Play until an episode has ended in each environment and `beyond` more steps are made.

    It stops after 1,200 steps or half a second, whatever has ended by then, but not before
    `beyond` steps.
    """
    give_up = time.monotonic() + _STINT_SECONDS
    played: list[Any] = []
    record: list[Any] = []
    ends, left = np.zeros(1, np.int64), beyond
    while left and len(played) < _STINT_STEPS:
        if len(played) >= beyond and time.monotonic() > give_up:
            break
        played.append(next(actions))
        answers, ended = _step(env, played[-1])
        record += answers
        ends = ends + np.atleast_1d(ended)
        left -= bool(np.all(ends))
    return Stint(played, record, int(ends.sum()))


def _step(env: Env | Venv, action: Any) -> tuple[list[Any], Any]:
    vector = isinstance(env, VectorEnv)
    resets_itself = vector and env.metadata.get("autoreset_mode") is not AutoresetMode.DISABLED
    obs, reward, terminated, truncated, info = env.step(action)
    # As an array, a reward that is NaN equals itself.
    answer = [obs, np.asarray(reward), terminated, truncated]
    if vector:
        answer.append(info.get("final_obs"))
    answers, ended = [kept(answer)], np.logical_or(terminated, truncated)
    if not resets_itself and np.any(ended):
        mask = {"reset_mask": ended} if vector else None
        answers.append(kept(env.reset(options=mask)[0]))
    return answers, ended


def kept(answer: Any) -> Any:
    """A copy, as the environment may reuse its arrays; of a large array, a digest."""
    if isinstance(answer, np.ndarray) and answer.nbytes > _MAX_KEPT and answer.dtype != object:
        return [answer.shape, answer.dtype.str, blake2b(answer.tobytes()).digest()]
    if isinstance(answer, (list, tuple)):
        return [kept(part) for part in answer]
    if isinstance(answer, dict):
        return {key: kept(part) for key, part in answer.items()}
    return copy.deepcopy(answer)


def play_episode(env: Env | Venv, actions: Iterable[Any], *, seed: int | None) -> list[Any]:
    """Reset, then play."""
    obs, _ = env.reset(seed=seed)
    return [kept(obs), *play(env, actions)]


def same(left: object, right: object) -> bool:
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
    except KeyboardInterrupt:
        raise
    except BaseException:
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
