"""Decides by the instructions of both sides, and what time leaves open. Pure: no I/O, no clock.

A count hardly depends on the machine or on its load. It depends on the hash seed and on addresses:
by 0.2 % in the median of cattrs' benchmarks, 2.5 % at worst. So counts are compared in pairs of
processes that share a seed. The spread of a benchmark's ratio over the pairs says whether its count
decides anything. What no count shows: waiting, threads, the GPU, caches, and the width of vector
instructions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median, stdev

from scipy.special import stdtrit

from prooflops_gate.rows import INSTRUCTIONS, SHOWN_LEVEL, TIME, Row, joined
from prooflops_gate.statistics.decision_rule import is_large, is_small
from prooflops_gate.statistics.effects import Effect

# Counts are decided after one of these numbers of pairs.
LOOKS = (2, 3, 6, 10)
# Fewer pairs show no change: a count with two values agrees with itself in three of them.
FEWEST_TO_CHANGE = 6
# Smaller changes are those of the counting itself, which vary by some ten instructions.
LEAST_INSTRUCTIONS = 50
# On either side, one pair in this many does not speak against SAME.
TRIMMED_ONE_IN = 5
# This share of whole runs on unchanged code alarm, if log ratios are normal.
ALARM_RATE = 0.01
MORE, FEWER = "MORE INSTRUCTIONS", "FEWER INSTRUCTIONS"
UNSTEADY = "NOT REPEATABLE"


@dataclass(frozen=True)
class Count:
    """The conclusion of the pairs about one benchmark's instructions.

    `verdict` is SAME, MORE, FEWER or UNSTEADY; `logs` are the log ratios of the pairs.
    """

    verdict: str
    before: float
    logs: Sequence[float]

    @property
    def ratio(self) -> float:
        """Its median over the pairs."""
        return math.exp(median(self.logs))

    @property
    def spread(self) -> float:
        """The difference of its largest and smallest log ratio."""
        return max(self.logs) - min(self.logs)

    @property
    def steady_ratio(self) -> float | None:
        """The ratio that a row says beside its time: 1 where the instructions are the same.

        Three pairs decide nothing, but say it; None where pairs differ by more than half of it.

        >>> [Count(UNSTEADY, 1e5, logs).steady_ratio for logs in ([0.0, 0.2, 0.1], [0.3, 0.0, 0.1])]
        [None, None]
        >>> round(Count(UNSTEADY, 1e5, [0.12, 0.13, 0.13]).steady_ratio, 3)
        1.139
        """
        if self.verdict == "SAME":
            return 1.0
        repeats = self.verdict != UNSTEADY or 2 * self.spread < abs(median(self.logs))
        return self.ratio if repeats else None

    @property
    def row_values(self) -> tuple[float, float]:
        """The instructions before and after."""
        return self.before, self.before * self.ratio

    @property
    def why_open(self) -> str:
        """Why it decides nothing, in words.

        >>> {Count(UNSTEADY, 1e5, logs).why_open for logs in ([0.03] * 3, [-0.03] * 3)}
        {'too few pairs to confirm it'}
        >>> {Count(UNSTEADY, 1e5, logs).why_open for logs in ([0.03] * 6, [-0.03, 0.03])}
        {'the count does not repeat'}
        """
        is_one_sided = min(self.logs) * max(self.logs) > 0
        if is_one_sided and len(self.logs) < FEWEST_TO_CHANGE:
            return "too few pairs to confirm it"
        return "the count does not repeat"

    def is_within(self, smallest: float) -> bool:
        """True if Student's t keeps the mean ratio within this change, either way, at SHOWN_LEVEL.

        >>> spread = [-0.012, 0.001, 0.004]
        >>> [Count(UNSTEADY, 1e5, spread * pairs).is_within(0.03) for pairs in (1, 2)]
        [False, True]
        """
        return abs(mean(self.logs)) + _error(self.logs, SHOWN_LEVEL) < math.log1p(smallest)

    def __str__(self) -> str:
        pairs = f"in {len(self.logs)} pairs, which differ by {self.spread:.2%}"
        return f"{self.ratio - 1:+.2%} instructions {pairs}"


def decide(
    before: Sequence[int], after: Sequence[int], limit: float, level: float, ended: bool = False
) -> Count | None:
    """The decision by pairs of counts, before[i] beside after[i]; None before the next of LOOKS.

    SAME: all pairs within `limit`, except one in TRIMMED_ONE_IN on either side. MORE and FEWER:
    the median is beyond it, and Student's t excludes 0 at `level`, from FEWEST_TO_CHANGE pairs on.
    UNSTEADY: the pairs disagree beyond the limit in both directions, or nothing else holds at the
    last look, or, where counting has `ended` after the first, by all pairs.

    >>> decide([10**5] * 2, [10**5, 100_100], 0.005, 1e-4).verdict
    'SAME'
    >>> after = [101_000, 101_010, 101_000, 101_000, 100_990, 101_000]
    >>> decide([10**5] * 6, after, 0.005, 1e-4).verdict
    'MORE INSTRUCTIONS'
    >>> apart = [98_000, 10**5, 102_000]
    >>> [decide([10**5] * 3, apart, 0.005, 1e-4, **each) is None for each in ({}, {"ended": True})]
    [True, False]
    """
    logs = [math.log(new / old) for old, new in zip(before, after, strict=True)]
    for look in (look for look in LOOKS if look <= len(logs)):
        seen = sorted(logs[:look])
        trimmed = look // TRIMMED_ONE_IN
        least, most, middle = seen[trimmed], seen[-1 - trimmed], median(seen)
        bound = math.log1p(max(limit, LEAST_INSTRUCTIONS / median(before[:look])))
        verdict = None
        if -bound <= least and most <= bound:
            verdict = "SAME"
        elif look < FEWEST_TO_CHANGE:
            continue
        elif abs(middle) > bound and _is_shown(seen, level):
            verdict = MORE if middle > 0 else FEWER
        elif look == LOOKS[-1] or (least < -bound and most > bound):
            verdict = UNSTEADY
        if verdict:
            return Count(verdict, median(before[:look]), seen)
    return Count(UNSTEADY, median(before), logs) if ended and len(logs) >= LOOKS[0] else None


def _is_shown(logs: Sequence[float], level: float) -> bool:
    """True if Student's t excludes a mean of 0, in one direction, at this level."""
    return abs(mean(logs)) > _error(logs, level)


