"""Makes any text safe for a page: markup and control characters are shown as text."""

from __future__ import annotations

import html
import re
from collections.abc import Collection

from prooflops_gate.console.tables import visible
from prooflops_gate.page.section import anchor_of_word

CODE = re.compile(r"`([^`\n]+)`")
# Markdown interprets these characters: an underscore within a word and a lone bracket have none.
MARKDOWN = re.compile(r"[\\`*~]|(?<!\w)_|_(?!\w)|[#@](?=\w)|\](?=\()")
FILE = re.compile(r"[\w][\w.-]*\.html")
ADDRESS = re.compile(r"https?://[^\s<>\"'`]+[^\s<>\"'`.,;:)]")


def escaped(text: str, *, quote: bool = True) -> str:
    """The text without markup.

    >>> escaped('a <b> "c"'), escaped('"c" & d', quote=False)
    ('a &lt;b&gt; &quot;c&quot;', '"c" &amp; d')
    """
    return html.escape(visible(text), quote=quote)


def inline(text: str, anchors: Collection[str] = ()) -> str:
    """A text as HTML: code between backticks, which links to an anchor or a page of its name.

    Web addresses are links, too.

    >>> inline("see `a.b`, a<b", ["a.b"])
    'see <a href="#a.b"><code>a.b</code></a>, a&lt;b'
    """
    parts = []
    for place, part in enumerate(CODE.split(text)):
        is_code = place % 2
        parts.append(_code(part, anchors) if is_code else _linked(part))
    return "".join(parts)


def _code(text: str, anchors: Collection[str]) -> str:
    code = f"<code>{escaped(text)}</code>"
    if text in anchors:
        return f'<a href="#{escaped(text)}">{code}</a>'
    if defined(text, anchors):
        return word_link(text, anchors)
    return f'<a href="{escaped(text)}">{code}</a>' if FILE.fullmatch(text) else code


def defined(text: str, anchors: Collection[str]) -> bool:
    """True if the page defines this word, or what follows its "of"."""
    return anchor_of_word(text.removeprefix("of ")) in anchors


def word_link(text: str, anchors: Collection[str]) -> str:
    """The text, linked to its definition on the page if there is one."""
    if not defined(text, anchors):
        return inline(text, anchors)
    return f'<a href="#{anchor_of_word(escaped(text).removeprefix("of "))}">{escaped(text)}</a>'


def _linked(text: str) -> str:
    parts, end = [], 0
    for found in ADDRESS.finditer(text):
        address = escaped(found[0])
        parts.append(escaped(text[end : found.start()]))
        parts.append(f'<a href="{address}" rel="noreferrer">{address}</a>')
        end = found.end()
    return "".join([*parts, escaped(text[end:])])


def markdown_text(text: str) -> str:
    """A text in a line of Markdown, without markup of its own except code between backticks.

    >>> markdown_text("`a*b` is `2 * b of <c>")
    '`a*b` is \\\\`2 \\\\* b of &lt;c&gt;'
    """
    parts = []
    for place, part in enumerate(CODE.split(text.replace("\n", " "))):
        is_code = place % 2
        parts.append(f"`{visible(part)}`" if is_code else _plain(part))
    return "".join(parts)


def _plain(text: str) -> str:
    return MARKDOWN.sub(r"\\\g<0>", escaped(text, quote=False))
