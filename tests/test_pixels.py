"""Rendered environments as observations."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import gymnasium as gym
import numpy as np
import pygame
import pytest
from gymnasium.spaces import Box
from gymnasium.wrappers import FrameStackObservation, RepeatAction

from rl_training.envs.factory import make_env, make_vector_env
from rl_training.envs.pixels import stacked_frames
from rl_training.envs.snapshots.vector import load_vector_state, resume_level, save_vector_state
from rl_training.envs.spaces import SpaceAdapter
from rl_training.errors import ConfigError, MissingExtra

pytestmark = pytest.mark.extra("pixels")


class Counter(gym.Env[np.ndarray, np.ndarray]):
    """Renders its step number as the brightness of a 4 x 4 image; ends after ten steps."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = Box(-1, 1, (1,))
    action_space = Box(-1, 1, (1,))

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> Any:
        self.steps += 1
        return np.zeros(1, np.float32), float(self.steps), self.steps == 10, False, {}

    def render(self) -> Any:
        image = np.full((4, 4, 3), 10 * self.steps, np.uint8)
        image[..., 1] += 1
        image[..., 2] += 2
        return image


DRAWS = {"render_mode": "rgb_array"}


def pixels(**options: Any) -> gym.Env[Any, Any]:
    kwargs = {"render_mode": "rgb_array"}
    return make_env(Counter, env_kwargs=kwargs, wrappers=[{"PixelObservation": options}])


def brightness(obs: np.ndarray) -> list[int]:
    assert all((channel == channel[0, 0]).all() for channel in obs)
    return [int(channel[0, 0]) for channel in obs]


def test_stacked_colour_images_channels_first_oldest_first() -> None:
    env = pixels(size=8, frame_stack=3)
    assert env.observation_space == Box(0, 255, (9, 8, 8), np.uint8)
    obs, _ = env.reset(seed=0)
    assert brightness(obs) == [0, 1, 2] * 3
    obs = env.step(env.action_space.sample())[0]
    assert brightness(obs) == [0, 1, 2, 0, 1, 2, 10, 11, 12]
    for _ in range(2):
        obs = env.step(env.action_space.sample())[0]
    assert brightness(obs) == [10, 11, 12, 20, 21, 22, 30, 31, 32]
    assert env.get_wrapper_attr("stacked_frames") == 3


def test_repeated_actions_add_up_and_stop_where_the_episode_does() -> None:
    env = pixels(size=8, frame_stack=2, action_repeat=4)
    env.reset(seed=0)
    found = [env.step(env.action_space.sample()) for _ in range(3)]
    assert [brightness(obs)[3] for obs, *_ in found] == [40, 80, 100]
    assert [reward for _, reward, *_ in found] == [10.0, 26.0, 19.0]
    assert [terminated for _, _, terminated, *_ in found] == [False, False, True]


def test_grayscale_is_the_brightness() -> None:
    env = pixels(size=6, frame_stack=2, grayscale=True)
    obs, _ = env.reset(seed=0)
    assert obs.shape == (2, 6, 6)
    assert env.observation_space.contains(obs)
    for _ in range(9):
        obs = env.step(env.action_space.sample())[0]
    # Shares of red, green and blue that add up to one, of 80, 81, 82 and of 90, 91, 92.
    assert brightness(obs) == [80, 90]


@pytest.mark.parametrize(("channel", "share"), [(0, 0.2125), (1, 0.7154), (2, 0.0721)])
def test_grayscale_weighs_the_colours_as_gymnasium_does(channel: int, share: float) -> None:
    class OneColour(Counter):
        def render(self) -> Any:
            image = np.zeros((4, 4, 3), np.uint8)
            image[..., channel] = 200
            return image

    options = {"size": 4, "frame_stack": 1, "grayscale": True}
    env = make_env(OneColour, env_kwargs=DRAWS, wrappers=[{"PixelObservation": options}])
    (found,) = brightness(env.reset(seed=0)[0])
    assert found == int(200 * share)


class Striped(Counter):
    """Renders 6 rows and 8 columns, each with the number of its place."""

    def render(self) -> Any:
        rows, columns = np.mgrid[:6, :8].astype(np.uint8)
        return np.stack([rows, columns, np.full_like(rows, self.steps)], -1)


def test_a_crop_is_the_middle_of_what_is_rendered() -> None:
    kwargs = {"render_mode": "rgb_array"}

    def cropped(side: int) -> gym.Env[Any, Any]:
        options = {"size": 4, "frame_stack": 1, "crop": side}
        return make_env(Striped, env_kwargs=kwargs, wrappers=[{"PixelObservation": options}])

    obs, _ = cropped(4).reset(seed=0)
    assert obs[0].tolist() == [[row] * 4 for row in (1, 2, 3, 4)]
    assert obs[1].tolist() == [[2, 3, 4, 5]] * 4
    obs, _ = cropped(2).reset(seed=0)  # made larger
    assert (obs[1].min(), obs[1].max()) == (3, 4)
    with pytest.raises(ConfigError, match=r"crop: .* 6 x 8 pixels .* found 7"):
        cropped(7)


