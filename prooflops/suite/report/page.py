"""Renders pages with jinja2. A page is one file that fetches nothing, and all its texts are escaped."""

from __future__ import annotations

import base64
import functools
import hashlib
from pathlib import Path
from typing import Any

import prooflops_gate.history
from prooflops_gate.console.progress import minutes
from prooflops_gate.console.tables import binary, engineering, visible

TEMPLATES = Path(__file__).with_name("templates")
STYLE = Path(prooflops_gate.history.__file__).parent  # the folder of style.css
# Colour class and shape by verdict. The shape serves readers who do not see the colour.
MARKS = {
    "holds": ("holds", "✓"),
    "holds if": ("holds-if", "◐"),
    "corrected": ("corrected", "≠"),
    "FAILS": ("fails", "✕"),
    "error": ("error", "!"),
    "not checked": ("unchecked", "–"),
    "on record": ("record", "§"),
}
# The page fetches nothing and runs only its own script, whatever a record contains.
POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{}'; "
    "base-uri 'none'; form-action 'none'"
)


def render(template: str, **context: Any) -> str:
    """Renders a template of the folder `templates`."""
    return str(environment().get_template(template).render(**context))


@functools.cache
def environment(*folders: Path) -> Any:
    """The jinja2 environment of pages that extend `base.html.j2`. It searches `folders` first."""
    import jinja2

    script = (TEMPLATES / "claims.js").read_text(encoding="utf-8")
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*folders, TEMPLATES, STYLE]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: (
            visible(value) if type(value) is str else value
        ),  # leaves markup unchanged
    )
    made.filters |= {
        "engineering": engineering,
        "binary": binary,
        "duration": duration,
        "mark": mark,
    }
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    made.globals |= {"policy": POLICY.format(digest), "script": script, "marks": MARKS}
    return made


def mark(verdict: str) -> tuple[str, str]:
    """The class and the shape of a verdict."""
    return MARKS.get(verdict, ("unchecked", "?"))


def duration(seconds: float) -> str:
    """A time as text.

    >>> duration(4.2), duration(93)
    ('4.2 s', '1 min 33 s')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    return minutes(seconds)
