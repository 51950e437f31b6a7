"""Frames as pictures, with step, reward, return and the values of the actions below."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from rl_training.tools.frames import Frame

MIN_SIDE, MAX_SIDE = 320, 600
"""Pixels of the longer side: smaller pictures are enlarged by a whole factor, larger reduced."""
MAX_ACTIONS = 8
"""Of more actions, the best are shown."""

_MARGIN, _LINE, _BAR_HEIGHT, _FONT_SIZE = 10, 20, 10, 13
_MAX_LABEL, _NUMBER_WIDTH, _GAP = 96, 62, 8
_GROUND, _TEXT, _FAINT, _TRACK = "#14181f", "#e8edf2", "#8a96a5", "#232b35"
_BAR, _BEST = "#48617c", "#4ea1ff"
_SPREAD_DECAY = 0.97
"""Per frame, of the difference between action values that fills a bar."""


class Painter:
    """Draws an agent's frames as pictures of the same even size; with `overlay`, text below them.

    The bar of an action shows how far its value is above that of the worst legal one, relative to
    the largest such difference in recent frames: bars of the values themselves, which are at the
    right, would look alike. Text takes `MIN_SIDE` pixels in width; narrower pictures are centred.
    """

    def __init__(self, actions: Sequence[str], *, overlay: bool = True) -> None:
        self._actions = [_shortened(name, _MAX_LABEL) for name in actions]
        self._label_width = max((_width(name) for name in self._actions), default=0)
        self._overlay = overlay
        self._rows: int | None = None  # of values, fixed by the first frame
        self._size: tuple[int, int] | None = None
        self._spread = 0.0

    def paint(self, frame: Frame) -> Image.Image:
        """The picture of a frame."""
        picture = _scaled(frame.image)
        if self._overlay:
            picture = self._with_text(picture, frame)
        if self._size is None:  # H.264 takes even sizes only
            self._size = picture.width + picture.width % 2, picture.height + picture.height % 2
        if picture.size == self._size:
            return picture
        canvas = Image.new("RGB", self._size, _GROUND)
        canvas.paste(picture)
        return canvas

    def _with_text(self, picture: Image.Image, frame: Frame) -> Image.Image:
        if self._rows is None:
            count = 0 if frame.values is None else len(frame.values)
            self._rows = min(count, MAX_ACTIONS)
        height = 2 * _MARGIN + _LINE * (1 + self._rows) - _LINE // 4
        width = max(picture.width, MIN_SIDE)
        joined = Image.new("RGB", (width, picture.height + height), _GROUND)
        joined.paste(picture, ((width - picture.width) // 2, 0))
        draw, top = ImageDraw.Draw(joined), picture.height + _MARGIN
        self._draw_facts(draw, frame, top, width)
        if frame.values is not None:
            self._draw_values(draw, frame.values.astype(float), top + _LINE, width)
        return joined

    @staticmethod
    def _draw_facts(draw: ImageDraw.ImageDraw, frame: Frame, top: int, width: int) -> None:
        facts = {
            "episode": f"{frame.episode}",
            "step": f"{frame.steps:,}",
            "reward": f"{frame.reward:.3g}",
            "return": f"{frame.episode_return:,.1f}",
        }
        column = (width - 2 * _MARGIN) / len(facts)
        left = float(_MARGIN)
        for index, (name, value) in enumerate(facts.items()):
            left = max(left, _MARGIN + index * column)  # or after a longer text
            draw.text((left, top), name, _FAINT, _font())
            left += _width(f"{name} ")
            draw.text((left, top), value, _TEXT, _font())
            left += _width(f"{value} ")

    def _draw_values(
        self, draw: ImageDraw.ImageDraw, values: np.ndarray, top: int, width: int
    ) -> None:
        finite = values[np.isfinite(values)]
        lowest, highest = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
        best = int(np.where(np.isnan(values), -np.inf, values).argmax())
        self._spread = max(float(highest - lowest), self._spread * _SPREAD_DECAY, 1e-6)
        shown = np.arange(len(values))
        if len(values) > MAX_ACTIONS:
            legal = np.flatnonzero(~np.isnan(values))
            shown = np.sort(legal[np.argsort(-values[legal], kind="stable")[:MAX_ACTIONS]])
        left, right = _MARGIN + self._label_width + _GAP, width - _MARGIN - _NUMBER_WIDTH
        for row, action in enumerate(shown.tolist()):
            value, line = float(values[action]), top + row * _LINE
            color = _TEXT if action == best else _FAINT
            draw.text((_MARGIN, line), self._actions[action], color, _font())
            bar = line + (_LINE - _BAR_HEIGHT) // 2
            draw.rectangle((left, bar, right, bar + _BAR_HEIGHT), _TRACK)
            if math.isnan(value):
                continue
            share = min(max((value - lowest) / self._spread, 0.0), 1.0)
            length = 2 + (right - left - 2) * share
            fill = _BEST if action == best else _BAR
            draw.rectangle((left, bar, left + length, bar + _BAR_HEIGHT), fill)
            text = f"{value:.4g}" if abs(value) >= 1 else f"{value:.3f}"
            draw.text((width - _MARGIN - _width(text), line), text, color, _font())


def _scaled(image: np.ndarray) -> Image.Image:
    picture, side = Image.fromarray(image), max(image.shape[:2])
    if side < MIN_SIDE:
        factor = math.ceil(MIN_SIDE / side)
        size = picture.width * factor, picture.height * factor
        return picture.resize(size, Image.Resampling.NEAREST)
    if side > MAX_SIDE:
        size = tuple(max(1, round(n * MAX_SIDE / side)) for n in picture.size)
        return picture.resize(size, Image.Resampling.LANCZOS)
    return picture


def _shortened(text: str, width: int) -> str:
    while text and _width(text) > width:
        text = text[:-1]
    return text


def _width(text: str) -> float:
    return _font().getlength(text)


@cache
def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(_FONT_SIZE)
