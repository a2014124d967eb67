"""The page about each user's model: on the terminal, and as model-NAME.html, .md and .json."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from prooflops import __version__
from prooflops.model.breakdown import Breakdown, ModuleRow
from prooflops.model.examination import Examination
from prooflops.model.step_memory import PEAK
from prooflops.model.tables import (
    NOT_KNOWN,
    RULES,
    Section,
    bound_sentence,
    bytes_text,
    comparison_section,
    count_text,
    module_figures,
    operators_section,
    per_second_text,
    phase_name,
    seconds_text,
    sections_of,
)
from prooflops.suite.report import page
from prooflops.suite.report.drawing import Table
from prooflops.suite.report.html import Tile
from prooflops.suite.report.terminal import width_of, wrapped
from prooflops_gate.console.tables import markdown_table, share
from prooflops_gate.history import records as history

TEMPLATES = Path(__file__).with_name("templates")
FACTS = ("inventory", "flops", "memory", "breakdown", "inference", "sweep")
STEP_FIGURES = ("seconds", "spread", "rounds", "per_s", "mfu", "hfu", "mfu_of_ceiling", "share_of_ceiling", "intensity",
                "ridge", "least_times_s", "bound")  # fmt: skip
RATES = ("peak_flop_per_s", "ceiling_flop_per_s", "bytes_per_s", "overhead_s")
MODULE_FIGURES = ("parameters", "FLOPs forward", "FLOPs backward", "kept", "forward", "backward")
FIGURE = frozenset("0123456789+-")
UNFOLDED = 1  # levels of the tree that are open at first


def write_pages(
    examinations: Sequence[Examination],
    folder: Path,
    headline: list[str],
    fingerprint: dict[str, Any],
    part: str = "",
) -> None:
    """Writes the page and the facts of each model of which anything was computed; `part`: why the run stopped early."""
    links = {each.user_model.spec: path_of(each, folder, "html").name for each in examinations}
    for examination in examinations:
        if found := [*compared(examinations), *sections_of(examination)]:
            examination.about["part"] = part and f"part of a run: {part}"
            facts = json.dumps(as_json(examination, fingerprint), indent=1, default=str)
            history.write_atomically(
                path_of(examination, folder, "md"), markdown(examination, found, headline)
            )
            history.write_atomically(
                path_of(examination, folder, "html"), html(examination, found, headline, links)
            )
            history.write_atomically(path_of(examination, folder, "json"), facts + "\n")


def path_of(examination: Examination, folder: Path, suffix: str) -> Path:
    """`folder`/model-NAME.`suffix`, NAME being the value of `--model`: each model has a page of its own."""
    name = re.sub(r"[^\w.]+", "-", examination.user_model.spec).strip("-.")
    return folder / f"model-{name}.{suffix}"


def compared(examinations: Sequence[Examination]) -> list[Section]:
    """The table of several models side by side, if there are several and figures of all of them."""
    section = comparison_section(examinations)
    return [section] if len(examinations) > 1 and len(section.rows) > 1 else []


def head(examination: Examination) -> list[str]:
    return [
        f"D = {examination.about['D']}",
        *filter(None, [examination.about["notes"], examination.about["part"]]),
    ]


def print_pages(
    terminal: pytest.TerminalReporter, examinations: Sequence[Examination], folder: Path
) -> None:
    """Prints the pages at the end of the run, and the models side by side."""
    width = width_of(bool(terminal.isatty))

    def line(text: str) -> None:
        for part in wrapped(text, width, "  "):
            terminal.write_line(part)

    def print_sections(sections: Sequence[Section]) -> None:
        for section in sections:
            terminal.write_line("")
            terminal.write_line(section.title, bold=True)
            for text in section.lines(width and width - 2):
                terminal.write_line(f"  {text}")

    for examination in examinations:
        if found := list(sections_of(examination)):
            terminal.section("your model")
            for text in [examination.about["model"], *head(examination)]:
                line(text)
            print_sections(found)
            html_file, facts = (path_of(examination, folder, suffix) for suffix in ("html", "json"))
            line(f"page: {html_file} and .md  facts: {facts}")
    if side_by_side := compared(examinations):
        terminal.section("your models")
        print_sections(side_by_side)


def markdown(examination: Examination, found: Sequence[Section], headline: list[str]) -> str:
    """The page as Markdown."""
    lines = [
        f"# {examination.about['model']}",
        "",
        *(f"- {line}" for line in [*headline, *head(examination)]),
        "",
    ]
    for section in found:
        lines += [f"## {section.title}", "", *markdown_table(section.rows), ""]
        lines += [*(f"- {remark}" for remark in section.remarks), ""]
    return "\n".join(lines)


def as_json(examination: Examination, fingerprint: dict[str, Any]) -> dict[str, Any]:
    """Every fact of the page, for programs."""
    content: dict[str, Any] = {"about": examination.about, "fingerprint": fingerprint}
    content["claims"] = [asdict(each) for each in examination.answers]
    content |= {
        name: asdict(vars(examination)[name]) for name in FACTS if name in vars(examination)
    }
    if "flops" in content:
        flops = examination.flops
        rules = {name: flops.rule(phase) for phase, name in RULES.items()}
        content["flops"] |= {"model": flops.model, "executed": flops.executed, **rules}
    if step := examination.step:
        figures, rates = (
            {name: getattr(step, name) for name in names} for names in (STEP_FIGURES, RATES)
        )
        content["step"] = {**figures, "unknown": examination.unknown, "rates": rates}
    return content


@dataclass
class Node:
    """A module of the tree; its figures include its submodules."""

    row: ModuleRow
    figures: list[tuple[str, str]]
    share: float  # of the time of the whole, in percent
    children: list[Node] = field(default_factory=list)

    @property
    def own_name(self) -> str:
        return (
            self.row.name.rpartition(".")[2] if self.row.depth else self.row.name or self.row.kind
        )


def html(
    examination: Examination,
    sections: Sequence[Section],
    headline: Sequence[str],
    links: Mapping[str, str],
) -> str:
    """The page, in the style of the report; `links` are the run's pages by `--model`, empty for a page alone."""
    breakdown = vars(examination).get("breakdown")
    template = page.environment(TEMPLATES).get_template("model.html.j2")
    return str(
        template.render(
            version=__version__,
            spec=examination.user_model.spec,
            about=examination.about,
            lead=bound_sentence(examination.step, examination.unknown) if examination.step else "",
            tiles=tiles(examination),
            sections=[
                (f"part-{number}", each, table_of(each)) for number, each in enumerate(sections)
            ],
            tree=tree(breakdown) if breakdown else [],
            figures=MODULE_FIGURES,
            phases=phases(breakdown) if breakdown else [],
            operators=table_of(operators_section(breakdown, None)) if breakdown else None,
            unfolded=UNFOLDED,
            headline=headline,
            is_alone=not links,
            others={
                spec: link for spec, link in links.items() if spec != examination.user_model.spec
            },
        )
    )


