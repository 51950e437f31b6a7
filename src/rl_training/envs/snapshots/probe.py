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

from rl_training.envs.masks import KEY, legal_action

Env = gym.Env[Any, Any]
Venv = VectorEnv[Any, Any, Any]

_PLAYBACK_STEPS = 1_200
_PLAYBACK_SECONDS = 0.5
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


class Playback(NamedTuple):
    """The actions played, all that training would see of them, and how many episodes ended.

    `info` belongs to the observation at its end.
    """

    actions: list[Any]
    record: list[Any]
    ends: int
    info: dict[str, Any]

    def length(self) -> str:
        """In words."""
        return f"{len(self.actions)} steps with {ends_of_episodes(self.ends)}"


def ends_of_episodes(number: int) -> str:
    """The number of ends, in words."""
    return f"{number or 'no'} end{'s' * (number != 1)} of episodes"


def play(env: Env | Venv, actions: Iterable[Any], info: dict[str, Any] | None = None) -> list[Any]:
    """Step through the actions; the record holds all that training would see.

    `info` belongs to the observation they begin from. Illegal actions are replaced by legal ones.
    """
    record, info = [], info or {}
    for action in actions:
        answers, _, info = _step(env, _legal(env, action, info))
        record += answers
    return record


def play_past_episode_end(
    env: Env | Venv, actions: Iterator[Any], *, beyond: int, info: dict[str, Any]
) -> Playback:
    """Play until an episode has ended in each environment and `beyond` more steps are made.

    It stops after 1,200 steps or half a second, whatever has ended by then, but not before
    `beyond` steps. `info` belongs to the observation it begins from.
    """
    deadline = time.monotonic() + _PLAYBACK_SECONDS
    played: list[Any] = []
    record: list[Any] = []
    ends, left = np.zeros(1, np.int64), beyond
    while left and len(played) < _PLAYBACK_STEPS:
        if len(played) >= beyond and time.monotonic() > deadline:
            break
        played.append(_legal(env, next(actions), info))
        answers, ended, info = _step(env, played[-1])
        record += answers
        ends = ends + np.atleast_1d(ended)
        left -= bool(np.all(ends))
    return Playback(played, record, int(ends.sum()), info)


def _legal(env: Env | Venv, action: object, info: dict[str, Any]) -> Any:
    if KEY not in info:
        return action
    if not isinstance(env, VectorEnv):
        return legal_action(env.action_space, action, info)
    space, actions = env.single_action_space, np.asarray(action)
    pairs = zip(actions, info[KEY], strict=False)
    return np.array([legal_action(space, one, {KEY: mask}) for one, mask in pairs], actions.dtype)


def _step(env: Env | Venv, action: object) -> tuple[list[Any], Any, dict[str, Any]]:
    vector = isinstance(env, VectorEnv)
    resets_itself = vector and env.metadata.get("autoreset_mode") is not AutoresetMode.DISABLED
    obs, reward, terminated, truncated, info = env.step(action)
    # As an array, a reward that is NaN equals itself.
    answer = [obs, np.asarray(reward), terminated, truncated]
    if vector:
        answer.append(info.get("final_obs"))
    answers, ended = [copy_or_digest(answer)], np.logical_or(terminated, truncated)
    if not resets_itself and np.any(ended):
        mask = {"reset_mask": ended} if vector else None
        obs, info_of_reset = env.reset(options=mask)
        answers.append(copy_or_digest(obs))
        if vector and KEY in info_of_reset:  # the others' masks are those of the step
            info[KEY][ended] = info_of_reset[KEY][ended]
        elif not vector:
            info = info_of_reset
    return answers, ended, info


def copy_or_digest(answer: object) -> Any:
    """A copy, as the environment may reuse its arrays; of a large array, a digest."""
    if isinstance(answer, np.ndarray) and answer.nbytes > _MAX_KEPT and answer.dtype != object:
        return [answer.shape, answer.dtype.str, blake2b(answer.tobytes()).digest()]
    if isinstance(answer, (list, tuple)):
        return [copy_or_digest(part) for part in answer]
    if isinstance(answer, dict):
        return {key: copy_or_digest(part) for key, part in answer.items()}
    return copy.deepcopy(answer)


def play_episode(env: Env | Venv, actions: Iterable[Any], *, seed: int | None) -> list[Any]:
    """Reset, then play."""
    obs, info = env.reset(seed=seed)
    return [copy_or_digest(obs), *play(env, actions, info)]


def bitwise_equal(left: object, right: object) -> bool:
    """Whether two records are equal to the bit, NaN included."""
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray) and left.dtype != object:
        if left.dtype != right.dtype or left.shape != right.shape:
            return False
        return left.tobytes() == right.tobytes()
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(
            bitwise_equal(left[key], right[key]) for key in left
        )
    if isinstance(left, (list, tuple, np.ndarray)) and isinstance(right, type(left)):
        return len(left) == len(right) and all(map(bitwise_equal, left, right))
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
