"""Charts as SVG: where the points lie, what is labelled, and that texts stay texts."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.tools.charts import Chart, Curve, Rule
from rl_training.tools.markup import Markup, element, escape, join
from rl_training.tools.svg import (
    downsample,
    draw_chart,
    draw_histogram,
    nice_ticks,
    tick_labels,
    value_axis,
)

HOSTILE = '"><script>alert(1)</script>&\u202e\x1b[31m\ud800'

LINE = Curve(label="dqn", x=(0.0, 50.0, 100.0), y=(0.0, 5.0, 10.0))


def chart(*curves: Curve, rules: tuple[Rule, ...] = (), label: str = "") -> Chart:
    return Chart(title="returns", x_label="", y_label=label, curves=curves, rules=rules)


def paths(svg: str, name: str) -> list[str]:
    """The `d` of the paths of a class, in the order of drawing."""
    return [
        path.get("d", "")
        for path in ET.fromstring(svg).iter("path")
        if name in path.get("class", "").split()
    ]


def test_points_lie_where_the_axes_put_them() -> None:
    # 240 x 140: from y = 10 down to 140 - 22 = 118; labels of up to two characters, 12.8 pixels,
    # end at x = 25, and the frame ends at 240 - 18 = 222. A step is 1.97 pixels, a point 10.8.
    svg = draw_chart(chart(LINE), width=240, height=140)
    assert paths(svg, "line") == ["M25,118 123.5,64 222,10"]
    assert paths(svg, "gridline") == ["M25,118H222", "M25,64H222", "M25,10H222"]
    assert 'data-frame="25 222 10 118"' in svg
    assert 'data-range="0 100 0 10"' in svg


def test_values_for_a_reader_are_beside_the_curve() -> None:
    svg = draw_chart(chart(LINE))
    assert 'data-name="dqn" data-x="0 50 100" data-y="0 5 10"' in svg
    assert "<desc>dqn: 0 at 0 to 10 at 100</desc>" in svg


def test_a_band_goes_along_its_upper_bound_and_back_along_the_lower() -> None:
    curve = Curve(label="a", x=(0.0, 100.0), y=(5.0, 5.0), low=(0.0, 5.0), high=(10.0, 5.0))
    svg = draw_chart(chart(curve), width=240, height=140)
    assert paths(svg, "band") == ["M25,10 222,64 222,64 25,118Z"]


def test_a_rule_crosses_the_whole_frame_with_its_label_beside_it() -> None:
    svg = draw_chart(chart(LINE, rules=(Rule(y=5.0, label="published"),)), width=240, height=140)
    assert paths(svg, "rule") == ["M25,64H222"]
    assert '<text class="end" x="222" y="59">published</text>' in svg


def test_single_seeds_are_thin_and_count_for_the_range() -> None:
    seeds = (((0.0, 100.0), (0.0, 20.0)), ((100.0,), (10.0,)))
    curve = Curve(label="a", x=(0.0, 100.0), y=(5.0, 5.0), single=seeds)
    svg = draw_chart(chart(curve), width=240, height=140)
    assert paths(svg, "thin") == ["M25,118 222,10"]
    assert paths(svg, "faint") == ["M222,64h0"]


def test_the_first_curve_is_drawn_last_and_each_keeps_its_colour() -> None:
    other = Curve(label="ppo", x=(0.0, 100.0), y=(1.0, 1.0))
    absent = Curve(label="sac", x=(), y=())
    svg = draw_chart(chart(LINE, absent, other))
    drawn = re.findall(r'class="line (c\d)" d="[^"]*" data-name="(\w*)"', svg)
    assert drawn == [("c2", "ppo"), ("c1", "sac"), ("c0", "dqn")]
    assert "<text" in svg
    assert ">sac</text>" not in svg  # nothing of it is to be seen


def test_a_curve_without_points_or_numbers_leaves_an_empty_frame() -> None:
    for y in ((), (math.nan, math.inf, 1e300)):
        svg = draw_chart(chart(Curve(label="a", x=tuple(map(float, range(len(y)))), y=y)))
        assert paths(svg, "line") == [""]


def test_a_missing_value_is_left_out_of_the_line() -> None:
    curve = Curve(label="a", x=(0.0, 50.0, 100.0), y=(0.0, math.nan, 10.0))
    assert paths(draw_chart(chart(curve), width=240, height=140), "line") == ["M25,118 222,10"]


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (0, 8000, 6, (0, 2000, 4000, 6000, 8000)),
        (0, 1, 5, (0, 0.2, 0.4, 0.6, 0.8, 1)),
        (-3.5, 2.1, 4, (-2, 0, 2)),
        (0.11, 0.19, 4, (0.12, 0.14, 0.16, 0.18)),
    ],
)
def test_ticks_are_round_numbers_in_the_range(
    low: float, high: float, most: int, expected: tuple[float, ...]
) -> None:
    assert nice_ticks(low, high, most) == expected


@pytest.mark.parametrize(
    ("ticks", "expected"),
    [
        ((0.0, 2000.0, 4000.0), ["0", "2,000", "4,000"]),
        ((0.0, 20e3, 40e3), ["0", "20k", "40k"]),
        ((0.0, 0.5e6, 1e6), ["0", "0.5M", "1.0M"]),
        ((-0.5, 0.0, 0.5), ["\u22120.5", "0", "0.5"]),
        ((0.0, 2e-5), ["0", "2e\u221205"]),
        ((0.0, 5e15), ["0", "5e15"]),
    ],
)
def test_labels_share_a_unit_and_their_decimals(ticks: tuple[float, ...], expected: object) -> None:
    assert tick_labels(ticks) == expected


def test_an_axis_of_values_begins_and_ends_at_a_tick() -> None:
    axis = value_axis([-1400.0, -30.0], 100, 0, 5)
    assert (axis.low, axis.high) == (-1500.0, 0.0)
    assert axis.pixel(-750.0) == 50


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=20), st.integers(2, 9))
@settings(max_examples=60, deadline=None)
def test_any_values_get_an_axis_that_holds_them(values: list[float], most: int) -> None:
    axis = value_axis(values, 0, 1, most)
    assert axis.low < axis.high
    assert len(axis.labels()) == len(axis.ticks) <= most + 3
    for value in values:
        if 1e-90 < abs(value) <= 1e100:
            assert -1e-6 <= axis.pixel(value) <= 1 + 1e-6


def test_thinning_keeps_ends_and_peaks() -> None:
    x = [float(i) for i in range(10_000)]
    y = [math.sin(i / 500) for i in range(10_000)]
    y[1234], y[8765] = 50.0, -50.0
    kept = downsample(x, y, 100)
    assert len(kept) <= 100
    assert kept[0] == 0
    assert kept[-1] == 9_999
    assert {1234, 8765} <= set(kept)
    assert kept == sorted(kept)


def test_a_histogram_counts_every_value_once() -> None:
    svg = draw_histogram([0.0, 0.5, 1.0, 1.5, 4.0, 4.0], title="returns", x_label="return")
    bars = re.findall(r'data-count="(\d+)" data-from="([^"]*)" data-to="([^"]*)"', svg)
    # Six values: five stretches or a few more; from 0 to 4 in steps of 1, the last closed.
    assert bars == [("2", "0", "1"), ("2", "1", "2"), ("2", "3", "4")]
    assert "6 values, mean 1.8333, from 0 to 4" in svg


def test_equal_values_make_one_bar() -> None:
    svg = draw_histogram([500.0] * 100, title="returns", x_label="return")
    assert re.findall(r'data-count="(\d+)"', svg) == ["100"]


def test_a_drawing_is_the_same_every_time_and_is_xml() -> None:
    curve = Curve(label=HOSTILE, x=(0.0, 1.0), y=(1.0, 2.0))
    hostile = chart(curve, curve, rules=(Rule(y=1.5, label=HOSTILE),), label=HOSTILE)
    svg = draw_chart(hostile)
    assert svg == draw_chart(hostile)
    root = ET.fromstring(svg.encode())
    assert root.get("role") == "img"
    assert {node.tag for node in root.iter()} <= {"svg", "title", "desc", "g", "path", "text"}


def test_texts_are_escaped_wherever_they_stand() -> None:
    assert escape("<b>&\"'") == "&lt;b&gt;&amp;&quot;&#x27;"
    assert element("td", "<i>", data_x='"') == '<td data-x="&quot;">&lt;i&gt;</td>'
    assert join([Markup("<hr/>"), "<hr/>"]) == "<hr/>&lt;hr/&gt;"
    assert Markup("<hr/>") + "<" == "<hr/>&lt;"
    assert escape("a\u202eb\ud800\x00") == "a\\u202eb\\ud800\\x00"
