"""A random play in one environment, in which every answer is checked against what it should be."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from gymnasium import spaces

from rl_training.envs.factory import Env

Mark: TypeAlias = Literal["ok", "note", "warning", "error"]
Kept: TypeAlias = list[tuple[np.ndarray, np.ndarray]]

SEED = 1
MOST_STEPS = 10_000
LARGE_OBSERVATION = 100.0
_FINE = {
    "api": "reset and step return what Gymnasium asks for",
    "spaces": "observations have the structure and shape of their space",
    "dtypes": "observations have the dtype of their space",
    "ranges": "no observation was outside the bounds of its space",
    "finite": "no NaN or infinity was met",
    "aliasing": "every observation is an array of its own",
}


class Finding(NamedTuple):
    """One line of a report."""

    mark: Mark
    topic: str
    text: str


class Episode(NamedTuple):
    """How long an episode of the play was, and the flags it ended with."""

    length: int
    terminated: bool
    truncated: bool


class EnvBroken(Exception):
    """The environment cannot be played on with."""


@dataclass(kw_only=True)
class Play:
    """What was seen in a random play; `troubles` holds the first of each sort."""

    steps: int = 0
    step_seconds: float = 0.0
    reset_seconds: list[float] = field(default_factory=list)
    episodes: list[Episode] = field(default_factory=list)
    largest: float = 0.0
    troubles: dict[tuple[str, str], Finding] = field(default_factory=dict)
    broken: bool = False

    @property
    def steps_per_second(self) -> float:
        """Speed of the environment alone."""
        return self.steps / self.step_seconds if self.step_seconds else 0.0

    def note(self, mark: Mark, topic: str, text: str, where: str = "") -> None:
        """Keep the first trouble of its topic and place."""
        when = f" (first seen at step {self.steps})" if self.steps else " (in the first reset)"
        self.troubles.setdefault((topic, where), Finding(mark, topic, f"{where}{text}{when}"))


def random_play(
    env: Env, *, seconds: float, most_steps: int = MOST_STEPS, seed: int = SEED
) -> Play:
    """Random actions until the time is up, at least two; what comes back is checked each time."""
    play = Play()
    try:
        for name in ("observation_space", "action_space"):
            if not isinstance(getattr(env, name, None), spaces.Space):
                raise EnvBroken(f"expected a gymnasium.Space as {name}, found none")
        _play(env, play, deadline=time.perf_counter() + seconds, most_steps=most_steps, seed=seed)
    except EnvBroken as error:
        play.broken = True
        play.note("error", "api", str(error))
    return play


def _play(env: Env, play: Play, *, deadline: float, most_steps: int, seed: int) -> None:
    actions = random_actions(env, seed)
    kept = _see(play, env, _reset(env, play, seed), [])
    length = 0
    while play.steps < most_steps and (play.steps < 2 or time.perf_counter() < deadline):
        obs, terminated, truncated = _step(env, play, next(actions))
        length += 1
        kept = _see(play, env, obs, kept)
        if terminated or truncated:
            play.episodes.append(Episode(length, terminated, truncated))
            kept, length = _see(play, env, _reset(env, play, None), kept), 0


def _reset(env: Env, play: Play, seed: int | None) -> Any:
    # Both arguments, as a vector environment passes them in training.
    result, seconds = _timed("reset", partial(env.reset, seed=seed, options=None))
    play.reset_seconds.append(seconds)
    if not isinstance(result, tuple) or len(result) != 2:
        raise EnvBroken(f"expected (observation, info) from reset, found {_kind(result)}")
    if not isinstance(result[1], dict):
        play.note("error", "api", f" of reset: expected a dict, found {_kind(result[1])}", "info")
    return result[0]


def _step(env: Env, play: Play, action: Any) -> tuple[Any, bool, bool]:
    play.steps += 1
    result, seconds = _timed("step", partial(env.step, action))
    play.step_seconds += seconds
    if not isinstance(result, tuple) or len(result) != 5:
        raise EnvBroken(
            "expected (observation, reward, terminated, truncated, info) from step, found "
            f"{_kind(result)}"
        )
    obs, reward, terminated, truncated, info = result
    if not isinstance(reward, (int, float, np.generic, np.ndarray)) or np.ndim(reward) != 0:
        play.note("error", "api", f": expected a number, found {_kind(reward)}", "reward")
    elif not np.isfinite(reward):
        play.note("error", "finite", f" is {reward}; training would stop here", "reward")
    for name, flag in {"terminated": terminated, "truncated": truncated}.items():
        if not isinstance(flag, (bool, np.bool_)):
            mark: Mark = "warning" if isinstance(flag, (int, np.integer)) else "error"
            play.note(mark, "api", f": expected a bool, found {_kind(flag)}", name)
    if not isinstance(info, dict):
        play.note("error", "api", f" of step: expected a dict, found {_kind(info)}", "info")
    return obs, bool(np.any(terminated)), bool(np.any(truncated))


def _timed(name: str, call: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    try:
        result = call()
    except Exception as error:
        hint = ""
        if name == "reset" and isinstance(error, TypeError):
            hint = "; it must take the arguments seed=None and options=None"
        raise EnvBroken(f"{name} raised {type(error).__name__}: {error}{hint}") from error
    return result, time.perf_counter() - started


def _see(play: Play, env: Env, obs: Any, before: Kept) -> Kept:
    """Check an observation, and that those `before` it have not changed; gives it with copies."""
    if any(array.tobytes() != saved.tobytes() for array, saved in before):
        play.note(
            "warning",
            "aliasing",
            "an observation changed when the next one was made: the environment reuses its array. "
            "This package copies each one; other code that keeps them would see them change. "
            "Return a copy",
        )
    kept = []
    for name, space, value in _leaves(env.observation_space, obs, "observation"):
        for mark, topic, text in leaf_troubles(space, value):
            play.note(mark, topic, text, name)
        if isinstance(value, np.ndarray) and value.dtype != object:
            kept.append((value, value.copy()))
            if isinstance(space, spaces.Box) and value.size and _is_scaled(value.dtype):
                play.largest = max(play.largest, float(np.abs(value).max()))
    return kept


def _is_scaled(dtype: np.dtype[Any]) -> bool:
    """Whether values are numbers of any size; of bytes, which images are, the range is known."""
    return dtype.kind in "iuf" and dtype != np.uint8


def _leaves(space: spaces.Space[Any], obs: Any, name: str) -> Iterator[tuple[str, Any, Any]]:
    """The parts of an observation with their spaces; what has not the structure comes whole."""
    parts: Any = ()
    if isinstance(space, spaces.Dict) and isinstance(obs, dict) and obs.keys() == space.keys():
        parts = space.items()
    elif isinstance(space, spaces.Tuple) and isinstance(obs, tuple) and len(obs) == len(space):
        parts = enumerate(space)
    else:
        yield name, space, obs
    for key, part in parts:
        yield from _leaves(part, obs[key], f"{name}[{key!r}]")


def leaf_troubles(space: spaces.Space[Any], value: Any) -> Iterator[Finding]:
    """What is wrong with one part of an observation."""
    if not isinstance(space, spaces.Box):
        if not space.contains(value):
            yield Finding("error", "spaces", f" is {_kind(value)}, which is not in {space}")
        return
    if not isinstance(value, (np.ndarray, np.generic)):
        yield Finding("error", "dtypes", f": expected a NumPy array, found {_kind(value)}")
        return
    if value.shape != space.shape:
        yield Finding("error", "spaces", f": expected shape {space.shape}, found {value.shape}")
        return
    if value.dtype != space.dtype:
        converts = np.can_cast(value.dtype, space.dtype, "same_kind")
        effect = "it is converted" if converts else "it cannot be converted"
        text = f": expected {space.dtype}, found {value.dtype}; {effect} in training"
        yield Finding("warning" if converts else "error", "dtypes", text)
    yield from _number_troubles(space, np.asarray(value))


def _number_troubles(space: spaces.Box, value: np.ndarray) -> Iterator[Finding]:
    if value.dtype.kind not in "biuf":
        return
    if not np.isfinite(value).all():
        yield Finding("error", "finite", " has NaN or infinity in it; training would stop here")
    elif (np.abs(value.astype(np.float64)) > np.finfo(np.float32).max).any():
        text = " has numbers too large for float32, which training uses; it would stop here"
        yield Finding("error", "finite", text)
    for outside, bound, words in (
        (value < space.low, space.low, "below the lower"),
        (value > space.high, space.high, "above the upper"),
    ):
        if outside.any():
            index = tuple(int(axis[0]) for axis in np.nonzero(outside))
            text = f"{list(index)} is {value[index]}, {words} bound {bound[index]} of its space"
            yield Finding("warning", "ranges", text)


def findings_of(play: Play) -> list[Finding]:
    """A line per topic of the play: its troubles, or that there were none."""
    findings = []
    for topic, words in _FINE.items():
        troubles = [finding for finding in play.troubles.values() if finding.topic == topic]
        fine = [] if play.broken else [Finding("ok", topic, words)]
        findings += troubles or fine
    if np.isfinite(play.largest) and play.largest > LARGE_OBSERVATION:
        text = f"observations reach {play.largest:.4g}: set normalize_observations: true"
        findings.append(Finding("note", "scale", text))
    return findings


def random_actions(env: Env, seed: int) -> Iterator[Any]:
    """Actions from the action space without end; the same for the same seed."""
    space = copy.deepcopy(env.action_space)  # the environment's own generator is left alone
    space.seed(seed)
    while True:
        yield space.sample()


def _kind(value: Any) -> str:
    """A value in a few words."""
    if isinstance(value, (tuple, list, dict)):
        return f"a {type(value).__name__} of {len(value)}"
    shape = f" of shape {value.shape}" if isinstance(value, np.ndarray) else f" {value!r:.60}"
    return f"{type(value).__name__}{shape}"
