"""The one way to play episodes with a policy, apart from the environments it is trained in.

Evaluation and the measurement of Q bias consume its steps; a video also observes its environments.
Three other loops step environments for
a different purpose: the collector gathers transitions to learn from, the snapshot probe replays
scripted actions to compare answers bitwise, and doctor's random play checks raw answers before
anything about the environment can be assumed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias, cast

import gymnasium as gym
import numpy as np

from rl_training.data.types import PolicyState
from rl_training.envs import masks
from rl_training.envs.contract import answer_problem
from rl_training.envs.spaces import SpaceAdapter
from rl_training.errors import EnvError, NonFiniteError, RLTrainingError, safe_text
from rl_training.runtime.collector import Act, MaskedAct, close_or_warn
from rl_training.runtime.process import EnvCalls
from rl_training.runtime.seeding import derive_seed

logger = logging.getLogger("rl_training")

ENDLESS = (
    "an environment without a time limit may never end an episode: register it with "
    "max_episode_steps, or add the wrapper {TimeLimit: {max_episode_steps: 1000}}; if its episodes "
    "are that long, raise max_eval_steps"
)
"""What to do about an episode that does not end."""


class EpisodeStep(NamedTuple):
    """One step of an episode; `row` is the row of the batch whose action was taken."""

    row: int
    episode: int
    reward: float
    terminated: bool
    truncated: bool


Observer: TypeAlias = Callable[[gym.Env[Any, Any], np.ndarray, EpisodeStep | None], None]
"""Called after each reset (None) and step with the environment, to render it, and the encoded
observation."""


class EpisodePlayer:
    """Plays numbered episodes in a few environments side by side, a row of a batch each.

    Episode k is reset with a seed derived from the given one and k, so its course does not depend
    on which row plays it or when. An exception in an environment becomes an EnvError, and numbers
    that are not finite a NonFiniteError. An episode of `max_steps` steps is cut there as truncated,
    with a warning. Action masks that the environments give are passed on; where the policy was
    trained with some, they must.
    """

    def __init__(
        self,
        make_env: Callable[[], gym.Env[Any, Any]],
        adapter: SpaceAdapter,
        *,
        rows: int = 10,
        max_steps: int | None = None,
        calls: EnvCalls | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._make_env = make_env
        self._adapter = adapter
        self._rows = rows
        self._max_steps = max_steps
        self._calls = calls or EnvCalls()
        self._observer = observer
        self._warned = False
        self._masked = adapter.spec.masked
        # The first is made now: what cannot be built is refused before an hour of training.
        self._envs = [make_env()]

    def play(
        self,
        act: Act | MaskedAct,
        initial_state: Callable[[int], PolicyState],
        *,
        episodes: int,
        seed: int,
    ) -> Iterator[list[EpisodeStep]]:
        """Play `episodes` episodes to their ends; yields the steps that each call of `act` led to.

        A row whose episode has ended begins the next episode. Leaving the iterator early is fine.
        """
        # Always as many rows, played or not: a matrix product's last bits depend on its size.
        rows, playable = self._rows, min(self._rows, episodes)
        while len(self._envs) < playable:
            self._envs.append(self._make_env())
        episode_of, started = list(range(rows)), rows  # numbers from `episodes` on are not played
        spec = self._adapter.spec
        obs = np.zeros((rows, *spec.obs_shape), spec.obs_dtype)
        self._legal = np.ones((rows, spec.policy_outputs), np.bool_)
        for row in range(playable):
            obs[row] = self._reset(row, seed, row)
        first, state = np.ones(rows, np.bool_), initial_state(rows)
        lengths = [0] * rows
        while active := [row for row in range(rows) if episode_of[row] < episodes]:
            if self._masked:
                result = cast(MaskedAct, act)(obs, state, first, self._legal)
            else:
                result = cast(Act, act)(obs, state, first)
            actions, state = self._adapter.decode(result.action), result.state
            first = np.zeros(rows, np.bool_)
            steps = []
            for row in active:
                obs[row], step = self._step(row, episode_of[row], actions[row], seed)
                lengths[row] += 1
                if lengths[row] == self._max_steps and not step.terminated:
                    step = self._cut(step)
                self._observe(row, obs[row], step.episode, seed, step)
                steps.append(step)
                if step.terminated or step.truncated:
                    lengths[row] = 0
                    episode_of[row], started = started, started + 1
                    first[row] = True
                    if episode_of[row] < episodes:
                        obs[row] = self._reset(row, seed, episode_of[row])
            yield steps

    @property
    def env(self) -> gym.Env[Any, Any]:
        """One of the environments, to be asked what it says of itself."""
        return self._envs[0]

    def close(self) -> None:
        """Close the environments; a warning tells what one of them raises."""
        with self._calls.inside():
            while self._envs:
                close_or_warn(self._envs.pop(), self._adapter.spec.env_id)

    def _cut(self, step: EpisodeStep) -> EpisodeStep:
        if not step.truncated and not self._warned:
            self._warned = True
            logger.warning(
                "%s: an evaluation episode reached max_eval_steps = %d and was cut there, with its "
                "return so far; %s",
                self._adapter.spec.env_id,
                self._max_steps,
                ENDLESS,
            )
        return step._replace(truncated=True)

    def _reset(self, row: int, seed: int, episode: int) -> np.ndarray:
        episode_seed, answer = derive_seed(seed, "episode", episode), None
        self._calls.enter()
        try:
            answer = self._envs[row].reset(seed=episode_seed)
            obs, info = answer
            first_obs = self._adapter.encode_one(obs)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an exit() or a panic must not skip the save
            raise self._env_error("reset", error, episode, seed, answer) from error
        finally:
            self._calls.leave()
        self._observe(row, first_obs, episode, seed, None)
        # An agent that was not trained yet does not know whether there are masks.
        self._masked |= self._adapter.spec.maskable and masks.KEY in info
        self._take_mask(row, "reset", info, episode, seed)
        return self._finite_obs(first_obs)

    def _step(
        self, row: int, episode: int, action: np.ndarray, seed: int
    ) -> tuple[np.ndarray, EpisodeStep]:
        answer = None
        self._calls.enter()
        try:
            answer = self._envs[row].step(action)
            obs, reward, terminated, truncated, info = answer
            next_obs = self._adapter.encode_one(obs)
            step = EpisodeStep(row, episode, float(reward), bool(terminated), bool(truncated))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise self._env_error("step", error, episode, seed, answer) from error
        finally:
            self._calls.leave()
        self._finite("reward", np.asarray(step.reward))
        if not (step.terminated or step.truncated):
            self._take_mask(row, "step", info, episode, seed)
        return self._finite_obs(next_obs), step

    def _observe(
        self, row: int, obs: np.ndarray, episode: int, seed: int, step: EpisodeStep | None
    ) -> None:
        if self._observer is None:
            return
        self._calls.enter()
        try:
            self._observer(self._envs[row], obs, step)
        except (RLTrainingError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise self._env_error("render", error, episode, seed, None) from error
        finally:
            self._calls.leave()

    def _finite_obs(self, obs: np.ndarray) -> np.ndarray:
        self._finite("observation", self._adapter.spec.floats(obs))
        return obs

    def _take_mask(
        self, row: int, call: str, info: dict[str, Any], episode: int, seed: int
    ) -> None:
        """Keep the mask of the observation to act on next."""
        if not self._masked:
            return
        try:
            self._legal[row] = masks.single_mask(self._adapter.spec, info)
        except masks.MaskProblem as error:
            text = f"a wrong action mask: {error}"
            raise self._env_error(call, error, episode, seed, text) from error

    def _finite(self, what: str, values: np.ndarray) -> np.ndarray:
        if not np.isfinite(values).all():
            raise NonFiniteError(
                f"{self._adapter.spec.env_id} gave a non-finite {what} during an evaluation. Fix "
                "the environment, or wrap it so that it gives finite numbers."
            )
        return values

    def _env_error(
        self, call: str, error: BaseException, episode: int, seed: int, answer: object
    ) -> EnvError:
        space = self._adapter.observation
        problem = "" if answer is None else answer_problem(call, space, answer)
        what = "broke Gymnasium's contract" if problem else f"raised {type(error).__name__}"
        return EnvError(
            f"{self._adapter.spec.env_id} {what} in {call} during an evaluation (episode {episode},"
            f" reset seed {derive_seed(seed, 'episode', episode)}): {problem or safe_text(error)}"
        )
