"""Frames of an agent's episodes: rendered images with step, reward, return and action values."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from rl_training.algorithms.base import ActResult, GivesReturns
from rl_training.config.train_config import TrainConfig
from rl_training.data.types import PolicyState
from rl_training.envs.factory import render_without_a_screen
from rl_training.errors import ConfigError, EnvError, UsageError
from rl_training.runtime.agent import Agent
from rl_training.runtime.assembly import Environments
from rl_training.runtime.episodes import EpisodePlayer, EpisodeStep
from rl_training.runtime.process import EnvCalls
from rl_training.runtime.training_run import evaluation_seed
from rl_training.tools.explain import action_returns

MAX_STEPS = 3_000
"""Default limit on environment steps, as an episode may never end."""
MAX_FRAME_RATE = 30
"""Frames per second; of faster environments frames are left out, so that the speed stays real."""
DEFAULT_RATE = 30
MAX_RATE = 1000

_NOT_SHOWN = np.empty((0, 0, 3), np.uint8)


class Playback(NamedTuple):
    """What to play; without a seed, the first episodes of the run's evaluation.

    `max_steps` limits all episodes together; with `overlay`, frames have the values of the actions.
    """

    episodes: int = 1
    seed: int | None = None
    max_steps: int = MAX_STEPS
    overlay: bool = True


@dataclass(frozen=True)
class Frame:
    """An image [H, W, 3] of a state; `reward` is that of the step which led to it.

    `values` are those of the actions in this state, NaN for illegal ones; None if the agent learns
    none, and in the last state of an episode, where it does not act.
    """

    image: np.ndarray
    episode: int
    steps: int
    reward: float
    episode_return: float
    values: np.ndarray | None = None
    ends: bool = False


class Recorder:
    """Plays an agent's episodes greedily on an environment that renders.

    An environment that cannot render is shown by its observations if these are images, and refused
    otherwise. With an overlay, frames of value-based agents have the values of the actions.
    """

    def __init__(
        self,
        agent: Agent,
        config: TrainConfig,
        playback: Playback,
        *,
        calls: EnvCalls | None = None,
    ) -> None:
        self.playback = playback
        self._agent = agent
        self._values = playback.overlay and isinstance(agent.algorithm, GivesReturns)
        self._config, self._calls = config, calls or EnvCalls()
        self._renders = True
        self._pending: list[Frame] = []
        self._rate: float = DEFAULT_RATE
        self._player = EpisodePlayer(
            self._make_env, agent.adapter, rows=1, calls=self._calls, observer=self._observe
        )
        self._stride = math.ceil(self._rate / MAX_FRAME_RATE)

    @property
    def rate(self) -> float:
        """Frames per second that show the episodes at the environment's own speed."""
        return self._rate / self._stride

    def frames(self, stopped: Callable[[], bool] = bool) -> Iterator[Frame]:
        """The frames, in order, until `stopped` returns true."""
        episodes, seed, max_steps, _ = self.playback
        if seed is None:
            seed = evaluation_seed(self._config.seed)
        initial, self._pending = self._agent.algorithm.initial_state, []
        played = self._player.play(self._act, initial, episodes=episodes, seed=seed)
        for number, _ in enumerate(played, start=1):
            done = self._pending[:-1]
            # The last frame still lacks the values of the actions, which the next step asks for.
            self._pending = self._pending[-1:]
            yield from filter(_is_shown, done)
            if number == max_steps or stopped():
                break
        yield from filter(_is_shown, self._pending)

    def action_names(self) -> list[str]:
        """The names of the discrete actions, or their numbers in the environment."""
        adapter = self._agent.adapter
        if adapter.spec.action_kind != "discrete":
            return []
        if self._agent.action_names:
            return [*self._agent.action_names]
        return [
            f"action {action}" for action in adapter.decode(np.arange(adapter.spec.num_actions))
        ]

    def close(self) -> None:
        """Close the environment."""
        self._player.close()

    def _make_env(self) -> gym.Env[Any, Any]:
        env, self._renders = _rendering_env(self._config, self._calls, self._agent)
        self._rate = _frame_rate(env.metadata)
        return env

    def _act(
        self, obs: np.ndarray, state: PolicyState, first: np.ndarray, *legal: np.ndarray
    ) -> ActResult:
        latest = self._pending[-1]
        # `action_returns` sees one observation: what a recurrent agent remembers would be missing.
        if self._values and not state and _is_shown(latest):
            agent = self._agent
            values = action_returns(agent.algorithm, agent.normalizer.array(obs)).q_values
            if legal:
                values = np.where(legal[0][0], values, np.nan)
            self._pending[-1] = replace(latest, values=values)
        return self._agent.greedy(obs, state, first, *legal)

    def _observe(self, env: gym.Env[Any, Any], obs: np.ndarray, step: EpisodeStep | None) -> None:
        if step is None:
            number = self._pending[-1].episode + 1 if self._pending else 1
            frame = Frame(self._image(env, obs), number, 0, 0.0, 0.0)
        else:
            before = self._pending[-1]
            ends, steps = step.terminated or step.truncated, before.steps + 1
            shown = ends or steps % self._stride == 0
            image = self._image(env, obs) if shown else _NOT_SHOWN
            total = before.episode_return + step.reward
            frame = Frame(image, before.episode, steps, step.reward, total, ends=ends)
        self._pending.append(frame)

    def _image(self, env: gym.Env[Any, Any], obs: np.ndarray) -> np.ndarray:
        if not self._renders:
            return _observed_image(self._agent, obs)
        image = np.array(env.render())  # a copy, as an environment may draw into it again
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or not image.size:
            raise EnvError(
                f"{self._agent.adapter.spec.env_id}: expected an image of bytes, height x width x "
                f"3, from render(), found {image.dtype} {list(image.shape)}; correct its render()"
            )
        return image


