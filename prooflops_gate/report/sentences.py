"""Sentences for a row of a comparison and for a whole run, without statistics."""

from __future__ import annotations

from collections.abc import Sequence

from prooflops_gate.console.tables import many
from prooflops_gate.instruments.pace import TOO_LONG
from prooflops_gate.instruments.time_rule import BUDGET, NOISE, PAIRS
from prooflops_gate.rows import FILES, INSTRUCTIONS, RESOURCES, SHOWN_LEVEL, Row, counts, figures
from prooflops_gate.statistics.effects import Effect
from prooflops_gate.where import first_function

# Above it "4.1 times as slow" is plainer than "310 % slower".
TIMES_AS = 3
ROWS_NAME = "the functions that the rows name"
MERGE = "merge: the next run compares with it"
# Each verdict that fails a run has a next step.
NEXT_STEPS = {
    "SLOWER": f"read {ROWS_NAME}; if the slowdown is intended, {MERGE}",
    "MORE MEMORY": "if the growth is intended, merge, or set gate_memory = show",
    "CHANGED": f"if the change is intended, {MERGE}",
    "MISSING": "find out why the test did not run, or set gate_missing = report",
}
# Each reason for an open benchmark has a remedy.
REMEDIES = {
    NOISE: "longer rounds, more --gate-replicates or a larger --gate-min-effect may decide more",
    PAIRS: "more --gate-replicates may decide more",
    BUDGET: "a larger --gate-budget or fewer benchmarks may decide more",
    TOO_LONG: "a larger --gate-budget or shorter rounds may decide more",
}


def percent(share: float) -> str:
    """A share, with fewer digits the larger it is.

    >>> percent(0.263), percent(0.0312)
    ('26 %', '3.1 %')
    """
    return f"{100 * share:.{0 if share >= 0.0995 else 1}f} %"


def change(ratio: float, *, as_times: bool = False) -> str:
    """A ratio of times in words; a large one, or any `as_times`, as a multiple.

    >>> change(1.263), change(0.8), change(4.13), change(1.0), change(2.9, as_times=True)
    ('26 % slower', '20 % faster', '4.1 times as slow', 'as fast', '2.9 times as slow')
    """
    slower, size = ratio > 1, max(ratio, 1 / ratio)
    if size > TIMES_AS or as_times:
        return f"{size:.1f} times as {'slow' if slower else 'fast'}"
    share = percent(ratio - 1 if slower else 1 - ratio)
    return "as fast" if share == "0.0 %" else f"{share} {'slower' if slower else 'faster'}"


def change_within(effect: Effect) -> str:
    """The estimate in words, with its bounds.

    >>> from prooflops_gate.statistics.effects import paired
    >>> change_within(paired([1.0] * 9, [1.18, *[1.26] * 7, 1.44], level=0.01))
    '26 % slower (22 to 35 %)'
    >>> change_within(paired([1.0] * 3, [0.9, 1.0, 1.2], level=0.01))
    '1.9 % slower (10 % faster to 20 % slower, 88 % sure)'
    """
    return f"{change(effect.ratio)} ({bounds_of(effect, with_direction=False)})"


def bounds_of(effect: Effect, *, with_direction: bool) -> str:
    """The bounds of an estimate in words, the one nearer to no change first.

    A direction that both share is said only `with_direction`.

    >>> from prooflops_gate.statistics.effects import paired
    >>> slower = [paired([1.0] * 9, [size] * 9, level=0.01) for size in (1.26, 3.1)]
    >>> [bounds_of(effect, with_direction=True) for effect in slower]
    ['26 to 26 % slower', '3.1 to 3.1 times as slow']
    >>> [bounds_of(effect, with_direction=False) for effect in slower]
    ['26 to 26 %', '3.1 to 3.1']
    """
    low, high, level = effect.bounds(SHOWN_LEVEL)
    if level >= 0.5:
        return "one pair"
    both = (low, high) if effect.ratio > 1 else (high, low)
    as_times = max(effect.ratio, 1 / effect.ratio) > TIMES_AS
    first, last = (change(each, as_times=as_times) for each in both)
    number, _, unit = first.partition(" ")
    # Said once: 22 to 35 %.
    if unit == last.partition(" ")[2]:
        first = number
        if not with_direction:
            last = last.removesuffix(" slower").removesuffix(" faster").partition(" times")[0]
    sure = f", {100 * (1 - level):.0f} % sure" if level > SHOWN_LEVEL else ""
    return f"{first} to {last}{sure}"


def sentence(row: Row) -> str:
    """The result of this row in a sentence.

    >>> sentence(Row("t.py::test_a", "flops", 1, 2, "CHANGED"))
    't.py::test_a: flops is 2, but was 1'
    >>> sentence(Row("t.py::test_a", "memory", 1024, 2048, "MORE MEMORY"))
    't.py::test_a takes 100.0 % more memory, 1.0 KiB -> 2.0 KiB'
    """
    return row.name + "".join(_linked(row))


