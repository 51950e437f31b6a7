"""Videos of an agent's episodes, on request and during training: H.264, animated WebP and GIF."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import typer

from rl_training.config.train_config import TrainConfig
from rl_training.data.memory import format_bytes
from rl_training.errors import ConfigError, MissingExtra, RLTrainingError, UsageError
from rl_training.runtime.agent import Agent
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.evaluator import Evaluation
from rl_training.runtime.seeding import (
    derive_seed,
    global_generator_state,
    restore_global_generators,
)
from rl_training.runtime.zoo import packaged_policies
from rl_training.storage.files import make_directory, save_error, sweep, temporary_directory
from rl_training.storage.runs import VIDEOS_DIR_NAME, refuse_links
from rl_training.tools.frames import Frame, Playback, Recorder

if TYPE_CHECKING:
    from PIL import Image

    from rl_training.api.managed import ManagedAlgorithm
    from rl_training.runtime.training_run import TrainingRun
    from rl_training.tools.overlay import Painter

logger = logging.getLogger("rl_training")

FORMATS = (".mp4", ".webp", ".gif")
IMAGE_RATE = 15
"""Frames per second of a WebP or a GIF at most, as all of them are kept in memory."""
IMAGE_SIDE = 400
"""Pixels of the longer side of a WebP or a GIF."""
GIF_COLOURS = 64

INSTALL = "pip install 'rl-training[video]'"
PAUSE_SECONDS = 0.8
"""How long the last frame of an episode is shown."""


class Recording(NamedTuple):
    """A video that was written: its length, and return and steps of each complete episode.

    `cut` is true if it ends within an episode.
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
    painter = make_painter(recorder)
    rate = recorder.rate
    ends: list[Frame] = []
    shown, last = 0, None
    with open_writer(path, rate) as writer:
        for frame in frames:
            times = max(1, round(PAUSE_SECONDS * rate)) if frame.ends else 1
            writer.add(painter.paint(frame), times)
            shown, last = shown + times, frame
            if frame.ends:
                ends.append(frame)
    episodes = tuple((frame.episode_return, frame.steps) for frame in ends)
    return Recording(path, shown / rate, episodes, cut=last is not None and not last.ends)


def make_painter(recorder: Recorder) -> Painter:
    """What draws the pictures of a recorder's frames."""
    from rl_training.tools.overlay import Painter

    return Painter(recorder.action_names(), overlay=recorder.playback.overlay)


class Video(Callback):
    """Records the agent at every evaluation, or every k-th, into `videos/step-N.mp4` of the run.

    Plays `episodes` episodes greedily, the same each time, on a dedicated environment, for at most
    `max_steps` steps. Training is not affected. The first frame is drawn before training, so that
    an environment that cannot be shown is refused; a video that fails later is left out with a
    warning. Without the `video` extra the files are WebP.
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
        self._play(run, lambda frames, recorder: make_painter(recorder).paint(next(frames)))

    def on_evaluation(self, run: TrainingRun, evaluation: Evaluation) -> None:  # noqa: ARG002
        """Record at every k-th evaluation."""
        self._evaluations += 1
        if (self._evaluations - 1) % self.every:
            return
        suffix = ".mp4" if has_ffmpeg() else ".webp"
        path = run.directory / VIDEOS_DIR_NAME / f"step-{run.env_steps}{suffix}"
        try:
            refuse_links(run.directory)
            make_directory(path.parent)
            self._play(run, lambda frames, recorder: write_frames(frames, recorder, path))
        except Exception as error:
            known = isinstance(error, RLTrainingError | OSError)
            reason = error if known else f"{type(error).__name__}: {error}"
            logger.warning("no video of step %d: %s", run.env_steps, reason)

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
    """The file of an agent's video: in its run directory, or else in the current one.

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
    """Record a video and print its episodes, length and size."""
    require_pillow()
    if path is None:
        path = default_target(source, managed.run_dir)
        if path.suffix != ".mp4":
            typer.echo(f"H.264 needs imageio-ffmpeg ({INSTALL}): writing {path.suffix}", err=True)
    recording = managed.record(path, **playback._asdict())
    for number, (total, steps) in enumerate(recording.episodes, start=1):
        typer.echo(episode_line(number, total, steps))
    if recording.cut:
        typer.echo(cut_line(playback.max_steps))
    size = path.stat().st_size
    typer.echo(f"written: {path} ({recording.seconds:.0f} s, {format_bytes(size)})")


def episode_line(number: int, total: float, steps: int) -> str:
    """The line about an episode that was shown."""
    return f"episode {number}: return {total:.2f}, {steps:,} steps"


def cut_line(max_steps: int) -> str:
    """The line about an episode that was not shown to its end."""
    steps = "step" if max_steps == 1 else "steps"
    return f"cut after {max_steps:,} {steps} in all; --max-steps sets how many are shown"


class VideoWriter(Protocol):
    """Writes a file from pictures of the same size."""

    def add(self, picture: Image.Image, times: int = 1) -> None:
        """Append a picture, shown for `times` frames."""

    def finish(self) -> None:
        """Complete the file."""

    def discard(self) -> None:
        """Stop writing; raises nothing."""


