"""Random play in one environment, in which every answer is checked against Gymnasium's contract.

Not by `runtime.episodes`, which trusts the contract: here nothing is, before it has been checked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from gymnasium import spaces

from rl_training.data.types import EnvSpec
from rl_training.envs.contract import answer_problems, leaves, tuple_problem
from rl_training.envs.factory import Env
from rl_training.envs.masks import KEY, MaskProblem, legal_action, single_mask
from rl_training.envs.snapshots.probe import endless_actions
from rl_training.envs.spaces import action_codec, action_kind
from rl_training.tools.doctor.report import Finding, Mark

Arrays: TypeAlias = list[tuple[np.ndarray, np.ndarray]]

SEED = 1
MOST_STEPS = 10_000
LARGE_OBSERVATION = 100.0
_KEPT = {
    "api": "reset and step return what Gymnasium asks for",
    "spaces": "observations have the structure and shape of their space",
    "dtypes": "observations have the dtype of their space",
    "ranges": "no observation was outside the bounds of its space",
    "finite": "no NaN or infinity was met",
    "aliasing": "every observation is an array of its own",
}
"""What is reported of a topic without problems."""


class Episode(NamedTuple):
    """How long an episode was, and the flags it ended with."""

    length: int
    terminated: bool
    truncated: bool


class EnvBroken(Exception):
    """The environment cannot be stepped any further."""


@dataclass(kw_only=True)
class Play:
    """What random play measured and met; `problems` holds the first of each sort."""

    steps: int = 0
    step_seconds: float = 0.0
    reset_seconds: list[float] = field(default_factory=list)
    episodes: list[Episode] = field(default_factory=list)
    largest_observation: float = 0.0
    problems: dict[tuple[str, str], Finding] = field(default_factory=dict)
    broken: bool = False
    masks: list[float] = field(default_factory=list)  # the share of legal choices in each

    @property
    def steps_per_second(self) -> float:
        """Speed of the environment alone."""
        return self.steps / self.step_seconds if self.step_seconds else 0.0

    def note(self, mark: Mark, topic: str, text: str, where: str = "") -> None:
        """Keep the first problem of its topic and place."""
        when = f" (first seen at step {self.steps})" if self.steps else " (in the first reset)"
        self.problems.setdefault((topic, where), Finding(mark, topic, f"{where}{text}{when}"))


def random_play(
    env: Env, *, seconds: float, most_steps: int = MOST_STEPS, seed: int = SEED
) -> Play:
    """Random actions until the time is up, at least two; every answer is checked."""
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


def contract_findings(play: Play) -> list[Finding]:
    """A line per topic: its problems, or that there were none."""
    findings = []
    for topic, text in _KEPT.items():
        problems = [finding for finding in play.problems.values() if finding.topic == topic]
        kept = [] if play.broken else [Finding("ok", topic, text)]
        findings += problems or kept
    largest = play.largest_observation
    if np.isfinite(largest) and largest > LARGE_OBSERVATION:
        text = f"observations reach {largest:.4g}: set normalize_observations: true"
        findings.append(Finding("note", "scale", text))
    return [*findings, *_mask_findings(play)]


def _mask_findings(play: Play) -> list[Finding]:
    """What becomes of action masks, where there are any."""
    problems = [finding for finding in play.problems.values() if finding.topic == "masks"]
    if problems or not play.masks:
        return problems
    text = (
        f"action masks found with every observation, {np.mean(play.masks):.0%} of the choices "
        "legal: used by every algorithm for discrete actions, nothing to configure"
    )
    return [Finding("ok", "masks", text)]


def _play(env: Env, play: Play, *, deadline: float, most_steps: int, seed: int) -> None:
    actions = endless_actions(env, seed=seed)
    obs, info = _reset(env, play, seed)
    before = _check_observation(play, env, obs, [])
    length = 0
    while play.steps < most_steps and (play.steps < 2 or time.perf_counter() < deadline):
        action = legal_action(env.action_space, next(actions), info)
        obs, terminated, truncated, info = _step(env, play, action)
        length += 1
        before = _check_observation(play, env, obs, before)
        if not terminated:
            _check_mask(play, env, info)
        if terminated or truncated:
            play.episodes.append(Episode(length, terminated, truncated))
            obs, info = _reset(env, play, None)
            before, length = _check_observation(play, env, obs, before), 0


def _check_mask(play: Play, env: Env, info: dict[str, Any]) -> None:
    """Check the action mask of an observation that is to be acted on, if there are masks."""
    if KEY not in info and not play.masks:
        return
    if action_kind(env.action_space) not in ("discrete", "multi_discrete"):
        text = "action masks are for Discrete and MultiDiscrete actions: these are ignored"
        play.note("warning", "masks", text)
        return
    if not play.masks and play.steps:
        play.note("error", "masks", "an action mask came, and none with an earlier observation")
    spec = EnvSpec(env_id="", obs_shape=(), **action_codec(env.action_space).sizes)
    try:
        play.masks.append(float(single_mask(spec, info).mean()))
    except MaskProblem as problem:
        play.masks.append(0.0)
        play.note("error", "masks", f"action mask: {problem.text}")


def _reset(env: Env, play: Play, seed: int | None) -> tuple[object, dict[str, Any]]:
    # Both arguments, as a vector environment passes them in training.
    result, seconds = _timed("reset", partial(env.reset, seed=seed, options=None))
    play.reset_seconds.append(seconds)
    _check_answer(env, play, "reset", result)
    obs, info = result
    info = info if isinstance(info, dict) else {}
    _check_mask(play, env, info)
    return obs, info


def _step(env: Env, play: Play, action: object) -> tuple[object, bool, bool, dict[str, Any]]:
    play.steps += 1
    result, seconds = _timed("step", partial(env.step, action))
    play.step_seconds += seconds
    _check_answer(env, play, "step", result)
    obs, _, terminated, truncated, info = result
    info = info if isinstance(info, dict) else {}
    return obs, bool(np.any(terminated)), bool(np.any(truncated)), info


def _check_answer(env: Env, play: Play, call: str, answer: Any) -> None:
    if problem := tuple_problem(call, answer):
        raise EnvBroken(problem)
    for mark, topic, text, where in answer_problems(call, env.observation_space, answer):
        play.note(mark, topic, text, where)


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


def _check_observation(play: Play, env: Env, obs: object, before: Arrays) -> Arrays:
    """Check that the arrays of the observation `before` this one have not changed.

    Gives the arrays of this one, each with a copy to compare it with at the next step.
    """
    if any(array.tobytes() != saved.tobytes() for array, saved in before):
        play.note(
            "warning",
            "aliasing",
            "an observation changed when the next one was made: the environment reuses its array. "
            "This package copies each one; other code that keeps them would see them change. "
            "Return a copy",
        )
    arrays = []
    for _, space, value in leaves(env.observation_space, obs, "observation"):
        if isinstance(value, np.ndarray) and value.dtype != object:
            arrays.append((value, value.copy()))
            # Bytes are images, whose range is known.
            scaled = value.dtype.kind in "iuf" and value.dtype != np.uint8
            if isinstance(space, spaces.Box) and value.size and scaled:
                play.largest_observation = max(play.largest_observation, float(np.abs(value).max()))
    return arrays