def table_of(section: Section) -> Table:
    """The section's table; each column has a head, and a column without a figure is text."""
    heads, *rows = section.rows
    words = {
        place
        for place in range(1, len(heads))
        if not any(row[place][:1] in FIGURE for row in rows if row[place])
    }
    words |= {len(heads) - 1} if section.text_column else set()
    return Table([cell or "note" for cell in heads], rows, words=frozenset(words))


def tiles(examination: Examination) -> list[Tile]:
    """The computed ones of the figures on top of the page."""
    facts, made = vars(examination), []
    if "inventory" in facts:
        held = examination.inventory
        made.append(Tile(count_text(held.parameters), "parameters", bytes_text(held.bytes)))
    if "flops" in facts:
        flops = examination.flops
        of_rule = f"{flops.executed / flops.rule('step'):.3g} x 6ND" if flops.rule("step") else ""
        made.append(Tile(count_text(flops.executed), "FLOPs a step", of_rule))
    if "memory" in facts:
        peak = examination.memory.row(PEAK)
        predicted = (
            "not predicted"
            if peak.predicted_bytes is None
            else f"predicted {bytes_text(peak.predicted_bytes)}"
        )
        made.append(Tile(bytes_text(peak.measured_bytes), "peak memory", predicted))
    if step := examination.step:
        rate = per_second_text(step.per_s, step.flops.unit)
        known = f"{share(step.mfu, '')} of the vendor's peak"
        of_peak = "the vendor's peak is not on record" if step.mfu is None else known
        made.append(Tile(seconds_text(step.seconds), "a step", rate))
        if unknown := examination.unknown:
            made.append(Tile("–", "MFU of own ceiling", f"{NOT_KNOWN}: {unknown}"))
        else:
            made.append(Tile(share(step.mfu_of_ceiling, "-"), "MFU of own ceiling", of_peak))
    return made


def phases(breakdown: Breakdown) -> list[tuple[str, str, float]]:
    """Forward, backward and optimizer with their time, and their share of all three in percent."""
    total = sum(breakdown.phases_s.values())
    return [
        (phase_name(name), seconds_text(time), 100 * time / total)
        for name, time in breakdown.phases_s.items()
    ]


def tree(breakdown: Breakdown) -> list[Node]:
    """The modules as a tree, below the two rows that make up the whole step."""
    top: list[Node] = []
    path: list[Node] = []
    total = sum(row.seconds for row in breakdown.modules if not row.depth)
    for row in breakdown.modules:
        figures = list(zip(MODULE_FIGURES, module_figures(row), strict=True))
        node = Node(row, figures, 100 * row.seconds / total if total else 0.0)
        del path[row.depth :]
        (path[-1].children if path else top).append(node)
        path.append(node)
    return top
