"""The first pair of processes shows what there is to compare: the other side runs whole files.

What both sides have goes on to the instruments. What only one has is GONE, MISSING or NEW.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from prooflops_gate.console.tables import many
from prooflops_gate.history.records import Timed
from prooflops_gate.instruments import Measured, timed_in
from prooflops_gate.question import Question
from prooflops_gate.rows import TIME, Row, one_sided, with_skips
from prooflops_gate.selection import function_of, is_gone
from prooflops_gate.task import TOOK_TOO_LONG, Pair, Replicate


@dataclass(frozen=True)
class FirstPair:
    """What a first pair, which took so long, shows.

    `measured` holds the benchmarks that both sides have and the command line asks for, `rows` what
    only one side has, and what takes too long on both. `left_out` are tests whose ids differ from
    process to process, which `note` says.
    """

    measured: Measured
    took_s: float
    rows: tuple[Row, ...]
    left_out: tuple[str, ...]
    note: str

    @property
    def after(self) -> Mapping[str, Timed]:
        """The benchmarks that both sides have, as this side took them."""
        return {name: pair[1] for name, pair in self.measured.pairs.items()}


def seen_in(question: Question, pair: Pair, took_s: float) -> FirstPair:
    """What the first pair of a question, which took so long, shows."""
    collected = set(pair.after.collected)
    left_out = [name for name in question.selection.benchmarks if name not in collected]
    note, slow = unpaired(left_out), too_long(pair)
    before, after = (timed_in(done, question.settings.exact) for done in pair)
    both = {name: (before[name], timed) for name, timed in after.items() if name in before}
    if question.asked:
        covers = question.selection.covers
        both = {name: timed for name, timed in both.items() if covers(timed[1].test)}
    rows = (*one_sided_rows(question, pair, before, after, left_out), *slow)
    return FirstPair(Measured(pair, both), took_s, rows, tuple(left_out), note)


def one_sided_rows(
    question: Question,
    pair: Pair,
    before: Mapping[str, Timed],
    after: Mapping[str, Timed],
    left_out: Sequence[str],
) -> list[Row]:
    """The rows of benchmarks that only one side has: GONE, MISSING or skipped here; NEW."""
    selection = question.selection
    skipped, failed = skip_reasons(pair.after), pair.before.failed
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
        note = "it fails on the other side" if timed.test in failed else ""
        row = one_sided(name, TIME, None, timed.time_s)
        rows.append(replace(row, note=note, test=timed.test))
    return rows


def skip_reasons(done: Replicate) -> dict[str, str]:
    """Skip reasons by test, of a process."""
    found = {}
    for report in done.reports:
        reason = report.get("longrepr")
        if report.get("outcome") == "skipped" and isinstance(reason, (list, tuple)):
            found[report["nodeid"]] = str(reason[2]).removeprefix("Skipped: ")
    return found


def too_long(pair: Pair) -> list[Row]:
    """The benchmarks that both sides skipped, as their calls take too long for the budget."""
    before, after = skip_reasons(pair.before), skip_reasons(pair.after)
    return [
        Row(name, TIME, None, None, "INCONCLUSIVE", note=why, test=name)
        for name, why in after.items()
        if why.startswith(TOOK_TOO_LONG) and before.get(name, "").startswith(TOOK_TOO_LONG)
    ]


def unpaired(names: Sequence[str]) -> str:
    """Names the tests whose ids differ from process to process, so that nothing pairs them."""
    if not names:
        return ""
    return (
        f"not compared: {many(len(names), 'test')} whose id differs from process to process, "
        f"the first {names[0]}: give its parameters ids that stay the same"
    )
