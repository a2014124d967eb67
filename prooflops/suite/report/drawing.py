"""Draws plots as SVG with matplotlib; the page's style sets the colours, and each point has a title.

`style.css` names the colour values below and recolours them, so one drawing serves the light and the dark
theme. matplotlib is imported on first use.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from prooflops_gate.console.tables import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#202020"  # text, axes
FAINT = "#8c8c8c"  # grid, background lines
SERIES = ("#0b6bcb", "#c2410c", "#0f766e", "#7c3aed", "#a16207", "#be185d", "#4d7c0f", "#475569")
MARKERS = "osD^vPX*"  # one shape per colour

LONGEST_LABEL = 30
SHORT_RANGE = {"x": 30.0, "y": 300.0}  # high/low of an axis; shorter ones also label 2x and 5x
SETTINGS: dict[Any, Any] = {
    "lines.markersize": 6,
    "svg.fonttype": "none",
    "svg.hashsalt": "prooflops",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "text.parse_math": False,  # a name with two dollar signs is a name
}


@dataclass(frozen=True)
class Table:
    """A table of a page or plot; a column without a figure holds words, as do those in `words`."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: frozenset[int] = frozenset()

    def is_text(self, column: int) -> bool:
        return column in self.words or not any(
            re.match(r"[-+~ ]*\d", row[column]) for row in self.rows
        )


@dataclass(frozen=True)
class Plot:
    """A drawing that answers one question, with its data as a table and remarks."""

    name: str  # unique on the page
    question: str
    answer: str  # one sentence
    svg: str
    table: Table
    remarks: Sequence[str] = ()


def label(text: str) -> str:
    """A text beside an axis, shortened to leave room for the drawing.

    >>> label("x" * 50)
    'xxxxxxxxxxxxxxxxxxxxxxxxxxxxx…'
    """
    shown = visible(text)
    return shown if len(shown) <= LONGEST_LABEL else f"{shown[: LONGEST_LABEL - 1]}…"


class Drawing:
    """A figure being drawn, within the context `style`: its axes are drawn on, `plot` ends it."""

    def __init__(self, name: str, title: str, width: float = 5.4, height: float = 3.8) -> None:
        from matplotlib.figure import Figure

        self.name, self.title = name, visible(title)
        self._titles: list[str] = []
        self.figure: Figure = Figure(figsize=(width, height), layout="constrained")
        self.axes: Axes = self.figure.subplots()

    def title_of(self, artist: Any, text: str) -> None:
        """Sets the tooltip of an artist."""
        artist.set_gid(f"titled-{len(self._titles)}")
        self._titles.append(visible(text))

    def point(self, x: float, y: float, title: str, series: int, *, hollow: bool = False) -> None:
        """Draws a point in its series' colour and shape."""
        colour = SERIES[series % len(SERIES)]
        face = "none" if hollow else colour
        (artist,) = self.axes.plot(
            [x], [y], MARKERS[series % len(MARKERS)], color=colour, markerfacecolor=face
        )
        self.title_of(artist, title)

    def line(self, spots: Sequence[tuple[float, float]], series: int) -> Any:
        """Draws a line in a series' colour, and returns it."""
        x, y = [x for x, _ in spots], [y for _, y in spots]
        return self.axes.plot(x, y, color=SERIES[series % len(SERIES)], linewidth=1.2)[0]

    def legend(self, names: Sequence[str] = (), above: float = 1.0) -> None:
        """The legend above the axes: of series whose points are drawn singly, or of what bears labels."""
        for series, name in enumerate(names):
            marker, colour = MARKERS[series % len(MARKERS)], SERIES[series % len(SERIES)]
            self.axes.plot([], [], marker, color=colour, label=label(name))
        self.axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, above))

    def rows(self, names: Sequence[str]) -> None:
        """Names the rows of a drawing whose y is a row, from the top."""
        self.axes.set_yticks(range(len(names)), [label(name) for name in names])
        self.axes.set_ylim(len(names) - 0.4, -0.6)

    def plot(self, question: str, answer: str, table: Table, *remarks: str) -> Plot:
        """The drawing with its question, answer, data and remarks."""
        return Plot(self.name, question, answer, self.svg(), table, remarks)

    def svg(self) -> str:
        """The drawing as SVG: with a title, tooltips and page-unique ids, without a date."""
        text = io.StringIO()
        self.figure.savefig(text, format="svg", metadata={"Date": None})
        head, _, body = text.getvalue().partition("<svg ")[2].partition(">")
        body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
        body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{self.name}-", body)
        for number, title in enumerate(self._titles):
            gid = f'id="{self.name}-titled-{number}">'
            body = body.replace(gid, f"{gid}<title>{escape(title)}</title>", 1)
        head = re.sub(r'(width|height)="[^"]*" ', "", head)
        title = f'<title id="{self.name}-title">{escape(self.title)}</title>'
        return f'<svg {head} role="img" aria-labelledby="{self.name}-title">{title}{body}'


def log_axes(axes: Axes, x: str = "", y: str = "", **units: str) -> None:
    """Makes labelled axes logarithmic; `x_unit` and `y_unit` give ticks SI prefixes: "10 GFLOP/s"."""
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullLocator

    for name, label in (("x", x), ("y", y)):
        if not label:
            continue
        getattr(axes, f"set_{name}scale")("log")
        axis, (low, high) = getattr(axes, f"{name}axis"), getattr(axes, f"get_{name}lim")()
        axis.set_label_text(label)
        axis.set_minor_locator(NullLocator())
        if high / low < SHORT_RANGE[name]:
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        unit = units.get(f"{name}_unit")
        axis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:g}") if unit is None else EngFormatter(unit)
        )
