"""The page about each user's model: on the terminal, and as model-NAME.html, .md and .json."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from prooflops import __version__
from prooflops.model.examination import Examination
from prooflops.model.step_memory import PEAK
from prooflops.model.tables import (
    NOT_KNOWN,
    RULES,
    bound_sentence,
    bytes_text,
    count_text,
    per_second_text,
    seconds_text,
    sections_of,
)
from prooflops_gate.console.tables import share
from prooflops_gate.history import records as history
from prooflops_gate.page import terminal as medium
from prooflops_gate.page.html import html
from prooflops_gate.page.markdown import markdown
from prooflops_gate.page.section import Page, Section

STEP_FIGURES = (
    "seconds spread rounds per_s mfu hfu mfu_of_ceiling hfu_of_ceiling intensity ridge "
    "least_times_s bound peak_flop_per_s ceiling_flop_per_s bytes_per_s overhead_s"
).split()
FOOT = (
    "FLOPs are counted from the operators that ran, bytes by the allocator, times by the device's "
    "own clock."
)
BESIDE = " Beside this page lie the same as `.md`, and as `.json` for programs."


def write_pages(
    examinations: Sequence[Examination],
    folder: Path,
    headline: list[str],
    fingerprint: dict[str, Any],
    part: str = "",
) -> None:
    """Writes the page and the facts of each model. `part`: why the run stopped early."""
    files = {each.user_model.spec: path_of(each, folder, "html").name for each in examinations}
    for examination in examinations:
        page = page_of(examination, headline, files, part)
        facts = json.dumps(as_json(examination, fingerprint, part), indent=1, default=str)
        history.write_atomically(path_of(examination, folder, "md"), markdown(page))
        history.write_atomically(path_of(examination, folder, "html"), html(page))
        history.write_atomically(path_of(examination, folder, "json"), facts + "\n")


def path_of(examination: Examination, folder: Path, suffix: str) -> Path:
    """`folder`/model-NAME.`suffix`, by the value of `--model`: each model has a page of its own."""
    name = re.sub(r"[^\w.]+", "-", examination.user_model.spec).strip("-.")
    return folder / f"model-{name}.{suffix}"


def page_of(
    examination: Examination,
    headline: Sequence[str],
    files: Mapping[str, str],
    part: str = "",
) -> Page:
    """The page; `files` are those of the run's pages by `--model`, none for a page alone."""
    step, spec = examination.step, examination.user_model.spec
    bound = bound_sentence(step, examination.unknown) if step else ""
    lead = ["; ".join(filter(None, [examination.model, bound, part])) + "."]
    others = [f"{name}: `{file}`" for name, file in files.items() if name != spec]
    if others:
        lead.append(f"Beside it: {', '.join(others)}.")
    chosen = "; ".join(examination.notes) or "nothing: the factory says all"
    facts = [("D", examination.tokens), ("chosen", chosen)]
    facts += [("machine", line) for line in headline]
    return Page(
        title=spec,
        kind=f"prooflops {__version__} · one model, one training step",
        lead=lead,
        sections=[
            Section("In short", short_rows(examination), anchor="short"),
            *sections_of(examination),
            Section("The model and the machine", facts, has_head=False),
        ],
        foot=FOOT + (BESIDE if files else ""),
    )


def short_rows(examination: Examination) -> list[list[str]]:
    """The figures on top of the page."""
    inventory, flops, memory = examination.inventory, examination.flops, examination.memory
    of_rule = f"{flops.executed / flops.rule('step'):.3g} x 6ND"
    rows = [
        ["figure", "value", ""],
        ["parameters", count_text(inventory.parameters), bytes_text(inventory.bytes)],
        ["FLOPs a step", count_text(flops.executed), of_rule],
    ]
    if memory:
        peak = memory.row(PEAK)
        predicted = "not predicted"
        if peak.predicted_bytes is not None:
            predicted = f"predicted {bytes_text(peak.predicted_bytes)}"
        rows.append(["peak memory", bytes_text(peak.measured_bytes), predicted])
    return [*rows, *time_rows(examination)]


def time_rows(examination: Examination) -> list[list[str]]:
    step, unknown = examination.step, examination.unknown
    if step is None:
        return []
    time = ["time of a step", NOT_KNOWN, NOT_KNOWN]
    if not examination.is_apart:
        time[1:] = seconds_text(step.seconds), per_second_text(step.per_s, step.flops.unit)
    if unknown:
        return [time, ["MFU of own ceiling", "–", f"{NOT_KNOWN}: {unknown}"]]
    of_peak = "the vendor's peak is not on record"
    if step.mfu is not None:
        of_peak = f"{share(step.mfu, '')} of the vendor's peak"
    return [time, ["MFU of own ceiling", share(step.mfu_of_ceiling, "-"), of_peak]]


def print_page(
    terminal: pytest.TerminalReporter, examination: Examination, folder: Path, part: str
) -> None:
    """Prints the sections of a page, but for those that a reader opens."""
    width = medium.width_of(isatty=bool(terminal.isatty))

    def line(text: str) -> None:
        for each in medium.wrapped(text, width):
            terminal.write_line(each)

    terminal.section("your model")
    notes = "; ".join(examination.notes)
    for text in filter(None, (examination.model, f"D = {examination.tokens}", notes, part)):
        line(text)
    for section in sections_of(examination):
        if section.is_empty or section.is_folded:
            continue
        terminal.write_line("")
        terminal.write_line(section.title, bold=True)
        for text in medium.section_lines(section, width and width - 2):
            terminal.write_line(f"  {text}")
    page, facts = (path_of(examination, folder, suffix) for suffix in ("html", "json"))
    line(f"page: {page} and .md  facts: {facts}")


def as_json(
    examination: Examination, fingerprint: dict[str, Any], part: str = ""
) -> dict[str, Any]:
    """Every fact of the page, for programs."""
    flops, memory, step = examination.flops, examination.memory, examination.step
    rules = {name: flops.rule(phase) for phase, name in RULES.items()}
    return {
        "about": {
            "model": examination.model,
            "D": examination.tokens,
            "notes": "; ".join(examination.notes),
            "part": part,
        },
        "fingerprint": fingerprint,
        "claims": [asdict(each) for each in examination.answers],
        "inventory": asdict(examination.inventory),
        "flops": {**asdict(flops), "model": flops.model, "executed": flops.executed, **rules},
        "memory": memory and asdict(memory),
        "breakdown": asdict(examination.breakdown),
        "largest": {each.argument: asdict(each) for each in examination.largest},
        "fits": examination.fits and asdict(examination.fits),
        "step": step
        and {
            **{name: getattr(step, name) for name in STEP_FIGURES},
            "unknown": examination.unknown,
        },
    }
