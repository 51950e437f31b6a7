"""YAML without its traps: what a reader would not expect is refused, with the line it stands on.

Numbers follow YAML 1.2 (`1e-4` is a number, `1:30` is text), only true and false are booleans
(`yes` and `on` are text), and dates are text. Duplicate keys, anchors, aliases, tags, merge keys,
several documents, keys that are not text and octal look-alikes (`0123`) are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, TypeAlias

import yaml

from rl_training.config.messages import KeyPath, show_value
from rl_training.errors import ConfigError

MAX_BYTES = 1_000_000
MAX_DEPTH = 20
MAX_VALUES = 20_000  # keys, items and values; PyYAML takes most of a second for as many

_WORDS: dict[str, bool | float | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **{sign + word: math.inf for sign in ("", "+") for word in (".inf", ".Inf", ".INF")},
    **{"-" + word: -math.inf for word in (".inf", ".Inf", ".INF")},
}
_DIGITS = r"[0-9]+(?:_[0-9]+)*"
_INTEGER = re.compile(rf"[-+]?(?:0|(?!0){_DIGITS})")
_FLOAT = re.compile(rf"[-+]?(?:{_DIGITS}(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_AMBIGUOUS = re.compile(r"[-+]?(?:0[xob])?[0-9][0-9_]*|[-+]?0x[0-9a-fA-F_]+")
_MAX_DIGITS = 400
_NodeStart: TypeAlias = yaml.AliasEvent | yaml.ScalarEvent | yaml.CollectionStartEvent


def parse_yaml(text: str, source_name: str) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """The mapping written in the text, and the line of every key and list item in it.

    Any trouble is a `ConfigError` that names `source_name` and the line.
    """
    builder = _Builder(text, source_name)
    values = builder.document()
    values = {} if values is None else values
    if not isinstance(values, dict):
        builder.mistakes.append(
            (1, f"expected a mapping of keys to values, found {show_value(values)}")
        )
    builder.finish()
    return values, builder.lines


def parse_scalar(text: str) -> object:
    """The value in `--set key=value`: text as it stands, a number, or flow YAML in brackets."""
    text = text.strip()
    if text[:1] not in ("[", "{", '"', "'"):
        return plain_scalar(text)
    builder = _Builder(text, "")
    value = builder.document()
    builder.finish()
    return value


def plain_scalar(text: str) -> object:
    """What an unquoted scalar means; a `ConfigError` where readers would disagree."""
    if text in _WORDS:
        return _WORDS[text]
    number = _INTEGER.fullmatch(text) or _FLOAT.fullmatch(text)
    if number and len(text) > _MAX_DIGITS:
        raise ConfigError(f"the number {show_value(text)} has too many digits")
    if _INTEGER.fullmatch(text):
        return int(text)
    if _AMBIGUOUS.fullmatch(text):
        raise ConfigError(
            f"{show_value(text)} is read as different numbers by different programs; "
            "write it in decimal without leading zeros, or quote it"
        )
    if number:
        value = float(text)
        if math.isinf(value):
            raise ConfigError(f"the number {text} is too large; write .inf for infinity")
        return value
    return text


def dump_yaml(plain: dict[str, object]) -> str:
    """Plain data as YAML that `parse_yaml` reads back equal; the order of keys is kept."""
    return yaml.dump(
        plain, Dumper=_Dumper, sort_keys=False, width=math.inf, default_flow_style=False
    )


def dump_flow(value: object) -> str:
    """One value on one line, as flow YAML."""
    # Inside a list, because a lone scalar is followed by a document end marker.
    text: str = yaml.dump([value], Dumper=_Dumper, width=math.inf, default_flow_style=True)
    return text.strip()[1:-1]


class _Builder:
    """Builds values from PyYAML's event stream, which unlike its composer does not recurse."""

    def __init__(self, text: str, source: str) -> None:
        self.text = text
        self.source = source
        self.lines: dict[KeyPath, int] = {}
        self.mistakes: list[tuple[int, str]] = []
        self.events: Iterator[Any] = iter(())
        self._values_read = 0

    def document(self) -> Any:
        """The only document's value; None if there is none."""
        if len(self.text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
            raise self._error(1, f"larger than {MAX_BYTES} bytes; this is no configuration")
        try:
            self.events = yaml.parse(self.text, Loader=yaml.SafeLoader)
            return self._read()
        except yaml.reader.ReaderError as error:
            line = self.text.count("\n", 0, error.position) + 1
            code = error.character if isinstance(error.character, int) else ord(error.character)
            raise self._error(line, f"the character U+{code:04X} is not allowed") from None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = mark.line + 1 if mark else 1
            problem = error.problem or error.context or "cannot be read"
            raise self._error(line, f"not valid YAML: {problem}") from None
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            # PyYAML lets these through for escapes and directives with absurd numbers.
            raise self._error(1, f"not valid YAML: {error}") from None

    def finish(self) -> None:
        """Raise what was refused, all at once."""
        if self.mistakes:
            ordered = sorted(self.mistakes, key=lambda mistake: mistake[0])
            raise ConfigError("\n".join(self._worded(*mistake) for mistake in ordered[:50]))

    def _read(self) -> Any:
        value, documents = None, 0
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._refuse(event, "a second document starts here; keep one")
                    break
                value = self._value(next(self.events), (), 1)
        return value

    def _value(self, event: _NodeStart, path: KeyPath, depth: int) -> object:
        if depth > MAX_DEPTH:
            raise self._error(_line(event), f"nested more than {MAX_DEPTH} levels deep")
        self._values_read += 1
        if self._values_read > MAX_VALUES:
            raise self._error(
                _line(event),
                f"more than {MAX_VALUES} keys and values; put large data into a separate file",
            )
        if isinstance(event, yaml.AliasEvent):
            return self._refuse(event, f"the alias *{event.anchor} is not allowed; write it out")
        if event.anchor is not None:
            self._refuse(event, f"the anchor &{event.anchor} is not allowed; remove it")
        if event.tag is not None:
            self._refuse(event, f"the tag {event.tag} is not allowed; remove it")
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(path, depth)
        return self._mapping(path, depth)

    def _scalar(self, event: yaml.ScalarEvent) -> object:
        text = event.value
        if any(char == "\0" or "\ud800" <= char <= "\udfff" for char in text):
            return self._refuse(event, "a NUL or half a surrogate pair is not allowed in text")
        if not event.implicit[0]:
            return text
        try:
            return plain_scalar(text)
        except ConfigError as error:
            return self._refuse(event, str(error))

    def _sequence(self, path: KeyPath, depth: int) -> list[object]:
        items: list[object] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            here = (*path, len(items))
            self.lines[here] = _line(event)
            items.append(self._value(event, here, depth + 1))
        return items

    def _mapping(self, path: KeyPath, depth: int) -> dict[str, object]:
        entries: dict[str, object] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self._key(event, path, depth)
            here = (*path, key)
            if key in entries:
                first = self.lines[here]
                self._refuse(event, f"duplicate key {key!r}, first given on line {first}")
            else:
                self.lines[here] = _line(event)
            entries.setdefault(key, self._value(next(self.events), here, depth + 1))
        return entries

    def _key(self, event: _NodeStart, path: KeyPath, depth: int) -> str:
        known = len(self.mistakes)
        key = self._value(event, path, depth + 1)
        if key == "<<" and isinstance(event, yaml.ScalarEvent) and event.implicit[0]:
            self._refuse(event, "the merge key << is not allowed; write the keys out")
        elif not isinstance(key, str) and len(self.mistakes) == known:
            self._refuse(
                event, f"a key must be text, found {show_value(key)}; quote it if it is meant"
            )
        return key if isinstance(key, str) else f"line {_line(event)}"

    def _refuse(self, event: yaml.Event, message: str) -> object:
        """Note the mistake; None stands in for the value, so that reading goes on."""
        self.mistakes.append((_line(event), message))
        return None

    def _worded(self, line: int, message: str) -> str:
        return f"{self.source}:{line}: {message}" if self.source else message

    def _error(self, line: int, message: str) -> ConfigError:
        return ConfigError(self._worded(line, message))


class _Dumper(yaml.SafeDumper):
    """PyYAML's dumper, without anchors and with quotes around all that `plain_scalar` takes."""

    def ignore_aliases(self, data: object) -> bool:
        """Write every value out in full."""
        del data
        return True


def _write_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    try:
        plain = isinstance(plain_scalar(text), str) and text.isprintable()
    except ConfigError:
        plain = False
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _write_text)


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1
