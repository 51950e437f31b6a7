"""Videos: which frames there are and what they say, the files, and what is refused."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from PIL import Image
from typer.testing import CliRunner

from rl_training import DQN, SAC
from rl_training.cli import app
from rl_training.errors import (
    ConfigError,
    EnvError,
    MissingExtra,
    RunError,
    SaveError,
    TrustError,
    UsageError,
)
from rl_training.experiment.registry import train_config
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.training_run import TrainingRun
from rl_training.tools.frames import Frame, Playback
from rl_training.tools.overlay import Painter
from rl_training.tools.video import Video, default_target
from training import final_state, tiny_config


class Ramp(gym.Env[np.ndarray, np.int64]):
    """Seven steps to the right or the left, of which the reward is the number; shown as grey."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 90}  # noqa: RUF012
    observation_space = Box(-10, 10, (1,))
    action_space = Discrete(3)

    def __init__(self, render_mode: str | None = None, breaks_at: int = 99, masks: bool = False):
        self.render_mode, self.breaks_at, self.masks = render_mode, breaks_at, masks

    def answer(self) -> tuple[np.ndarray, dict[str, Any]]:
        legal = np.array([True, self.time % 2 == 0, True])
        return np.array([self.time], np.float32), {"action_mask": legal} if self.masks else {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self.answer()

    def step(self, action: np.int64) -> Any:
        self.time += 1
        obs, info = self.answer()
        return obs, float(self.time), self.time == 7, False, info

    def render(self) -> Any:
        if self.time == self.breaks_at:
            raise ValueError("no picture")
        return np.full((20, 30, 3), 30 * self.time, np.uint8)


class Silent(Ramp):
    """The same without pictures."""

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012


class Photo(Silent):
    """A task without pictures whose observations are: the brightness is the time."""

    observation_space = Box(0, 255, (40, 40, 1), np.uint8)

    def answer(self) -> tuple[np.ndarray, dict[str, Any]]:
        return np.full((40, 40, 1), 30 * self.time, np.uint8), {}


class OneCanvas(Ramp):
    """The same, drawn into one array that every render() returns."""

    def __init__(self, **keys: Any) -> None:
        super().__init__(**keys)
        self.canvas = np.zeros((20, 30, 3), np.uint8)

    def render(self) -> Any:
        self.canvas[:] = 30 * self.time
        return self.canvas


class Tower(Ramp):
    """The same, tall and narrow."""

    def render(self) -> Any:
        return np.full((400, 20, 3), 200, np.uint8)


def agent(env: Callable[..., gym.Env[Any, Any]] = Ramp, **keys: Any) -> DQN:
    return DQN(env, seed=0, hidden_sizes=[8], **keys)


def frames(managed: DQN, **playback: Any) -> list[Frame]:
    recorder = managed.recorder(Playback(**playback))
    try:
        return list(recorder.frames())
    finally:
        recorder.close()


# Which frames there are


def test_a_frame_shows_a_state_with_the_reward_before_it_and_the_values_of_what_comes() -> None:
    managed = agent()
    shown = frames(managed, episodes=2)
    # 90 a second are three times too many: every third, and the last of each episode.
    assert [(frame.episode, frame.steps) for frame in shown] == [
        (episode, steps) for episode in (1, 2) for steps in (0, 3, 6, 7)
    ]
    assert [int(frame.image[0, 0, 0]) for frame in shown[:4]] == [0, 90, 180, 210]
    assert [frame.reward for frame in shown[:4]] == [0, 3, 6, 7]
    assert [frame.episode_return for frame in shown[:4]] == [0, 6, 21, 28]
    assert [frame.ends for frame in shown[:4]] == [False, False, False, True]
    for frame in shown[:3]:
        assert frame.values is not None
        action, _ = managed.predict(np.array([frame.steps], np.float32))
        assert action == frame.values.argmax()
    assert shown[3].values is None
    assert managed.recorder(Playback()).rate == 30


def test_episodes_are_cut_after_so_many_steps_in_all() -> None:
    shown = frames(agent(), episodes=5, max_steps=10)
    assert (shown[-1].episode, shown[-1].steps, shown[-1].ends) == (2, 3, False)


def test_without_an_overlay_and_of_other_algorithms_no_values_are_asked_for() -> None:
    assert all(frame.values is None for frame in frames(agent(), overlay=False))
    shown = SAC("Pendulum-v1", hidden_sizes=[8]).recorder(Playback(max_steps=3))
    assert [frame.values for frame in shown.frames()] == [None] * 4
    shown.close()


def test_illegal_actions_have_no_value() -> None:
    shown = frames(agent(env_kwargs={"masks": True}))
    values = [frame.values for frame in shown[:3] if frame.values is not None]
    assert [np.isnan(row).tolist() for row in values] == [
        [False, steps % 2 == 1, False] for steps in (0, 3, 6)
    ]


def test_each_frame_keeps_its_picture_where_render_returns_the_same_array() -> None:
    assert [int(frame.image[0, 0, 0]) for frame in frames(agent(OneCanvas))] == [0, 90, 180, 210]


def test_what_cannot_render_is_shown_by_its_images_or_refused() -> None:
    shown = frames(agent(Photo))
    assert [int(frame.image[0, 0, 2]) for frame in shown] == [30 * time for time in range(8)]
    assert shown[0].image.shape == (40, 40, 3)
    with pytest.raises(UsageError, match=r"cannot be shown: expected .*rgb_array.*renders ansi"):
        frames(agent(Silent))


def test_an_environment_that_fails_to_render_is_named() -> None:
    with pytest.raises(EnvError, match=r"raised ValueError in render .*no picture"):
        frames(agent(env_kwargs={"breaks_at": 3}))


def test_what_renders_on_its_own_does_so_without_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    monkeypatch.setenv("MUJOCO_GL", "egl")
    # SDL would look for a screen, and complain of each that it does not find.
    assert frames(agent(lambda: Ramp(render_mode="rgb_array")))
    assert os.environ["SDL_VIDEODRIVER"] == "dummy"


# What is drawn


def test_bars_show_by_how_much_an_action_is_better_than_the_worst() -> None:
    image = np.zeros((100, 400, 3), np.uint8)
    values = np.array([5.0, 7.0, np.nan, 9.0])
    painter = Painter(["a", "b", "c", "d"])
    picture = painter.paint(Frame(image, 1, 0, 0.0, 0.0, values))
    assert picture.width % 2 == picture.height % 2 == 0
    pixels = np.asarray(picture)
    best = (pixels == np.array([0x4E, 0xA1, 0xFF])).all(2).sum(1).max()
    others = (pixels == np.array([0x48, 0x61, 0x7C])).all(2).sum(1)
    # 5 is the worst, so 7 has half the length of 9, but for the two pixels that each bar has.
    lengths = sorted({int(length) for length in others if length})
    assert lengths[0] <= 3
    assert 2 * lengths[1] == pytest.approx(best, abs=3)
    assert painter.paint(Frame(image, 1, 1, 0.0, 0.0, None, ends=True)).size == picture.size


def test_a_narrow_picture_is_centred_above_text_that_has_room() -> None:
    image = np.full((400, 20, 3), 255, np.uint8)
    values = np.array([np.inf, 3e38, -3e38, np.nan], np.float32)
    painter = Painter(["a long name of an action"] * 4)
    pixels = np.asarray(painter.paint(Frame(image, 1, 0, 0.0, 0.0, values)))
    assert pixels.shape[1] == 320
    assert np.flatnonzero((pixels[0] == 255).all(1)).tolist() == list(range(150, 170))
    assert Painter([], overlay=False).paint(Frame(image, 1, 0, 0.0, 0.0)).width == 20
    painter.paint(Frame(image, 1, 0, 0.0, 0.0, np.full(4, np.nan)))


@pytest.mark.parametrize(("side", "expected"), [(84, 336), (48, 336), (480, 480), (1200, 600)])
def test_pictures_have_a_size_that_can_be_seen(side: int, expected: int) -> None:
    frame = Frame(np.zeros((side, side, 3), np.uint8), 1, 0, 0.0, 0.0)
    assert Painter([], overlay=False).paint(frame).size == (expected, expected)


# The files


@pytest.mark.extra("video")
def test_an_mp4_has_the_frames_at_the_speed_of_the_environment(tmp_path: Path) -> None:
    import imageio_ffmpeg

    recording = agent().record(tmp_path / "a.mp4", episodes=2)
    assert recording.episodes == ((28.0, 7), (28.0, 7))
    read = imageio_ffmpeg.read_frames(str(tmp_path / "a.mp4"))
    facts = next(read)
    read.close()
    pause = 24  # 0.8 seconds
    assert imageio_ffmpeg.count_frames_and_secs(str(tmp_path / "a.mp4"))[0] == 2 * (3 + pause)
    assert facts["codec"] == "h264"
    assert facts["fps"] == 30
    assert facts["size"][0] == 330  # 30 pixels, 11 times
    assert recording.seconds == pytest.approx(54 / 30)


@pytest.mark.parametrize("suffix", [".webp", ".gif"])
def test_without_ffmpeg_pillow_writes_the_file(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    agent().record(tmp_path / f"a{suffix}")
    with Image.open(tmp_path / f"a{suffix}") as film:
        assert film.n_frames >= 3
    assert default_target(tmp_path, tmp_path).name == "video.webp"
    with pytest.raises(MissingExtra, match=r"pip install 'rl-training\[video\]'"):
        agent().record(tmp_path / "a.mp4")


def test_nothing_is_left_of_a_video_that_failed(tmp_path: Path) -> None:
    (tmp_path / "a.gif").write_text("before")
    with pytest.raises(EnvError):
        agent(env_kwargs={"breaks_at": 6}).record(tmp_path / "a.gif")
    assert [path.name for path in tmp_path.iterdir()] == ["a.gif"]
    assert (tmp_path / "a.gif").read_text() == "before"


@pytest.mark.extra("video")
@pytest.mark.parametrize("suffix", [".mp4", ".webp", ".gif"])
def test_a_video_that_does_not_fit_leaves_the_old_one(suffix: str, tmp_path: Path) -> None:
    path, managed = tmp_path / f"a{suffix}", agent()
    path.write_text("before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(SaveError, match=r"could not write .*: File too large\. Free"):
            managed.record(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(path.name, "before")]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("a.avi", "ends in .mp4, .webp, .gif, found 'a.avi'"),
        ("missing/a.gif", "a folder that exists"),
        ("folder.gif", "found the folder"),
        (f"{'a' * 260}.gif", "File name too long"),
        ("a\0.gif", "null"),
    ],
)
def test_files_that_cannot_be_written_are_refused_before_playing(
    path: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "folder.gif").mkdir()
    with pytest.raises(UsageError, match=message):
        agent().record(tmp_path / path)


# During training


def test_recording_with_evaluations_touches_nothing_of_training(tmp_path: Path) -> None:
    plain = train_config(tiny_config("dqn", tmp_path))
    named = [{"Video": {"every": 2, "max_steps": 20}}]
    watched = train_config(tiny_config("dqn", tmp_path, callbacks=named))
    states = final_state(watched.run_dir), final_state(plain.run_dir)
    assert {name for name in states[0] if states[0][name] != states[1][name]} == {"callbacks"}
    # Evaluations are at 0, 100, 200 and 240, the end.
    videos = sorted(path.stem for path in (watched.run_dir / "videos").iterdir())
    assert videos == ["step-0", "step-200"]


def test_a_training_that_cannot_be_shown_is_refused_before_it_begins(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be shown"):
        agent(Silent, total_timesteps=50, output_dir=tmp_path).learn(callbacks=[Video()])
    never = {"eval_interval": 0, "final_eval_episodes": 0}
    with pytest.raises(ConfigError, match="eval_interval and final_eval_episodes are 0"):
        train_config(tiny_config("dqn", tmp_path, callbacks=["Video"], **never))
    with pytest.raises(ValueError, match="expected at least 1"):
        Video(every=0)


def test_a_video_that_fails_does_not_end_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {"total_timesteps": 30, "eval_interval": 0, "final_eval_episodes": 1}
    managed = agent(output_dir=tmp_path, env_kwargs={"breaks_at": 6}, **keys)
    result = managed.learn(callbacks=[Video()])
    assert result.global_step == 30
    assert "no video of step 30" in caplog.text
    assert not list((result.run_dir / "videos").iterdir())


class LoseMetadata(Callback):
    """Puts something else in the place of the environment's metadata."""

    def on_evaluation_start(self, run: TrainingRun) -> None:
        Tower.metadata = None  # type: ignore[assignment]


def test_narrow_pictures_and_odd_environments_do_not_end_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tower, "metadata", Ramp.metadata)  # and put back
    keys = {"total_timesteps": 10, "eval_interval": 0, "final_eval_episodes": 1}
    managed = agent(Tower, output_dir=tmp_path, **keys)
    result = managed.learn(callbacks=[Video()])
    assert len(list((result.run_dir / "videos").iterdir())) == 1
    assert "no video" not in caplog.text
    assert managed.learn(10, callbacks=[LoseMetadata(), Video()]).global_step == 20
    assert "no video of step 20: AttributeError: " in caplog.text


class LinkVideos(Callback):
    """Puts a link where the run is to have its videos."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def on_start(self, run: TrainingRun) -> None:
        (run.directory / "videos").symlink_to(self.target)


def test_no_video_is_written_through_a_link(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (outside := tmp_path / "outside").mkdir()
    config = tiny_config("dqn", tmp_path / "runs", callbacks=[{"Video": {"max_steps": 5}}])
    run_dir = train_config(config, callbacks=[LinkVideos(outside)]).run_dir
    assert "videos is a symbolic link" in caplog.text
    with pytest.raises(RunError, match="videos is a symbolic link"):
        train_config(config, resume=run_dir)
    assert not list(outside.iterdir())


# The commands


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    return DQN("CartPole-v1", seed=0, hidden_sizes=[8]).save(tmp_path / "saved")


def test_where_no_display_is_connected_watching_writes_a_video(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    result = CliRunner().invoke(app, ["watch", "saved", "--episodes", "1", "--max-steps", "5"])
    assert result.exit_code == 0, result.output
    assert "no display is connected: writing a video instead" in result.stderr
    assert "writing .webp" in result.stderr
    assert result.stdout.startswith("cut after 5 steps in all")
    assert Path("saved.webp").stat().st_size > 500


def test_with_a_display_the_agent_plays_in_a_window(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPLAY", ":7")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")  # a window that nobody sees
    result = CliRunner().invoke(app, ["watch", "saved", "--max-steps", "4"])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "playing in a window; Esc or q closes it",
        "cut after 4 steps in all; --max-steps sets how many are shown",
    ]
    assert not list(run.parent.glob("saved.*"))


def test_a_video_of_a_forged_run_imports_nothing_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hostile_module.py").write_text("open('ran', 'w')\nclass Env: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    saved = DQN("CartPole-v1", hidden_sizes=[8])
    assert saved.algorithm  # built on CartPole; what is stored names another environment
    saved.config = saved.config.with_changes(env_id="hostile_module:Env")
    saved.save(tmp_path / "forged")
    for command in ("video", "watch"):
        result = CliRunner().invoke(app, [command, "forged"])
        assert result.exit_code == TrustError.exit_code
        assert "hostile_module:Env" in result.stderr
    assert not (tmp_path / "ran").exists()
    assert "hostile_module" not in sys.modules
