"""The pages about one file of evidence, made of that file alone."""

from __future__ import annotations

from dataclasses import replace

from prooflops.suite.evidence import results
from prooflops.suite.evidence.file import EvidenceFile
from prooflops.suite.page.page import page_of
from prooflops.suite.page.run_report import RunReport, run_report
from prooflops_gate.history.records import write_atomically
from prooflops_gate.page.html import html
from prooflops_gate.page.markdown import markdown
from prooflops_gate.page.section import Page

FOOT = (
    "Each claim is settled by at least two of a formula, a count and a measurement. Claims are "
    "worded as in today's registry, not as at the time of the run. The file of evidence has the "
    "logs of red tests."
)


def write(file: EvidenceFile) -> RunReport:
    """Writes the pages beside the file. Returns the report."""
    report = report_of_file(file)
    page = page_of_file(report)
    write_atomically(file.path.with_suffix(".md"), markdown(page))
    write_atomically(file.path.with_suffix(".html"), html(page))
    return report


def report_of_file(file: EvidenceFile) -> RunReport:
    """The report of the run that a file amounts to."""
    registry = results.registry_here()
    found = results.verdicts(file, registry)
    return run_report(results.record(file, found), found, registry, file.resume)


def page_of_file(report: RunReport) -> Page:
    """The page of a kept run, whose foot names what is not of the run."""
    return replace(page_of(report), foot=FOOT)
