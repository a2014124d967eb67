"""Figures with units, visible texts; tables as text, Markdown and in colour.

Imports nothing slow.
"""

from __future__ import annotations

import itertools
import re
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pytest

COLOURS = {
    "SLOWER": "red", "MORE MEMORY": "red", "CHANGED": "red", "MISSING": "red", "FASTER": "green",
    "LESS MEMORY": "green", "INCONCLUSIVE": "yellow", "MORE INSTRUCTIONS": "yellow",
}  # fmt: skip
# Wrapping leaves at least this many characters of a cell.
NARROWEST = 5


class Wrapper(textwrap.TextWrapper):
    """Wraps between words, and within a name after one of its marks.

    "layer1.", "downsample"; "matmul[", "bf16".
    """

    wordsep_re = re.compile(r"(\s+)|(?<=\w[-./_\[])(?=[A-Za-z]{2})")

    @classmethod
    def longest(cls, cell: str) -> int:
        """The width below which a word of the cell is broken."""
        return max((len(part.strip()) for part in cls.wordsep_re.split(cell) if part), default=0)


def engineering(value: float, unit: str) -> str:
    """A figure to three significant digits, with an SI prefix.

    >>> engineering(0.00123, "s"), engineering(9.2e11, "FLOP/s")
    ('1.23 ms', '920 GFLOP/s')
    """
    for exponent, prefix in (
        (15, "P"),
        (12, "T"),
        (9, "G"),
        (6, "M"),
        (3, "k"),
        (0, ""),
        (-3, "m"),
        (-6, "µ"),
    ):
        factor = 10.0**exponent
        if abs(value) >= factor * 0.9995:
            scaled = value / factor
            digits = 0 if scaled >= 99.95 else 1 if scaled >= 9.995 else 2
            return f"{scaled:.{digits}f} {prefix}{unit}"
    return f"{value / 1e-9:.3g} n{unit}" if value else f"0 {unit}"


def binary(value: float) -> str:
    """Bytes to one decimal, in powers of 1024.

    >>> binary(512), binary(12_600), binary(3 * 2**30)
    ('512 B', '12.3 KiB', '3.0 GiB')
    """
    for power, prefix in ((4, "Ti"), (3, "Gi"), (2, "Mi"), (1, "Ki")):
        if value >= 1024**power:
            return f"{value / 1024**power:.1f} {prefix}B"
    return f"{value:.0f} B"


def many(count: int, noun: str) -> str:
    """A number of things.

    >>> many(1, "pair"), many(1200, "process")
    ('1 pair', '1,200 processes')
    """
    plural = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{plural}"


def visible(text: str) -> str:
    """Writes out control and direction characters, which would reorder or break a text.

    >>> visible("a" + chr(0x202e) + "b" + chr(7)), visible("naïve")
    ('a<U+202E>b<U+0007>', 'naïve')
    """
    if text.isprintable():
        return text
    return "".join(
        f"<U+{ord(each):04X}>"
        if unicodedata.category(each) in ("Cc", "Cf", "Cs") and each not in "\n\t"
        else each
        for each in text
    )


def times_as(ratio: float) -> str:
    """Two digits behind the point, or two significant ones: "1.42x", "0.0037x", "1,532x"."""
    if ratio >= 100:
        return f"{ratio:,.0f}x"
    return f"{ratio:.2f}x" if ratio >= 0.1 else f"{ratio:.2g}x"


def share(value: float | None, absent: str) -> str:
    """A share in percent; `absent` where there is none."""
    return absent if value is None else f"{value:.1%}"


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table as lines of text: the first column flush left, the others flush right."""
    widths = _widths(rows)
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def fitted(
    rows: Sequence[Sequence[str]], width: int | None, *, text_column: bool = False
) -> list[str]:
    """As `aligned`.

    Where that is wider than `width`, with the head wrapped, and the widest columns, until it fits.

    Words are broken only where they cannot stand side by side. With `text_column` the last column
    is flush left, too.

    >>> fitted([["benchmark", "rate"], ["matmul of a large matrix", "1 GFLOP/s"]], 24)
    ['benchmark           rate', 'matmul of a    1 GFLOP/s', 'large matrix']
    """
    widths = _widths(rows)
    spare = (width or 0) - 2 * (len(widths) - 1)
    if width is None or sum(widths) <= spare:
        return aligned(
            [[*row[:-1], row[-1].ljust(widths[-1])] for row in rows] if text_column else rows
        )
    head, body = rows[0], rows[1:]
    words = [max(map(len, cell.split()), default=0) for cell in head]
    widths = [max([word, *(len(row[column]) for row in body)]) for column, word in enumerate(words)]
    unbroken = [max(Wrapper.longest(row[column]) for row in rows) for column in range(len(widths))]
    for least in (unbroken, [min(each, NARROWEST) for each in unbroken]):
        while sum(widths) > spare and any(
            each > low for each, low in zip(widths, least, strict=True)
        ):
            widest = max(
                range(len(widths)),
                key=lambda column: (widths[column] > least[column]) * widths[column],
            )
            widths[widest] -= 1
    left = (0, len(widths) - 1) if text_column else (0,)
    lines = []
    for row in rows:
        cells = [
            Wrapper(max(size, 1)).wrap(cell) or [""] for cell, size in zip(row, widths, strict=True)
        ]
        for parts in itertools.zip_longest(*cells, fillvalue=""):
            padded = []
            for column, (part, size) in enumerate(zip(parts, widths, strict=True)):
                padded.append(part.ljust(size) if column in left else part.rjust(size))
            lines.append("  ".join(padded).rstrip())
    return lines


class TerminalLine(NamedTuple):
    """A line of the terminal."""

    text: str
    colour: str = ""
    bold: bool = False


def coloured(text: str) -> TerminalLine:
    """The line in the colour of the gate's verdict that it names, if it names one."""
    for verdict, colour in COLOURS.items():
        if f" {verdict} " in f" {text} ":
            return TerminalLine(text, colour)
    return TerminalLine(text)


def write_lines(terminal: pytest.TerminalReporter, lines: Iterable[TerminalLine]) -> None:
    for line in lines:
        markup = {line.colour: True} if line.colour else {}
        terminal.write_line(line.text, bold=line.bold, **markup)


def markdown_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown; a bar in a cell is escaped."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    head, *body = ["| " + " | ".join(row) + " |" for row in cells]
    return [head, "|" + " --- |" * len(rows[0]), *body]
