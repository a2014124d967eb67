"""Shows a page as one HTML file that fetches nothing, with its style and script in it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from prooflops_gate.page.drawing import bar_svg, svg
from prooflops_gate.page.escape import escaped, inline, word_link
from prooflops_gate.page.section import Bar, Headline, Mark, Page, Section, is_numeric

STYLE = Path(__file__).with_name("style.css")
SCRIPT = Path(__file__).with_name("search.js")
# The page fetches nothing and runs only its own script, whatever a record contains.
POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {}; "
    "base-uri 'none'; form-action 'none'"
)


def html(page: Page) -> str:
    """The page as text. Equal pages give equal bytes."""
    script = SCRIPT.read_text(encoding="utf-8") if _is_searched(page.sections) else ""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = POLICY.format(f"'sha256-{digest}'" if script else "'none'")
    anchors = set(_anchors(page.shown))
    named = [(each.anchor or f"part-{place}", each) for place, each in enumerate(page.shown)]
    lines = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<link rel="icon" href="data:,">',
        f"<title>{escaped(page.title)}</title>",
        f"<style>\n{STYLE.read_text(encoding='utf-8')}</style>",
        "</head>",
        "<body>",
        '<a class="skip" href="#main">Skip to the content</a>',
        *_header(page, named, anchors),
        '<main id="main">',
        *(line for name, each in named for line in _section(each, name, anchors)),
        "</main>",
        f'<footer class="page"><p>{inline(page.foot, anchors)}</p></footer>' if page.foot else "",
        f"<script>{script}</script>" if script else "",
        "</body>",
        "</html>",
    ]
    return "\n".join(line for line in lines if line) + "\n"


def _is_searched(sections: Sequence[Section]) -> bool:
    return any(each.can_search for each in sections)


def _anchors(sections: Sequence[Section]) -> Iterator[str]:
    for each in sections:
        if each.anchor:
            yield each.anchor
        yield from _anchors(each.parts)


def _header(
    page: Page, named: Sequence[tuple[str, Section]], anchors: Collection[str]
) -> Iterator[str]:
    yield '<header class="page">'
    yield f'<p class="kind">{escaped(page.kind)}</p>'
    yield f"<h1>{escaped(page.title)}</h1>"
    yield from (f'<p class="partial">{inline(each, anchors)}</p>' for each in page.warnings)
    if page.headline:
        yield from _headline(page.headline, anchors)
    yield from (f'<p class="lead">{inline(each, anchors)}</p>' for each in page.lead)
    if len(named) > 1:
        yield '<nav aria-label="On this page"><ul>'
        for name, section in named:
            short = section.anchor.replace("-", " ") or section.title
            yield f'<li><a href="#{escaped(name)}">{escaped(short)}</a></li>'
        yield "</ul></nav>"
    yield "</header>"


def _headline(headline: Headline, anchors: Collection[str]) -> Iterator[str]:
    text = f": {inline(headline.text, anchors)}" if headline.text else ""
    yield f'<div class="headline {headline.mark.tone}">'
    yield f'<p class="verdict">{_mark(headline.mark)}<span class="of">{text}</span></p>'
    if headline.facts:
        yield f'<p class="facts-line">{escaped(" · ".join(headline.facts))}</p>'
    if headline.command:
        command = f"<code>{escaped(headline.command)}</code>"
        yield f'<p class="repeat">{escaped(headline.advice)}: {command}</p>'
    yield "</div>"


def _mark(mark: Mark) -> str:
    shape = f'<span class="shape" aria-hidden="true">{escaped(mark.shape)}</span>'
    return (
        f'<span class="mark {mark.tone}">{shape if mark.shape else ""}{escaped(mark.word)}</span>'
    )


def _unbroken(text: str) -> str:
    """The text with each number on one line with its percent sign."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


def _section(section: Section, name: str, anchors: Collection[str]) -> Iterator[str]:
    """A section of the page; its own parts are below it."""
    yield f'<section id="{escaped(name)}"{_kind(section)}>'
    yield f"<h2>{_title(section, anchors)}</h2>"
    if section.answer:
        yield f'<p class="answer">{inline(section.answer, anchors)}</p>'
    if section.is_empty:
        yield f'<p class="answer">{escaped(section.absent)}</p>'
    elif section.is_folded:
        yield f"<details><summary>Show {section.size:,}</summary>"
        yield from _content(section, anchors, 3)
        yield "</details>"
    else:
        yield from _content(section, anchors, 3)
    yield "</section>"


def _kind(section: Section) -> str:
    """The attribute `class`: whether it is searched, and whether it has a plot."""
    words = ["searched"] * section.can_search + ["drawn"] * bool(section.plot)
    words += ["box"] * section.is_box
    return f' class="{" ".join(words)}"' if words else ""


