"""Stores a baseline: everything run in several fresh processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import pytest

from prooflops.console.tables import engineering
from prooflops.gate.measurement import Measurement
from prooflops.gate.process_plan import FIRST
from prooflops.history import records
from prooflops.history.records import Timed
from prooflops.statistics.noise import spread

PROCESSES = 5  # of a baseline, where --gate-replicates doesn't say


def record(measurement: Measurement, ids: Sequence[str]) -> None:
    """Runs these tests in N processes, and stores those as a baseline if a name is given."""
    if not ids:
        raise pytest.UsageError("--gate-record: no test is selected, and a baseline of none lets everything pass")
    settings, lines = measurement.settings, measurement.lines
    wanted = settings.replicates or PROCESSES
    files: list[Path] = []
    taken: dict[str, list[Timed]] = {}
    for number in range(wanted):
        measurement.say(f"replicate {number + 1} of {wanted}", number, wanted)
        done = measurement.run_here(ids, benchmarks_only=False, paces=FIRST)
        if done.fingerprint is None:
            raise pytest.UsageError("--gate-record: the plugin prooflops.plugin is not active in a fresh process")
        done.record["prooflops"]["pace"] = FIRST
        with measurement.storing():
            files.append(records.append(settings.folder, done.record, done.fingerprint))
        for name, timed in measurement.summary_of(done).benchmarks.items():
            taken.setdefault(name, []).append(timed)
        if len(files) <= number:
            break  # the next could not be stored either
    measurement.title = f"{len(files)} fresh processes recorded"
    measurement.table = spread_table(taken)
    failed = measurement.reports.failed()
    if settings.record and failed:
        lines.append(f"not stored as {settings.record}: {len(failed)} tests failed")
    elif settings.record and len(files) == wanted:
        with measurement.storing():
            stored = records.store_baseline(settings.record, files)
            lines.append(f"baseline {settings.record}: {wanted} records, named in {stored}")


def spread_table(taken: Mapping[str, Sequence[Timed]]) -> list[list[str]]:
    """What the processes of one session measured: the median of their fastest rounds, and how far they lie apart."""
    rows = [["benchmark", "processes", "time", "spread", "slowest", "contended"]]
    for name, group in taken.items():
        times = [timed.time_s for timed in group]
        middle, contended = median(times), sum(bool(timed.contended) for timed in group)
        row = [name, str(len(group)), engineering(middle, "s"), f"{spread(times):.1%}"]
        rows.append([*row, f"{max(times) / middle - 1:+.1%}", str(contended or "")])
    return rows
