"""Prints the end of a run: benchmarks, claims that fail or are open, and last the verdict."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pytest

from prooflops.suite import listing
from prooflops.suite.page import claims, page
from prooflops.suite.page.run_report import unchecked
from prooflops.suite.page.tables import unmeasured_table
from prooflops.suite.page.writing import FINISHED, FinishedRun
from prooflops.suite.verdicts import RED
from prooflops_gate.console.tables import many
from prooflops_gate.page import terminal as medium
from prooflops_gate.page.section import BAD, GOOD, OPEN, OTHER, PLAIN, Section

# So few claims that --claim chose are printed with their statements.
MOST_STATED = 10
# Benchmarks without a figure that are named; the page names all.
FEW = 3
# Claims of one reason that are named; the page names all.
MOST_NAMED = 20
COLOURS = {GOOD: "green", BAD: "red", OPEN: "yellow", OTHER: "cyan", PLAIN: "white"}


def print_end(terminal: pytest.TerminalReporter, known: Collection[str]) -> None:
    """Prints the results of a run that has been concluded; every claim with -v."""
    finished = terminal.config.stash.get(FINISHED, None)
    if finished is None:
        return
    report = finished.report
    width = medium.width_of(isatty=bool(terminal.isatty))
    for section in (
        page.benchmarks_section(report),
        Section("benchmarks without a result, and why", unmeasured_table(report.unmeasured, FEW)),
    ):
        if not section.is_empty:
            terminal.section(section.title)
            terminal.write_line("\n".join(medium.section_lines(section, width)))
    if report.claims:
        terminal.section("verdicts")
        for line in page.claims_sentence(report):
            terminal.write_line("\n".join(medium.wrapped(line, width)))
    _print_claims(terminal, finished, known, width)
    if report.figures:
        terminal.section("does it deliver?")
        for bar, text in medium.bar_lines(report.bars, width):
            terminal.write_line(text, red=bool(bar.mark and bar.mark.tone == BAD))
    for text in _places(finished):
        for each in medium.wrapped(text, width):
            terminal.write_line(each, red=bool(finished.unwritten or report.unfinished))
    for sentence in page.undecided(report):
        for each in medium.wrapped(sentence, width):
            terminal.write_line(each, yellow=True)
    if page.is_of_claims(report) or report.figures or report.undecided_floors or report.resume:
        answer = page.headline(report)
        for each in medium.headline_facts(answer, width):
            terminal.write_line(each)
        for each in medium.wrapped(answer.sentence, width):
            terminal.write_line(each, bold=True, **{COLOURS[answer.mark.tone]: True})


def _print_claims(
    terminal: pytest.TerminalReporter,
    finished: FinishedRun,
    known: Collection[str],
    width: int | None,
) -> None:
    report, option = finished.report, terminal.config.option
    is_few = bool(option.claim) and len(report.claims) <= MOST_STATED
    is_verbose = is_few or terminal.config.get_verbosity() > 0
    shown = [claim for claim in report.claims if is_verbose or claim.verdict in RED]
    longest = max((len(claim.id) for claim in shown), default=0)
    # One failing test may be of several claims.
    alike: dict[str, list[str]] = {}
    for claim in shown:
        alike.setdefault(claim.id if is_verbose else claim.line, []).append(claim.id)
    for claim in shown:
        ids = alike.pop(claim.id if is_verbose else claim.line, [])
        if not ids:
            continue
        colour = COLOURS[claims.mark_of(claim.verdict).tone]
        name = f"{claim.id:<{longest}}" if is_verbose else ", ".join(ids)
        lines = medium.wrapped(f"{name}  {claim.line}", width, "    ")
        if is_few:
            lines = [*listing.entry(claim.id, claim.claim.statement, claim.line, width)]
        for each in lines:
            terminal.write_line(each, **{colour: True})
    for text in _notes(finished, known, is_verbose=is_verbose):
        for each in medium.wrapped(text, width):
            terminal.write_line(each, yellow=True)


def _notes(finished: FinishedRun, known: Collection[str], *, is_verbose: bool) -> Iterator[str]:
    """Why claims are not checked, and which known failures hold now."""
    verdicts = finished.report.claims
    for reason, ids in unchecked(() if is_verbose else verdicts, finished.report.in_part):
        named = ", ".join(ids) if len(ids) <= MOST_NAMED else many(len(ids), "claim")
        yield f"{reason}: {named}"
    settled = {each.id for each in verdicts if each.verdict not in (*RED, "not checked")}
    for listed in sorted({*known} & settled):
        yield f"{listed} is listed in --known-failures but now holds: remove it there"


def _places(finished: FinishedRun) -> Iterator[str]:
    """The scope of a partial run, and the paths of report and record."""
    report = finished.report
    if report.partial and (finished.folder or report.unfinished):
        yield f"partial run: {report.partial}"
    if finished.unwritten:
        yield finished.unwritten
    if finished.folder:
        yield f"report: {finished.folder}/report.html (also report.md and verdicts.json)"
    if finished.record:
        yield f"record: {finished.record}"
