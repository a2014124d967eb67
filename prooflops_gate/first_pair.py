"""The first pair of processes shows what there is to compare: the other side runs whole files.

What both sides have goes on to the instruments. What only one has is GONE, MISSING or NEW.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from prooflops_gate import sides
from prooflops_gate.console.tables import many
from prooflops_gate.history.records import Timed
from prooflops_gate.instruments import Measured, timed_in
from prooflops_gate.question import Question
from prooflops_gate.rows import TIME, Row, joined, one_sided, with_skips
from prooflops_gate.selection import function_of, is_gone
from prooflops_gate.task import TOOK_TOO_LONG, Pair, Replicate

# A refusal names at most this many benchmarks.
MOST_NAMED = 3
# Other work alone makes one process take up to this many times as long as another.
GROWN = 3.0


@dataclass(frozen=True)
class FirstPair:
    """The benchmarks of a first pair, and what cannot be compared.

    `measured` holds the benchmarks that both sides have and the command line asks for, `rows` what
    only one side has, and what takes too long on either. `left_out` are tests whose ids differ from
    process to process.
    """

    measured: Measured
    took_s: float
    rows: tuple[Row, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def after(self) -> Mapping[str, Timed]:
        """The benchmarks that both sides have, as this side measured them."""
        return {name: pair[1] for name, pair in self.measured.pairs.items()}


def seen_in(question: Question, pair: Pair, took_s: float) -> FirstPair:
    """The benchmarks to compare, by the first pair of a question.

    Raises UsageError where that is nothing.
    """
    collected = set(pair.after.collected)
    left_out = [name for name in question.selection.benchmarks if name not in collected]
    before, after = (timed_in(done, question.settings.exact) for done in pair)
    both = {name: (before[name], timed) for name, timed in after.items() if name in before}
    if question.asked:
        covers = question.selection.covers
        both = {name: timed for name, timed in both.items() if covers(timed[1].test)}
    slow = {row.test: row for row in too_long(pair, before, question.longest_s)}
    alone = one_sided_rows(question, pair, before, after, left_out)
    rows = [row for row in alone if row.test not in slow]
    rows += [row for test, row in slow.items() if test in question.selection.benchmarks]
    why = "\n".join(row.note for row in rows)
    notes = (unpaired(left_out), sides.lacking(question.other, question.here.root, why))
    if question.asked and not both:
        refuse_nothing_in_common(question, rows, notes)
    return FirstPair(Measured(pair, both), took_s, tuple(rows), tuple(left_out), notes)


def refuse_nothing_in_common(question: Question, rows: Sequence[Row], notes: Sequence[str]) -> None:
    """Raises UsageError where only one side has each benchmark, and none of them fails for that."""
    settings, passing = question.settings, ["GONE", "NEW"]
    if not (settings.gate and settings.missing_fails):
        passing.append("MISSING")
    if (rows or any(notes)) and all(row.verdict in passing for row in rows):
        named = (joined(f"{row.name} is {row.verdict}", row.note) for row in rows[:MOST_NAMED])
        nothing = f"{question.asked}: no benchmark ran on both sides: nothing can be compared"
        raise pytest.UsageError("\n".join(filter(None, (nothing, *named, *notes))))


def one_sided_rows(
    question: Question,
    pair: Pair,
    before: Mapping[str, Timed],
    after: Mapping[str, Timed],
    left_out: Sequence[str],
) -> list[Row]:
    """The rows of benchmarks that only one side has: GONE, MISSING or skipped here; NEW."""
    selection = question.selection
    skipped, not_there = skip_reasons(pair.after), reasons_of_no_time(pair.before)
    changing = {function_of(name) for name in left_out}
    rows = []
    for name, timed in before.items():
        if name in after or not selection.covers(timed.test):
            continue
        if function_of(timed.test) in changing:
            continue
        was_removed = is_gone(
            timed.test, question.here.root, question.other.root, selection.benchmarks
        )
        row = replace(one_sided(name, TIME, timed.time_s, None), test=timed.test)
        if was_removed:
            row = replace(row, verdict="GONE", note="its test was removed")
        rows.append(row)
    rows = with_skips(rows, skipped)
    for name, timed in after.items():
        if name in before or not question.asked or not selection.covers(timed.test):
            continue
        row = one_sided(name, TIME, None, timed.time_s)
        rows.append(replace(row, note=not_there.get(timed.test, ""), test=timed.test))
    return rows


def skip_reasons(done: Replicate) -> dict[str, str]:
    """Skip reasons by test, of a process."""
    found = {}
    for report in done.reports:
        reason = report.get("longrepr")
        if report.get("outcome") == "skipped" and isinstance(reason, (list, tuple)):
            found[report["nodeid"]] = str(reason[2]).removeprefix("Skipped: ")
    return found


def reasons_of_no_time(done: Replicate) -> dict[str, str]:
    """Why tests of the other side were skipped or failed, by test."""
    skipped = skip_reasons(done).items()
    found = {name: f"the other side skips it: {why}" for name, why in skipped}
    for report in done.reports:
        if report.get("outcome") == "failed":
            text = report["longrepr"]
            crash = text.get("reprcrash") if isinstance(text, dict) else None
            message = str(crash["message"] if crash else text).partition("\n")[0]
            found[report["nodeid"]] = f"it fails on the other side: {message}"
    return found


def long_reasons(done: Replicate) -> dict[str, str]:
    """Why a process skipped benchmarks whose calls take too long for the budget, by test."""
    reasons = skip_reasons(done)
    return {name: why for name, why in reasons.items() if why.startswith(TOOK_TOO_LONG)}


def too_long(pair: Pair, before: Mapping[str, Timed], longest_s: float) -> list[Row]:
    """The benchmarks whose calls take longer than `longest_s` on either side.

    Nothing compares them. One is MISSING where this side alone takes so long, and GROWN times as
    long as the other.
    """
    times_s = {timed.test: timed.time_s for timed in before.values()}
    rows = []
    for name, why in (long_reasons(pair.before) | long_reasons(pair.after)).items():
        has_grown = name in times_s and GROWN * pair.before.calls[name]["seconds"] < longest_s
        verdict = "MISSING" if has_grown else "INCONCLUSIVE"
        rows.append(Row(name, TIME, times_s.get(name), None, verdict, note=why, test=name))
    return rows


def unpaired(names: Sequence[str]) -> str:
    """Names the tests whose ids differ from process to process, so that nothing pairs them."""
    if not names:
        return ""
    return (
        f"not compared: {many(len(names), 'test')} whose id differs from process to process, "
        f"the first {names[0]}: give its parameters ids that stay the same"
    )
