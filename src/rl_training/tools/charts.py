"""What a chart of curves shows, whatever draws it: SVG for pages, matplotlib for files."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Points from left to right, drawn as a line with its name.

    `low` and `high` bound a shaded band, one value for each point, or are empty. `single` are
    curves drawn thin behind it, such as those of single seeds.
    """

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    single: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A dashed line across the chart at one height, such as a published figure."""

    y: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves in one frame; colours follow the order of the curves.

    `note` says below the frame how to read it.
    """

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    rules: tuple[Rule, ...] = ()
    note: str = ""
