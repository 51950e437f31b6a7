"""YAML without its traps: what is read as what, what is refused, and on which line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from config_cases import (
    refusal,
    toy_file,
)
from rl_training.config.loading import (
    dump_yaml,
)
from rl_training.config.strict_yaml import parse_scalar, parse_yaml
from rl_training.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        (".5", 0.5),
        ("5.", 5.0),
        ("-1.5e+3", -1500.0),
        ("50_000", 50_000),
        ("1_000.5", 1000.5),
        ("+12", 12),
        ("-0", 0),
        ("true", True),
        ("FALSE", False),
        ("yes", "yes"),
        ("off", "off"),
        ("NO", "NO"),
        ("y", "y"),
        ("tRue", "tRue"),
        ("null", None),
        ("~", None),
        ("", None),
        ("1:30", "1:30"),
        ("190:20:30", "190:20:30"),
        ("2024-01-01", "2024-01-01"),
        ("2001-12-14t21:59:43.10-05:00", "2001-12-14t21:59:43.10-05:00"),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("inf", "inf"),
        ("nan", "nan"),
        ("1e", "1e"),
        ("'1'", "1"),
        ('"yes"', "yes"),
        ("=", "="),
        ("[64, 64]", [64, 64]),
        ("{initial: 1e-3, final: 0}", {"initial": 1e-3, "final": 0}),
        ("pkg.mod:Class", "pkg.mod:Class"),
    ],
)
def test_scalars_mean_what_they_look_like(text: str, value: Any) -> None:
    for result in (parse_scalar(text), parse_yaml(f"key: {text}", "x")[0]["key"]):
        assert result == value
        assert type(result) is type(value)


def test_nan_is_read_so_that_its_field_can_refuse_it(tmp_path: Path) -> None:
    path = toy_file(tmp_path, "algo: toy\nenv_id: e\nalgo_kwargs: {gamma: .nan}\n")
    assert refusal(path) == [
        "toy.yaml:3: algo_kwargs.gamma: expected a number from 0 to 1, found nan"
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: b", "a: b"),
        ("- x", "- x"),
        ("*x", "*x"),
        ("!t x", "!t x"),
        ("a # b", "a # b"),
        ("|", "|"),
    ],
)
def test_a_setting_without_brackets_is_taken_as_it_stands(text: str, value: str) -> None:
    assert parse_scalar(text) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3: duplicate key 'a', first given on line 1"),
        ("b:\n  a: 1\n  a: 3\n", "f.yaml:3: duplicate key"),
        ("a: &x 1\n", "f.yaml:1: the anchor &x is not allowed"),
        ("a: 1\nb: *x\n", "f.yaml:2: the alias *x is not allowed"),
        ("a: !!python/object:os.system x\n", "f.yaml:1: the tag"),
        ("a: !!int '3'\n", "f.yaml:1: the tag"),
        ("a: ! x\n", "f.yaml:1: the tag"),
        ("a: !!set {x}\n", "f.yaml:1: the tag"),
        ("a: 1\n<<: {b: 2}\n", "f.yaml:2: the merge key <<"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2: a second document"),
        ("1: x\n", "f.yaml:1: a key must be text, found 1"),
        ("true: x\n", "f.yaml:1: a key must be text, found True"),
        ("a:\n  null: x\n", "f.yaml:2: a key must be text, found None"),
        ("[1, 2]: x\n", "f.yaml:1: a key must be text, found [1, 2]"),
        ("a: 0123\n", "f.yaml:1: the text '0123' is read as different numbers"),
        ("a: 0o17\n", "is read as different numbers"),
        ("a: 0x1F\n", "is read as different numbers"),
        ("a: 0b11\n", "is read as different numbers"),
        ("a: 1__0\n", "is read as different numbers"),
        ("a: 1e999\n", "f.yaml:1: the number 1e999 is too large"),
        ("a: " + "9" * 5000, "has too many digits"),
        ("- a\n- b\n", "f.yaml:1: expected a mapping of keys to values, found ['a', 'b']"),
        ("just text\n", "f.yaml:1: expected a mapping of keys to values, found the text"),
        ("a: [1, 2\nb: 3\n", "f.yaml:2: not valid YAML"),
        ("a: 1\n\tb: 2\n", "f.yaml:2: not valid YAML"),
        ("a: 1\n  b: 2\n", "f.yaml:2: not valid YAML"),
        ("a: 1\nb: \x07\n", "f.yaml:2: the character U+0007 is not allowed"),
        ('a: "\\U99999999"\n', "f.yaml:1: not valid YAML"),
        ('a: "\\ud800"\n', "f.yaml:1: a NUL or half a surrogate pair"),
        ('a: "\\0"\n', "f.yaml:1: a NUL or half a surrogate pair"),
        ("%YAML 1." + "9" * 5000 + "\n---\na: 1\n", "f.yaml:1: not valid YAML"),
        ("[" * 100_000, "f.yaml:1: nested more than 20 levels deep"),
        ("{a: " * 100_000, "f.yaml:1: nested more than 20 levels deep"),
        ("".join(" " * depth + "a:\n" for depth in range(30)), "nested more than 20 levels"),
        ("? " * 3000, "nested more than 20 levels deep"),
        ("k: [" + "1," * 300_000 + "]", "f.yaml:1: more than 20000 keys and values"),
        ("".join(f"k{n}: 1\n" for n in range(50_000)), "f.yaml:10000: more than 20000 keys"),
        ("x" * 1_000_001, "f.yaml:1: larger than 1000000 bytes"),
    ],
    ids=lambda value: str(value)[:20].encode("unicode_escape").decode(),
)
def test_yaml_traps_are_refused_with_their_line(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "f.yaml")
    assert words in str(caught.value)


def test_all_refused_yaml_is_listed_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml("a: 1\na: 2\nb: &x 012\n", "f.yaml")
    lines = [line.split(": ")[0] for line in str(caught.value).splitlines()]
    assert lines == ["f.yaml:2", "f.yaml:3", "f.yaml:3"]


def test_lines_are_those_of_the_keys_and_items() -> None:
    text = "# first\na: 1\nb:\n  c:\n    - x\n    - {d: 2,\n       e: 3}\n"
    values, lines = parse_yaml(text, "f.yaml")
    assert values == {"a": 1, "b": {"c": ["x", {"d": 2, "e": 3}]}}
    assert lines == {
        ("a",): 2,
        ("b",): 3,
        ("b", "c"): 4,
        ("b", "c", 0): 5,
        ("b", "c", 1): 6,
        ("b", "c", 1, "d"): 6,
        ("b", "c", 1, "e"): 7,
    }


def test_an_empty_file_is_an_empty_mapping() -> None:
    for text in ("", "# only a comment\n", "---\n", "{}"):
        assert parse_yaml(text, "f.yaml") == ({}, {})


def test_twenty_levels_are_not_too_deep() -> None:
    assert parse_yaml("{a: " * 19 + "1" + "}" * 19, "f.yaml")
    with pytest.raises(ConfigError, match="20 levels"):
        parse_yaml("{a: " * 20 + "1" + "}" * 20, "f.yaml")


# Generated


TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20)
NUMBERS = st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none()
SCALARS = NUMBERS | TEXT | st.from_regex(r"[-+0-9._eExob:~]{0,8}", fullmatch=True)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(TEXT, PLAIN, max_size=4))
def test_dumped_yaml_reads_back_equal(values: dict[str, Any]) -> None:
    assert parse_yaml(dump_yaml(values), "f.yaml")[0] == values


@settings(max_examples=300, deadline=None)
@given(st.text("ab01 :-\n#[]{},&*!|>'\"%@`?~\\u.e_\t", max_size=40))
@example("? a\n: b")
def test_any_text_is_a_value_or_a_config_error(text: str) -> None:
    parsed, mistakes = outcome(parse_yaml, text, "f.yaml")
    # Every line of a message says where the mistake is.
    assert all(re.match(r"f\.yaml:\d+: ", line) for line in mistakes.splitlines())
    if not mistakes:
        values, lines = parsed
        assert {path[0] for path in lines} == set(values)
        assert all(1 <= line <= text.count("\n") + 1 for line in lines.values())
    value, mistakes = outcome(parse_scalar, text)
    assert mistakes or isinstance(value, dict | list | str | int | float | bool | None)


def outcome(parse: Callable[..., Any], *arguments: str) -> tuple[Any, str]:
    """What a parser gives, or the words it refuses with."""
    try:
        return parse(*arguments), ""
    except ConfigError as error:
        return None, str(error) or "nothing was said"


def test_pyyaml_still_has_the_traps_we_guard_against() -> None:
    assert yaml.safe_load("1e-4") == "1e-4"
    assert yaml.safe_load("{a: 1, a: 2}") == {"a": 2}
    assert yaml.safe_load("010") == 8
