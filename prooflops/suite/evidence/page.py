"""The page about one file of evidence, made of that file alone, and the index that compares the files of a folder."""

from __future__ import annotations

from pathlib import Path

from prooflops.suite.evidence import results
from prooflops.suite.evidence.file import RED, EvidenceFile
from prooflops.suite.evidence.whole_page import folded, whole_page
from prooflops.suite.report.markdown import table
from prooflops.suite.report.run_report import RunReport
from prooflops.suite.report.tables import best_rates
from prooflops.suite.verdicts import VERDICTS
from prooflops_gate.console.tables import markdown_table
from prooflops_gate.history.records import write_atomically

INDEX_DTYPES = ("fp32", "bf16", "fp8_e4m3")
HEAD = """# Evidence

`make evidence` writes one file per run, `<name>.jsonl`, a page about it, and this index. Put a file that was collected
elsewhere here, and `make evidence ARGS=--index` writes its page. docs/validate.md says what the lines are.
"""


def write(file: EvidenceFile) -> RunReport:
    """Writes the page beside the file. Returns the report."""
    found = results.verdicts(file, results.registry_here())
    report = results.report_of(file, results.record(file, found), found)
    text = "\n".join([whole_page(report), *own_lines(file)])
    write_atomically(file.path.with_suffix(".md"), text + "\n")
    return report


def own_lines(file: EvidenceFile) -> list[str]:
    """What a report does not say: slices, red tests, those never reached."""
    rows, slices = file.ended().values(), len(file.rows("slice"))
    red = [
        [f"`{row['test']}`", row["status"], row["reason"]] for row in rows if row["status"] in RED
    ]
    lines = [
        "## Tests",
        "",
        f"{len(rows)} ended. Slices: {slices}, of which killed: {slices - len(file.rows('over'))}.",
    ]
    lines += ["", *table([["red; the log is in the file", "", "reason"], *red]), ""]
    left = [f"- `{test}`" for test in file.remaining()]
    return lines + (folded(f"{len(left)} tests have not run yet", left) if left else [])


def write_index(folder: Path) -> None:
    """Writes the pages of a folder's files, and its README.md with a row per file."""
    head = [
        "evidence",
        "device",
        "driver",
        "torch",
        "python",
        "pace",
        "tests run",
        "red",
        *VERDICTS,
    ]
    rows = [[*head, *(f"best {dtype}" for dtype in INDEX_DTYPES), "best copy"]]
    for file in [
        file for path in sorted(folder.glob("*.jsonl")) if (file := EvidenceFile(path)).plan
    ]:
        report, name, ended = write(file), file.path.stem, file.ended()
        best = {
            dtype: bench.rate_text
            for dtype, bench, _ in best_rates(report.benchmarks, report.peaks)
        }
        streams = [
            bench
            for bench in report.benchmarks
            if bench.level == "memory" and bench.has("bytes_per_s")
        ]
        copy = max(streams, key=lambda bench: bench.number("bytes_per_s"), default=None)
        rows.append([
            f"[{name}]({name}.md)",
            *(str(report.machine.get(key) or "-") for key in ("name", "driver", "torch", "python")),
            report.pace,
            f"{len(ended)} of {len(file.plan['tests'])}",
            str(sum(row["status"] in RED for row in ended.values())),
            *(str(report.counts[word] or "·") for word in VERDICTS),
            *(best.get(dtype, "-") for dtype in INDEX_DTYPES),
            copy.rate_text if copy else "-",
        ])  # fmt: skip
    write_atomically(folder / "README.md", "\n".join([HEAD, *markdown_table(rows)]) + "\n")
