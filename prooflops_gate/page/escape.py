"""Makes any text safe for a page: markup and control characters are shown as text."""

from __future__ import annotations

import html
import re
from collections.abc import Collection

from prooflops_gate.console.tables import visible

CODE = re.compile(r"`([^`\n]+)`")
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
    parts, end = [], 0
    for found in CODE.finditer(text):
        parts.append(_linked(text[end : found.start()]))
        parts.append(_code(found[1], anchors))
        end = found.end()
    return "".join([*parts, _linked(text[end:])])


def _code(text: str, anchors: Collection[str]) -> str:
    code = f"<code>{escaped(text)}</code>"
    if text in anchors:
        return f'<a href="#{escaped(text)}">{code}</a>'
    return f'<a href="{escaped(text)}">{code}</a>' if FILE.fullmatch(text) else code


def _linked(text: str) -> str:
    parts, end = [], 0
    for found in ADDRESS.finditer(text):
        address = escaped(found[0])
        parts.append(escaped(text[end : found.start()]))
        parts.append(f'<a href="{address}" rel="noreferrer">{address}</a>')
        end = found.end()
    return "".join([*parts, escaped(text[end:])])


def markdown(text: str) -> str:
    """A text in a line of Markdown, without HTML of its own."""
    return escaped(text, quote=False).replace("\n", " ")
