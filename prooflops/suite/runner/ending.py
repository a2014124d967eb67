"""The end of a call of the runner: the record, verdicts.json and the pages, and what it prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from prooflops.suite.evidence import page, results
from prooflops.suite.evidence.file import RED_STATUSES, EvidenceFile
from prooflops.suite.page import terminal, writing
from prooflops.suite.runner.screen import Screen
from prooflops_gate.history import records as history


def conclude(
    file: EvidenceFile,
    introduction: Mapping[str, Any],
    screen: Screen,
    ran: int,
    *,
    interrupted: bool,
) -> int:
    """Writes and prints what the run's file amounts to. Returns the exit status."""
    found = results.verdicts(file, results.registry_here())
    content = results.record(file, found)
    ours = content["prooflops"]
    if not ours["partial"] and not file.rows("verdicts"):
        file.append("verdicts", verdicts={each.id: [each.verdict, each.reason] for each in found})
    report = results.report_of(content, found)
    finished = writing.FinishedRun(report, content, None, None, ours["partial"])
    if introduction:
        finished = store(content, finished, introduction)
    screen.failures([row for row in file.ended().values() if row["status"] in RED_STATUSES])
    write_evidence(file)
    red = ours["red_tests"]
    screen.write_line(f"{ran:,} tests ran; {sentence(red)}", red=bool(red), green=not red)
    if ours["partial"]:
        screen.write_line(f"{ours['partial']}; to go on: --resume {file.path}", yellow=True)
    # Last the verdict. The screen has what the summary uses of pytest's reporter.
    terminal.print_summary(cast(Any, screen), finished, introduction.get("known", ()))
    if interrupted:
        return 2
    return int(bool(red) or bool(finished.unwritten))


def store(
    content: dict[str, Any], finished: writing.FinishedRun, introduction: Mapping[str, Any]
) -> writing.FinishedRun:
    """Adds the record of a complete run to the history, and writes the pages."""
    ours, records = content["prooflops"], Path(introduction["history"])
    own = {**content, **introduction["head"]}
    part = bool(ours["partial"] or ours["selection"])
    folder = Path(introduction["report"], "partial" if part else "")
    path, unwritten = None, ""
    if not ours["partial"]:
        try:
            path = history.append_record(records, own, ours["fingerprint"])
        except OSError as error:
            unwritten = f"the record of this run could not be stored in {records}: {error}"
    stored = writing.FinishedRun(finished.report, own, folder, path, ours["partial"], unwritten)
    return writing.publish(stored, records, tuple(introduction["exact"]))


def write_evidence(file: EvidenceFile) -> None:
    """Writes the page beside a file that is kept, and the index of the folder `results`."""
    if file.path.resolve().parent == results.ROOT / "results":
        page.write_index(file.path.parent)
    elif results.ROOT / ".prooflops" not in file.path.resolve().parents:
        page.write(file)


def sentence(red: Sequence[Mapping[str, Any]]) -> str:
    """How many tests are red, and what that means.

    >>> sentence([{"status": "failed", "claims": ["a.b"]}, {"status": "crashed", "claims": []}])
    '1 contradicts its claim; 1 crashed, which contradicts nothing'
    """
    kinds = Counter(
        ("crashed" if row["status"] != "failed" else "claim" if row["claims"] else "benchmark")
        for row in red
    )
    parts = []
    if number := kinds["claim"]:
        parts.append(f"{number} {'contradicts its claim' if number == 1 else 'contradict claims'}")
    if number := kinds["benchmark"]:
        parts.append(f"{number} {'benchmark is' if number == 1 else 'benchmarks are'} red")
    if number := kinds["crashed"]:
        parts.append(f"{number} crashed, which contradicts nothing")
    return "; ".join(parts) or "none is red"
