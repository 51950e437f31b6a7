"""The layout of a report: one self-contained HTML file, into which nothing else is loaded."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from rl_training import __version__
from rl_training.tools.charts import Chart
from rl_training.tools.markup import Markup, element, join
from rl_training.tools.svg import draw_chart

MARKER = '<meta name="generator" content="rl-training report"/>'
"""Identifies a file as a report, which may be overwritten."""

WIDE, NARROW, SMALL = (912, 330), (358, 280), (285, 160)
"""Width and height in pixels of a chart across the page, on a phone, and of three in a row."""

SMALL_POINTS = 60
"""Points of a curve in a small chart, half of them maxima, half minima."""
LONGEST_LINE = 28
"""Characters up to which a cell stays on one line."""

_DASH = "\u2013"


class Cell(NamedTuple):
    """The text of a table cell, and the number to sort it by."""

    text: str
    value: float | None = None


@cache
def _asset(name: str) -> Markup:
    return Markup(Path(__file__).with_name(name).read_text(encoding="utf-8"))


def content_security_policy() -> str:
    """Allows only the page's own style and script, identified by their hashes."""

    def allowed(name: str) -> str:
        digest = hashlib.sha256(_asset(name).encode()).digest()
        return f"'sha256-{base64.b64encode(digest).decode()}'"

    return (
        f"default-src 'none'; style-src {allowed('page.css')}; script-src {allowed('page.js')}; "
        "img-src data:; media-src data:; base-uri 'none'; form-action 'none'"
    )


def render(title: str, heading: Iterable[str], body: Iterable[str]) -> str:
    """The whole page; `heading` follows the title."""
    policy = element(
        "meta", http_equiv="Content-Security-Policy", content=content_security_policy()
    )
    view = element("meta", name="viewport", content="width=device-width, initial-scale=1")
    head = [Markup('<meta charset="utf-8"/>'), policy, Markup(MARKER), view]
    head += [element("title", title), element("style", _asset("page.css"))]
    theme = element("button", "light or dark", type="button", class_="theme", hidden=True)
    header = element("header", theme, element("h1", title), *heading)
    footer = element("footer", f"rl-training {__version__}")
    content = [header, element("main", *body), footer, element("script", _asset("page.js"))]
    page = element("html", element("head", *head), element("body", *content), lang="en")
    return f"<!DOCTYPE html>\n{page}\n"


def section(title: str, *content: str) -> Markup:
    """A titled part of the page, left out if it is empty."""
    inside = join(content)
    return element("section", element("h2", title), inside) if inside else Markup()


def figure(chart: Chart, *, caption: str = "") -> Markup:
    """A chart across the page, drawn a second time for the width of a phone."""
    drawings = [
        element(
            "div", draw_chart(chart, width=width, height=height, max_points=points), class_=name
        )
        for name, (width, height), points in (("wide", WIDE, 160), ("narrow", NARROW, 60))
    ]
    heading = element("figcaption", caption) if caption else Markup()
    note = element("p", chart.note, class_="soft") if chart.note else Markup()
    return element("figure", heading, *drawings, note)


def small_figure(caption: str, drawing: Markup, latest: str = "") -> Markup:
    """One of several charts in a row; `latest` is the last value, beside the caption."""
    value = Markup(" ") + element("span", latest) if latest else Markup()
    return element("figure", element("figcaption", caption, value), drawing)


def grid(figures: Iterable[Markup]) -> Markup:
    """Small charts, three in a row."""
    inside = join(figures)
    return element("div", inside, class_="grid") if inside else Markup()


def table(head: Sequence[str], rows: Iterable[Sequence[Cell | str]], numeric: int = 99) -> Markup:
    """A sortable table; the columns from `numeric` on hold numbers."""

    def name(column: int, content: str = "") -> str | None:
        length = ("short" if len(content) <= LONGEST_LINE else "long") if content else None
        return "number" if column >= numeric else length

    def cell(column: int, content: Cell | str) -> Markup:
        if isinstance(content, Cell):
            value = "" if content.value is None else f"{content.value:.12g}"
            return element("td", content.text, class_=name(column), data_value=value)
        return element("td", content, class_=name(column, content))

    heads = [element("th", text, class_=name(i), scope="col") for i, text in enumerate(head)]
    body = [element("tr", *(cell(i, content) for i, content in enumerate(row))) for row in rows]
    written = element(
        "table",
        element("thead", element("tr", *heads)),
        element("tbody", *body),
        class_="sortable",
    )
    return element("div", written, class_="scroll") if body else Markup()


def facts(pairs: Iterable[tuple[str, str]]) -> Markup:
    """A list of names and their descriptions, without the empty ones."""
    rows = [element("dt", name) + element("dd", text) for name, text in pairs if text]
    return element("dl", *rows, class_="facts") if rows else Markup()


def key_figure(name: str, value: str, small: str = "", *, main: bool = False) -> Markup:
    """A figure with its name; `main` emphasises it."""
    inside = element("dt", name) + element("dd", value, small)
    return element("div", inside, class_="main" if main else None)


def note(text: str, kind: str = "") -> Markup:
    """A highlighted remark."""
    return element("p", text, class_=f"note {kind}".strip())


def format_number(value: float | None, digits: int = 0) -> str:
    """A number with thousands separators, or a dash."""
    return _DASH if value is None else f"{value:,.{digits}f}".replace("-", "\u2212")


def format_return(value: float | None) -> str:
    """A return with one decimal, three significant digits if it is below 10, or a dash."""
    if value is None:
        return _DASH
    if abs(value) >= 1e9:
        return f"{value:.4g}".replace("-", "\u2212")
    small = 0 < abs(value) < 10
    return (f"{value:.3g}" if small else f"{value:,.1f}").replace("-", "\u2212")


def number_cell(value: float | None, digits: int | None = None) -> Cell:
    """A table cell with a number; a return unless `digits` is given."""
    return Cell(format_return(value) if digits is None else format_number(value, digits), value)
