"""Videos of an agent's episodes: one of a run, and one with each evaluation of a training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from rl_training.config.train_config import TrainConfig
from rl_training.data.memory import format_bytes
from rl_training.errors import ConfigError, RLTrainingError
from rl_training.runtime.agent import Agent
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.evaluator import Evaluation
from rl_training.runtime.seeding import (
    derive_seed,
    global_generator_state,
    restore_global_generators,
)
from rl_training.runtime.zoo import packaged_policies
from rl_training.storage.files import make_directory
from rl_training.tools.film import INSTALL, check_target, has_ffmpeg, new_film, require_pillow
from rl_training.tools.frames import Frame, Playback, Recorder

if TYPE_CHECKING:
    from rl_training.api.managed import ManagedAlgorithm
    from rl_training.runtime.training_run import TrainingRun

logger = logging.getLogger("rl_training")

PAUSE_SECONDS = 0.8
"""How long the last frame of an episode stays."""
FOLDER = "videos"


class Recording(NamedTuple):
    """A video that was written: its length, and return and steps of each episode in it.

    `cut` is true if it ends within an episode, which is not among them.
    """

    path: Path
    seconds: float
    episodes: tuple[tuple[float, int], ...]
    cut: bool


def record_video(agent: Agent, config: TrainConfig, path: Path, playback: Playback) -> Recording:
    """Record episodes of an agent, acting greedily, in the format that the path's suffix names."""
    check_target(path)
    recorder = Recorder(agent, config, playback)
    try:
        return write_frames(recorder.frames(), recorder, path)
    finally:
        recorder.close()


def write_frames(frames: Iterator[Frame], recorder: Recorder, path: Path) -> Recording:
    """Write frames to a file, whole or not at all."""
    from rl_training.tools.overlay import Painter

    painter = Painter(recorder.action_names(), overlay=recorder.playback.overlay)
    rate = recorder.rate
    ends: list[Frame] = []
    shown, last = 0, None
    with new_film(path, rate) as film:
        for frame in frames:
            times = max(1, round(PAUSE_SECONDS * rate)) if frame.ends else 1
            film.add(painter.paint(frame), times)
            shown, last = shown + times, frame
            if frame.ends:
                ends.append(frame)
    episodes = tuple((frame.episode_return, frame.steps) for frame in ends)
    return Recording(path, shown / rate, episodes, cut=last is not None and not last.ends)


class Video(Callback):
    """With each evaluation, or every k-th, records the agent: `videos/step-N.mp4` in the run.

    Plays `episodes` episodes greedily, the same each time, on a dedicated environment, and at most
    `max_steps` of its steps. Nothing of training is touched. The first frame is rendered before
    anything is trained, so that what cannot be shown is refused then; a video that fails later is
    left out with a warning. Without the `video` extra the files are WebP.
    """

    state_fields = ("_evaluations",)
    state_counts = ("_evaluations",)

    def __init__(
        self, episodes: int = 1, every: int = 1, max_steps: int = 1_000, overlay: bool = True
    ) -> None:
        counts = {"episodes": episodes, "every": every, "max_steps": max_steps}
        if not all(type(count) is int and count >= 1 for count in counts.values()):
            raise ValueError(f"expected at least 1 of each, in whole numbers, found {counts}")
        if not isinstance(overlay, bool):
            raise ValueError(f"overlay: expected true or false, found {overlay!r}")
        self.episodes, self.every, self.max_steps = episodes, every, max_steps
        self.overlay = overlay
        self._evaluations = 0

    def on_start(self, run: TrainingRun) -> None:
        """Refuse what cannot be shown before anything is trained."""
        require_pillow()
        if run.evaluator is None:
            raise ConfigError(
                "callbacks: Video records with each evaluation, and eval_interval and "
                "final_eval_episodes are 0; leave it out or set one of them"
            )
        self._play(run, lambda frames, _: next(frames))

    def on_evaluation(self, run: TrainingRun, evaluation: Evaluation) -> None:  # noqa: ARG002
        """Record, if it is this evaluation's turn."""
        self._evaluations += 1
        if (self._evaluations - 1) % self.every:
            return
        suffix = ".mp4" if has_ffmpeg() else ".webp"
        path = run.directory / FOLDER / f"step-{run.env_steps}{suffix}"
        try:
            make_directory(path.parent)
            self._play(run, lambda frames, recorder: write_frames(frames, recorder, path))
        except (RLTrainingError, OSError) as error:
            logger.warning("no video of step %d: %s", run.env_steps, error)

    def _play(self, run: TrainingRun, use: Callable[[Iterator[Frame], Recorder], object]) -> None:
        seed = derive_seed(run.config.seed, "video")
        playback = Playback(self.episodes, seed, self.max_steps, self.overlay)
        generators = global_generator_state()
        try:
            recorder = Recorder(run.agent, run.config, playback, calls=run.collector.calls)
            try:
                use(recorder.frames(lambda: run.interrupts.received is not None), recorder)
            finally:
                recorder.close()
        finally:
            # An environment that draws from the global generators must not disturb training.
            restore_global_generators(generators)


def default_target(source: Path, run_dir: Path | None) -> Path:
    """Where the video of an agent goes: its run directory, or here if it lies in none.

    H.264, or WebP where no ffmpeg is installed.
    """
    suffix = ".mp4" if has_ffmpeg() else ".webp"
    if run_dir is not None:
        return run_dir / f"video{suffix}"
    packaged = source in packaged_policies().values()
    name = f"{source.parent.name}-{source.name}" if packaged else source.resolve().name
    return Path(f"{name}{suffix}")


def show_video(
    managed: ManagedAlgorithm, source: Path, path: Path | None, playback: Playback
) -> None:
    """Record a video and print what is in it."""
    require_pillow()
    if path is None:
        path = default_target(source, managed.run_dir)
        if path.suffix != ".mp4":
            typer.echo(f"H.264 needs imageio-ffmpeg ({INSTALL}): writing {path.suffix}", err=True)
    recording = managed.record(path, **playback._asdict())
    for number, (total, steps) in enumerate(recording.episodes, start=1):
        typer.echo(told(number, total, steps))
    if recording.cut:
        typer.echo(cut_after(playback.max_steps))
    size = path.stat().st_size
    typer.echo(f"written: {path} ({recording.seconds:.0f} s, {format_bytes(size)})")


def told(number: int, total: float, steps: int) -> str:
    """The line about an episode that was shown."""
    return f"episode {number}: return {total:.2f}, {steps:,} steps"


def cut_after(max_steps: int) -> str:
    """The line about an episode that was not shown to its end."""
    steps = "step" if max_steps == 1 else "steps"
    return f"cut after {max_steps:,} {steps} in all; --max-steps sets how many are shown"
