"""The history on the terminal: records and baselines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prooflops_gate.console.tables import many
from prooflops_gate.history import records
from prooflops_gate.history.records import Summary, UnreadableRecord


def print_history(folder: Path, exact: Sequence[str], *, report: Path | None, root: Path) -> int:
    """Prints records and baselines.

    Writes the page of the project in `root` into the folder `report`.
    """
    listed = records.summaries(folder, exact)
    readable = [each for each in listed if isinstance(each, Summary)]
    print(f"{many(len(listed), 'record')} in {folder}")
    for each in listed:
        print(f"  {listed_line(each)}")
    for name, commit in records.baselines(folder).items():
        print(f"  baseline {name}: commit {commit}")
    if report:
        # Imports numpy and scipy, which a plain list does without.
        from prooflops_gate.history import page

        print(f"  report: {page.write_page(report, root.name, readable, page.address_of(root))}")
    return 0


def listed_line(record: Summary | UnreadableRecord) -> str:
    """A record in a line."""
    if isinstance(record, UnreadableRecord):
        return f"unreadable, skipped: {record}"
    parts = [record.path.name, f"{len(record.benchmarks):3d} benchmarks"]
    parts += [record.machine, record.short_commit, "contended" if record.contended else ""]
    return "  ".join(filter(None, parts))
