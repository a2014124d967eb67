"""Compares two sides by pairs of processes.

    first pair  ->  what there is to compare, and at which pace
    instruments ->  each plans pairs of its own until it has decided, or its time is over
    rows        ->  times, by what decides them; exact quantities; memory; what only one side has

A question goes in, a `Comparison` comes out; nothing here prints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from prooflops_gate.console.progress import minutes
from prooflops_gate.console.tables import many
from prooflops_gate.first_pair import FirstPair, seen_in
from prooflops_gate.focus import focus_of, traced_in
from prooflops_gate.instruments import Measured
from prooflops_gate.instruments.counts import Count, by_count, resolved
from prooflops_gate.instruments.exact import exact_rows
from prooflops_gate.instruments.instructions import Instructions, instructions_of
from prooflops_gate.instruments.memory import Memory
from prooflops_gate.instruments.pace import LEAST, PacePlan, is_busy, plan_of
from prooflops_gate.instruments.time_rule import TimeRule, look_at
from prooflops_gate.instruments.times import Times
from prooflops_gate.loop import Riding, count, exhaust
from prooflops_gate.pairs import Pairs
from prooflops_gate.question import Question
from prooflops_gate.rows import FILES, INSTRUCTIONS, TIME, Row
from prooflops_gate.statistics.decision_rule import LOOKS, is_small
from prooflops_gate.task import Pair, Task
from prooflops_gate.unpatched import time
from prooflops_gate.unread import Unread
from prooflops_gate.where import explained

# Looks at times before the first count: beside other work further ones decide little, and of few
# benchmarks counts take less time than a look.
FEW_BUSY_LOOKS, BUSY_LOOKS, QUIET_LOOKS = 0, 1, 2
STOPPED = "the run was stopped before it was decided"
FAILED = "-x (--maxfail) ended the run before all was decided"


@dataclass(frozen=True)
class Comparison:
    """The result of a run: a row per quantity of each benchmark, and notes on the whole run.

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


def compare(question: Question) -> Comparison:
    """Compares two sides.

    Raises Stopped where the user stops it, with the verdicts reached so far.
    """
    settings = question.settings
    pairs = Pairs(question)
    question.say("running a first pair of processes")
    began = time.monotonic()
    pair, why_same = first_of(question, pairs)
    if settings.in_turn:
        pairs.allow_turns(pair)
    first = seen_in(question, pair, time.monotonic() - began)
    memory = Memory(settings.min_memory_effect, is_measured=settings.memory != "off")
    memory.measure(first.measured, first.took_s)
    rule = question.rule(len(first.after))
    if why_same:
        return same_program(question, first, rule, why_same)
    budget_s, left_s = question.ends - began, question.ends - time.monotonic()
    pace = plan_of(pair, first.after, rule.plan, budget_s, left_s)
    question.say(str(pace))

    def sample(task: Task) -> Measured:
        return pairs.measure(replace(task, memory=() if task.counting else memory.wanted))

    traced = traced_in(question, first, pace, pairs.sample)
    focus = focus_of(traced, first, pace)
    if focus:
        question.say(
            f"{len(focus)} of {many(len(first.after), 'benchmark')} first, "
            "with more or fewer bytecodes than before"
        )
    times, counted = timed_and_counted(question, first, pace, memory, sample, focus)
    return summed_up(question, pairs, first, pace, times, memory, counted, traced)


def first_of(question: Question, pairs: Pairs) -> tuple[Pair, str]:
    """The first pair, and why both its sides ran the same program, if they did.

    It is a short one where that explains it.
    """
    with closing(Unread(question.here, question.other)) as unread:
        if unread.is_likely and not question.settings.by_is_given:
            short = pairs.first(LEAST, memory=())
            if why_same := unread.explains(short):
                return short, why_same
    return pairs.first(), ""


def same_program(question: Question, first: FirstPair, rule: TimeRule, why: str) -> Comparison:
    """All benchmarks are SAME, as both sides ran the same program; first times are shown."""
    both = {name: ([old], [new]) for name, (old, new) in first.measured.pairs.items()}
    exact = [row for row in exact_rows(both) if row.verdict != "SAME"]
    times, _ = look_at(both, rule)
    same = [replace(row, verdict="SAME", by=FILES, note=why) for row in times]
    return Comparison(
        question.title,
        (*first.rows, *exact, *same),
        notes=first.notes,
        effort=f"1 pair in {minutes(time.monotonic() - question.began)}",
        left_out=first.left_out,
    )


