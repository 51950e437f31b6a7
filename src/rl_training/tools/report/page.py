"""The frame of a report: one HTML file that needs nothing else and lets nothing else in."""

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
"""By which a file is known to be a report, which may be overwritten."""

WIDE, NARROW, SMALL = (912, 330), (358, 280), (285, 160)
"""Pixels of a chart across the page, of the same on a phone, and of one of three in a row."""

SMALL_POINTS = 60
"""Points of a curve in a small chart; half of them are peaks, the other half dips."""
LONGEST_LINE = 28
"""Characters of a cell that is kept on one line."""

_NO_NUMBER = "\u2013"


class Cell(NamedTuple):
    """What a table shows of a value, and by what it is sorted."""

    text: str
    value: float | None = None


@cache
def _asset(name: str) -> Markup:
    return Markup(Path(__file__).with_name(name).read_text(encoding="utf-8"))


def content_security_policy() -> str:
    """Nothing is loaded or run but the style and script of the page itself, by their hashes."""

    def allowed(name: str) -> str:
        digest = hashlib.sha256(_asset(name).encode()).digest()
        return f"'sha256-{base64.b64encode(digest).decode()}'"

    return (
        f"default-src 'none'; style-src {allowed('page.css')}; script-src {allowed('page.js')}; "
        "img-src data:; media-src data:; base-uri 'none'; form-action 'none'"
    )


def render(title: str, heading: Iterable[str], body: Iterable[str]) -> str:
    """The whole page; `heading` stands beside the title."""
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
    """A part of the page, left out if there is nothing in it."""
    inside = join(content)
    return element("section", element("h2", title), inside) if inside else Markup()


def figure(chart: Chart, *, caption: str = "") -> Markup:
    """A chart across the page, drawn a second time for the width of a phone."""
    drawings = [
        element("div", draw_chart(chart, width=width, height=height, most=most), class_=name)
        for name, (width, height), most in (("wide", WIDE, 160), ("narrow", NARROW, 60))
    ]
    heading = element("figcaption", caption) if caption else Markup()
    note = element("p", chart.note, class_="soft") if getattr(chart, "note", "") else Markup()
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
    """A table to sort; the columns from `numeric` on hold numbers."""

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
    """Names with what they are, without those that are nothing."""
    rows = [element("dt", name) + element("dd", text) for name, text in pairs if text]
    return element("dl", *rows, class_="facts") if rows else Markup()


def key_figure(name: str, value: str, small: str = "", *, main: bool = False) -> Markup:
    """A figure above its name; `main` is the one that matters."""
    inside = element("dt", name) + element("dd", value, small)
    return element("div", inside, class_="main" if main else None)


def note(text: str, kind: str = "") -> Markup:
    """A remark that is not to be missed."""
    return element("p", text, class_=f"note {kind}".strip())


def amount(value: float | None, digits: int = 0) -> str:
    """A number for people, or a dash."""
    return _NO_NUMBER if value is None else f"{value:,.{digits}f}".replace("-", "\u2212")


def figure_of(value: float | None) -> str:
    """A return: with one decimal, or to three digits where it is small; or a dash."""
    if value is None:
        return _NO_NUMBER
    if abs(value) >= 1e9:
        return f"{value:.4g}".replace("-", "\u2212")
    small = 0 < abs(value) < 10
    return (f"{value:.3g}" if small else f"{value:,.1f}").replace("-", "\u2212")


def cell(value: float | None, digits: int | None = None) -> Cell:
    """A number in a table."""
    return Cell(figure_of(value) if digits is None else amount(value, digits), value)