def _title(section: Section, anchors: Collection[str]) -> str:
    mark = f"{_mark(section.mark)} " if section.mark else ""
    return mark + inline(section.title, anchors)


def _content(section: Section, anchors: Collection[str], level: int) -> Iterator[str]:
    if section.bars:
        yield from _bars(section.bars, anchors)
    if section.plot:
        yield '<label class="zoom"><input type="checkbox">Enlarge</label>'
        region = f'role="region" tabindex="0" aria-label="{escaped(section.plot.title)}"'
        yield f'<div class="drawing" {region}>{svg(section.plot)}</div>'
    if section.rows and not section.has_head:
        yield from _facts(section.rows, anchors)
    elif section.rows:
        yield from _table(section.rows, section.title, anchors)
    if section.remarks:
        yield '<ul class="plain">'
        yield from (f"<li>{inline(each, anchors)}</li>" for each in section.remarks)
        yield "</ul>"
    if section.parts:
        yield f'<div class="{_grid(section.parts)}">'
        for part in section.parts:
            yield from _part(part, anchors, level)
        yield "</div>"


def _grid(parts: Sequence[Section]) -> str:
    if all(each.plot for each in parts):
        return "plots"
    return "folds" if all(each.is_folded for each in parts) else "parts"


def _part(part: Section, anchors: Collection[str], level: int) -> Iterator[str]:
    """A section within another: one that is folded is opened by its title."""
    name = f' id="{escaped(part.anchor)}"' if part.anchor else ""
    if part.is_folded:
        mark = f' data-mark="{escaped(part.mark.word)}"' if part.mark else ""
        yield f'<details class="part"{name}{mark}>'
        chip = _mark(part.mark) if part.mark else ""
        number = f' <span class="count">{len(part.parts)}</span>' if part.parts else ""
        title = f'<span class="statement">{escaped(part.title)}{number}</span>'
        heading = f"<h{level}>{title}</h{level}>" if part.parts else title
        yield f"<summary>{chip}{heading}</summary>"
    else:
        yield f"<article{name}{_kind(part)}>"
        yield f"<h{level}>{_title(part, anchors)}</h{level}>"
    if part.answer:
        yield f'<p class="answer">{inline(part.answer, anchors)}</p>'
    yield from _content(part, anchors, level + 1)
    yield "</details>" if part.is_folded else "</article>"


def _table(rows: Sequence[Sequence[str]], caption: str, anchors: Collection[str]) -> Iterator[str]:
    numeric = [is_numeric(rows, column) for column in range(len(rows[0]))]
    kinds = [' class="number"' if each else "" for each in numeric]
    yield f'<div class="scroll" role="region" tabindex="0" aria-label="{escaped(caption)}">'
    yield f'<table><caption class="unseen">{escaped(caption)}</caption>'
    yield "<thead><tr>"
    for cell, kind in zip(rows[0], kinds, strict=True):
        yield f'<th scope="col"{kind}>{word_link(cell or "note", anchors)}</th>'
    yield "</tr></thead><tbody>"
    for row in rows[1:]:
        name = inline(row[0] or "–", anchors)
        cells = [f'<th scope="row"{kinds[0]}>{name}</th>']
        for cell, kind in zip(row[1:], kinds[1:], strict=True):
            said = ", ".join(word_link(part, anchors) for part in cell.split(", "))
            cells.append(f"<td{kind}>{said}</td>")
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table></div>"


def _facts(rows: Sequence[Sequence[str]], anchors: Collection[str]) -> Iterator[str]:
    yield '<dl class="facts">'
    for name, value in rows:
        lines = "<br>".join(inline(line, anchors) for line in value.split("\n"))
        yield f"<div><dt>{escaped(name)}</dt><dd>{lines}</dd></div>"
    yield "</dl>"


def _bars(bars: Sequence[Bar], anchors: Collection[str]) -> Iterator[str]:
    yield '<ul class="bars">'
    for bar in bars:
        tone = f' class="{bar.mark.tone}"' if bar.mark else ""
        mark = _mark(bar.mark) if bar.mark else ""
        drawn = "" if bar.length is None else bar_svg(bar)
        yield (
            f'<li{tone}><span class="name">{escaped(bar.name)}</span>'
            f'<span class="drawn">{drawn}</span>'
            f'<span class="figure"><strong>{escaped(bar.value)}</strong></span>'
            f'<span class="share">{_unbroken(escaped(bar.share))}</span>{mark}'
            f'<span class="note">{_unbroken(inline(bar.note, anchors))}</span></li>'
        )
    yield "</ul>"
