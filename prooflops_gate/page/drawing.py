"""Draws plots and bars as SVG, whose colours style.css sets and whose titles have the figures.

Coordinates are rounded to a tenth, so that the same plot gives the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from prooflops_gate.console.tables import engineering, visible
from prooflops_gate.page.escape import escaped
from prooflops_gate.page.plot import Axis, Line, Plot, Point, Rule
from prooflops_gate.page.section import Bar

WIDTH = 640.0
RIGHT = 16.0
TOP = 8.0
LEGEND_LINE = 18.0
RULE_LABEL_HEIGHT = 18.0
RULE_LABEL_GAP = 10.0
X_AXIS_HEIGHT = 46.0
LINE_HEIGHT = 14.0
BREAK_HEIGHT = 24.0
BREAK_TOOTH = 8.0
CHARACTER_WIDTH = 6.6
LONGEST_NAME = 34
SERIES_COLOURS = 8
RADIUS = 4.5
MARGIN_SHARE_OF_AXIS_RANGE = 0.06
# Outlines of markers: {x} {y} is the centre, {r} the radius, {l} and {R} the left and right edge,
# {t} and {b} the top and bottom one.
SHAPES = (
    "M{l} {y}A{r} {r} 0 1 0 {R} {y}A{r} {r} 0 1 0 {l} {y}Z",
    "M{l} {t}H{R}V{b}H{l}Z",
    "M{x} {t}L{R} {y}L{x} {b}L{l} {y}Z",
    "M{x} {t}L{R} {b}H{l}Z",
    "M{l} {t}H{R}L{x} {b}Z",
    "M{l} {t}L{R} {y}L{l} {b}Z",
    "M{R} {t}L{l} {y}L{R} {b}Z",
    "M{x} {t}L{R} {t}L{R} {b}L{x} {b}L{l} {y}Z",
)


def name_of(text: str) -> str:
    """A name beside an axis, shortened to leave room for the drawing."""
    shown = visible(text)
    return shown if len(shown) <= LONGEST_NAME else f"{shown[: LONGEST_NAME - 1]}…"


class Scale:
    """Maps values of an axis to coordinates between two ends."""

    def __init__(self, axis: Axis, values: Sequence[float], start: float, end: float) -> None:
        self.axis, self.start, self.end = axis, start, end
        known = [self._of(value) for value in values]
        low = self._of(axis.low) if axis.low is not None else min(known, default=0.0)
        high = self._of(axis.high) if axis.high is not None else max(known, default=1.0)
        room = MARGIN_SHARE_OF_AXIS_RANGE * (high - low) or 0.5
        self.low = low if axis.low is not None else low - room
        self.high = high if axis.high is not None else high + room

    def _of(self, value: float) -> float:
        return math.log10(value) if self.axis.is_log else value

    def __call__(self, value: float) -> float:
        share = (self._of(value) - self.low) / ((self.high - self.low) or 1.0)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> Mapping[float, str]:
        """The text of each tick: what the axis states, or round values."""
        if self.axis.ticks is not None:
            return self.axis.ticks
        return {value: _tick(value, self.axis.unit) for value in self._round_values()}

    def _round_values(self) -> Sequence[float]:
        """Round values within the axis: powers of ten on a logarithmic one that has two."""
        low, high = self.low, self.high
        if self.axis.is_log:
            powers = [10.0**place for place in range(math.ceil(low), math.floor(high) + 1)]
            if len(powers) > 1:
                return powers
            low, high = 10.0**low, 10.0**high
        return _round_steps(low, high)


def _round_steps(low: float, high: float) -> list[float]:
    """About five round values between two others.

    >>> _round_steps(0.0, 10.0)
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [step * number for number in range(first, last + 1)]


def _tick(value: float, unit: str) -> str:
    """A tick's value without zeros behind the point.

    >>> _tick(2e9, "B/s"), _tick(0.5, ""), _tick(100, "")
    ('2 GB/s', '0.5', '100')
    """
    if not unit:
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    number, _, prefixed = engineering(value, unit).partition(" ")
    return f"{float(number):g} {prefixed}"


