"""The pages about one file of evidence, made of that file alone, and the index of a folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from prooflops.suite.evidence import results
from prooflops.suite.evidence.file import RED_STATUSES, EvidenceFile
from prooflops.suite.page import delivery
from prooflops.suite.page.page import page_of
from prooflops.suite.page.run_report import RunReport
from prooflops.suite.page.tables import best_products, memory_stream
from prooflops.suite.verdicts import VERDICTS
from prooflops_gate.console.tables import many, markdown_table
from prooflops_gate.history.records import write_atomically
from prooflops_gate.page.html import html
from prooflops_gate.page.markdown import markdown
from prooflops_gate.page.section import Page, Section, literal

INDEX_DTYPES = ("fp32", "bf16", "fp8_e4m3")
MACHINE = ("name", "driver", "torch", "python")
HEAD = """# Evidence

`make evidence` writes one file per run, `<name>.jsonl`, pages about it, and this index. Put a file
that was collected elsewhere here, and `make evidence ARGS=--index` writes its pages.
docs/how-to/validate.md says what the lines are.
"""


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
    """The page of the run, and what a run does not say: slices, red tests, those never reached."""
    page = page_of(report)
    own = [since_section(file, report), tests_section(file)]
    return replace(page, sections=[*page.sections, *own])


def since_section(file: EvidenceFile, report: RunReport) -> Section:
    """The claims that a whole run does not have, because they were stated after it."""
    checked = {each.id for each in report.claims}
    is_whole = not (file.partial or file.plan.get("selection") or report.partial)
    younger = [
        [f"`{claim.id}`", claim.statement, claim.verdict_as_written]
        for claim in results.registry_here().claims.values()
        if is_whole and claim.id not in checked
    ]
    return Section(
        "Claims since this run",
        [["claim", "statement", "verdict as written"], *younger] if younger else (),
        answer=f"{many(len(younger), 'claim')} of the registry, stated after this run, not checked "
        "by it. Statements, conditions and corrections on this page are those of today.",
        anchor="since",
        is_folded=True,
    )


def tests_section(file: EvidenceFile) -> Section:
    """How the tests ended: red ones with their reason, and those that have not run."""
    rows, slices = file.ended().values(), file.rows("slice")
    red = [each for each in rows if each["status"] in RED_STATUSES]
    cells = [[f"`{each['test']}`", each["status"], literal(each["reason"])] for each in red]
    killed = len(slices) - len(file.rows("over"))
    left = [f"not run yet: `{test}`" for test in file.remaining()]
    ended = f"{many(len(rows), 'test')} ended, {len(red)} of them red; the logs are in the file."
    return Section(
        "Tests",
        [["test", "ended", "reason"], *cells] if cells else (),
        left,
        answer=f"{ended} {many(len(slices), 'slice')}, of which {killed} killed.",
        anchor="tests",
        is_folded=True,
        absent="None is red.",
    )


def write_index(folder: Path) -> None:
    """Writes the pages of a folder's files, and its README.md with a row per file."""
    head = ["evidence", "device", *MACHINE[1:], "pace", "verdict", "tests run", "red"]
    head += [*VERDICTS, *(f"best {dtype}" for dtype in INDEX_DTYPES), "best memory"]
    files = [EvidenceFile(path) for path in sorted(folder.glob("*.jsonl"))]
    rows = [index_row(file) for file in files if file.plan]
    text = "\n".join([HEAD, *markdown_table([head, *rows])]) + "\n"
    write_atomically(folder / "README.md", text)


def index_row(file: EvidenceFile) -> list[str]:
    report, name, ended = write(file), file.path.stem, file.ended()
    best = best_products(report.benchmarks)
    stream = memory_stream(report.benchmarks)
    red = sum(row["status"] in RED_STATUSES for row in ended.values())
    return [
        f"[{name}]({name}.md)",
        *(str(report.machine.get(key) or "-") for key in MACHINE),
        report.pace,
        delivery.answer(report.benchmarks)[0].word,
        f"{len(ended)} of {len(file.plan['tests'])}",
        str(red),
        *(str(report.counts[word] or "·") for word in VERDICTS),
        *(best[dtype].rate_text if dtype in best else "-" for dtype in INDEX_DTYPES),
        stream.rate_text if stream else "-",
    ]
