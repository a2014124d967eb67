"""Pages by jinja2: one self-contained file that fetches nothing, whose texts are escaped wherever they come from."""

from __future__ import annotations

import base64
import functools
import hashlib
from pathlib import Path
from typing import Any

from prooflops.console.progress import minutes
from prooflops.console.tables import binary, engineering
from prooflops.suite.report.drawing import visible

TEMPLATES = Path(__file__).with_name("templates")
# By verdict: the class that colours it, and a shape, as colour alone tells nothing to those who do not see it.
MARKS = {
    "holds": ("holds", "✓"),
    "holds if": ("holds-if", "◐"),
    "corrected": ("corrected", "≠"),
    "FAILS": ("fails", "✕"),
    "error": ("error", "!"),
    "not checked": ("unchecked", "–"),
    "on record": ("record", "§"),
}
# Nothing is fetched, and of scripts only the page's own runs, whatever a record says.
POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{}'; "
    "base-uri 'none'; form-action 'none'"
)


def render(template: str, **context: Any) -> str:
    """A page of this name in `templates`, or of a template of another room handed to `environment`."""
    return str(environment().get_template(template).render(**context))


@functools.cache
def environment(*folders: Path) -> Any:
    """The environment of jinja2 whose pages extend `base.html.j2`; `folders` are searched for templates first."""
    import jinja2

    script = (TEMPLATES / "claims.js").read_text(encoding="utf-8")
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*folders, TEMPLATES]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,  # not what is markup already
    )
    made.filters |= {"engineering": engineering, "binary": binary, "duration": duration, "mark": mark}
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    made.globals |= {"policy": POLICY.format(digest), "script": script, "marks": MARKS}
    return made


def mark(verdict: str) -> tuple[str, str]:
    """The class and the shape of a verdict."""
    return MARKS.get(verdict, ("unchecked", "?"))


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(4.2), duration(93)
    ('4.2 s', '1 min 33 s')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    return minutes(seconds)