def svg(plot: Plot) -> str:
    """A plot as SVG, with a title for readers who cannot see it."""
    bottom = plot.height - (X_AXIS_HEIGHT if plot.x.label or plot.x.ticks else 12.0)
    xs, ys = _values(plot)
    y = Scale(plot.y, ys, bottom - BREAK_HEIGHT * plot.y.is_broken, TOP)
    left = 14.0 + CHARACTER_WIDTH * max(map(len, y.ticks().values()), default=0)
    x = Scale(plot.x, xs, left, WIDTH - RIGHT)
    rows = _label_rows(plot.rules, x)
    y.end += LEGEND_LINE if plot.legend else 0
    y.end += RULE_LABEL_HEIGHT * (max(rows, default=-1) + 1)
    is_group = any(point.link for point in plot.points)
    role = "group" if is_group else "img"
    size = f"0 0 {WIDTH:g} {plot.height:g}"
    parts = [
        f'<svg viewBox="{size}" role="{role}" aria-label="{escaped(plot.title)}">',
        *_legend([name_of(name) for name in plot.legend]),
        *_axes(plot, x, y, bottom),
        *(_rule(rule, row, x, y.end, bottom) for rule, row in zip(plot.rules, rows, strict=True)),
        *(_line(line, x, y) for line in plot.lines),
        *_points(plot.points, x, y),
        "</svg>",
    ]
    return "".join(parts)


def _values(plot: Plot) -> tuple[list[float], list[float]]:
    spots = [spot for line in plot.lines for spot in line.spots]
    spots += [(point.x, point.y) for point in plot.points]
    xs = [x for x, _ in spots] + [rule.x for rule in plot.rules]
    return xs, [y for _, y in spots]


def _axes(plot: Plot, x: Scale, y: Scale, bottom: float) -> Iterator[str]:
    heights = {y(place): name for place, name in y.ticks().items()}
    if plot.y.is_broken:
        heights[bottom] = _tick(0.0, plot.y.unit)
        yield _break(x, bottom - BREAK_HEIGHT / 2)
    for at, name in heights.items():
        yield f'<path class="grid" d="M{x.start:.1f} {at:.1f}H{x.end:.1f}"/>'
        yield f'<text class="y" x="{x.start - 8:.1f}" y="{at + 4:.1f}">{escaped(name)}</text>'
    if not (plot.x.label or plot.x.ticks):
        return
    for tick, text in x.ticks().items():
        at = x(tick)
        yield f'<path class="grid" d="M{at:.1f} {y.end:.1f}V{bottom:.1f}"/>'
        for number, line in enumerate(text.split("\n")):
            yield _below(line, at, bottom + 16 + LINE_HEIGHT * number)
    if plot.x.label:
        yield _below(plot.x.label, (x.start + x.end) / 2, bottom + 36)


def _below(text: str, x: float, y: float) -> str:
    return f'<text class="x" x="{_inside(x, text):.1f}" y="{y:.1f}">{escaped(text)}</text>'


def _break(x: Scale, at: float) -> str:
    """A zigzag between 0 and where the axis goes on."""
    teeth = f"l{BREAK_TOOTH / 2:g} -3l{BREAK_TOOTH:g} 6l{BREAK_TOOTH / 2:g} -3"
    number = int((x.end - x.start) / (2 * BREAK_TOOTH))
    title = "<title>Broken axis: the values between 0 and the next tick are left out.</title>"
    return f'<path class="break" d="M{x.start:.1f} {at:.1f}{teeth * number}">{title}</path>'


def _inside(x: float, text: str) -> float:
    """The coordinate nearest to `x` at which a centred text lies within the drawing."""
    half = CHARACTER_WIDTH * len(text) / 2
    return min(max(x, half), WIDTH - half)


def _label_rows(rules: Sequence[Rule], x: Scale) -> list[int]:
    """The row of each rule's label, from the drawing upwards, so that none covers another."""
    ends: list[float] = []
    rows = []
    for rule in rules:
        half = CHARACTER_WIDTH * len(name_of(rule.label)) / 2
        middle = _inside(x(rule.x), name_of(rule.label))
        free = (row for row, end in enumerate(ends) if end < middle - half)
        row = next(free, len(ends))
        ends[row : row + 1] = [middle + half + CHARACTER_WIDTH]
        rows.append(row)
    return rows


def _rule(rule: Rule, row: int, x: Scale, top: float, bottom: float) -> str:
    at = x(rule.x)
    tone = f'class="rule {rule.tone}"' if rule.tone else 'class="rule"'
    drawn = f'<path {tone} d="M{at:.1f} {top:.1f}V{bottom:.1f}"/>'
    label = name_of(rule.label)
    height = top - RULE_LABEL_GAP - RULE_LABEL_HEIGHT * row
    place = f'x="{_inside(at, label):.1f}" y="{height:.1f}"'
    text = f"<text {tone} {place}>{escaped(label)}</text>"
    return drawn + (f'<a href="{escaped(rule.link)}">{text}</a>' if rule.link else text)


