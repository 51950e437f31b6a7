"""HTML and SVG in which everything but `Markup` is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable

VOID = frozenset({"img", "meta", "line", "path", "rect"})
"""Elements without content, which need no closing tag in HTML."""


class Markup(str):
    """Text that goes into a page unescaped; made only by `element`, `join` and literals."""

    __slots__ = ()

    def __add__(self, other: str) -> Markup:
        """Both, the second one escaped if it is plain text."""
        return join([self, other])


def escape(text: object) -> Markup:
    """The text escaped, with control characters, lone surrogates and direction marks visible."""
    plain = str(text)
    if not plain.isprintable():
        plain = "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in plain)
    return Markup(html.escape(plain))


def element(name: str, /, *content: str, **attributes: object) -> Markup:
    """An element; `data_x=1` is the attribute `data-x`, `class_` is `class`.

    None leaves an attribute out, and True gives one without a value.
    """
    written = "".join(
        f" {key.strip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{join(content)}</{name}>")


def join(parts: Iterable[str], separator: str = "") -> Markup:
    """The parts one after another, those that are plain text escaped."""
    pieces = (part if isinstance(part, Markup) else escape(part) for part in parts)
    return Markup(separator.join(pieces))
