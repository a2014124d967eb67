"""A plot as values: two axes, and what is drawn between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """An axis of figures."""

    label: str = ""
    unit: str = ""  # ticks have SI prefixes: "10 GB/s"
    is_log: bool = False
    low: float | None = None
    high: float | None = None
    # The text of each tick, whose lines stand one below the other. None: round values.
    ticks: Mapping[float, str] | None = None
    # Begins above 0, which the drawing marks.
    is_broken: bool = False


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    title: str
    series: int = 0
    is_hollow: bool = False
    label: str = ""
    link: str = ""


@dataclass(frozen=True)
class Line:
    """A line through spots; without a series a faint one."""

    spots: Sequence[tuple[float, float]]
    series: int | None = None
    title: str = ""


@dataclass(frozen=True)
class Rule:
    """A vertical line with a label on top; `tone`: a class of style.css."""

    x: float
    label: str
    tone: str = ""
    link: str = ""


@dataclass(frozen=True)
class Plot:
    """A drawing, its height in units of a 640 wide page."""

    title: str
    x: Axis
    y: Axis
    points: Sequence[Point] = ()
    lines: Sequence[Line] = ()
    rules: Sequence[Rule] = ()
    # Names of the series, in their order.
    legend: Sequence[str] = ()
    height: float = 380.0
