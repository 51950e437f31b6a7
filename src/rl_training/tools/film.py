"""Files of moving pictures: H.264 by ffmpeg, animated WebP and GIF by Pillow."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rl_training.errors import MissingExtra, UsageError
from rl_training.storage.files import save_error

if TYPE_CHECKING:
    from PIL import Image

FORMATS = (".mp4", ".webp", ".gif")
IMAGE_RATE = 15
"""Frames per second of a WebP or a GIF at most, which are kept in memory until all are there."""
IMAGE_SIDE = 400
"""Pixels of the longer side of a WebP or a GIF."""
GIF_COLOURS = 64

INSTALL = "pip install 'rl-training[video]'"


class Film(Protocol):
    """Takes pictures of one size, one after the other, and writes a file of them at the end."""

    def add(self, picture: Image.Image, times: int = 1) -> None:
        """The next picture, shown for that many frames."""

    def finish(self) -> None:
        """Write what is not written yet."""

    def discard(self) -> None:
        """Stop writing."""


class FfmpegFilm:
    """H.264, encoded by ffmpeg while the pictures arrive."""

    def __init__(self, path: Path, rate: float) -> None:
        self._path, self._rate = path, rate
        self._writer: Any = None

    def add(self, picture: Image.Image, times: int = 1) -> None:
        """Hand the picture to ffmpeg."""
        if self._writer is None:
            import imageio_ffmpeg

            self._writer = imageio_ffmpeg.write_frames(
                str(self._path),
                picture.size,
                fps=self._rate,
                codec="libx264",
                quality=None,
                macro_block_size=2,
                # Played while it is loaded, and by any browser; sharp enough for drawn pictures.
                output_params=["-crf", "28", "-preset", "slow", "-movflags", "+faststart"],
                ffmpeg_log_level="error",
            )
            self._writer.send(None)
        for _ in range(times):
            self._writer.send(picture.tobytes())

    def finish(self) -> None:
        """Wait for ffmpeg to end."""
        if self._writer is not None:
            self._writer.close()

    discard = finish


class ImageFilm:
    """An animated WebP or GIF, written by Pillow once all pictures are there."""

    def __init__(self, path: Path, rate: float) -> None:
        self._path, self._every = path, max(1, round(rate / IMAGE_RATE))
        self._milliseconds = 1000 * self._every / rate
        self._pictures: list[Image.Image] = []
        self._durations: list[float] = []
        self._count = 0

    def add(self, picture: Image.Image, times: int = 1) -> None:
        """Keep the picture, or leave it out where the rate is too high."""
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


def default_name() -> str:
    """The file name of a video in the best format that can be written."""
    return "video.mp4" if has_ffmpeg() else "video.webp"


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
    if not path.parent.is_dir():
        raise UsageError(f"expected a folder that exists, found none at {path.parent}; create it")
    if path.is_dir():
        raise UsageError(f"expected the name of a file, found the folder {path}")


def require_pillow() -> None:
    """Refuse to go on without what draws."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise MissingExtra(f"videos are drawn with Pillow, which is missing: {INSTALL}") from error


@contextmanager
def new_film(path: Path, rate: float) -> Iterator[Film]:
    """A film whose file takes its place at the end; nothing is left of one that failed."""
    suffix = path.suffix.lower()
    partial = path.with_name(f".{path.stem}-{secrets.token_hex(4)}{suffix}")
    film: Film = FfmpegFilm(partial, rate) if suffix == ".mp4" else ImageFilm(partial, rate)
    try:
        try:
            yield film
        except BaseException:
            film.discard()
            raise
        film.finish()
        os.replace(partial, path)
    except OSError as error:  # ffmpeg's too
        raise save_error(path, error) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