def _error(logs: Sequence[float], level: float) -> float:
    """The largest error of the mean, in one direction, by Student's t."""
    return -float(stdtrit(len(logs) - 1, level)) * stdev(logs) / math.sqrt(len(logs))


def tally(found: Iterable[Count]) -> str:
    """The numbers of counts that are the same, more and fewer, in words.

    >>> tally([Count("SAME", 1e5, [0.0] * 3), Count(MORE, 1e5, [0.02] * 6)])
    '1 the same, 1 more, 0 fewer'
    """
    verdicts = [count.verdict for count in found]
    words = {"SAME": "the same", MORE: "more", FEWER: "fewer"}
    return ", ".join(f"{verdicts.count(verdict)} {said}" for verdict, said in words.items())


def level_of(benchmarks: int) -> float:
    """The level of each benchmark's test at each look that may show a change."""
    looks = sum(look >= FEWEST_TO_CHANGE for look in LOOKS)
    return ALARM_RATE / max(benchmarks, 1) / looks


def by_both(row: Row, count: Count | None, smallest: float, *, alone: bool) -> Row:
    """The row of a time, decided by time, or by instructions where time leaves it open.

    `alone`: whether this is the one benchmark that time calls SLOWER. Such a row is SAME where its
    instructions are and it is slower by less than SMALL_SLOWDOWN.
    """
    if count is None or row.effect is None:
        return row
    may_be_layout = alone and is_small(row.effect)
    why_open = f": {count.why_open}" if count.verdict == UNSTEADY else ""
    verdict, by = row.verdict, TIME
    if row.verdict == "SLOWER" and count.verdict == "SAME" and may_be_layout:
        verdict, by = "SAME", INSTRUCTIONS
    elif row.verdict == "INCONCLUSIVE":
        decided = by_count(count, row.effect, smallest)
        verdict, by = (decided, INSTRUCTIONS) if decided else (row.verdict, "")
    # If time has decided, a count that scatters adds nothing.
    said = "" if why_open and by == TIME else f"{count}{why_open if not by else ''}"
    note = joined(said, row.note)
    return replace(row, verdict=verdict, by=by, note=note, instructions=count.steady_ratio)


def by_count(count: Count, effect: Effect | None, smallest: float) -> str:
    """The decision of an open benchmark by its instructions; empty if they decide nothing.

    They decide only what lies clear of `smallest`: SAME within it, SLOWER and FASTER beyond 5/3 of
    it, and nothing where time excludes that. As no count shows waiting, it is SAME only where time
    neither excludes that nor estimates a large slowdown. A count that does not repeat within the
    limit of instructions may do so within `smallest`.
    """
    low, high = effect.interval(SHOWN_LEVEL) if effect else (0.0, math.inf)
    may_be_same = low <= 1 + smallest and not (effect and is_large(effect, smallest))
    if count.verdict == UNSTEADY:
        return "SAME" if may_be_same and count.is_within(smallest) else ""
    beyond = 1 + 5 / 3 * smallest
    if count.ratio > beyond and high > 1 + smallest:
        return "SLOWER"
    if count.ratio < 1 / beyond:
        return "FASTER"
    is_within = abs(math.log(count.ratio)) < math.log1p(smallest)
    return "SAME" if is_within and may_be_same else ""


def resolved(
    rows: Sequence[Row], counts: Mapping[str, Count], smallest: Callable[[str], float]
) -> list[Row]:
    """The rows, times by what decides them, and a row for each number of instructions that changed.

    `smallest`: the change of a benchmark's time that counts.
    """
    slower = [row.name for row in rows if row.is_time and row.verdict == "SLOWER"]
    found = [
        by_both(row, counts.get(row.name), smallest(row.name), alone=slower == [row.name])
        for row in rows
    ]
    changed = {name: each for name, each in counts.items() if each.verdict in (MORE, FEWER)}
    return found + [count_row(name, each) for name, each in changed.items()]


def count_row(name: str, count: Count) -> Row:
    """The row of a benchmark's instructions."""
    if count.verdict == UNSTEADY:
        return Row(name, INSTRUCTIONS, *count.row_values, "INCONCLUSIVE", note=count.why_open)
    return Row(name, INSTRUCTIONS, *count.row_values, count.verdict)
