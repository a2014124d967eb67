"""The page about each user's model: on the terminal, and as model-NAME.html, .md and .json."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from prooflops import __version__
from prooflops.model.examination import Examination
from prooflops.model.summary import RULES
from prooflops.model.tables import sections_of
from prooflops_gate.history import records as history
from prooflops_gate.page import terminal as medium
from prooflops_gate.page.html import html
from prooflops_gate.page.markdown import markdown
from prooflops_gate.page.section import Page, Section

FORMS = ("html", "md", "json")
STEP_FIGURES = (
    "seconds spread rounds per_s mfu hfu mfu_of_ceiling hfu_of_ceiling "
    "least_times_s bound peak_flop_per_s ceiling_flop_per_s bytes_per_s overhead_s"
).split()


def write_pages(
    examinations: Iterable[Examination],
    folder: Path,
    headline: Sequence[str],
    fingerprint: dict[str, Any],
    part: str = "",
) -> None:
    """Writes the page and the facts of each model. `part`: why the run stopped early."""
    for examination in examinations:
        for form in FORMS:
            text = text_of(examination, form, headline, fingerprint, part)
            history.write_atomically(path_of(examination, folder, form), text)


def text_of(
    examination: Examination,
    form: str,
    headline: Sequence[str],
    fingerprint: dict[str, Any],
    part: str = "",
) -> str:
    """The page in one of the `FORMS`; as JSON its facts."""
    if form == "json":
        return json.dumps(as_json(examination, fingerprint, part), indent=1, default=str) + "\n"
    render = html if form == "html" else markdown
    return render(page_of(examination, headline, part))


def path_of(examination: Examination, folder: Path, suffix: str) -> Path:
    """`folder`/model-NAME.`suffix`, by the value of `--model`: each model has a page of its own."""
    name = re.sub(r"[^\w.]+", "-", examination.user_model.spec).strip("-.")
    return folder / f"model-{name}.{suffix}"


def page_of(examination: Examination, headline: Sequence[str], part: str = "") -> Page:
    lead = "; ".join(filter(None, [examination.model, part]))
    chosen = "; ".join(examination.notes) or "nothing; the factory states everything"
    facts = [("chosen", chosen), ("machine", "\n".join(headline))]
    return Page(
        title=examination.user_model.spec,
        kind=f"prooflops {__version__} · one model, one training step",
        lead=[f"{lead}."],
        sections=[
            *sections_of(examination),
            Section("The model and the machine", facts, has_head=False),
        ],
        foot="FLOPs are counted from the operators that ran. Bytes are the allocator's; times are "
        "those of the device's own timer.",
    )


def print_page(
    terminal: pytest.TerminalReporter, examination: Examination, folder: Path, part: str
) -> None:
    """Prints the sections of a page that are not folded."""
    width = medium.width_of(isatty=bool(terminal.isatty))

    def line(text: str) -> None:
        for each in medium.wrapped(text, width):
            terminal.write_line(each)

    terminal.section("your model")
    notes = "; ".join(examination.notes)
    for text in filter(None, (examination.model, notes, part)):
        line(text)
    for section in sections_of(examination):
        terminal.write_line("")
        terminal.write_line(section.title, bold=True)
        for text in medium.section_lines(section, width and width - 2):
            terminal.write_line(f"  {text}")
    line(f"page: {path_of(examination, folder, 'html')} (also .md and .json)")


def as_json(
    examination: Examination, fingerprint: dict[str, Any], part: str = ""
) -> dict[str, Any]:
    """Every fact of the page, for programs."""
    flops, step = examination.flops, examination.step
    facts: dict[str, Any] = {
        "about": {
            "model": examination.model,
            "D": str(examination.flops.batch),
            "tied": examination.tied,
            "notes": "; ".join(examination.notes),
            "part": part,
        },
        "fingerprint": fingerprint,
    }
    for name in ("flops", "memory", "breakdown", "fits"):
        fact = getattr(examination, name)
        facts[name] = asdict(fact) if fact else None
    batch = facts["flops"].pop("batch")
    facts["flops"] |= {"tokens": batch["number"], "unit": batch["unit"]}
    facts["flops"] |= {"model": flops.model, "executed": flops.executed}
    facts["flops"] |= {name: flops.rule(phase) for phase, name in RULES.items()}
    if step:
        figures = {name: getattr(step, name) for name in STEP_FIGURES}
        facts["step"] = figures | {"unknown": examination.unknown}
    return facts