def timed_and_counted(
    question: Question,
    first: FirstPair,
    pace: PacePlan,
    memory: Memory,
    sample: Callable[[Task], Measured],
    focus: frozenset[str],
) -> tuple[Times, Instructions]:
    """First looks at times, the instructions of what they leave open, and further times.

    Eight pairs of times cost less than two of counts, and no count shows waiting. So times come
    first wherever they fit. A `focus` is decided before all benchmarks are: beside other work by
    counts first, as these are few. What counts settle has a look at times, too.
    """
    rule = question.rule(len(first.after))
    by = question.settings.by if question.asked else TIME
    left_s = question.ends - time.monotonic()
    both = first.measured.pairs.values()
    share_s = pace.counting_s(by, both, left_s)
    do_times_fit = share_s < left_s
    halfway = question.ends - left_s / 2
    examined = tuple(timed.test for timed in first.after.values())
    template = Task(examined=examined)
    times = Times(first.after, rule, question.ends, pace.later(share_s), template, question.say)
    times.measure(first.measured, first.took_s)
    timing = Riding(times, memory)
    counted = instructions_of(first.measured, question.settings.min_instructions, pace.start_cpu_s)
    few, all_ = (FEW_BUSY_LOOKS, BUSY_LOOKS) if is_busy(both) else (QUIET_LOOKS, QUIET_LOOKS)
    phases = [(few, focus, halfway), (all_, first.after, question.ends)]
    try:
        for looks, names, ends in phases if focus else phases[1:]:
            if by != TIME:
                question.say(order_of(looks, do_times_fit=do_times_fit))
            share_s = pace.counting_s(by, both, ends - time.monotonic())
            times.wait_at(ends - share_s, looks, names)
            exhaust(timing, sample, question.say)
            began = time.monotonic()
            counted.go_on(to_count(question, times).intersection(names), times.slower, began, ends)
            count(counted, sample, question.say)
            if by != INSTRUCTIONS:
                look = rule.plan.looks[0] if do_times_fit else 0
                pace = pace.later(time.monotonic() - began)
                times.go_on(settled(counted, times), pace, look, ends)
                exhaust(timing, sample, question.say)
    except KeyboardInterrupt as stop:
        rows = tuple(noting_open(times.decide().rows, STOPPED))
        raise Stopped(Comparison(question.title, rows)) from stop
    return times, counted


def order_of(looks: int, *, do_times_fit: bool) -> str:
    """The first to decide, times or instructions, and the reason, in words."""
    if not do_times_fit:
        return f"instructions decide: {LOOKS[0]} pairs of times do not fit into the budget"
    work = "little" if looks == QUIET_LOOKS else "much"
    first = f"times decide first, in up to {LOOKS[looks - 1]} pairs, then instructions"
    if looks == FEW_BUSY_LOOKS:
        first = "instructions decide first, then times"
    return f"{work} other work: {first}"


def settled(counted: Instructions, times: Times) -> set[str]:
    """The benchmarks that their instructions decide where times leave them open."""
    counted.decide()
    smallest = times.rule.smallest
    # A contended pair that is measured again has no row so far.
    effects = {name: row.effect for name, row in times.rows().items()}
    found = counted.found.items()
    return {name for name, each in found if by_count(each, effects.get(name), smallest(name))}


def to_count(question: Question, times: Times) -> set[str]:
    """The benchmarks that times leave open, or all where instructions decide.

    What time decides is not counted, but for the one slowdown that instructions may explain away.
    """
    settings, rows = question.settings, times.rows()
    if settings.by == TIME or not question.asked or times.has_failed:
        return set()
    if settings.by == INSTRUCTIONS:
        return set(times.sides)
    decided = {name for name, row in rows.items() if row.verdict != "INCONCLUSIVE"}
    slower = [row for row in rows.values() if row.verdict == "SLOWER"]
    if len(slower) == 1 and is_small(slower[0].effect):
        decided.remove(slower[0].name)
    return times.sides.keys() - decided


def noting_open(rows: Sequence[Row], why: str) -> list[Row]:
    """The rows; those of open benchmarks with this note."""
    return [replace(row, note=why) if row.verdict == "INCONCLUSIVE" else row for row in rows]


def summed_up(
    question: Question,
    pairs: Pairs,
    first: FirstPair,
    pace: PacePlan,
    times: Times,
    memory: Memory,
    counted: Instructions,
    traced: Pair | None,
) -> Comparison:
    """The rows of a comparison, and what to say of it."""
    exact = [row for row in exact_rows(times.sides) if row.verdict != "SAME"]
    of_times, of_counts = times.decide(), counted.decide()
    rows = [*first.rows, *exact, *memory.decide().rows, *of_times.rows]
    rows = resolved(rows, counted.found, times.rule.smallest)
    if times.has_failed:
        rows = noting_open(rows, FAILED)
    if question.asked:
        has_valgrind = bool(counted.found)
        rows = explained(
            rows, traced, pairs.sample, question.ends, question.say, has_valgrind=has_valgrind
        )
    ended = FAILED if times.has_failed else ""
    notes = (ended, *first.notes, *pairs.notes, *of_counts.notes, *of_times.notes)
    seconds = minutes(time.monotonic() - question.began)
    return Comparison(
        question.title,
        tuple(rows),
        notes=tuple(filter(None, notes)),
        details=(pace.detail, *of_counts.details, *of_times.details),
        effort=f"{many(times.taken, 'pair')} in {seconds}",
        counts=counted.found,
        left_out=first.left_out,
    )
