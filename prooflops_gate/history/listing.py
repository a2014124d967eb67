"""The history on the terminal: records, baselines, and each benchmark's trend on demand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prooflops_gate.console.tables import aligned
from prooflops_gate.history import records
from prooflops_gate.history.records import Summary, UnreadableRecord


def print_history(
    folder: Path, exact: Sequence[str], *, verbose: bool, report: Path | None, root: Path
) -> int:
    """Prints records and baselines; with `verbose` trends. Writes the page of the project in `root` into `report`."""
    listed = records.summaries(folder, exact)
    print(f"{len(listed)} records in {folder}")
    claims = any(
        each.verdicts for each in listed if isinstance(each, Summary)
    )  # other projects have none
    for each in listed:
        if isinstance(each, UnreadableRecord):
            print(f"  unreadable, skipped: {each}")
            continue
        contended = "  contended" if each.contended else ""
        print(
            f"  {each.path.name}  {len(each.benchmarks):3d} benchmarks"
            + (f"  {len(each.verdicts):3d} claims" if claims else "")
            + f"  {', torch '.join(filter(None, [each.name, each.torch]))}  {each.commit[:10]}{contended}".rstrip()
        )
    for name, files in records.baselines(folder).items():
        print(f"  baseline {name}: {', '.join(str(file.relative_to(folder)) for file in files)}")
    readable = [each for each in listed if isinstance(each, Summary)]
    if report:
        from prooflops_gate.history import page

        for path in page.write_page(report, root.name, readable, page.address_of(root)):
            print(f"  written: {path}")
    if verbose:
        from prooflops_gate.history import (
            trend,  # imports numpy and scipy, which a plain list does without
        )

        for identity, rows in trend.tables(readable).items():
            print(f"\ntrend on {identity}")
            for line in aligned(rows):
                print(f"  {line.rstrip()}")
    return 0