def _line(line: Line, x: Scale, y: Scale) -> str:
    spots = " ".join(f"{x(spot[0]):.1f},{y(spot[1]):.1f}" for spot in line.spots)
    kind = "faint" if line.series is None else f"s{line.series % SERIES_COLOURS}"
    title = f"<title>{escaped(line.title)}</title>" if line.title else ""
    return f'<polyline class="line {kind}" points="{spots}">{title}</polyline>'


def _points(points: Sequence[Point], x: Scale, y: Scale) -> Iterator[str]:
    """The points, then their labels, each on the side without another point."""
    places = [(x(point.x), y(point.y)) for point in points]
    for point, (left, height) in zip(points, places, strict=True):
        drawn = _marker(point, left, height)
        yield f'<a href="{escaped(point.link)}">{drawn}</a>' if point.link else drawn
    for point, place in zip(points, places, strict=True):
        if point.label:
            beside = [other for other in places if other != place]
            is_left = any(_would_cover(place, other) for other in beside)
            is_left |= place[0] > x.end - CHARACTER_WIDTH * len(point.label) - 10
            anchor, at = ("end", place[0] - 8) if is_left else ("start", place[0] + 8)
            yield (
                f'<text class="label" text-anchor="{anchor}" x="{at:.1f}" y="{place[1] + 4:.1f}">'
                f"{escaped(point.label)}</text>"
            )


def _would_cover(place: tuple[float, float], other: tuple[float, float]) -> bool:
    """True if another point lies where the label on the right would be."""
    return 0 <= other[0] - place[0] < 24 and abs(other[1] - place[1]) < 10


def _marker(point: Point, x: float, y: float) -> str:
    kind = f"point s{point.series % SERIES_COLOURS}"
    if point.is_hollow:
        kind += " hollow"
    shape = _shape(point.series, x, y)
    return f'<path class="{kind}" d="{shape}"><title>{escaped(point.title)}</title></path>'


def _shape(series: int, x: float, y: float) -> str:
    """The outline of a series' marker, so that series differ by shape as well as by colour."""
    edges = {
        "l": x - RADIUS,
        "R": x + RADIUS,
        "t": y - RADIUS,
        "b": y + RADIUS,
        "x": x,
        "y": y,
    }
    rounded = {name: f"{edge:.1f}" for name, edge in edges.items()}
    return SHAPES[series % len(SHAPES)].format(r=RADIUS, **rounded)


def _legend(names: Sequence[str]) -> Iterator[str]:
    """The markers of the series and their names, aligned to the right."""
    x = WIDTH - RIGHT - sum(map(_legend_width, names))
    for series, name in enumerate(names):
        yield f'<path class="point s{series % SERIES_COLOURS}" d="{_shape(series, x + 6, 10)}"/>'
        yield f'<text class="legend" x="{x + 16:.1f}" y="14.0">{escaped(name)}</text>'
        x += _legend_width(name)


def _legend_width(name: str) -> float:
    return 30 + CHARACTER_WIDTH * len(name)


# ---- bars ----------------------------------------------------------------------------------------

BAR_WIDTH, BAR_HEIGHT = 400.0, 22.0


def bar_svg(bar: Bar) -> str:
    """A bar with its floor as a tick and its healthy range as a band."""
    said = (f"{bar.name}: {bar.value}", bar.share, bar.note.replace("`", ""))
    title = ", ".join(part for part in said if part)
    tone = bar.mark.tone if bar.mark else "plain"
    parts = [f'<rect class="room" x="0" y="4" width="{BAR_WIDTH:g}" height="14"/>']
    if bar.healthy:
        low, high = (_along(share) for share in bar.healthy)
        parts.append(
            f'<rect class="healthy" x="{low:.1f}" y="1" width="{high - low:.1f}" height="20"/>'
        )
    if bar.length is not None:
        width = _along(bar.length)
        parts.append(f'<rect class="value {tone}" x="0" y="6" width="{width:.1f}" height="10"/>')
    if bar.floor is not None:
        parts.append(f'<path class="floor" d="M{_along(bar.floor):.1f} 0V{BAR_HEIGHT:g}"/>')
    return (
        f'<svg class="bar" viewBox="0 0 {BAR_WIDTH:g} {BAR_HEIGHT:g}" preserveAspectRatio="none" '
        f'aria-hidden="true"><title>{escaped(title)}</title>{"".join(parts)}</svg>'
    )


def _along(share: float) -> float:
    return BAR_WIDTH * min(max(share, 0.0), 1.0)
