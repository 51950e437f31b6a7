"""A window in which an agent plays, at the environment's own speed."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import typer

from rl_training.envs.factory import has_screen
from rl_training.errors import MissingExtra
from rl_training.tools.frames import Playback
from rl_training.tools.overlay import Painter
from rl_training.tools.video import PAUSE_SECONDS, cut_line, episode_line, show_video

if TYPE_CHECKING:
    import pygame
    from PIL import Image

    from rl_training.api.managed import ManagedAlgorithm


_INVISIBLE = ("dummy", "offscreen", "evdev")


class NoWindow(Exception):
    """No window can be opened here; the message says why."""


class Window:
    """Shows pictures of the same size at a fixed rate until it is closed."""

    def __init__(self, title: str, size: tuple[int, int], rate: float) -> None:
        self._rate = rate
        self._pygame = pygame = _pygame()
        try:
            pygame.display.init()
            pygame.display.set_caption(title)
            self._screen = pygame.display.set_mode(size)
        except pygame.error as error:
            raise NoWindow(str(error)) from error
        # Where no display answers, SDL silently draws into memory, which may also be requested.
        if pygame.display.get_driver() in _INVISIBLE and not os.environ.get("SDL_VIDEODRIVER"):
            pygame.display.quit()
            raise NoWindow("the display does not answer")
        self._clock = pygame.time.Clock()

    def show(self, picture: Image.Image, seconds: float = 0.0) -> bool:
        """Show a picture for a frame, or for `seconds`; false once the window was closed."""
        pygame = self._pygame
        surface = pygame.image.frombytes(picture.tobytes(), picture.size, "RGB")
        for _ in range(max(1, round(seconds * self._rate))):
            if any(map(self._closes, pygame.event.get())):
                return False
            self._screen.blit(surface, (0, 0))
            pygame.display.flip()
            self._clock.tick(self._rate)
        return True

    def close(self) -> None:
        """Close the window."""
        self._pygame.display.quit()

    def _closes(self, event: pygame.event.Event) -> bool:
        pygame = self._pygame
        keys = (pygame.K_ESCAPE, pygame.K_q)
        return event.type == pygame.QUIT or (event.type == pygame.KEYDOWN and event.key in keys)


def _pygame() -> ModuleType:
    try:
        import pygame
    except ImportError as error:
        raise MissingExtra(
            "a window needs pygame, which is not installed: pip install "
            "'gymnasium[classic-control]'"
        ) from error
    return pygame


def watch_or_record(managed: ManagedAlgorithm, source: Path, playback: Playback) -> None:
    """Play episodes in a window, or write a video where none can be opened."""
    reason = "no display is connected"
    if has_screen():
        try:
            return watch(managed, playback)
        except NoWindow as error:
            reason = f"no window can be opened ({error})"
    typer.echo(f"{reason}: writing a video instead", err=True)
    return show_video(managed, source, None, playback)


def watch(managed: ManagedAlgorithm, playback: Playback) -> None:
    """Play episodes in a window; raises NoWindow before the first if none can be opened."""
    recorder, window = managed.recorder(playback), None
    painter = Painter(recorder.action_names(), overlay=playback.overlay)
    try:
        for frame in recorder.frames():
            picture = painter.paint(frame)
            if window is None:
                window = Window(str(managed), picture.size, recorder.rate)
                typer.echo("playing in a window; Esc or q closes it")
            still_open = window.show(picture, PAUSE_SECONDS if frame.ends else 0.0)
            if frame.ends:
                typer.echo(episode_line(frame.episode, frame.episode_return, frame.steps))
            if not still_open:
                return
        if not frame.ends:
            typer.echo(cut_line(playback.max_steps))
    finally:
        if window is not None:
            window.close()
        recorder.close()