@pytest.mark.parametrize(
    ("options", "kwargs", "message"),
    [
        ({}, {}, "found render_mode None; set env_kwargs: {render_mode: rgb_array}"),
        ({"frame_stack": 0}, DRAWS, "frame_stack: expected a whole number from 1 on, found 0"),
        ({"size": "84"}, DRAWS, "size: expected a whole number from 1 on, found '84'"),
        ({"size": [84, 84]}, DRAWS, r"size: expected a whole number .*, found \[84, 84\]"),
        ({"action_repeat": True}, DRAWS, "action_repeat: expected a whole number .*, found True"),
        ({"crop": 0}, DRAWS, "crop: expected a whole number from 1 on, found 0"),
        ({"crop": "a"}, DRAWS, "crop: expected a whole number from 1 on, found 'a'"),
        ({"grayscale": "no"}, DRAWS, "grayscale: expected true or false, found 'no'"),
        ({"sizes": 3}, DRAWS, "unexpected keyword argument 'sizes'"),
    ],
)
def test_what_cannot_be_shown_is_refused(
    options: dict[str, Any], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_env(Counter, env_kwargs=kwargs, wrappers=[{"PixelObservation": options}])


def test_missing_opencv_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'rl-training\[pixels\]'"):
        pixels()


def test_a_pendulum_is_seen() -> None:
    kwargs = {"render_mode": "rgb_array"}
    env = make_env("Pendulum-v1", env_kwargs=kwargs, wrappers=[{"PixelObservation": {"size": 48}}])
    obs, _ = env.reset(seed=0)
    assert obs.shape == (9, 48, 48)
    following = [env.step(np.array([2.0], np.float32))[0] for _ in range(5)]
    assert len({x.tobytes() for x in following}) == 5  # it moves
    assert (obs[:3].mean((1, 2)) > 200).all()  # on white ground
    env.close()


@pytest.mark.extra("mujoco")
def test_mujoco_is_seen() -> None:
    try:
        importlib.import_module("mujoco.egl")
    except (ImportError, AttributeError) as error:
        pytest.skip(f"no library to draw with: {error}")

    def seen() -> gym.Env[Any, Any]:
        return make_env(
            "InvertedPendulum-v5",
            env_kwargs={"render_mode": "rgb_array"},
            wrappers=[{"PixelObservation": {"size": 32, "frame_stack": 2, "action_repeat": 2}}],
        )

    env = seen()
    obs, _ = env.reset(seed=0)
    assert np.array_equal(obs[:3], obs[3:])
    another = seen()
    assert np.array_equal(another.reset(seed=0)[0], obs)  # the camera stands where it stood
    another.close()
    following = env.step(np.array([1.0], np.float32))[0]
    assert np.array_equal(following[:3], obs[3:])
    assert not np.array_equal(following[3:], obs[3:])
    assert following.std() > 5
    env.close()


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "CartPole-v1", "MountainCarContinuous-v0"])
def test_what_is_seen_is_saved_and_restored_exactly(env_id: str) -> None:
    """Frames of the stack included; what pygame draws on is not part of the state."""

    def make() -> Any:
        return make_vector_env(
            env_id,
            num_envs=2,
            env_kwargs={"render_mode": "rgb_array"},
            wrappers=[{"PixelObservation": {"size": 24, "action_repeat": 2}}],
        )

    assert resume_level(make, seed=0).level == "exact"
    envs, other = make(), make()
    envs.reset(seed=[1, 2])
    other.reset(seed=[3, 4])
    envs.action_space.seed(0)
    for _ in range(5):
        envs.step(envs.action_space.sample())
    load_vector_state(other, save_vector_state(envs))
    for _ in range(5):
        action = envs.action_space.sample()
        mine, theirs = envs.step(action), other.step(action)
        assert np.array_equal(mine[0], theirs[0])
        assert np.array_equal(mine[1], theirs[1])
    envs.close()
    other.close()


class Placed(Counter):
    """Keeps where it is in something of pygame's that is not for drawing."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.place = pygame.Rect(0, 0, 1, 1)


def test_of_pygame_only_what_is_drawn_on_is_left_out() -> None:
    level = resume_level(lambda: make_vector_env(Placed, num_envs=1), seed=0)
    assert level.level == "boundary"
    assert "place" in level.reason


@pytest.mark.parametrize(
    ("around", "frames"),
    [([], 3), (["FlattenObservation"], 1), ([{"RepeatAction": {"num_repeats": 2}}], 1)],
)
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_images_are_counted_where_each_step_adds_one(
    around: list[Any], frames: int, vectorization: str
) -> None:
    envs = make_vector_env(
        Counter,
        num_envs=1,
        vectorization=vectorization,
        env_kwargs={"render_mode": "rgb_array"},
        wrappers=[{"PixelObservation": {"size": 12, "frame_stack": 3}}, *around],
    )
    spaces = envs.single_observation_space, envs.single_action_space
    adapter = SpaceAdapter("Counter", *spaces, frames=stacked_frames(envs))
    envs.close()
    assert adapter.spec.frames == frames


def test_gymnasiums_stacks_are_counted_too() -> None:
    env = FrameStackObservation(GreyEnv(), 4)
    assert env.observation_space.shape == (4, 8, 8)
    assert stacked_frames(env) == 4
    assert stacked_frames(RepeatAction(env, 2)) == 1

    class Stacks(gym.Wrapper[Any, Any, Any, Any]):
        stacked_frames = 2

    assert stacked_frames(gym.wrappers.TimeLimit(Stacks(Counter()), 5)) == 2


class GreyEnv(Counter):
    """Shows images without colours."""

    observation_space = Box(0, 255, (8, 8), np.uint8)


@pytest.mark.extra("dmc")
def test_dm_control_is_seen() -> None:
    """With the extra dmc, which the tests do not install: it is large."""
    env = make_env(
        "dm_control/cartpole-swingup-v0",
        env_kwargs={"render_mode": "rgb_array"},
        wrappers=[{"PixelObservation": {"size": 32, "frame_stack": 2}}],
    )
    obs, _ = env.reset(seed=0)
    following = env.step(np.array([1.0]))[0]
    assert np.array_equal(following[:3], obs[3:])
    assert not np.array_equal(following[3:], obs[3:])
    env.close()
