"""Vector environments of this package: stepped in this process, and a vector of one as one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import concatenate, iterate

from rl_training.envs.contract import answer_problem, answer_problems, observation_problem
from rl_training.envs.masks import KEY
from rl_training.envs.stacking import frames_of_native
from rl_training.errors import EnvError, safe_text

logger = logging.getLogger("rl_training")


class EnvFailure(EnvError):
    """An environment of a vector environment failed: which one, how, and since which reset.

    `what` includes the call: "raised ValueError in step". `trace` is a traceback as text, from a
    worker process.
    """

    def __init__(
        self, what: str, message: str = "", *, index: int, since: str, trace: str = ""
    ) -> None:
        self.what, self.message, self.trace = what, message, trace
        self._environment = f"environment {index}, {since},"
        super().__init__(self.text())

    @property
    def brief(self) -> str:
        """What happened, on one line: `raised ValueError in step: no`."""
        return f"{self.what}: {self.message}" if self.message else self.what

    def text(self, when: str = "") -> str:
        """The whole message; `when` says to which moment of a run the call belongs."""
        message = f": {self.message}" if self.message else ""
        return f"{self._environment} {self.what}{when}{message}\n{self.trace}".rstrip()


class ContractBroken(ValueError):
    """An environment's answer is not what its spaces or Gymnasium's interface promise."""


class SeedRecord:
    """The seed each environment was last reset with, and how many vector steps ago."""

    def _begin_record(self, num_envs: int) -> None:
        self._steps = 0
        self._seeds: list[int | None] = [None] * num_envs
        self._seeded_at = [0] * num_envs

    def _note_seeds(self, seeds: Sequence[int | None]) -> None:
        for index, seed in enumerate(seeds):
            if seed is not None:  # without one the environment's generator only goes on
                self._seeds[index], self._seeded_at[index] = seed, self._steps

    def _since(self, index: int) -> str:
        if (seed := self._seeds[index]) is None:
            return "never reset with a seed"
        steps = self._steps - self._seeded_at[index]
        return f"{steps} steps after its reset with seed {seed}" if steps else f"reset seed {seed}"


class ResetPlan(NamedTuple):
    """The arguments of a vector reset, taken apart: a seed for each environment and which to reset.

    `options` are those that the environments get.
    """

    seeds: list[int | None]
    mask: np.ndarray
    options: dict[str, Any] | None


def reset_plan(
    num_envs: int, seed: int | Sequence[int | None] | None, options: dict[str, Any] | None
) -> ResetPlan:
    """As Gymnasium defines it: one seed counts up over the environments, `reset_mask` chooses."""
    if seed is None or isinstance(seed, int):
        seeds = [None if seed is None else seed + index for index in range(num_envs)]
    else:
        seeds = list(seed)
    if len(seeds) != num_envs:
        raise ValueError(f"seed: expected {num_envs} seeds, found {len(seeds)}")
    mask = np.ones(num_envs, np.bool_)
    if options is not None and "reset_mask" in options:
        mask = options["reset_mask"]
        options = {key: value for key, value in options.items() if key != "reset_mask"}
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (num_envs,):
            raise ValueError(f"reset_mask: expected an array of {num_envs} bools, found {mask!r}")
    return ResetPlan([s if m else None for s, m in zip(seeds, mask, strict=True)], mask, options)


class QuickSyncVectorEnv(SeedRecord, SyncVectorEnv[Any, Any]):
    """Gymnasium's, in mode SAME_STEP, with a step that does the same with half the work.

    Observations come in an array that the next step overwrites; actions must be an array. What an
    environment raises becomes an `EnvFailure`, which names it.
    """

    def __init__(self, env_fns: Sequence[Callable[[], gym.Env[Any, Any]]]) -> None:
        super().__init__(env_fns, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
        space = self.single_observation_space
        self._in_place = isinstance(space, spaces.Box) and space.dtype.kind == "f"
        self._shape = space.shape
        self._begin_record(self.num_envs)
        self._busy = np.zeros(1, np.int64)  # which environment is at work
        self._looks_at: tuple[str, ...] = ("reset", "step")  # the first answers of the first one

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begin new episodes, in all environments or in those of `options["reset_mask"]`."""
        plan = reset_plan(self.num_envs, seed, options)
        self._note_seeds(plan.seeds)
        infos: dict[str, Any] = {}
        answer = None  # of the environment at work
        try:
            for i in np.flatnonzero(plan.mask).tolist():
                self._busy[0] = i
                answer = None
                answer = self.envs[i].reset(seed=plan.seeds[i], options=plan.options)
                self._env_obs[i], info = answer
                infos = self._add_info(infos, info, i)
                if self._looks_at and i == 0:
                    self._warn_of("reset", answer)
            answer = None
            self._observations = self._joined()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an exit() or a panic must not end the run unsaved
            raise self._failure("reset", error, answer) from error
        for flags in (self._terminations, self._truncations, self._autoreset_envs):
            flags[plan.mask] = False
        return self._observations, infos

    def step(  # noqa: C901 - a call for each of its parts would cost every step
        self, actions: np.ndarray
    ) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every environment, and reset those whose episode ended."""
        infos: dict[str, Any] = {}
        busy, call = self._busy, "step"
        answer: object = None  # of the environment at work
        self._steps += 1
        if len(actions) < self.num_envs:
            raise IndexError(f"expected {self.num_envs} actions, found {len(actions)}")
        try:
            for i, env in enumerate(self.envs):
                busy[0] = i
                call, answer = "step", None
                answer = env.step(actions[i])
                obs, reward, terminated, truncated, info = answer
                self._rewards[i], self._terminations[i] = reward, terminated
                self._truncations[i] = truncated
                if terminated or truncated:
                    infos = self._add_info(infos, {"final_obs": obs, "final_info": info}, i)
                    call, answer = "reset", None
                    answer = env.reset()
                    obs, info = answer
                if info:
                    infos = self._add_info(infos, info, i)
                self._env_obs[i] = obs
                if self._in_place:
                    if getattr(obs, "shape", None) != self._shape:
                        obs = self._shaped(obs)
                    self._observations[i] = obs
                if self._looks_at and i == 0:
                    self._warn_of("step", answer)
            if not self._in_place:
                answer = None
                self._observations = self._joined()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise self._failure(call, error, answer) from error
        self._autoreset_envs = self._terminations | self._truncations
        copies = (x.copy() for x in (self._rewards, self._terminations, self._truncations))
        return self._observations, *copies, infos

    def _joined(self) -> Any:
        """The observations of all environments as one."""
        space = self.single_observation_space
        try:
            return concatenate(space, self._env_obs, self._observations)
        except Exception:
            for i, obs in enumerate(self._env_obs):
                if problem := observation_problem(space, obs):
                    self._busy[0] = i
                    raise ContractBroken(problem) from None
            raise

    def _shaped(self, obs: object) -> np.ndarray:
        """A list or number as an array; one of another shape would be spread over the row."""
        array = np.asarray(obs)
        if array.shape != self._shape:
            raise ValueError(
                f"expected an observation of shape {self._shape}, found {array.shape}; fix the "
                "environment or its observation_space"
            )
        return array

    def _failure(self, call: str, error: BaseException, answer: object = None) -> Exception:
        """The error to raise for one of the environment at work, or for its wrong `answer`."""
        what, message, index = f"raised {type(error).__name__}", safe_text(error), self._busy.item()
        if isinstance(error, ContractBroken):
            what = "broke Gymnasium's contract"
        elif answer is not None and (problem := self._problem(call, answer)):
            what, message = "broke Gymnasium's contract", problem
        since = self._since(index)
        return EnvFailure(f"{what} in {call}", message, index=index, since=since)

    def _problem(self, call: str, answer: object) -> str:
        try:
            return answer_problem(call, self.single_observation_space, answer)
        except Exception:  # an object that does not stand being looked at
            return ""

    def _warn_of(self, call: str, answer: object) -> None:
        """Warn of a dtype that is converted: of its first answers, once, as it would cost time."""
        self._looks_at = tuple(name for name in self._looks_at if name != call)
        with suppress(Exception):  # an answer of another shape has an error of its own
            assert isinstance(answer, tuple)
            for problem in answer_problems(call, self.single_observation_space, answer):
                if problem.topic == "dtypes" and problem.mark == "warning":
                    self._looks_at = ()
                    name = getattr(self.envs[0].spec, "id", type(self.envs[0].unwrapped).__name__)
                    logger.warning("%s: %s of %s%s", name, problem.where, call, problem.text)
                    return


class OneOfVector(gym.Env[Any, Any]):
    """A vector environment of one, as a single environment that shows the same observations.

    For environments that come with a vector implementation, such as Atari's.
    """

    def __init__(self, venv: VectorEnv[Any, Any, Any]) -> None:
        self._venv = venv
        self.observation_space = venv.single_observation_space
        self.action_space = venv.single_action_space
        self.spec, self.render_mode, self.metadata = venv.spec, venv.render_mode, venv.metadata
        self.stacked_frames = frames_of_native(venv)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The first observation of an episode."""
        obs, info = self._venv.reset(seed=seed, options=options)
        return self._only(obs), _with_its_mask(info)

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """What the environment answers; whether an episode's end shows its last observation or the
        next one's first is up to how it resets.
        """
        actions = np.asarray(action, self.action_space.dtype)[None]
        obs, reward, terminated, truncated, info = self._venv.step(actions)
        ends = bool(terminated[0]), bool(truncated[0])
        return self._only(obs), float(reward[0]), *ends, _with_its_mask(info)

    def _only(self, obs: object) -> Any:
        if isinstance(obs, np.ndarray):
            return obs[0]
        return next(iter(iterate(self._venv.observation_space, obs)))

    def render(self) -> Any:
        """The image of the one environment."""
        images = self._venv.render()
        return None if images is None else images[0]

    def close(self) -> None:
        """Close the vector environment."""
        self._venv.close()


def _with_its_mask(info: dict[str, Any]) -> dict[str, Any]:
    """The info of a vector of one, whose mask is that of the one."""
    return info | {KEY: info[KEY][0]} if KEY in info else info
