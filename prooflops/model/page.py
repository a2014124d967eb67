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

FACTS = ("inventory", "flops", "memory", "breakdown", "largest", "fits")
STEP_FIGURES = ("seconds", "spread", "rounds", "per_s", "mfu", "hfu", "mfu_of_ceiling",
                "share_of_ceiling", "intensity", "ridge", "least_times_s", "bound")  # fmt: skip
RATES = ("peak_flop_per_s", "ceiling_flop_per_s", "bytes_per_s", "overhead_s")
FOOT = (
    "FLOPs are counted from the operators that ran, bytes asked of the allocator, times taken by "
    "the device's own clock."
)
BESIDE = " Beside this page lie the same as `.md`, and as `.json` for programs."


def write_pages(
    examinations: Sequence[Examination],
    folder: Path,
    headline: list[str],
    fingerprint: dict[str, Any],
    part: str = "",
) -> None:
    """Writes the page and the facts of each model of which anything was computed.

    `part`: why the run stopped early.
    """
    names = {each.user_model.spec: path_of(each, folder, "html").name for each in examinations}
    for examination in examinations:
        if not has_facts(examination):
            continue
        examination.about["part"] = part and f"part of a run: {part}"
        page = page_of(examination, headline, names)
        facts = json.dumps(as_json(examination, fingerprint), indent=1, default=str)
        history.write_atomically(path_of(examination, folder, "md"), markdown(page))
        history.write_atomically(path_of(examination, folder, "html"), html(page))
        history.write_atomically(path_of(examination, folder, "json"), facts + "\n")


def has_facts(examination: Examination) -> bool:
    """Whether anything was computed of the model."""
    return bool(examination.step or examination.answers or {*FACTS} & vars(examination).keys())


def path_of(examination: Examination, folder: Path, suffix: str) -> Path:
    """`folder`/model-NAME.`suffix`, by the value of `--model`: each model has a page of its own."""
    name = re.sub(r"[^\w.]+", "-", examination.user_model.spec).strip("-.")
    return folder / f"model-{name}.{suffix}"


def page_of(
    examination: Examination,
    headline: Sequence[str],
    names: Mapping[str, str],
) -> Page:
    """The page; `names` are the files of the run's pages by `--model`, empty for a page alone."""
    about, spec = examination.about, examination.user_model.spec
    step = examination.step
    bound = bound_sentence(step, examination.unknown) if step else ""
    lead = "; ".join(filter(None, [about["model"], bound, about["part"]]))
    others = [f"{name}: `{file}`" for name, file in names.items() if name != spec]
    facts = [("D", about["D"]), ("chosen", about["notes"] or "nothing: the factory says all")]
    facts += [("machine", line) for line in headline]
    return Page(
        title=spec,
        kind=f"prooflops {__version__} · one model, one training step",
        lead=[f"{lead}.", *([f"Beside it: {', '.join(others)}."] if others else [])],
        sections=[
            Section("In short", short_rows(examination), anchor="short"),
            *sections_of(examination),
            Section("The model and the machine", facts, has_head=False),
        ],
        foot=FOOT + (BESIDE if names else ""),
    )


def short_rows(examination: Examination) -> list[list[str]]:
    """The computed ones of the figures on top of the page."""
    facts, rows = vars(examination), [["figure", "value", ""]]
    if "inventory" in facts:
        held = examination.inventory
        rows.append(["parameters", count_text(held.parameters), bytes_text(held.bytes)])
    if "flops" in facts:
        flops = examination.flops
        of_rule = f"{flops.executed / flops.rule('step'):.3g} x 6ND" if flops.rule("step") else ""
        rows.append(["FLOPs a step", count_text(flops.executed), of_rule])
    if "memory" in facts:
        peak = examination.memory.row(PEAK)
        known = peak.predicted_bytes is not None
        predicted = f"predicted {bytes_text(peak.predicted_bytes)}" if known else "not predicted"
        rows.append(["peak memory", bytes_text(peak.measured_bytes), predicted])
    if step := examination.step:
        unknown = examination.unknown
        time = NOT_KNOWN if examination.is_apart else seconds_text(step.seconds)
        rate = NOT_KNOWN if examination.is_apart else per_second_text(step.per_s, step.flops.unit)
        rows.append(["time of a step", time, rate])
        of_peak = f"{share(step.mfu, '')} of the vendor's peak"
        of_peak = "the vendor's peak is not on record" if step.mfu is None else of_peak
        own = "–" if unknown else share(step.mfu_of_ceiling, "-")
        why = f"{NOT_KNOWN}: {unknown}" if unknown else of_peak
        rows.append(["MFU of own ceiling", own, why])
    return rows if len(rows) > 1 else []


def print_pages(
    terminal: pytest.TerminalReporter, examinations: Sequence[Examination], folder: Path
) -> None:
    """Prints the pages at the end of the run, and the models side by side."""
    width = medium.width_of(isatty=bool(terminal.isatty))

    def line(text: str) -> None:
        for part in medium.wrapped(text, width):
            terminal.write_line(part)

    def print_sections(sections: Sequence[Section]) -> None:
        for section in sections:
            if section.is_empty or section.is_folded:
                continue
            terminal.write_line("")
            terminal.write_line(section.title, bold=True)
            for text in medium.section_lines(section, width and width - 2):
                terminal.write_line(f"  {text}")

    for examination in examinations:
        if has_facts(examination):
            about = examination.about
            terminal.section("your model")
            for text in (about["model"], f"D = {about['D']}", about["notes"], about["part"]):
                line(text)
            print_sections(list(sections_of(examination)))
            page, facts = (path_of(examination, folder, suffix) for suffix in ("html", "json"))
            line(f"page: {page} and .md  facts: {facts}")


def as_json(examination: Examination, fingerprint: dict[str, Any]) -> dict[str, Any]:
    """Every fact of the page, for programs."""
    content: dict[str, Any] = {"about": examination.about, "fingerprint": fingerprint}
    content["claims"] = [asdict(each) for each in examination.answers]
    computed = vars(examination)
    facts = [name for name in FACTS if name in computed and name != "largest"]
    content |= {name: asdict(computed[name]) for name in facts}
    if "largest" in computed:
        content["largest"] = {each.argument: asdict(each) for each in examination.largest}
    if "flops" in content:
        flops = examination.flops
        rules = {name: flops.rule(phase) for phase, name in RULES.items()}
        content["flops"] |= {"model": flops.model, "executed": flops.executed, **rules}
    if step := examination.step:
        figures = {name: getattr(step, name) for name in STEP_FIGURES}
        rates = {name: getattr(step, name) for name in RATES}
        content["step"] = {**figures, "unknown": examination.unknown, "rates": rates}
    return content
