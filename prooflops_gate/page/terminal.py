"""Shows sections as lines of a terminal, or of a file where its width is not known."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Iterator, Sequence

from prooflops_gate.console.tables import fitted, visible
from prooflops_gate.page.section import Bar, Headline, Section, is_numeric

LEAST_WIDTH = 40
BLOCK = "█"
EIGHTHS = " ▏▎▍▌▋▊▉"
CELLS = 24


def width_of(*, isatty: bool) -> int | None:
    """The terminal's columns, or COLUMNS; None for a file, whose lines are not wrapped."""
    if isatty or os.environ.get("COLUMNS", "").isdigit():
        return max(shutil.get_terminal_size().columns, LEAST_WIDTH)
    return None


def wrapped(text: str, width: int | None, indent: str = "  ") -> list[str]:
    """Wraps a text to `width` columns; None means no wrapping."""
    shown = visible(text).replace("`", "")
    if width is None or len(shown) <= width:
        return [shown]
    return textwrap.wrap(shown, width, subsequent_indent=indent, break_on_hyphens=False)


def headline_facts(headline: Headline, width: int | None) -> list[str]:
    """The machine, the time, and the command that repeats it; the answer itself is last."""
    lines = wrapped(" · ".join(headline.facts), width) if headline.facts else []
    if headline.command:
        advice = headline.advice[:1].lower() + headline.advice[1:]
        # Whole, so that it can be pasted.
        lines.append(f"{advice}: {visible(headline.command)}")
    return lines


def section_lines(section: Section, width: int | None) -> Iterator[str]:
    """The lines of a section, without its title."""
    if section.answer:
        yield from wrapped(section.answer, width)
    if section.bars:
        yield from (line for _, line in bar_lines(section.bars, width))
    if section.rows and not section.has_head:
        for name, value in section.rows:
            yield from wrapped(f"{name}: {value}", width)
    elif section.rows:
        last = len(section.rows[0]) - 1
        yield from fitted(
            [[visible(cell) for cell in row] for row in section.rows],
            width,
            text_column=not is_numeric(section.rows, last),
        )
    for remark in section.remarks:
        yield from wrapped(remark, width)
    for part in section.parts:
        yield from wrapped(f"{part.mark.word}: {part.title}" if part.mark else part.title, width)
        yield from (f"  {line}" for line in section_lines(part, width and width - 2))


def bar_lines(bars: Sequence[Bar], width: int | None) -> Iterator[tuple[Bar, str]]:
    """The lines of each bar: verdict, name, value, bar with its floor, share and note."""
    names = max(len(bar.name) for bar in bars)
    values = max(len(bar.value) for bar in bars)
    words = max(len(bar.mark.word) if bar.mark else 0 for bar in bars)
    for bar in bars:
        word = bar.mark.word if bar.mark else ""
        beside = ", ".join(part for part in (bar.share, bar.note) if part)
        line = (
            f"{word:<{words}}  {bar.name:<{names}}  {bar.value:>{values}}  {drawn(bar)}  {beside}"
        )
        yield from ((bar, part) for part in wrapped(line.rstrip(), width, "      "))


def drawn(bar: Bar) -> str:
    """A bar of blocks, with a line at its floor.

    >>> drawn(Bar("bf16", "738 TFLOP/s", length=0.75, floor=0.875))
    '██████████████████   │  '
    """
    if bar.length is None:
        return " " * CELLS
    eighths = round(8 * CELLS * min(max(bar.length, 0.0), 1.0))
    full, rest = divmod(eighths, 8)
    cells = list((BLOCK * full + EIGHTHS[rest].strip()).ljust(CELLS))
    if bar.floor is not None:
        cells[min(int(CELLS * bar.floor), CELLS - 1)] = "│"
    return "".join(cells)