class FfmpegWriter:
    """H.264, encoded by ffmpeg as the pictures arrive."""

    def __init__(self, path: Path, rate: float) -> None:
        self._path, self._rate = path, rate
        self._process: subprocess.Popen[bytes] | None = None

    def add(self, picture: Image.Image, times: int = 1) -> None:
        """Hand the picture to ffmpeg."""
        if self._process is None:
            self._process = self._start(*picture.size)
        assert self._process.stdin is not None
        data = picture.tobytes()
        try:
            for _ in range(times):
                self._process.stdin.write(data)
        except BrokenPipeError:
            self.finish()  # ffmpeg has ended, and said why
            raise

    def _start(self, width: int, height: int) -> subprocess.Popen[bytes]:
        import imageio_ffmpeg

        rate = str(Fraction(self._rate).limit_denominator())
        pictures = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", rate]
        source = [*pictures, "-i", "-"]
        # Plays in any browser while it loads; the quality is enough for drawn pictures.
        coding = ["-vcodec", "libx264", "-pix_fmt", "yuv420p", "-crf", "28", "-preset", "slow"]
        target = ["-movflags", "+faststart", f"file:{self._path}"]
        return subprocess.Popen(
            [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", *source, *coding, *target],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            # Ctrl-C is for this process; and a limit on file sizes is an error, as it is here.
            start_new_session=True,
            restore_signals=False,
        )

    def finish(self) -> None:
        """Close ffmpeg's input and wait for it; OSError with its reason if it failed."""
        if self._process is None:
            return
        _, said = self._process.communicate()
        if self._process.returncode:
            raise _ffmpeg_error(self._process.returncode, said.decode(errors="replace"))

    def discard(self) -> None:
        """Kill ffmpeg."""
        if self._process is None:
            return
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stderr):
            if pipe is not None:
                with suppress(OSError):  # of what it had not read yet
                    pipe.close()
        self._process.wait()


def _ffmpeg_error(status: int, said: str) -> OSError:
    """The error of the system that ffmpeg names last, or else its last line."""
    line = said.strip().rpartition("\n")[2] or f"it ended with status {status}"
    for code in errno.errorcode:
        if line.endswith(reason := os.strerror(code)):
            return OSError(code, reason)
    return OSError(errno.EIO, f"ffmpeg: {line}")


class ImageWriter:
    """An animated WebP or GIF, written by Pillow at the end."""

    def __init__(self, path: Path, rate: float) -> None:
        self._path, self._every = path, max(1, round(rate / IMAGE_RATE))
        self._milliseconds = 1000 * self._every / rate
        self._pictures: list[Image.Image] = []
        self._durations: list[float] = []
        self._count = 0

    def add(self, picture: Image.Image, times: int = 1) -> None:
        """Keep the picture, or leave it out to keep to the maximal rate."""
        due = self._count % self._every == 0
        self._count += 1
        if not due and times == 1:
            return
        small = picture.copy()
        small.thumbnail((IMAGE_SIDE, IMAGE_SIDE))
        if self._path.suffix == ".gif":
            from PIL import Image

            small = small.quantize(GIF_COLOURS, dither=Image.Dither.NONE)
        self._pictures.append(small)
        self._durations.append(self._milliseconds * max(1, times / self._every))

    def finish(self) -> None:
        """Write the file."""
        first, *others = self._pictures
        options: dict[str, Any] = {"quality": 60, "method": 4, "minimize_size": True}
        first.save(
            self._path,
            save_all=True,
            append_images=others,
            duration=[round(duration) for duration in self._durations],
            loop=0,
            **({} if self._path.suffix == ".gif" else options),
        )

    def discard(self) -> None:
        """Forget the pictures."""
        self._pictures.clear()


def has_ffmpeg() -> bool:
    """Whether H.264 can be written."""
    try:
        import imageio_ffmpeg

        imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError):
        return False
    return True


def check_target(path: Path) -> None:
    """Refuse a file that could not be written, before anything is played for it."""
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise UsageError(
            f"expected a file name that ends in {', '.join(FORMATS)}, found {path.name!r}"
        )
    require_pillow()
    if suffix == ".mp4" and not has_ffmpeg():
        raise MissingExtra(
            f"writing .mp4 needs imageio-ffmpeg: {INSTALL}; .webp and .gif can be written without"
        )
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            path.stat()
    except (OSError, ValueError) as error:  # a name that is too long, or has a NUL character
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"expected the name of a file that can be written, found {str(path)!r} ({reason}); "
            "choose another"
        ) from error
    if not path.parent.is_dir():
        raise UsageError(f"expected a folder that exists, found none at {path.parent}; create it")
    if path.is_dir():
        raise UsageError(f"expected the name of a file, found the folder {path}")


def require_pillow() -> None:
    """Raise if Pillow is missing."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise MissingExtra(f"videos are drawn with Pillow, which is missing: {INSTALL}") from error


@contextmanager
def open_writer(path: Path, rate: float) -> Iterator[VideoWriter]:
    """A writer whose file appears under its name once complete; a failed one leaves nothing."""
    suffix = path.suffix.lower()
    try:
        sweep(path.parent)
        with temporary_directory(path.parent) as folder:
            partial = folder / f"video{suffix}"
            writer = (FfmpegWriter if suffix == ".mp4" else ImageWriter)(partial, rate)
            try:
                yield writer
                writer.finish()
            except BaseException:
                writer.discard()
                raise
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(partial, path)
    except OSError as error:  # ffmpeg's too
        raise save_error(path, error) from error
