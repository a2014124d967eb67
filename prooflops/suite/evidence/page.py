"""The page about one file of evidence, made of that file alone, and the index that compares the files of a folder."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from prooflops import __version__
from prooflops.suite.evidence.file import RED, EvidenceFile
from prooflops.suite.evidence.whole_page import folded, whole_page
from prooflops.suite.registry import Registry, load_registry
from prooflops.suite.report.markdown import table
from prooflops.suite.report.run_report import RunReport, run_report
from prooflops.suite.report.tables import best_rates
from prooflops.suite.verdicts import VERDICTS, Outcome, Verdict, verdict_of
from prooflops_gate.console.tables import markdown_table
from prooflops_gate.history.records import write_atomically

ROOT = Path(__file__).resolve().parents[3]
INDEX_DTYPES = ("fp32", "bf16", "fp8_e4m3")
HEAD = """# Evidence

`make evidence` writes one file per run, `<name>.jsonl`, a page about it, and this index. Put a file that was collected
elsewhere here, and `make evidence ARGS=--index` writes its page. docs/validate.md says what the lines are.
"""


def write(file: EvidenceFile) -> RunReport:
    """Writes the page beside the file and, where all tests have ended, the verdicts into it. Returns the report."""
    registry, plan = load_registry(ROOT / "test_claims" / "registry"), file.plan
    verdicts = verdicts_of(plan["tests"], file.ended(), registry)
    record = record_of(file, verdicts)
    report = run_report(
        record, verdicts, registry, plan["headline"], record["prooflops"]["partial"]
    )
    if not report.partial and not file.rows("verdicts"):
        file.append(
            "verdicts",
            verdicts={claim.id: [claim.verdict, claim.reason] for claim in report.claims},
        )
    text = "\n".join([whole_page(report), *own_lines(file)])
    write_atomically(file.path.with_suffix(".md"), text + "\n")
    return report


def evidence_record(path: Path) -> dict[str, Any]:
    """The record of one run that a file of evidence amounts to."""
    file, registry = EvidenceFile(path), load_registry(ROOT / "test_claims" / "registry")
    return record_of(file, verdicts_of(file.plan["tests"], file.ended(), registry))


def record_of(file: EvidenceFile, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The file as the record of one run; it names no host."""
    plan, slices, ended, left = file.plan, file.rows("slice"), file.ended(), len(file.remaining())
    commits = dict.fromkeys(row["commit"] or "commit unknown" for row in slices)
    return {
        "datetime": datetime.fromtimestamp(slices[0]["at"], timezone.utc).isoformat(),
        "commit_info": {"id": ", ".join(commits)},
        "machine_info": {"node": file.path.stem},
        "benchmarks": [bench for row in ended.values() for bench in row.get("benchmarks", ())],
        "prooflops": {
            **{key: plan[key] for key in ("fingerprint", "arguments", "pace", "peaks", "caches")},
            "version": __version__,
            "partial": f"{left} of {len(plan['tests'])} tests have not run yet" if left else "",
            "verdicts": [verdict.as_dict() for verdict in verdicts],
            "duration_s": round(sum(row.get("seconds", 0.0) for row in ended.values()), 1),
        },
    }


def verdicts_of(
    tests: dict[str, list[str]], ended: dict[str, dict[str, Any]], registry: Registry
) -> list[Verdict]:
    """A verdict for each claim of these tests. A test that has not run is unrun; one without a report is an error."""
    outcomes: dict[str, list[Outcome]] = {}
    for test, claims in tests.items():
        found = [Outcome(test, "unrun", "never reached", cases=0)]
        if row := ended.get(test):
            found = [
                Outcome(**{**each, "figures": tuple(each["figures"])}) for each in row["outcomes"]
            ]
            found = found or [Outcome(test, "error", row["reason"], cases=0)]
        for claim in claims:
            outcomes.setdefault(claim, []).extend(found)
    rows = registry.claims.items()
    return [
        verdict_of(claim, outcomes.get(name, []))
        for name, claim in rows
        if name in outcomes or claim.on_record
    ]


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
