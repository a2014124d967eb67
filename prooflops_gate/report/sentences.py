"""Says a row of a comparison in one sentence, and a whole run in one more, for people who know no
statistics.
"""

from __future__ import annotations

from collections.abc import Sequence

from prooflops_gate.rows import (
    INSTRUCTIONS,
    RESOURCES,
    SHOWN_LEVEL,
    Row,
    counts,
    figures,
    joined,
)
from prooflops_gate.statistics.effects import Effect

# Above it "4.1 times as slow" is plainer than "310 % slower".
TIMES_AS = 3
HINTS = {
    "MISSING": "its test stands in the code and did not run; the ini setting gate_missing = report "
    "lets it pass",
    "CHANGED": "if it is intended, just merge",
    "MORE MEMORY": "if it is intended, the ini setting gate_memory = show only reports it",
    "MORE INSTRUCTIONS": "the ini setting gate_instructions = report lets it pass",
}


def percent(share: float) -> str:
    """A share with as many digits as it deserves.

    >>> percent(0.263), percent(0.0312)
    ('26 %', '3.1 %')
    """
    return f"{100 * share:.{0 if share >= 0.0995 else 1}f} %"


def change(ratio: float) -> str:
    """A ratio of times in words.

    >>> change(1.263), change(0.8), change(4.13), change(1.0)
    ('26 % slower', '20 % faster', '4.1 times as slow', 'as fast')
    """
    slower, size = ratio > 1, max(ratio, 1 / ratio)
    if size > TIMES_AS:
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
    low, high, level = effect.bounds(SHOWN_LEVEL)
    if level >= 0.5:
        return f"{change(effect.ratio)} (one pair)"
    first, last = (change(low), change(high)) if effect.ratio > 1 else (change(high), change(low))
    number, _, unit = first.partition(" ")
    # Said once: 22 to 35 %.
    if unit == last.partition(" ")[2]:
        first, last = (
            number,
            last.removesuffix(" slower").removesuffix(" faster").partition(" times")[0],
        )
    sure = f", {100 * (1 - level):.0f} % sure" if level > SHOWN_LEVEL else ""
    return f"{change(effect.ratio)} ({first} to {last}{sure})"


def sentence(row: Row) -> str:
    """What was found for this row.

    >>> sentence(Row("t.py::test_a", "flops", 1, 2, "CHANGED"))
    't.py::test_a: flops is 2, but was 1, and is an exact quantity'
    """
    before, after = figures(row)
    if row.verdict in ("MISSING", "GONE"):
        return f"{row.name} is gone: {row.quantity} was {before} before ({row.note})"
    if row.verdict == "NEW":
        note = f" ({row.note})" if row.note else ""
        return f"{row.name} is new: {row.quantity} {after}{note}"
    if row.verdict == "CHANGED":
        changed = f"{row.quantity} is {row.after}, but was {row.before}"
        return f"{row.name}: {changed}, and is an exact quantity"
    if row.quantity in RESOURCES:
        return _of_resource(row, before, after)
    if row.effect is None:
        shown = f"{before} -> {after}, " if row.is_time and row.after is not None else ""
        colon = "" if row.is_time else ":"
        return f"{row.name}{colon} is not decided: {shown}{row.note}"
    return _of_time(row, f"{change_within(row.effect)}, {before} -> {after}")


def _of_resource(row: Row, before: str, after: str) -> str:
    if row.verdict == "INCONCLUSIVE":
        return f"{row.name} is not decided by instructions, {before} -> {after}: {row.note}"
    uses = "executes" if row.quantity == INSTRUCTIONS else "uses"
    of = row.quantity if "CUDA" in row.quantity else ""
    found = f"{row.name} {uses} {row.verdict.lower()} a call: {before} -> {after} {of}"
    return found.rstrip()


def _of_time(row: Row, figure: str) -> str:
    if row.by == INSTRUCTIONS:
        decided = f"decided by its instructions ({row.note}); by time {figure}"
        return f"{row.name} is {row.verdict}: {decided}"
    if row.verdict == "INCONCLUSIVE":
        return f"{row.name} is not decided: {figure}"
    fresh = f": confirmed by {row.fresh} fresh pairs" if row.fresh else ""
    return f"{row.name} is {figure}{fresh}"


def reason(row: Row) -> str:
    """The sentence of a row that fails its test, what else is known, and what to do."""
    note = row.note if row.effect and row.by != INSTRUCTIONS else ""
    return joined(f"{row.verdict}: {sentence(row)}", note, row.where, HINTS.get(row.verdict, ""))


def unchanged(rows: Sequence[Row]) -> str:
    """What the rows that are SAME exclude: the largest change that any of them may hide."""
    timed = [row.effect for row in rows if row.effect and row.by != INSTRUCTIONS]
    counted = sum(row.by == INSTRUCTIONS for row in rows)
    said = []
    if timed:
        bounds = [effect.bounds(SHOWN_LEVEL) for effect in timed]
        widest = max(max(high - 1, 1 / low - 1) for low, high, _ in bounds)
        said.append(f"any change is below {percent(widest)}")
        if counted:
            said[-1] += f" in {len(timed)}"
    if counted:
        said.append(f"about as many instructions in {counted}")
    return ", ".join(said)


def summary(verdict: str, failed: str, rows: Sequence[Row], effort: str) -> str:
    """The last line.

    The verdict on the run, failed tests, the number of rows by verdict, the effort.

    >>> summary("gate: fails", "", [Row("a", "flops", 1, 2, "CHANGED")], "1 pair in 5 s")
    'gate: fails: 1 CHANGED; 1 pair in 5 s'
    >>> summary("gate: fails", "1 test failed", [Row("a", "time", 1, 1, "SAME")], "")
    'gate: fails: 1 test failed, 1 SAME'
    """
    found = ", ".join(filter(None, [failed, counts(rows)])) or "nothing compared"
    return joined(f"{verdict}: {found}", effort)