def _is_shown(frame: Frame) -> bool:
    return frame.image.size > 0


def _rendering_env(
    config: TrainConfig, calls: EnvCalls, agent: Agent
) -> tuple[gym.Env[Any, Any], bool]:
    """An evaluation environment, and whether it renders; if not, its observations are images."""
    render_without_a_screen(agent.adapter.spec.env_id)
    requested = config
    if isinstance(config.env_id, str) or config.eval_env is not None or callable(config.env_id):
        mode = {"render_mode": "rgb_array"}
        requested = config.with_changes(eval_env_kwargs={**config.eval_env_kwargs, **mode})
    reason = ""
    with warnings.catch_warnings():
        # Gymnasium warns of a missing render mode, which the error below reports.
        warnings.simplefilter("ignore")
        try:
            env = Environments(requested, calls).evaluation()
        except (ConfigError, EnvError) as error:
            env = Environments(config, calls).evaluation()  # raises unless it was the mode
            reason = f"; with render_mode rgb_array: {error}"
        modes = env.metadata.get("render_modes") or []
        if env.render_mode == "rgb_array" and "rgb_array" in modes:
            return env, True
    if _has_images(agent):
        return env, False
    env.close()
    found = f"renders {', '.join(map(str, modes))} only" if modes else "does not render"
    raise UsageError(
        f"{agent.adapter.spec.env_id} cannot be shown: expected an environment that renders "
        f"images (render_mode rgb_array), found one that {found}{reason}"
    )


def _frame_rate(metadata: dict[str, Any]) -> float:
    rate = metadata.get("render_fps")
    fits = isinstance(rate, int | float) and not isinstance(rate, bool) and 0.1 <= rate <= MAX_RATE
    return float(rate) if fits else DEFAULT_RATE  # type: ignore[arg-type]


def _has_images(agent: Agent) -> bool:
    spec = agent.adapter.spec
    return spec.has_images and not spec.parts and spec.obs_dtype == "uint8"


def _observed_image(agent: Agent, obs: np.ndarray) -> np.ndarray:
    """The latest of the stacked images in an observation [C, H, W], as RGB."""
    channels = agent.adapter.spec.frame_shape[0]
    image = np.moveaxis(obs[-channels:], 0, -1)
    return np.repeat(image[..., :1], 3, -1) if channels != 3 else image.copy()
