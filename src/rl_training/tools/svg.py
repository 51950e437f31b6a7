"""Charts as SVG inside a page: no library, no script, colours from the page's style sheet.

The page styles the classes `c0` to `c7` (the curves' colours), `axis`, `gridline`, `line`, `thin`,
`dot`, `band`, `rule` and `bar`. For the page's script, the attributes `data-name`, `data-x` and
`data-y` hold the points of a curve, `data-frame` and `data-range` the axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rl_training.tools.charts import Chart, Curve
from rl_training.tools.markup import Markup, element, join

COLOURS = 8
LARGEST = 1e100
"""Beyond it nothing is drawn, so that no sum or difference of two values is infinite."""

SMALLEST = 1e-100
"""Below it a range counts as empty."""

_CHARACTER = 6.4  # pixels of an average one at 11 px, rounded up
_LEGEND_ROW = 20
_RIGHT = 18  # room for half of the last label
_TICK_EVERY = (75, 34)  # pixels between ticks at least, horizontally and vertically
_DOT_EVERY = 22  # pixels between points at least, for each to be marked by a dot


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high`, drawn from pixel `start` to pixel `end`, labelled at `ticks`."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...] = ()

    def pixel(self, value: float) -> float:
        """The coordinate of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def labels(self) -> list[str]:
        """The ticks as text, all in one unit and with the decimals that tell them apart."""
        return tick_labels(self.ticks)


def nice_step(span: float, max_parts: int) -> float:
    """1, 2 or 5 times a power of ten that divides a range into at most `max_parts` parts."""
    raw = span / max_parts
    power = 10.0 ** math.floor(math.log10(raw))
    return next((m * power for m in (1, 2, 5) if m * power >= raw * (1 - 1e-9)), 10 * power)


def nice_ticks(low: float, high: float, max_parts: int) -> tuple[float, ...]:
    """The multiples of a nice step that lie in the range."""
    step = nice_step(high - low, max_parts)
    return _multiples(step, math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9))


