"""The page about each user's model: on the terminal, and as model-NAME.html, .md and .json."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from prooflops.console.tables import markdown_table
from prooflops.history import records as history
from prooflops.model import breakdown_sections as more
from prooflops.model import sections as own
from prooflops.model.examination import Examination
from prooflops.model.html import html
from prooflops.model.sections import RULES, Section
from prooflops.suite.report.terminal import width_of, wrapped

FACTS = ("inventory", "flops", "memory", "breakdown", "inference", "sweep")


def compared(examinations: Sequence[Examination]) -> list[Section]:
    """Several models side by side, with the figures that were computed of each."""
    section = more.comparison_section(examinations)
    return [section] if len(examinations) > 1 and len(section.rows) > 1 else []


def sections(examination: Examination) -> Iterator[Section]:
    """The sections whose facts were computed, in the order of the page."""
    has = examination.has
    if has("inventory"):
        yield own.inventory_section(examination.inventory)
    if has("flops"):
        yield own.flops_section(examination.flops)
    if has("memory"):
        yield own.memory_section(examination.memory)
    if examination.step:
        yield own.step_section(examination.step)
    if has("breakdown"):
        yield more.phases_section(examination.breakdown, examination.memory if has("memory") else None)
        yield more.modules_section(examination.breakdown)
        yield more.operators_section(examination.breakdown)
    if has("inference"):
        yield more.inference_section(examination.inference, *examination.tokens)
    if has("sweep"):
        yield more.sweep_section(examination.sweep)
    if examination.answers:
        yield own.answers_section(examination.answers)


def markdown(examination: Examination, found: Sequence[Section], headline: list[str]) -> str:
    """The page as Markdown."""
    lines = [f"# {examination.about['model']}", "", *(f"- {line}" for line in [*headline, *head(examination)]), ""]
    for section in found:
        lines += [f"## {section.title}", "", *markdown_table(section.rows), ""]
        lines += [*(f"- {remark}" for remark in section.remarks), ""]
    return "\n".join(lines)


def head(examination: Examination) -> list[str]:
    lines = [f"D = {examination.about['D']}"]
    return lines + ([examination.about["notes"]] if examination.about["notes"] else [])


def as_json(examination: Examination, fingerprint: dict[str, Any]) -> dict[str, Any]:
    """Every fact of the page, for programs."""
    content: dict[str, Any] = {"about": examination.about, "fingerprint": fingerprint}
    content["claims"] = [asdict(each) for each in examination.answers]
    for name in FACTS:
        if examination.has(name):
            content[name] = asdict(getattr(examination, name))
    if examination.has("flops"):
        flops = examination.flops
        rules = {name: flops.rule(phase) for phase, name in RULES.items()}
        content["flops"] |= {"model": flops.model, "executed": flops.executed, **rules}
    if step := examination.step:
        names = ["seconds", "spread", "rounds", "per_s", "mfu", "hfu", "mfu_of_ceiling", "share_of_ceiling"]
        names += ["intensity", "ridge", "least_times_s", "bound"]
        content["step"] = {**{name: getattr(step, name) for name in names}, "rates": asdict(step.rates)}
    return content


def path_of(examination: Examination, folder: Path, suffix: str) -> Path:
    """`folder`/model-NAME.`suffix`, NAME being what `--model` named: each model has a page of its own."""
    name = re.sub(r"[^\w.]+", "-", examination.user_model.spec).strip("-.")
    return folder / f"model-{name}.{suffix}"


def write(
    examination: Examination,
    examinations: Sequence[Examination],
    folder: Path,
    headline: list[str],
    fingerprint: dict[str, Any],
) -> None:
    """Writes the page and its facts, unless nothing was computed."""
    found = [*compared(examinations), *sections(examination)]
    if not found:
        return
    links = {each.user_model.spec: path_of(each, folder, "html").name for each in examinations}
    facts = json.dumps(as_json(examination, fingerprint), indent=1, default=str)
    history.write_atomically(path_of(examination, folder, "md"), markdown(examination, found, headline))
    history.write_atomically(path_of(examination, folder, "html"), html(examination, found, headline, links))
    history.write_atomically(path_of(examination, folder, "json"), facts + "\n")


def print_pages(terminal: pytest.TerminalReporter, examinations: Sequence[Examination], folder: Path) -> None:
    """Prints the pages at the end of the run, what is common to all of them once."""
    for examination in examinations:
        found = list(sections(examination))
        if not found:
            continue
        terminal.section("your model")
        for line in [examination.about["model"], *head(examination)]:
            _write(terminal, line)
        _print(terminal, found)
        page, facts = (path_of(examination, folder, suffix) for suffix in ("html", "json"))
        _write(terminal, f"page: {page} and .md  facts: {facts}")
    if side_by_side := compared(examinations):
        terminal.section("your models")
        _print(terminal, side_by_side)


def _write(terminal: pytest.TerminalReporter, line: str) -> None:
    for part in wrapped(line, width_of(bool(terminal.isatty)), "  "):
        terminal.write_line(part)


def _print(terminal: pytest.TerminalReporter, sections: Sequence[Section]) -> None:
    width = width_of(bool(terminal.isatty))
    for section in sections:
        terminal.write_line("")
        terminal.write_line(section.title, bold=True)
        for line in section.lines(width and width - 2):
            terminal.write_line(f"  {line}")
