"""Shows a page as Markdown: whole, or short for a comment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prooflops_gate.console.tables import markdown_table, visible
from prooflops_gate.page.escape import inline, markdown_text
from prooflops_gate.page.section import Bar, Headline, Page, Section

CUT = "**Cut here:** the pages beside this one have the rest."
BAR_HEAD = ["figure", "measured", "share", "verdict", "floor, and what healthy devices reach"]
# Characters of a cell of a short page: the HTML page has all.
LONGEST_CELL = 300


def markdown(page: Page, *, largest_bytes: int | None = None) -> str:
    """The page as text; with `largest_bytes` a short one, cut at that size."""
    is_short = largest_bytes is not None
    kept: list[str] = []
    room = (largest_bytes or 0) - len(CUT) - 4
    for line in _lines(page, is_short=is_short):
        room -= len(line.encode()) + 1
        if is_short and room < 0:
            return "\n".join([*kept, "", CUT, ""])
        kept.append(line)
    return "\n".join(kept)


def _lines(page: Page, *, is_short: bool) -> Iterator[str]:
    yield from (f"# {markdown_text(page.title)}", "")
    if page.headline:
        yield from _headline(page.headline)
    yield from _list(f"**{markdown_text(each)}**" for each in page.warnings)
    for each in page.lead:
        yield from (markdown_text(each), "")
    for section in page.shown:
        if not (is_short and section.is_folded and section.has_head):
            yield from _section(section, 2, is_short=is_short)
    if page.foot and not is_short:
        yield from (markdown_text(page.foot), "")


def _headline(headline: Headline) -> Iterator[str]:
    text = f": {markdown_text(headline.text)}" if headline.text else ""
    yield from (f"**{markdown_text(headline.mark.word)}**{text}", "")
    yield from (markdown_text(" · ".join(headline.facts)), "")
    if headline.command:
        yield from (f"{headline.advice}: `{visible(headline.command)}`", "")


def _section(section: Section, level: int, *, is_short: bool) -> Iterator[str]:
    mark = f"{markdown_text(section.mark.word)}: " if section.mark else ""
    yield from (f"{'#' * level} {mark}{markdown_text(section.title)}", "")
    if section.answer:
        yield from (markdown_text(section.answer), "")
    if section.is_empty:
        yield from (section.absent, "")
    elif section.is_folded and not is_short:
        yield from _opened(f"Show {section.size:,}")
        yield from _content(section, level, is_short=is_short)
        yield from ("</details>", "")
    else:
        yield from _content(section, level, is_short=is_short)


def _content(section: Section, level: int, *, is_short: bool) -> Iterator[str]:
    if section.bars:
        yield from (*markdown_table([BAR_HEAD, *map(_bar, section.bars)]), "")
    if section.rows and not section.has_head:
        yield from _list(f"{markdown_text(name)}: {_joined(value)}" for name, value in section.rows)
    elif section.rows and not (is_short and section.plot):
        yield from (*table(section.rows, LONGEST_CELL if is_short else None), "")
    yield from _list(markdown_text(each) for each in section.remarks)
    inner = [part for group in section.parts for part in group.parts]
    if inner and all(map(_is_a_row, inner)):
        yield from _topics(section.parts, is_short=is_short)
        return
    for part in section.parts:
        if not (is_short and part.is_folded):
            yield from _section(part, level + 1, is_short=is_short)


def _is_a_row(part: Section) -> bool:
    return bool(part.mark) and part.is_folded and not part.has_head


def _topics(topics: Sequence[Section], *, is_short: bool) -> Iterator[str]:
    """Groups of marked parts: each group folded, and in it each part with its facts."""
    for topic in topics:
        if is_short or not topic.parts:
            continue
        yield from _opened(f"{inline(topic.title)}: {len(topic.parts)}")
        for part in topic.parts:
            mark = f"{inline(part.mark.word)}: " if part.mark else ""
            yield from _opened(f"{inline(f'`{part.anchor}`')} {mark}{inline(part.title)}")
            own = [row for row in part.rows if row[1] != f"`{part.anchor}`"]
            yield from _list(f"{markdown_text(name)}: {_joined(value)}" for name, value in own)
            yield from ("</details>", "")
        yield from ("</details>", "")


def _opened(summary: str) -> tuple[str, str]:
    """The head of a fold. Markdown is not interpreted in it."""
    return f"<details><summary>{summary}</summary>", ""


def _joined(value: str) -> str:
    return markdown_text("; ".join(value.splitlines()))


def _bar(bar: Bar) -> list[str]:
    cells = [bar.name, bar.value, bar.share, bar.mark.word if bar.mark else "", bar.note]
    return [markdown_text(cell) for cell in cells]


def _list(lines: Iterator[str]) -> Iterator[str]:
    found = [f"- {line}" for line in lines]
    if found:
        yield from (*found, "")


def table(rows: Sequence[Sequence[str]], longest: int | None = None) -> list[str]:
    """A table whose first row is its head; cells are cut after `longest` characters."""
    return markdown_table([[markdown_text(cell[:longest]) for cell in row] for row in rows])
