"""The small task with images: what it shows, what it pays, and how well it can be done."""

from __future__ import annotations

import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rl_training.envs.point_pixels import POINT_ID, PointPixels


def test_it_is_an_environment() -> None:
    check_env(gym.make(POINT_ID).unwrapped, skip_render_check=True)


@pytest.mark.parametrize(
    "code",
    [
        "gym.make('rl_training.envs:PointPixels-v0')",  # Gymnasium imports what is before the colon
        "import rl_training.envs; gym.make('PointPixels-v0')",
        "from rl_training import DrQ; gym.make('PointPixels-v0')",
    ],
)
def test_gymnasium_makes_it(code: str) -> None:
    code = f"import gymnasium as gym; {code}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (result.returncode, result.stderr) == (0, b"")


def test_an_image_by_hand() -> None:
    """Sixteen pixels, of which the middles may be two; the point is drawn over the target."""
    env = PointPixels(size=16)
    env.reset(seed=0)
    env.point, env.target = np.array([-1.0, -1.0]), np.array([1.0, 1.0])
    image, reward, *_ = env.step(np.zeros(2, np.float32))
    assert reward == 0.0  # farther than 1
    assert image.shape == (3, 16, 16)
    red, white, expected = [255, 64, 64], [255, 255, 255], np.zeros((16, 16, 3))
    expected[5:12, 5:12] = red  # around 8
    expected[5:10, 5:10] = white  # around 7
    assert np.array_equal(np.moveaxis(image, 0, -1), expected)


def test_a_shift_by_four_pixels_cuts_nothing_off() -> None:
    env = PointPixels(size=30)
    for corner in ([-1, -1], [-1, 1], [1, -1], [1, 1]):
        env.reset(seed=0)
        env.point = env.target = np.array(corner, float)
        image, *_ = env.step(np.zeros(2, np.float32))
        assert not image[:, :4].any()
        assert not image[:, -4:].any()
        assert not image[:, :, :4].any()
        assert not image[:, :, -4:].any()


def test_moves_and_rewards_by_hand() -> None:
    env = PointPixels()
    env.reset(seed=0)
    env.point, env.target = np.array([0.0, 0.9]), np.array([0.3, 0.5])
    _, reward, terminated, truncated, _ = env.step(np.array([1.0, 2.0], np.float32))
    np.testing.assert_allclose(env.point, [0.15, 1.0])  # held by the edge
    assert reward == pytest.approx(1 - np.hypot(0.15, 0.5))
    assert not terminated
    assert not truncated
    assert env.best_action().tolist() == [1.0, -1.0]


def test_going_straight_is_much_better_than_going_anywhere() -> None:
    env = gym.make(POINT_ID)
    returns: dict[str, list[float]] = {"best": [], "random": []}
    env.action_space.seed(0)
    for kind, found in returns.items():
        for seed in range(30):
            env.reset(seed=seed)
            total, over, steps = 0.0, False, 0
            while not over:
                inner: PointPixels = env.unwrapped  # type: ignore[assignment]
                action = inner.best_action() if kind == "best" else env.action_space.sample()
                _, reward, _, over, _ = env.step(action)
                total, steps = total + float(reward), steps + 1
            assert steps == 40
            found.append(total)
    assert np.mean(returns["best"]) == pytest.approx(37, abs=1)
    assert np.mean(returns["random"]) == pytest.approx(7.4, abs=3)


def test_a_size_too_small_for_a_dot_is_refused() -> None:
    with pytest.raises(ValueError, match="expected at least 16 pixels, found 15"):
        PointPixels(size=15)
