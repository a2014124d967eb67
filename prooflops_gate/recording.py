"""Stores figures of fresh processes of this side: a baseline, or the noise floor of `--gate-noise-floor`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from prooflops_gate import counted_history, decide
from prooflops_gate.console.tables import engineering, many
from prooflops_gate.history import records
from prooflops_gate.history.records import Timed
from prooflops_gate.history.rows import TIME, Row
from prooflops_gate.pace import FIRST
from prooflops_gate.session import Session
from prooflops_gate.statistics.decision_rule import Plan, smallest_effect
from prooflops_gate.statistics.noise import noise_floor, spread

PROCESSES = 5  # of a baseline, where --gate-replicates doesn't say
HEAD = ["benchmark", "time", "pairs", "noise", "slowdowns are found from", "between sessions"]
MOST = 50  # sessions kept


def record(session: Session, ids: Sequence[str]) -> None:
    """Runs these tests in N processes, and stores those as a baseline if a name is given."""
    if not ids:
        raise pytest.UsageError(
            "--gate-record: no test is selected, and a baseline of none lets everything pass"
        )
    settings, lines = session.settings, session.lines
    wanted = settings.replicates or PROCESSES
    files: list[Path] = []
    taken: dict[str, list[Timed]] = {}
    for number in range(wanted):
        session.say(f"process {number + 1} of {wanted}", number, wanted)
        done = session.run(session.here, ids, benchmarks_only=False, paces=FIRST)
        if done.fingerprint is None:
            raise pytest.UsageError(
                "--gate-record: the plugin prooflops_gate.plugin is not active in a fresh process"
            )
        done.record["prooflops"]["pace"] = FIRST
        with session.storing():
            files.append(records.append(settings.folder, done.record, done.fingerprint))
        for name, timed in session.summary_of(done).benchmarks.items():
            taken.setdefault(name, []).append(timed)
        if len(files) <= number:
            break  # the next could not be stored either
    session.title = f"{len(files)} fresh processes recorded"
    session.table = spread_table(taken)
    failed = session.reports.failed
    if settings.record and failed:
        lines.append(f"not stored as {settings.record}: {many(len(failed), 'test')} failed")
    elif settings.record and len(files) == wanted:
        with session.storing():
            stored = records.store_baseline(settings.record, files)
            lines.append(f"baseline {settings.record}: {wanted} records, named in {stored}")
        counted_history.store(session, ids)


def spread_table(taken: Mapping[str, Sequence[Timed]]) -> list[list[str]]:
    """The median time of each benchmark in the processes of one session, and how far they lie apart."""
    rows = [["benchmark", "processes", "time", "spread", "slowest", "contended"]]
    for name, group in taken.items():
        times = [timed.time_s for timed in group]
        middle, contended = median(times), sum(bool(timed.contended) for timed in group)
        row = [name, str(len(group)), engineering(middle, "s"), f"{spread(times):.1%}"]
        rows.append([*row, f"{max(times) / middle - 1:+.1%}", str(contended or "")])
    return rows


def store_noise_floor(session: Session, fingerprint_id: str) -> None:
    """Stores the noise of each benchmark beside that of earlier sessions, and sets the table to print."""
    settings = session.settings
    timed = [row for row in session.rows if row.quantity == TIME and row.effect]
    # A slowdown that a gate run finds with the plan in force, however many pairs this estimate took.
    plan = decide.replicate_plan(len(timed), directions=session.directions())
    session.lines.append(f"at most {plan.alarm_rate:.0%} of whole gate runs alarm without a change")
    known = records.noise_floors(settings.folder, fingerprint_id)
    with session.storing():
        found = {
            row.name: _entry(row, known.get(row.name, {}), plan, session.smallest(row.name))
            for row in timed
        }
        stored = records.store_noise_floors(settings.folder, fingerprint_id, found)
        session.table = [HEAD, *map(_cells, found, found.values())]
        session.lines.append(f"stored in {stored}")


def _entry(row: Row, known: Mapping[str, Any], plan: Plan, smallest: float) -> dict[str, Any]:
    assert row.effect
    noise = row.effect.noise if math.isfinite(row.effect.noise) else None
    sessions = [*known.get("sessions_s", []), row.after][-MOST:]
    floor = noise_floor(sessions)
    return {
        "noise": noise,
        "smallest_effect": None if noise is None else smallest_effect(noise, plan, smallest),
        "pairs": row.effect.pairs,
        "sessions_s": sessions,
        "floor": floor if math.isfinite(floor) else None,
    }


def _cells(name: str, entry: Mapping[str, Any]) -> list[str]:
    noise, smallest, floor, sessions = (
        entry[key] for key in ("noise", "smallest_effect", "floor", "sessions_s")
    )
    return [
        name,
        engineering(sessions[-1], "s"),
        str(entry["pairs"]),
        "unknown" if noise is None else f"{noise:.1%}",
        "unknown: too few pairs" if smallest is None else f"{smallest:.1%}",
        "known from 2 sessions on" if floor is None else f"{floor:.1%} ({len(sessions)} sessions)",
    ]