def _linked(row: Row) -> tuple[str, str]:
    """The text between the name of a row and its result, such as " is ", and the result."""
    before, after = figures(row)
    where = f": {first_function(row.where)}" if row.where else ""
    if row.verdict == "MISSING":
        return ": ", f"{row.note}, and its {row.quantity} was {before} before"
    if row.verdict == "GONE":
        return " is ", f"gone: {row.note}"
    if row.verdict == "NEW":
        note = f" ({row.note})" if row.note else ""
        return " is ", f"new: {row.quantity} {after}{note}"
    if row.quantity in RESOURCES:
        ratio = row.after / row.before if row.before else None
        return " ", f"takes {amount(ratio, row.quantity)}, {before} -> {after}{where}"
    if row.effect:
        return " " if row.by == INSTRUCTIONS else " is ", _of_time(row, row.effect) + where
    if row.is_time and row.verdict == "INCONCLUSIVE":
        return " is ", f"not decided: {row.note}"
    return ": ", f"{row.quantity} is {after}, but was {before}"


def amount(ratio: float | None, quantity: str) -> str:
    """A ratio of instructions or memory in words; that from nothing is unknown.

    >>> amount(1.137, "instructions"), amount(1.0, "instructions"), amount(4.13, "memory")
    ('13.7 % more instructions', 'the same instructions', '4.1 times the memory')
    """
    if not ratio:
        return f"more {quantity}"
    if ratio > TIMES_AS:
        return f"{ratio:.1f} times the {quantity}"
    if ratio == 1:
        return f"the same {quantity}"
    fewer = "fewer" if quantity == INSTRUCTIONS else "less"
    return f"{100 * abs(ratio - 1):.1f} % {'more' if ratio > 1 else fewer} {quantity}"


def _of_time(row: Row, effect: Effect) -> str:
    """The results of time and instructions for a benchmark; the deciding one comes first."""
    before_after = " -> ".join(figures(row))
    counted, grew = row.instructions, effect.ratio > 1
    if row.by == INSTRUCTIONS:
        takes = amount(counted, INSTRUCTIONS) if counted else "about as many instructions"
        bounds = bounds_of(effect, with_direction=True)
        return f"takes {takes}; its time is uncertain: {bounds}, {before_after}"
    time, said = f"{change_within(effect)}, {before_after}", ""
    if counted == 1:
        said = ", with the same instructions"
    elif counted:
        also = "and" if (counted > 1) == grew else "though it"
        said = f", {also} takes {amount(counted, INSTRUCTIONS)}"
    if row.verdict == "INCONCLUSIVE":
        return f"not decided: {time}{said}"
    return f"{time}{said}"


def reason(row: Row, *, test: str = "") -> str:
    """Why a row fails its test. It names the benchmark, unless that is called like the test.

    >>> reason(Row("t.py::test_a", "memory", 1024, 2048, "MORE MEMORY"), test="t.py::test_a")
    'MORE MEMORY: takes 100.0 % more memory, 1.0 KiB -> 2.0 KiB'
    """
    said = _linked(row)[1] if row.name == test else sentence(row)
    return f"{row.verdict}: {said}"


def unchanged(rows: Sequence[Row]) -> str:
    """The largest change that any of the rows that are SAME may hide."""
    timed = [row.effect for row in rows if row.effect and row.by not in (INSTRUCTIONS, FILES)]
    counted = sum(row.by == INSTRUCTIONS for row in rows)
    if alike := [row.note for row in rows if row.by == FILES]:
        return alike[0]
    said = []
    if timed:
        bounds = [effect.bounds(SHOWN_LEVEL) for effect in timed]
        widest = max(max(high - 1, 1 / low - 1) for low, high, _ in bounds)
        said.append(f"{len(timed)} within {percent(widest)} by time")
    if counted:
        said.append(f"{counted} with about as many instructions as before")
    return ", ".join(said)


def next_step(rows: Sequence[Row], failing: Sequence[Row], failed_tests: Sequence[str]) -> str:
    """The next step in one line: for failures, else for most that is open; empty without any."""
    if failing:
        step = NEXT_STEPS.get(failing[0].verdict, "") or remedy(failing)
        named = {first_function(row.where) or ROWS_NAME for row in failing}
        return step.replace(ROWS_NAME, named.pop()) if len(named) == 1 else step
    if failed_tests:
        return "read why the tests failed, above"
    return remedy(rows)


def remedy(rows: Sequence[Row]) -> str:
    """The remedy that decides most of the open benchmarks."""
    reasons = [reason for row in rows if row.is_open for reason in row.note.split("; ")]
    known = [reason for reason in REMEDIES if reason in reasons]
    return REMEDIES[max(known, key=reasons.count)] if known else ""


def summary(failed_tests: Sequence[str], rows: Sequence[Row]) -> str:
    """The result in one line: failed tests, and the number of benchmarks by verdict.

    >>> summary(["t.py::test_b"], [Row("a", "time", 1, 1, "SAME")])
    '1 test failed, 1 SAME'
    """
    failed = [f"{many(len(failed_tests), 'test')} failed"] if failed_tests else []
    found = [f"{count} {verdict}" for verdict, count in counts(rows).items()]
    return ", ".join([*failed, *found]) or "nothing compared"
