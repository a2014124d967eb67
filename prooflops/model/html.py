"""The page about a user's model as HTML, in the style of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prooflops import __version__
from prooflops.console.tables import engineering, share
from prooflops.model.breakdown import Breakdown, ModuleRow
from prooflops.model.breakdown_sections import count_text, module_figures, operators_section, phase_name
from prooflops.model.examination import Examination
from prooflops.model.sections import Section, bound_sentence
from prooflops.model.step_memory import PEAK
from prooflops.suite.report import page
from prooflops.suite.report.drawing import Table
from prooflops.suite.report.html import Tile

TEMPLATES = Path(__file__).with_name("templates")
FIGURES = ("parameters", "FLOPs forward", "FLOPs backward", "kept", "forward", "backward")
FIGURE = frozenset("0123456789+-")
UNFOLDED = 1  # levels of the tree that are open at first


@dataclass
class Node:
    """A module of the tree, its figures with all that is inside it."""

    row: ModuleRow
    figures: list[tuple[str, str]]
    share: float  # of the time of the whole
    children: list[Node] = field(default_factory=list)

    @property
    def own_name(self) -> str:
        return self.row.name.rpartition(".")[2] if self.row.depth else self.row.name or self.row.kind


def html(
    examination: Examination, sections: Sequence[Section], headline: Sequence[str], links: Mapping[str, str]
) -> str:
    """The page; `links` are the pages of all models of the run, by what --model named."""
    made = [(f"part-{number}", each, table_of(each)) for number, each in enumerate(sections)]
    breakdown = examination.breakdown if examination.has("breakdown") else None
    template = page.environment(TEMPLATES).get_template("model.html.j2")
    return str(
        template.render(
            version=__version__,
            spec=examination.user_model.spec,
            about=examination.about,
            lead=bound_sentence(examination.step) if examination.step else "",
            tiles=tiles(examination),
            sections=made,
            tree=tree(breakdown) if breakdown else [],
            figures=FIGURES,
            phases=phases(breakdown) if breakdown else [],
            operators=table_of(operators_section(breakdown, None)) if breakdown else None,
            unfolded=UNFOLDED,
            headline=headline,
            others={spec: link for spec, link in links.items() if spec != examination.user_model.spec},
        )
    )


def table_of(section: Section) -> Table:
    """The section's table, each of whose columns has a head; a column without a figure in it is of words."""
    head, *rows = section.rows
    words = {place for place in range(1, len(head)) if not any(row[place][:1] in FIGURE for row in rows if row[place])}
    words |= {len(head) - 1} if section.text_column else set()
    return Table([cell or "note" for cell in head], rows, words=frozenset(words))


def tiles(examination: Examination) -> list[Tile]:
    """The figures on top of the page, as far as they were computed."""
    made = []
    if examination.has("inventory"):
        held = examination.inventory
        made.append(Tile(count_text(held.parameters), "parameters", engineering(held.bytes, "B")))
    if examination.has("flops"):
        flops = examination.flops
        of_rule = f"{flops.executed / flops.rule('step'):.3g} x 6ND" if flops.rule("step") else ""
        made.append(Tile(count_text(flops.executed), "FLOPs a step", of_rule))
    if examination.has("memory"):
        peak = examination.memory.row(PEAK)
        predicted = peak.predicted_bytes
        expected = f"predicted {engineering(predicted, 'B')}" if predicted is not None else "not predicted"
        made.append(Tile(engineering(peak.measured_bytes, "B"), "peak memory", expected))
    if step := examination.step:
        rate = f"{engineering(step.per_s, '')}{step.flops.unit}/s"
        made.append(Tile(engineering(step.seconds, "s"), "a step", rate))
        of_peak = share(step.mfu, "the vendor's peak is not on record")
        of_peak = f"{of_peak} of the vendor's peak" if step.mfu is not None else of_peak
        made.append(Tile(share(step.mfu_of_ceiling, "-"), "MFU of own ceiling", of_peak))
    return made


def phases(breakdown: Breakdown) -> list[tuple[str, str, float]]:
    """Forward, backward and optimizer with their time, and their share of all three in percent."""
    total = sum(breakdown.phases_s.values())
    return [(phase_name(name), engineering(time, "s"), 100 * time / total) for name, time in breakdown.phases_s.items()]


def tree(breakdown: Breakdown) -> list[Node]:
    """The modules as a tree; at the top the whole, and what is outside it."""
    top: list[Node] = []
    path: list[Node] = []
    total = sum(row.seconds for row in breakdown.modules if not row.depth)
    for row in breakdown.modules:
        figures = list(zip(FIGURES, module_figures(row), strict=True))
        node = Node(row, figures, 100 * row.seconds / total if total else 0.0)
        del path[row.depth :]
        (path[-1].children if path else top).append(node)
        path.append(node)
    return top
