"""Compares two sides by pairs of processes.

    first pair  ->  what there is to compare, and at which pace
    instruments ->  each plans pairs of its own until it has decided, or its time is over
    rows        ->  times, by what decides them; exact quantities; memory; what only one side has

A question goes in, a `Comparison` comes out; nothing here prints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from prooflops_gate.console.progress import minutes
from prooflops_gate.console.tables import many
from prooflops_gate.first_pair import FirstPair, seen_in
from prooflops_gate.instruments import Measured
from prooflops_gate.instruments.counts import Count, resolved
from prooflops_gate.instruments.exact import exact_rows
from prooflops_gate.instruments.instructions import Instructions, instructions_of
from prooflops_gate.instruments.memory import Memory
from prooflops_gate.instruments.pace import PacePlan, plan_of
from prooflops_gate.instruments.times import Times
from prooflops_gate.loop import Riding, count, exhaust
from prooflops_gate.pairs import Pairs
from prooflops_gate.question import Question
from prooflops_gate.rows import INSTRUCTIONS, TIME, Row
from prooflops_gate.task import Task
from prooflops_gate.unpatched import time
from prooflops_gate.where import explained, worth_explaining

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


def compare(question: Question) -> Comparison:
    """Compares two sides.

    Raises Stopped where the user stops it, with the verdicts reached so far.
    """
    settings = question.settings
    pairs = Pairs(question)
    question.say("a first pair of processes shows what there is to compare")
    began = time.monotonic()
    pair = pairs.first()
    if settings.in_turn:
        pairs.allow_turns(pair)
    first = seen_in(question, pair, time.monotonic() - began)
    memory = Memory(settings.min_memory_effect, is_measured=settings.memory != "off")
    memory.measure(first.measured, first.took_s)
    rule = question.rule(len(first.after))
    budget_s, left_s = question.ends - began, question.ends - time.monotonic()
    pace = plan_of(pair, first.after, rule.plan, budget_s, left_s)
    question.say(str(pace))

    def sample(task: Task) -> Measured:
        return pairs.measure(replace(task, memory=() if task.counting else memory.wanted))

    times, counted = timed_and_counted(question, first, pace, memory, sample)
    return summed_up(question, pairs, first, pace, times, memory, counted)


def timed_and_counted(
    question: Question,
    first: FirstPair,
    pace: PacePlan,
    memory: Memory,
    sample: Callable[[Task], Measured],
) -> tuple[Times, Instructions]:
    """Times up to the second look, the instructions of what they leave open, and further times.

    Where cores are quiet, times decide most before the first counts would be there.
    """
    rule = question.rule(len(first.after))
    by = question.settings.by if question.asked else TIME
    both = [timed for sides in first.measured.pairs.values() for timed in sides]
    share_s = pace.counting_s(by, both, question.ends - time.monotonic())
    examined = tuple(timed.test for timed in first.after.values())
    template = Task(examined=examined, repeated=pace.repeated)
    times = Times(first.after, rule, question.ends, pace.later(share_s), template)
    times.measure(first.measured, first.took_s)
    timing = Riding(times, memory)
    try:
        if by != INSTRUCTIONS:
            times.wait_at(question.ends - share_s)
            exhaust(timing, sample, question.say)
        counted = to_count(question, first, pace, times)
        began = time.monotonic()
        count(counted, sample, question.say)
        if by != INSTRUCTIONS:
            times.go_on(counted.equal, pace.later(time.monotonic() - began))
            exhaust(timing, sample, question.say)
    except KeyboardInterrupt as stop:
        raise Stopped(Comparison(question.title, stopped_rows(times))) from stop
    return times, counted


def to_count(question: Question, first: FirstPair, pace: PacePlan, times: Times) -> Instructions:
    """The instructions of what times leave open, or of all where instructions decide or fail."""
    settings, left = question.settings, first.measured
    verdicts = times.verdicts()
    if settings.by == TIME or not question.asked:
        left = left.without(left.pairs)
    elif settings.by != INSTRUCTIONS and not settings.instructions_fail:
        left = left.without([name for name in verdicts if verdicts[name] in ("SAME", "FASTER")])
    return instructions_of(
        left,
        settings.min_instructions,
        pace.start_cpu_s,
        time.monotonic(),
        question.ends,
        slower=[name for name in verdicts if verdicts[name] == "SLOWER"],
    )


def stopped_rows(times: Times) -> tuple[Row, ...]:
    """The times of a run that the user stopped."""
    rows = []
    for row in times.decide().rows:
        is_open = row.verdict == "INCONCLUSIVE"
        rows.append(replace(row, note=STOPPED) if is_open else row)
    return tuple(rows)


def summed_up(
    question: Question,
    pairs: Pairs,
    first: FirstPair,
    pace: PacePlan,
    times: Times,
    memory: Memory,
    counted: Instructions,
) -> Comparison:
    """The rows of a comparison, and what to say of it."""
    exact = [row for row in exact_rows(times.sides) if row.verdict != "SAME"]
    of_times, of_counts = times.decide(), counted.decide()
    rows = [*first.rows, *exact, *memory.decide().rows, *of_times.rows]
    rows = resolved(rows, counted.found, times.rule.smallest)
    if question.asked and worth_explaining(rows):
        question.say("one more pair counts the work of each function")
        has_valgrind = bool(counted.found)
        rows = explained(rows, pairs.sample, question.ends, has_valgrind=has_valgrind)
    notes = (*first.notes, *pairs.notes, *of_counts.notes, *of_times.notes)
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