def _multiples(step: float, first: int, last: int) -> tuple[float, ...]:
    # Rounded: 3 * 0.1 is to be the decimal 0.3.
    return tuple(float(f"{k * step:.12g}") for k in range(first, last + 1))


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Such as 0, 0.5, 1 or 0, 20k, 40k; a true minus sign."""
    largest = max(map(abs, ticks), default=0.0)
    if largest >= 1e12 or 0 < largest < 1e-3:
        return [f"{tick:.3g}".replace("e+", "e").replace("-", "\u2212") for tick in ticks]
    unit, sign = (1e9, "B") if largest >= 1e9 else (1e6, "M") if largest >= 1e6 else (1.0, "")
    if 1e4 <= largest < 1e6:
        unit, sign = 1e3, "k"
    step = min((b - a for a, b in pairwise(ticks)), default=largest) / unit
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step else 0
    decimals += round(step * 10**decimals, 6) % 1 != 0
    texts = (f"{tick / unit:,.{decimals}f}{sign}" if tick else "0" for tick in ticks)
    return [text.replace("-", "\u2212") for text in texts]


def value_axis(values: Iterable[float], start: float, end: float, max_parts: int) -> Axis:
    """An axis with room for all values that begins and ends at a tick."""
    low, high = _range(values)
    step = nice_step(high - low, max_parts)
    ticks = _multiples(step, math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9))
    return Axis(ticks[0], ticks[-1], start, end, ticks)


def _range(values: Iterable[float]) -> tuple[float, float]:
    """The lowest and the highest value, moved apart if they are equal."""
    drawn = [value for value in values if drawable(value)] or [0.0, 1.0]
    low, high = min(drawn), max(drawn)
    size = max(abs(low), abs(high))
    if high - low <= 1e-9 * size or size < SMALLEST:
        around = size / 2 if size >= SMALLEST else 1.0
        return low - around, high + around
    return low, high


def drawable(value: float) -> bool:
    """Whether a value is finite and small enough to be drawn."""
    return abs(value) <= LARGEST  # false for NaN


def downsample(x: Sequence[float], y: Sequence[float], max_points: int) -> list[int]:
    """The indices of at most `max_points` points that keep the shape of a long curve.

    These are both ends, and of each segment the minimum and the maximum, so that no peak is lost.
    """
    known = [i for i in range(min(len(x), len(y))) if drawable(x[i]) and drawable(y[i])]
    if len(known) <= max_points:
        return known
    segments = max(1, (max_points - 2) // 2)
    inner = known[1:-1]
    kept = {known[0], known[-1]}
    for k in range(segments):
        part = inner[k * len(inner) // segments : (k + 1) * len(inner) // segments]
        kept |= {min(part, key=y.__getitem__), max(part, key=y.__getitem__)}
    return sorted(kept)


def draw_chart(
    chart: Chart,
    *,
    width: int = 640,
    height: int = 320,
    max_points: int = 240,
    from_zero: bool = True,
) -> Markup:
    """The chart with axes, legend, bands and rules; each curve downsampled to `max_points` points.

    A curve without points keeps its colour, so that several charts of the same agree. With
    `from_zero` the axis of positive steps begins at 0, so that no late start is hidden.
    """
    curves = [_downsampled(curve, max_points) for curve in chart.curves]
    named = [(n, c.label) for n, c in enumerate(curves) if len(curves) > 1 and c.x]
    rows, places = _legend_places([label for _, label in named], width)
    singles = [single for curve in curves for single in curve.single]
    xs = [v for c in curves for v in c.x] + [v for x, _ in singles for v in x]
    ys = [v for c in curves for v in (*c.y, *c.low, *c.high)]
    ys += [v for _, y in singles for v in y] + [rule.y for rule in chart.rules]
    top = 10 + rows * _LEGEND_ROW + (22 if chart.y_label else 0)
    bottom = height - (40 if chart.x_label else 22)
    y_axis = value_axis(ys, bottom, top, max(2, (bottom - top) // _TICK_EVERY[1]))
    left = 12 + round(max(map(len, y_axis.labels())) * _CHARACTER)
    low, high = _range([*xs, 0.0] if from_zero and min(xs, default=-1) >= 0 else xs)
    ticks = nice_ticks(low, high, max(2, (width - left) // _TICK_EVERY[0]))
    x_axis = Axis(low, high, left, width - _RIGHT, ticks)
    parts = [_axes(chart, x_axis, y_axis, height)]
    drawn = list(enumerate(curves))
    parts += [_band(curve, number, x_axis, y_axis) for number, curve in drawn if curve.low]
    for number, curve in drawn:
        parts += [_single(single, number, x_axis, y_axis) for single in curve.single]
    parts += [_rule(rule.y, rule.label, x_axis, y_axis) for rule in chart.rules]
    # The first on top: it is what the chart is about.
    parts += [_line(curve, number, x_axis, y_axis) for number, curve in reversed(drawn)]
    parts += [
        element("path", class_=f"line c{number % COLOURS}", d=f"M{x},{y - 4}h16")
        + element("text", label, x=x + 22, y=y)
        for (number, _), (label, x, y) in zip(named, places, strict=True)
    ]
    return _figure(parts, chart.title, _description(curves), width, height, (x_axis, y_axis))


def draw_histogram(
    values: Sequence[float],
    *,
    title: str,
    x_label: str,
    y_label: str = "episodes",
    width: int = 640,
    height: int = 320,
) -> Markup:
    """A histogram of at most about twenty bins, with the mean as a dashed line."""
    known = [value for value in values if drawable(value)]
    low, high = _range(known)
    bins = max(5, min(20, round(2 * math.sqrt(len(known)))))
    edges = value_axis((low, high), 0, 1, bins).ticks
    counts = [0] * (len(edges) - 1)
    step = edges[1] - edges[0]
    for value in known:
        counts[max(0, min(int((value - edges[0]) / step + 1e-9), len(counts) - 1))] += 1
    top, bottom = 10 + (18 if y_label else 0), height - (40 if x_label else 22)
    max_parts = max(1, min(max(2, (bottom - top) // _TICK_EVERY[1]), max(counts, default=1)))
    y_axis = value_axis((0, max(counts, default=1)), bottom, top, max_parts)
    left = 12 + round(max(map(len, y_axis.labels())) * _CHARACTER)
    ticks = nice_ticks(edges[0], edges[-1], max(2, (width - left) // _TICK_EVERY[0]))
    x_axis = Axis(edges[0], edges[-1], left, width - _RIGHT, ticks)
    frame = Chart(title=title, x_label=x_label, y_label=y_label, curves=())
    parts = [_axes(frame, x_axis, y_axis, height)]
    for (begin, end), count in zip(pairwise(edges), counts, strict=True):
        if count:
            x, y = x_axis.pixel(begin), y_axis.pixel(count)
            parts.append(
                element(
                    "rect",
                    class_="bar c0",
                    x=_number(x + 0.5),
                    y=_number(y),
                    width=_number(x_axis.pixel(end) - x - 1),
                    height=_number(bottom - y),
                    data_count=count,
                    data_from=f"{begin:.6g}",
                    data_to=f"{end:.6g}",
                )
            )
    summary = f"{len(known)} values"
    if known:
        mean = math.fsum(known) / len(known)
        at = _number(x_axis.pixel(mean))
        parts.append(element("path", class_="rule", d=f"M{at},{bottom}V{top}"))
        summary += f", mean {mean:.5g}, from {min(known):.5g} to {max(known):.5g}"
    return _figure(parts, title, summary, width, height, (x_axis, y_axis))


def _figure(
    parts: Iterable[str], title: str, summary: str, width: int, height: int, axes: tuple[Axis, Axis]
) -> Markup:
    x, y = axes
    frame = " ".join(_number(v) for v in (x.start, x.end, y.end, y.start))
    shown = " ".join(f"{v:.12g}" for v in (x.low, x.high, y.low, y.high))
    return element(
        "svg",
        element("title", title),
        element("desc", summary),
        *parts,
        viewBox=f"0 0 {width} {height}",
        role="img",
        data_frame=frame,
        data_range=shown,
    )


def _axes(chart: Chart, x_axis: Axis, y_axis: Axis, height: int) -> Markup:
    """Grid lines, ticks and their labels, and the names of the axes."""
    parts = []
    for tick, label in zip(y_axis.ticks, y_axis.labels(), strict=True):
        y = y_axis.pixel(tick)
        path = f"M{_number(x_axis.start)},{_number(y)}H{_number(x_axis.end)}"
        parts.append(element("path", class_="gridline", d=path))
        place = {"x": _number(x_axis.start - 6), "y": _number(y + 4)}
        parts.append(element("text", label, class_="end", **place))
    base = y_axis.start
    path = f"M{_number(x_axis.start)},{_number(base)}H{_number(x_axis.end)}"
    parts.append(element("path", class_="axis", d=path))
    for tick, label in zip(x_axis.ticks, x_axis.labels(), strict=True):
        place = {"x": _number(x_axis.pixel(tick)), "y": _number(base + 16)}
        parts.append(element("text", label, class_="middle", **place))
    if chart.x_label:
        place = {"x": _number(x_axis.end), "y": str(height - 6)}
        parts.append(element("text", chart.x_label, class_="end label", **place))
    if chart.y_label:
        place = {"x": "0", "y": _number(y_axis.end - 14)}
        parts.append(element("text", chart.y_label, class_="label", **place))
    return element("g", *parts, class_="axes")


def _downsampled(curve: Curve, max_points: int) -> Curve:
    kept = downsample(curve.x, curve.y, max_points)

    def pick(values: Sequence[float]) -> tuple[float, ...]:
        return tuple(values[i] for i in kept) if values else ()

    single = []
    for x, y in curve.single:
        points = downsample(x, y, max_points)
        single.append((tuple(x[i] for i in points), tuple(y[i] for i in points)))
    return Curve(
        label=curve.label,
        x=pick(curve.x),
        y=pick(curve.y),
        low=pick(curve.low),
        high=pick(curve.high),
        single=tuple(single),
    )


def _line(curve: Curve, number: int, x_axis: Axis, y_axis: Axis) -> Markup:
    colour = f"c{number % COLOURS}"
    points = list(zip(curve.x, curve.y, strict=True))
    path = element(
        "path",
        class_=f"line {colour}",
        d=_path(points, x_axis, y_axis),
        data_name=curve.label,
        data_x=" ".join(f"{x:.9g}" for x in curve.x),
        data_y=" ".join(f"{y:.4g}" for y in curve.y),
    )
    if len(points) * _DOT_EVERY > x_axis.end - x_axis.start:
        return path
    dots = "".join(f"M{_point(x, y, x_axis, y_axis)}h0" for x, y in points)
    return join([path, element("path", class_=f"dot {colour}", d=dots)])


def _single(
    points: tuple[Sequence[float], Sequence[float]], number: int, x_axis: Axis, y_axis: Axis
) -> Markup:
    """One seed, drawn thin; a single point as a faint dot."""
    path = _path(zip(*points, strict=True), x_axis, y_axis)
    alone = len(points[0]) == 1
    name = f"{'dot faint' if alone else 'thin'} c{number % COLOURS}"
    return element("path", class_=name, d=path + "h0" * alone) if path else Markup()


def _band(curve: Curve, number: int, x_axis: Axis, y_axis: Axis) -> Markup:
    bounds = [
        (x, low, high)
        for x, low, high in zip(curve.x, curve.low, curve.high, strict=True)
        if drawable(low) and drawable(high)
    ]
    edge = [(x, high) for x, _, high in bounds] + [(x, low) for x, low, _ in reversed(bounds)]
    return element(
        "path", class_=f"band c{number % COLOURS}", d=_path(edge, x_axis, y_axis) + "Z" * bool(edge)
    )


def _rule(y: float, label: str, x_axis: Axis, y_axis: Axis) -> Markup:
    if not drawable(y):
        return Markup()
    at = y_axis.pixel(y)
    path = f"M{_number(x_axis.start)},{_number(at)}H{_number(x_axis.end)}"
    # Above the line, unless that is where the frame ends.
    beside = at - 5 if at - 16 > y_axis.end else at + 14
    text = element("text", label, class_="end", x=_number(x_axis.end), y=_number(beside))
    return join([element("path", class_="rule", d=path), text])


def _path(points: Iterable[tuple[float, float]], x_axis: Axis, y_axis: Axis) -> str:
    written = " ".join(_point(x, y, x_axis, y_axis) for x, y in points)
    return f"M{written}" if written else ""


def _point(x: float, y: float, x_axis: Axis, y_axis: Axis) -> str:
    return f"{_number(x_axis.pixel(x))},{_number(y_axis.pixel(y))}"


def _number(value: float) -> str:
    """A coordinate to a tenth of a pixel."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def _legend_places(labels: Sequence[str], width: int) -> tuple[int, list[tuple[str, int, int]]]:
    """The number of rows a legend takes, and the position of each label, shortened if long."""
    places: list[tuple[str, int, int]] = []
    x, row = 0, 0
    for label in labels:
        text = label if len(label) <= 48 else label[:45] + "..."
        needed = 22 + round(len(text) * _CHARACTER) + 18
        if x and x + needed > width:
            x, row = 0, row + 1
        places.append((text, x, 14 + row * _LEGEND_ROW))
        x += needed
    return (row + 1 if labels else 0), places


def _description(curves: Sequence[Curve]) -> str:
    def ends(curve: Curve) -> Iterator[str]:
        for i in (0, -1) if len(curve.x) > 1 else (0,) * len(curve.x):
            yield f"{curve.y[i]:.5g} at {curve.x[i]:,.7g}"

    return "; ".join(f"{c.label}: {' to '.join(ends(c)) or 'no points'}" for c in curves)
