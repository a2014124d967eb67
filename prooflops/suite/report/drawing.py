"""Draws plots as SVG with matplotlib; the page's style sets the colours, and each point has a title.

`templates/style.css` names the colour values below and recolours them, so one drawing serves the light and the dark
theme. matplotlib is imported on first use.
"""

from __future__ import annotations

import io
import unicodedata
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#202020"  # text, axes
FAINT = "#8c8c8c"  # grid, background lines
SERIES = ("#0b6bcb", "#c2410c", "#0f766e", "#7c3aed", "#a16207", "#be185d", "#4d7c0f", "#475569")
MARKERS = "osD^vPX*"  # one shape per colour

LONGEST_LABEL = 30
SHORT_RANGE = {"x": 30.0, "y": 300.0}  # high/low of an axis; shorter ones also label 2x and 5x
SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
SETTINGS: dict[Any, Any] = {
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
    """A table of a page or plot; the first `text` columns and those in `words` hold words."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: int = 1
    words: frozenset[int] = frozenset()

    def is_text(self, column: int) -> bool:
        return column < self.text or column in self.words


@dataclass(frozen=True)
class Plot:
    """A drawing that answers one question, with its data as a table and remarks."""

    name: str  # unique on the page
    question: str
    answer: str  # one sentence
    svg: str
    table: Table
    remarks: Sequence[str] = field(default_factory=tuple)


def visible(text: str) -> str:
    """Writes out control and direction characters, which would reorder or break the text around them.

    >>> visible("a" + chr(0x202e) + "b" + chr(7)), visible("naïve")
    ('a<U+202E>b<U+0007>', 'naïve')
    """
    if text.isprintable():
        return text
    return "".join(
        f"<U+{ord(each):04X}>" if unicodedata.category(each) in ("Cc", "Cf", "Cs") and each not in "\n\t" else each
        for each in text
    )


def label(text: str) -> str:
    """A text beside an axis, shortened to leave room for the drawing.

    >>> label("x" * 50)
    'xxxxxxxxxxxxxxxxxxxxxxxxxxxxx…'
    """
    shown = visible(text)
    return shown if len(shown) <= LONGEST_LABEL else f"{shown[: LONGEST_LABEL - 1]}…"


class Drawing:
    """A figure being drawn: `with Drawing("rates", "Rate by size") as drawing:` gives `drawing.axes`."""

    def __init__(self, name: str, title: str, width: float = 5.4, height: float = 3.8) -> None:
        import matplotlib as mpl
        from matplotlib.figure import Figure

        self.name, self.title = name, visible(title)
        self._titles: dict[str, str] = {}
        self._settings = mpl.rc_context(SETTINGS)
        with mpl.rc_context(SETTINGS):
            self.figure: Figure = Figure(figsize=(width, height), layout="constrained")
            self.axes: Axes = self.figure.subplots()

    def __enter__(self) -> Drawing:
        self._settings.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._settings.__exit__(None, None, None)

    def title_of(self, artist: Any, text: str) -> None:
        """Sets the tooltip of an artist."""
        gid = f"{self.name}-{len(self._titles)}"
        artist.set_gid(gid)
        self._titles[gid] = visible(text)

    def points(
        self,
        x: Sequence[float],
        y: Sequence[float],
        titles: Sequence[str],
        series: int,
        *,
        hollow: bool = False,
    ) -> None:
        """Draws a series' points in its colour and shape, each with a title."""
        colour = SERIES[series % len(SERIES)]
        for each_x, each_y, title in zip(x, y, titles, strict=True):
            (artist,) = self.axes.plot(
                [each_x],
                [each_y],
                MARKERS[series % len(MARKERS)],
                color=colour,
                markerfacecolor="none" if hollow else colour,
                markersize=6,
            )
            self.title_of(artist, title)

    def line(self, spots: Sequence[tuple[float, float]], series: int) -> None:
        """Draws a line in a series' colour."""
        x, y = [x for x, _ in spots], [y for _, y in spots]
        self.axes.plot(x, y, color=SERIES[series % len(SERIES)], linewidth=1.2)

    def legend_entry(self, text: str, series: int, **kw: Any) -> None:
        """Adds a legend entry for a series whose points are drawn singly."""
        self.axes.plot([], [], MARKERS[series % len(MARKERS)], color=SERIES[series % len(SERIES)],
                       label=label(text), **kw)  # fmt: skip

    def svg(self) -> str:
        """The drawing as SVG: with a title and page-unique ids, without a date."""
        text = io.BytesIO()
        self.figure.savefig(text, format="svg", metadata={"Date": None})
        ET.register_namespace("", SVG)
        ET.register_namespace("xlink", XLINK)
        root = ET.fromstring(text.getvalue())
        for metadata in root.findall(f"{{{SVG}}}metadata"):
            root.remove(metadata)
        self._prefix_ids(root)
        root.attrib.pop("height", None)
        root.attrib.pop("width", None)
        root.set("role", "img")
        root.set("aria-labelledby", f"{self.name}-title")
        title = ET.Element(f"{{{SVG}}}title", {"id": f"{self.name}-title"})
        title.text = self.title
        root.insert(0, title)
        return ET.tostring(root, encoding="unicode")

    def _prefix_ids(self, root: ET.Element) -> None:
        for element in root.iter():
            name = element.get("id")
            if name in self._titles:
                child = ET.Element(f"{{{SVG}}}title")
                child.text = self._titles[name]
                element.insert(0, child)
            elif name:
                element.set("id", f"{self.name}-{name}")
            link = element.get(f"{{{XLINK}}}href")
            if link and link.startswith("#"):
                element.set(f"{{{XLINK}}}href", f"#{self.name}-{link[1:]}")
            clip = element.get("clip-path")
            if clip:
                element.set("clip-path", clip.replace("url(#", f"url(#{self.name}-"))


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
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}") if unit is None else EngFormatter(unit))
