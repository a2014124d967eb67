"""Which benchmarks a comparison decides first: those whose bytecodes changed most.

A hint of what to measure, which decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from prooflops_gate.first_pair import FirstPair
from prooflops_gate.history.records import Timed
from prooflops_gate.instruments.pace import PacePlan
from prooflops_gate.question import Question
from prooflops_gate.task import Counting, OutOfTime, Pair, ReplicateFailed, Task
from prooflops_gate.unpatched import time
from prooflops_gate.where import changed_share

# At most this many benchmarks are decided before the others.
MOST_FIRST = 5
# The share of the time that tracing may take, and the calls that a traced benchmark costs.
TRACING_SHARE, TRACED = 0.05, 50
# A pair that traces may take this many times its expected duration.
LONGEST_TRACING = 4


def traced_in(
    question: Question, first: FirstPair, pace: PacePlan, sample: Callable[[Task], Pair]
) -> Pair | None:
    """A pair that counts the bytecodes of the functions of each benchmark that is short enough.

    None where no benchmark alone would pay, where the number of pairs is bounded, where a process
    starts too slowly, or fails.
    """
    left_s = TRACING_SHARE * (question.ends - time.monotonic())
    tests = short_enough(first.after.values(), left_s)
    is_wanted = question.asked and not question.settings.replicates
    can_pay = any(pays([name], pace) for name in pace.kept)
    if not (is_wanted and tests and can_pay) or pace.overhead_s > left_s:
        return None
    question.say("counting the bytecodes of each function")
    until = time.monotonic() + pace.overhead_s + left_s
    counting = Counting(until, by_function=True, valgrind=False)
    with suppress(ReplicateFailed, OutOfTime):
        # Under a tracer, a test may hang.
        limit_s = LONGEST_TRACING * (pace.overhead_s + left_s)
        return sample(Task(tests=tests, counting=counting, ends=question.ends, limit_s=limit_s))
    return None


def short_enough(timed: Iterable[Timed], left_s: float) -> tuple[str, ...]:
    """The tests that are traced within this time, the shortest first."""
    tests = {}
    for each in sorted(timed, key=lambda each: each.time_s):
        left_s -= TRACED * each.time_s
        if left_s > 0:
            tests[each.test] = True
    return tuple(tests)


def focus_of(traced: Pair | None, first: FirstPair, pace: PacePlan) -> frozenset[str]:
    """The benchmarks to decide before the others: their bytecodes changed most, by share.

    At most MOST_FIRST, whose pairs pay. It is a hint of what to measure first, and decides nothing.
    """
    if not traced:
        return frozenset()
    before, after = (side.steps for side in traced)
    changes = {
        name: changed_share(before[timed.test], after[timed.test])
        for name, timed in first.after.items()
        if name in pace.kept and timed.test in before and timed.test in after
    }
    ranked = sorted(filter(changes.get, changes), key=lambda name: -changes[name])[:MOST_FIRST]
    while ranked and not pays(ranked, pace):
        ranked.pop()
    return frozenset(ranked)


def pays(names: Sequence[str], pace: PacePlan) -> bool:
    """True if a pair of these benchmarks takes at most half as long as one of all."""
    return pace.process_s(names, pace.each_s) <= pace.process_s(pace.kept, pace.each_s) / 2
