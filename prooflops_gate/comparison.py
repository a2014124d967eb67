"""Compares two sides: the one loop that takes pairs of processes until every benchmark is decided.

    first pair  ->  what there is to compare, and at which pace
    instruments ->  each asks for pairs of its own until it has decided, or its time is over
    rows        ->  times, by what decides them; exact quantities; memory; what only one side has

A question goes in, a `Comparison` comes out; nothing here prints.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from prooflops_gate import sides
from prooflops_gate.console.progress import minutes
from prooflops_gate.console.tables import many
from prooflops_gate.history import records
from prooflops_gate.history.records import Timed
from prooflops_gate.instruments import Instrument, Measured
from prooflops_gate.instruments.counts import Count, resolved
from prooflops_gate.instruments.exact import exact_rows
from prooflops_gate.instruments.instructions import Instructions, by_features, counting_s, share_of
from prooflops_gate.instruments.memory import Memory
from prooflops_gate.instruments.pace import FIRST, PacePlan, plan_of
from prooflops_gate.instruments.time_rule import TimeRule, plan_for
from prooflops_gate.instruments.times import Times
from prooflops_gate.options import Settings
from prooflops_gate.pairs import Pairs
from prooflops_gate.process import Processes
from prooflops_gate.rows import INSTRUCTIONS, TIME, Row, one_sided, with_skips
from prooflops_gate.selection import Selection, function_of, is_gone
from prooflops_gate.statistics.decision_rule import LOOKS
from prooflops_gate.task import (
    TOOK_TOO_LONG,
    OutOfTime,
    Pair,
    Replicate,
    ReplicateFailed,
    Side,
    Task,
)
from prooflops_gate.where import explained, worth_explaining

# A benchmark whose calls take less in all is waited for, however small the budget.
SHORT_S = 20.0
# At least, between two lines of progress.
SILENT_S = 20.0
STOPPED = "the run was stopped before it was decided"


@dataclass(frozen=True)
class Comparison:
    """What a run found: a row per quantity of each benchmark, and what to say of the whole run.

    `title` names the two sides. `notes` stand below the rows, `details` below these under -v.
    `effort` is what it took. A `table` is printed in place of the rows. `counts` are instructions
    by benchmark. `left_out` are tests whose ids differ from process to process: nothing pairs them.
    """

    title: str
    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    effort: str = ""
    table: tuple[Sequence[str], ...] = ()
    counts: Mapping[str, Count] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    def noting(self, *notes: str) -> Comparison:
        """The same with these notes before its own, without empty ones."""
        return replace(self, notes=(*filter(None, notes), *self.notes))


class Stopped(KeyboardInterrupt):
    """The user stopped the run; `comparison` holds what was decided by then."""

    def __init__(self, comparison: Comparison) -> None:
        super().__init__()
        self.comparison = comparison


@dataclass(frozen=True)
class Question:
    """What is compared: this side beside another, by the tests that were selected.

    `asked` is the option that names the other side; empty where both are this one. `benchmarks` are
    to be compared; `targets` are the paths in which the other side is searched for more of them.
    `say` takes a line of progress, `heard` each process of this side.
    """

    here: Side
    other: Side
    asked: str
    selection: Selection
    settings: Settings
    processes: Processes
    say: Callable[[str], None]
    heard: Callable[[Replicate], None]
    began: float

    @property
    def ends(self) -> float:
        """When the budget ends, by the clock of `time.monotonic`."""
        return self.began + self.settings.budget_s

    def pairs(self) -> Pairs:
        return Pairs(self.processes, self.here, self.other, self.asked, self.heard)

    def rule(self, benchmarks: int, counts: Mapping[str, Count]) -> TimeRule:
        """The rule that decides so many benchmarks by their times."""
        settings = self.settings
        plan = plan_for(
            benchmarks,
            most=settings.replicates,
            all_pairs=settings.noise_floor,
            directions=self.selection.directions(settings.direction),
        )
        equal = {name for name, each in counts.items() if each.verdict == "SAME"}
        return TimeRule(
            plan,
            settings.min_effect,
            self.selection.smallest,
            settings.replicates,
            settings.noise_floor,
            equal,
            settings.direction,
        )


def timed_in(done: Replicate, exact: Sequence[str]) -> dict[str, Timed]:
    """The benchmarks of a process."""
    found = records.summary_of(done.record, Path("replicate"), exact)
    return dict(found.benchmarks)


def measured_in(pair: Pair, exact: Sequence[str]) -> Measured:
    """What a pair left, of each benchmark that both sides have."""
    before, after = (timed_in(done, exact) for done in pair)
    both = {name: (before[name], after[name]) for name in after if name in before}
    return Measured(pair, both)


def exhaust(
    instrument: Instrument,
    take: Callable[[Task], Pair],
    exact: Sequence[str],
    say: Callable[[str], None],
) -> None:
    """Takes the pairs that an instrument asks for, until it asks for none or no more fits."""
    said_at = -math.inf
    while task := instrument.next_task(time.monotonic()):
        began = time.monotonic()
        if began + task.needs_s > task.ends:
            return
        if began - said_at >= SILENT_S:
            said_at = began
            say(instrument.progress())
        try:
            pair = take(task)
        except OutOfTime:
            return
        instrument.measure(measured_in(pair, exact), time.monotonic() - began)


def compare(question: Question) -> Comparison:
    """Compares two sides.

    Raises Stopped where the user stops it, with the verdicts reached so far.
    """
    pairs, settings = question.pairs(), question.settings
    question.say("a first pair of processes shows what there is to compare")
    began = time.monotonic()
    first = take_first(question, pairs)
    took_s = time.monotonic() - began
    measured = measured_in(first, settings.exact)
    kept = covered(question, measured)
    memory = Memory(settings.min_memory_effect, is_measured=settings.memory != "off")
    memory.measure(kept, took_s)
    after = {name: pair[1] for name, pair in kept.pairs.items()}
    rule = question.rule(len(after), {})
    budget_s, left_s = question.ends - began, question.ends - time.monotonic()
    pace = plan_of(first, after, rule.plan, budget_s, left_s)
    question.say(str(pace))
    if settings.in_turn:
        pairs.allow_turns(first)

    def take(task: Task) -> Pair:
        return pairs.take(replace(task, memory=() if task.counting else memory.wanted))

    began = time.monotonic()
    counted = count(question, kept, pace, take)
    times = Times(
        after,
        question.rule(len(after), counted.found),
        question.ends,
        pace.later(time.monotonic() - began),
        template(after, pace),
    )
    times.measure(kept, took_s)
    try:
        if settings.by != INSTRUCTIONS or not question.asked:
            exhaust(Riding(times, memory), take, settings.exact, question.say)
    except KeyboardInterrupt as stop:
        raise Stopped(stopped(question, times)) from stop
    return summed_up(question, pairs, first, times, memory, counted, pace)


def take_first(question: Question, pairs: Pairs) -> Pair:
    """The first pair, in which the other side runs whole files.

    Its benchmarks are not known yet.
    """
    memory = None if question.settings.memory != "off" else ()
    task = Task(
        tests=question.selection.benchmarks,
        paces=FIRST,
        memory=memory,
        longest_s=max(SHORT_S, question.settings.budget_s / (2 * LOOKS[0])),
    )
    targets = None
    if question.asked:
        targets = sides.targets(question.selection.config, question.other)
    pair = pairs.take(task, targets)
    if question.asked:
        sides.check_origins(pair, question.here.root, question.asked)
    return pair


def covered(question: Question, measured: Measured) -> Measured:
    """What a pair measured of the benchmarks that the command line asks for."""
    if not question.asked:
        return measured
    covers = question.selection.covers
    kept = {name: pair for name, pair in measured.pairs.items() if covers(pair[1].test)}
    return replace(measured, pairs=kept)


def template(after: Mapping[str, Timed], pace: PacePlan) -> Task:
    """What each task on times asks besides its tests and their pace."""
    tests = tuple(timed.test for timed in after.values())
    return Task(examined=tests, repeated=pace.repeated)


class Riding:
    """Times, with memory measured in the same processes."""

    def __init__(self, times: Times, memory: Memory) -> None:
        self.times, self.memory = times, memory
        self.next_task, self.progress = times.next_task, times.progress
        self.decide, self.explain = times.decide, times.explain

    def measure(self, measured: Measured, took_s: float) -> None:
        self.times.measure(measured, took_s)
        self.memory.measure(measured, took_s)


def count(
    question: Question, measured: Measured, pace: PacePlan, take: Callable[[Task], Pair]
) -> Instructions:
    """Counts the instructions of these benchmarks, where that is asked for.

    A share of the time left is for it.
    """
    settings, now = question.settings, time.monotonic()
    is_asked = settings.by != TIME and bool(question.asked)
    both = [timed for pair in measured.pairs.values() for timed in pair]
    share = 1.0 if settings.by == INSTRUCTIONS else share_of(both)
    share_s = counting_s(share, question.ends - now, pace)
    drivers = {side.footprint["driver"] for side in measured.pair if side.footprint.get("driver")}
    counted = Instructions(
        {name: pair[1].time_s for name, pair in measured.pairs.items()} if is_asked else {},
        settings.min_instructions,
        pace.start_cpu_s,
        began=now,
        ends=now + share_s,
        latest=min(now + 2 * share_s, question.ends),
        drivers=sorted(drivers) if is_asked else (),
    )
    try:
        exhaust(counted, take, settings.exact, question.say)
    except ReplicateFailed as failed:
        counted.fail(failed)
    counted.close()
    return counted


def stopped(question: Question, times: Times) -> Comparison:
    """What was decided of a run that the user stopped."""
    rows = [
        replace(row, note=STOPPED) if row.verdict == "INCONCLUSIVE" else row
        for row in times.decide()
    ]
    return Comparison(title_of(question), tuple(rows))


def summed_up(
    question: Question,
    pairs: Pairs,
    first: Pair,
    times: Times,
    memory: Memory,
    counted: Instructions,
    pace: PacePlan,
) -> Comparison:
    """The rows of a comparison, and what to say of it."""
    exact = [row for row in exact_rows(times.sides) if row.verdict != "SAME"]
    rows = [*one_sided_rows(question, first), *exact, *memory.decide(), *times.decide()]
    rule = times.rule
    rows = resolved(rows, counted.found, rule.smallest)
    if question.asked and worth_explaining(rows) and time.monotonic() < question.ends:
        question.say("one more pair counts by function where the work went")
        has_valgrind = bool(counted.found)
        rows = explained(rows, pairs.take, question.ends, has_valgrind=has_valgrind)
    told, said = times.explain(), counted.explain()
    features = by_features(first) if counted.found else ""
    left_out = changing_names(question, first)
    seconds = minutes(time.monotonic() - question.began)
    return Comparison(
        title_of(question),
        tuple(rows),
        notes=tuple(
            filter(
                None,
                [
                    unpaired(left_out),
                    *pairs.notes,
                    *said.notes,
                    features,
                    *told.notes,
                ],
            )
        ),
        details=(pace.detail, *said.details, *told.details),
        effort=f"{many(times.taken, 'pair')} in {seconds}",
        counts=counted.found,
        left_out=tuple(left_out),
    )


def title_of(question: Question) -> str:
    """The two sides, in words."""
    this = f"this side ({sides.commit_of(question.here.root)})"
    if not question.asked:
        return f"{this} beside itself"
    return f"{question.other.label} (before) beside {this} (after)"


def one_sided_rows(question: Question, first: Pair) -> list[Row]:
    """The rows of the benchmarks that only one side has: GONE, MISSING, or NEW."""
    exact = question.settings.exact
    before, after = (timed_in(done, exact) for done in first)
    here, there = question.here.root, question.other.root
    left = []
    skipped = skip_reasons(first.after)
    changing = {function_of(name) for name in changing_names(question, first)}
    for name, timed in before.items():
        if name in after or not question.selection.covers(timed.test):
            continue
        if function_of(timed.test) in changing:
            continue
        row = one_sided(name, TIME, timed.time_s, None)
        if is_gone(timed.test, here, there, question.selection.benchmarks):
            row = replace(row, verdict="GONE", note="its test was removed")
        left.append(replace(row, test=timed.test))
    rows = [*with_skips(left, skipped), *too_long(first)]
    failed = first.before.failed
    for name, timed in after.items():
        if name in before or not question.asked or not question.selection.covers(timed.test):
            continue
        row = one_sided(name, TIME, None, timed.time_s)
        note = "it fails on the other side" if timed.test in failed else ""
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


def changing_names(question: Question, first: Pair) -> list[str]:
    """The selected benchmarks that a process of this side collected under another name."""
    collected = set(first.after.collected)
    return [name for name in question.selection.benchmarks if name not in collected]


def too_long(first: Pair) -> list[Row]:
    """The benchmarks that both sides skipped, as their calls take too long for the budget."""
    before, after = skip_reasons(first.before), skip_reasons(first.after)
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


def refuse_without_benchmarks(selection: Selection) -> None:
    """Raises UsageError where nothing that is measured was selected."""
    if not selection.benchmarks:
        raise pytest.UsageError(
            "the gate found no test with the fixture or the marker `benchmark` among those selected"
        )
