"""The pages about one file of evidence, made of that file alone."""

from __future__ import annotations

from dataclasses import replace

from prooflops.suite.evidence import results
from prooflops.suite.evidence.file import RED_STATUSES, EvidenceFile
from prooflops.suite.page.page import page_of
from prooflops.suite.page.run_report import RunReport
from prooflops_gate.console.tables import many
from prooflops_gate.history.records import write_atomically
from prooflops_gate.page.html import html
from prooflops_gate.page.markdown import markdown
from prooflops_gate.page.section import Page, Section

OF_TODAY = "Claims are worded as in today's registry, not as at the time of the run."


def write(file: EvidenceFile) -> RunReport:
    """Writes the pages beside the file. Returns the report."""
    report = report_of_file(file)
    page = page_of_file(file, report)
    write_atomically(file.path.with_suffix(".md"), markdown(page))
    write_atomically(file.path.with_suffix(".html"), html(page))
    return report


def report_of_file(file: EvidenceFile) -> RunReport:
    """The report of the run that a file amounts to."""
    registry = results.registry_here()
    found = results.verdicts(file, registry)
    return results.report_of(results.record(file, found), found, registry)


def page_of_file(file: EvidenceFile, report: RunReport) -> Page:
    """The page of the run, and what a run does not say: slices, and tests never reached."""
    page = page_of(report)
    return replace(page, sections=[*page.sections, tests_section(file)])


def tests_section(file: EvidenceFile) -> Section:
    """The number of tests that ended, and the tests that have not run."""
    rows, slices = file.ended().values(), file.rows("slice")
    red = sum(each["status"] in RED_STATUSES for each in rows)
    killed = len(slices) - len(file.rows("over"))
    ended = f"{many(len(rows), 'test')} ended, {red} of them red; the logs are in the file."
    return Section(
        "Tests",
        remarks=[f"not run yet: `{test}`" for test in file.remaining()],
        answer=f"{ended} {many(len(slices), 'slice')}, of which {killed} killed. {OF_TODAY}",
        anchor="tests",
        is_folded=True,
        absent="No test is left.",
    )
