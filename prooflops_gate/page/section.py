"""The content of a page as values, which html.py, markdown.py and terminal.py show."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from prooflops_gate.page.plot import Plot

GOOD, BAD, OPEN, OTHER, PLAIN = "good", "bad", "open", "other", "plain"  # tones, colours of a page
ABSENT = "Not measured in this run."
NO_FIGURE = ("", "-", "–", "·")
LONGEST_FIGURE = 3  # words, as in "1.2 ms wide"


@dataclass(frozen=True)
class Mark:
    """A word that stands out: in a colour, and with a shape for readers who do not see colours."""

    word: str
    tone: str = PLAIN
    shape: str = ""


@dataclass(frozen=True)
class Bar:
    """One figure beside its limits, all as shares of the bar's length."""

    name: str
    value: str
    length: float | None = None
    floor: float | None = None
    healthy: tuple[float, float] | None = None
    share: str = ""
    note: str = ""
    mark: Mark | None = None


@dataclass(frozen=True)
class Section:
    """A title, a table whose first row is its head, remarks and a plot; most may be absent.

    Text between two backticks is code; in HTML it links to the section that has it as its anchor.
    """

    title: str
    rows: Sequence[Sequence[str]] = ()
    remarks: Sequence[str] = ()
    plot: Plot | None = None
    bars: Sequence[Bar] = ()
    answer: str = ""  # one sentence below the title
    parts: Sequence[Section] = ()
    anchor: str = ""
    mark: Mark | None = None
    is_folded: bool = False  # the reader opens it; short pages have the facts of it alone
    has_head: bool = True  # else each row is a fact: a name and a value
    can_search: bool = False  # the parts of its parts are filtered by words and by mark
    is_box: bool = False  # stands out, as what a reader looks for first
    absent: str = ""  # said where there is nothing; empty: the section is left out

    @property
    def size(self) -> int:
        """The number of rows without their head; of what else there is, where there are none."""
        plots = [self.plot] if self.plot else []
        for shown in (self.rows[self.has_head :], self.bars, self.parts, self.remarks, plots):
            if shown:
                return len(shown)
        return 0

    @property
    def is_empty(self) -> bool:
        return not self.size


@dataclass(frozen=True)
class Headline:
    """The first screen's answer: a word in a colour, of what and why, and the next command."""

    mark: Mark
    text: str
    facts: Sequence[str] = ()
    command: str = ""
    advice: str = "Repeat it"  # what the command is for

    @property
    def sentence(self) -> str:
        return f"{self.mark.word}: {self.text}" if self.text else self.mark.word


@dataclass(frozen=True)
class Page:
    """A page in any medium."""

    title: str
    kind: str
    sections: Sequence[Section]
    headline: Headline | None = None
    lead: Sequence[str] = ()
    warnings: Sequence[str] = ()  # such as that it is a part of a run
    foot: str = ""

    @property
    def shown(self) -> Sequence[Section]:
        """The sections that have content, or that say why they have none."""
        return [each for each in self.sections if not each.is_empty or each.absent]


def anchor_of_word(word: str) -> str:
    """The anchor of a word's definition, to which headings and code of this word link."""
    return f"word-{word.replace(' ', '-')}"


def literal(text: str) -> str:
    """A text of others, whose backticks are no code."""
    return text.replace("`", "'")


def is_figure(cell: str) -> bool:
    """True if a cell is a number with at most a unit.

    >>> is_figure("~ 1.42x"), is_figure("738 TFLOP/s"), is_figure("12 rounds, method 4")
    (True, True, False)
    """
    return bool(re.match(r"[-+~<≥≤ ]*\d", cell)) and len(cell.split()) <= LONGEST_FIGURE


def is_numeric(rows: Sequence[Sequence[str]], column: int) -> bool:
    """True if a column holds figures, and at most short words where there is none."""
    said = [row[column] for row in rows[1:] if row[column] not in NO_FIGURE]
    figures = [cell for cell in said if is_figure(cell)]
    is_long = any(len(cell.split()) > LONGEST_FIGURE for cell in said)
    if not said:
        return len(rows) > 1
    return 2 * len(figures) >= len(said) and not is_long
