"""Compares two sides, before and after: a row per quantity with the change, its interval and a verdict. No I/O.

Exact quantities are compared by equality: one process a side is enough. Times are compared by
`prooflops_gate.statistics`; each process is one replicate. Between machines only ratios within a machine are compared.
The gate uses the same functions with a rule of its own, which looks several times while replicates are taken
(`prooflops_gate.decide`).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from prooflops_gate.history.records import PORTABLE, Summary, Timed
from prooflops_gate.history.rows import MEMORY, TIME, Row, one_sided
from prooflops_gate.statistics import effects
from prooflops_gate.statistics.decision_rule import (
    MIN_EFFECT,
    Decision,
    Plan,
    pairs_needed,
    verdict,
)
from prooflops_gate.statistics.noise import common_shift

VERDICT = "verdict"
NOT_CHECKED = "not checked"  # of a claim: its tests were skipped, or the noise hid the answer
MOST = 100  # the newest records a side whose times are compared: ranks of more take seconds and add little
DTYPES = "fp64 fp32 tf32 bf16 fp16 fp8_e4m3 fp8_e5m2 int8".split()
_DTYPE = re.compile(rf"(?<![A-Za-z0-9])({'|'.join(DTYPES)})(?![A-Za-z0-9])")

# Processes a side that decide. A figure with two values agrees within each of two sides of five, and differs between
# them, with a chance of 1 in 1024 at most.
FEWEST = 5
LEAST = 4096  # bytes: smaller changes are never reported

Sides = tuple[Sequence[Timed], Sequence[Timed]]  # one benchmark's processes, before and after


class NotComparable(ValueError):
    """The two sides come from different machines or software: the message names the differences."""


def compare(
    before: Sequence[Summary],
    after: Sequence[Summary],
    *,
    min_effect: float = MIN_EFFECT,
    floors: Mapping[str, float] | None = None,
    portable: bool = False,
) -> list[Row]:
    """Every quantity of either side: the benchmarks in the order of `after`, then those missing there, then claims.

    `floors`: the drift between sessions by benchmark (`noise_floor`); `UNKNOWN_FLOOR` without an entry. With `portable`
    no times, but ratios that mean the same on another machine: shares of a ceiling, and speed-ups of a dtype over fp32.

    Raises NotComparable for sides of different fingerprints without `portable`, and ValueError for an empty side.
    """
    if not before or not after:
        raise ValueError(
            f"before and after should hold records, but hold {len(before)} and {len(after)}"
        )
    names = dict.fromkeys(name for each in (*after, *before) for name in each.benchmarks)
    both: dict[str, Sides] = {name: (_timed(before, name), _timed(after, name)) for name in names}
    shared = sum(all(sides) for sides in both.values())
    # One look, at the records there are; a baseline is shared by all runs that are compared with it.
    looks = (min(len(before), len(after), MOST),)
    plan = Plan(max(1, shared), looks=looks, directions=2, shared_baseline=True)
    if portable:
        return [*_portable_rows(before, after, ComparisonRule(plan, min_effect)), *exact_rows(both)]
    kinds = {each.fingerprint_id: each for each in (*before, *after)}
    if len(kinds) > 1:
        differing = " -> ".join(
            f"{each.name}, torch {each.torch} ({kind})" for kind, each in kinds.items()
        )
        raise NotComparable(
            f"times of different fingerprints are not compared: {differing}; --gate-portable compares ratios"
        )
    newest: dict[str, Sides] = {
        name: (old[-MOST:], new[-MOST:]) for name, (old, new) in both.items()
    }
    claims = claim_rows([each.verdicts for each in before], [each.verdicts for each in after])
    rule = ComparisonRule(plan, min_effect, floors or {})
    return [*time_rows(newest, rule, decisions(newest, rule)), *exact_rows(both), *claims]


def _timed(side: Iterable[Summary], name: str) -> list[Timed]:
    return [each.benchmarks[name] for each in side if name in each.benchmarks]


@dataclass(frozen=True)
class ComparisonRule:
    """How the times of two groups of processes are compared: one look at all there are."""

    plan: Plan
    min_effect: float = MIN_EFFECT  # the smallest change that counts
    floors: Mapping[str, float] = field(
        default_factory=dict
    )  # per benchmark, the drift between sessions

    def smallest(self, after: Sequence[Timed]) -> float:
        """The smallest change that counts: that of the benchmark's marker `gate`, else the run's."""
        given = [(timed.settings or {}).get("min_effect") for timed in after]
        return float(next((each for each in given if each), self.min_effect))

    def floor(self, name: str) -> float | None:
        """A benchmark's drift between sessions; None where it is not known."""
        stored = self.floors.get(name, math.inf)
        return stored if math.isfinite(stored) else None

    def common(self, shared: Sequence[Sides]) -> float:
        """The shift that all benchmarks share between the two groups: most likely the machine's."""
        before, after = ([seconds(sides[index]) for sides in shared] for index in (0, 1))
        return common_shift(before, after)

    def decision(self, name: str, sides: Sides, common: float) -> Decision:
        """The decision on one benchmark's times."""
        before, after = map(seconds, sides)
        level, floor = self.plan.level(0), self.floor(name)
        effect = effects.unpaired(before, after, level=level, floor=floor, common=common)
        return Decision(verdict(effect, self.plan, 0, self.smallest(sides[1])), len(after), effect)

    def advice(self, sides: Sides, decision: Decision) -> str:
        """How to decide an open comparison, in words."""
        effect, smallest = decision.effect, self.smallest(sides[1])
        if math.log1p(smallest) < abs(math.log(effect.ratio)) <= math.log1p(effect.floor):
            return f"within the {effect.floor:.1%} that drift between sessions may be here: --gate-versus decides it"
        needed = self.needed(decision, smallest)
        return f"about {needed} processes a side would decide (--gate-replicates {needed})"

    def needed(self, decision: Decision, smallest: float) -> int:
        """How many processes a side would decide it."""
        # Of C(2n, n) orders of two groups one is the most extreme.
        fewest = next(
            n for n in itertools.count(1) if math.comb(2 * n, n) * self.plan.level(0) >= 1
        )
        if not math.isfinite(decision.effect.noise):
            return fewest
        return max(fewest, pairs_needed(decision.effect, self.plan, smallest))


def seconds(side: Iterable[Timed]) -> list[float]:
    """The times of these processes."""
    return [timed.time_s for timed in side]


def decisions(
    both: Mapping[str, Sides], rule: ComparisonRule, common: float | None = None
) -> dict[str, Decision]:
    """The decision on each benchmark that both sides timed by one method. `common`: None for `rule.common`."""
    shared = {name: sides for name, sides in both.items() if all(sides)}
    if common is None:
        common = rule.common(list(shared.values()))
    return {
        name: rule.decision(name, sides, common)
        for name, sides in shared.items()
        if len(_methods(sides)) == 1
    }


def time_rows(
    both: Mapping[str, Sides],
    rule: ComparisonRule,
    decided: Mapping[str, Decision],
    quantity: str = TIME,
) -> list[Row]:
    """A row for each benchmark that either side timed, by the decisions on them."""
    return [
        _time_row(name, sides, decided.get(name), rule, quantity)
        for name, sides in both.items()
        if any(sides)
    ]


def _time_row(
    name: str, sides: Sides, decision: Decision | None, rule: ComparisonRule, quantity: str
) -> Row:
    before, after = (median(seconds(side)) if side else None for side in sides)
    if before is None or after is None:
        return one_sided(name, quantity, before, after)
    notes = []
    if decision is None:
        notes.append(f"the method of measuring changed ({' -> '.join(_methods(sides))})")
    elif decision.verdict in (None, "INCONCLUSIVE"):
        noise = decision.effect.noise
        if decision.suspicion:
            notes.append(f"suspected {decision.suspicion}, not confirmed")
        notes.append(
            f"noise {noise:.1%}" if math.isfinite(noise) else "too few processes to know the noise"
        )
        notes.append(rule.advice(sides, decision))
    if contended := [timed.contended for side in sides for timed in side if timed.contended]:
        notes.append(
            f"{len(contended)} of {len(sides[0]) + len(sides[1])} processes contended: {contended[-1]}"
        )
    reached = (decision.verdict if decision else None) or "INCONCLUSIVE"
    effect, fresh = (decision.effect, decision.fresh) if decision else (None, 0)
    return Row(name, quantity, before, after, reached, effect, "; ".join(notes), fresh=fresh)


def _methods(sides: Sides) -> list[str]:
    return list(dict.fromkeys(str(timed.method) for side in sides for timed in side))


def exact_rows(both: Mapping[str, Sides]) -> list[Row]:
    """The exact quantities of these benchmarks; none of one that only a side has: it is NEW or MISSING as a whole."""
    rows = []
    for name, (before, after) in both.items():
        if before and after:
            for key in dict.fromkeys(key for timed in (*after, *before) for key in timed.exact):
                old, new = (
                    [timed.exact[key] for timed in side if key in timed.exact]
                    for side in (before, after)
                )
                rows.append(_exact_row(name, key, _different(old), _different(new)))
    return rows


def claim_rows(
    before: Sequence[Mapping[str, str]], after: Sequence[Mapping[str, str]]
) -> list[Row]:
    """The claims' verdicts in the processes of each side; none where no process of `after` checked any."""
    if not any(after):
        return []
    rows = []
    for claim in dict.fromkeys(claim for verdicts in (*after, *before) for claim in verdicts):
        old, new = (
            _different(each[claim] for each in side if claim in each) for side in (before, after)
        )
        settled = [[verdict for verdict in side if verdict != NOT_CHECKED] for side in (old, new)]
        if old and new and settled[0] and not settled[1]:  # nothing is known to have changed
            note = "not checked this time: the run's report says why"
            rows.append(Row(claim, VERDICT, settled[0][0], NOT_CHECKED, "INCONCLUSIVE", note=note))
        elif old and new and settled[1] and not settled[0]:
            rows.append(Row(claim, VERDICT, NOT_CHECKED, settled[1][0], "NEW"))
        else:
            rows.append(_exact_row(claim, VERDICT, settled[0] or old, settled[1] or new))
    return rows


def _different(given: Iterable[Any]) -> list[Any]:
    """The different values, in order; 1 and 1.0 are one, True and 1 are not, NaN is like any other NaN."""
    found: list[Any] = []
    for value in given:
        if not any(_same(value, known) for known in found):
            found.append(value)
    return found


def _same(value: Any, known: Any) -> bool:
    if (
        isinstance(value, float)
        and isinstance(known, float)
        and math.isnan(value)
        and math.isnan(known)
    ):
        return True
    return bool(value == known) and isinstance(value, bool) == isinstance(known, bool)


def _exact_row(name: str, key: str, before: list[Any], after: list[Any]) -> Row:
    first, second = (side[0] if len(side) == 1 else tuple(side) or None for side in (before, after))
    if not before or not after:
        return one_sided(name, key, first, second)
    if len(before) > 1 or len(after) > 1:
        # A figure that differs between runs of one side is no exact one: nothing can be said of its change.
        new = [value for value in after if value not in before]
        note = "differs from process to process: not an exact quantity"
        return Row(name, key, first, second, "CHANGED" if new else "SAME", note=note)
    return Row(name, key, first, second, "SAME" if _same(first, second) else "CHANGED")


def _portable_rows(
    before: Sequence[Summary], after: Sequence[Summary], rule: ComparisonRule
) -> list[Row]:
    first, second = _portable(before), _portable(after)
    rows = []
    for key in dict.fromkeys([*second, *first]):
        old, new = first.get(key, {}), second.get(key, {})
        both: dict[str, Sides] = {
            name: (old.get(name, []), new.get(name, [])) for name in dict.fromkeys([*new, *old])
        }
        for row in time_rows(both, rule, decisions(both, rule, common=1.0), key):
            values = [None if value is None else 1 / value for value in (row.before, row.after)]
            rows.append(replace(row, before=values[0], after=values[1]))
    return rows


def _portable(side: Sequence[Summary]) -> dict[str, dict[str, list[Timed]]]:
    """By figure and benchmark, the reciprocals as if they were times: more of each figure is better."""
    found: dict[str, dict[str, list[Timed]]] = {}
    for each in side:
        for name, timed in each.benchmarks.items():
            figures = {
                key: timed.portable[key] for key in PORTABLE if timed.portable.get(key, 0) > 0
            }
            for key, value in (figures | _speed_up(name, timed, each.benchmarks)).items():
                found.setdefault(key, {}).setdefault(name, []).append(
                    replace(timed, time_s=1 / value)
                )
    return found


def _speed_up(name: str, timed: Timed, benchmarks: Mapping[str, Timed]) -> dict[str, float]:
    """How many times as fast as its fp32 twin a benchmark is whose name differs in the dtype alone."""
    dtypes = _DTYPE.findall(name)
    if len(dtypes) != 1 or dtypes[0] == "fp32":
        return {}
    twin = benchmarks.get(_DTYPE.sub("fp32", name))
    return {"times as fast as fp32": twin.time_s / timed.time_s} if twin else {}


def _lies_above(low: Sequence[float], high: Sequence[float], min_effect: float) -> bool:
    return min(high) - max(low) >= max(LEAST, min_effect * max(low))


def is_memory_open(before: Timed, after: Timed, min_effect: float) -> bool:
    """Whether a call may hold more or less memory, by one process of each side: more of them can only refute it.

    >>> old, near, more = (Timed(1.0, {}, {}, resources={"memory": held}) for held in (100_000, 104_000, 106_000))
    >>> is_memory_open(old, near, 0.05), is_memory_open(old, more, 0.05), is_memory_open(more, old, 0.05)
    (False, True, True)
    """
    both = [(before.resources.get(key, 0.0), after.resources.get(key, 0.0)) for key in MEMORY]
    return any(_lies_above([min(sides)], [max(sides)], min_effect) for sides in both)


def memory_rows(both: Mapping[str, Sides], min_effect: float) -> list[Row]:
    """A row per benchmark and kind of memory of which every process of one side lies above every one of the other."""
    rows = []
    for name, (before, after) in both.items():
        for key in MEMORY:
            old, new = (
                [timed.resources[key] for timed in side if key in timed.resources]
                for side in (before, after)
            )
            if min(len(old), len(new)) >= FEWEST:
                for verdict, low, high in (("MORE MEMORY", old, new), ("LESS MEMORY", new, old)):
                    if _lies_above(low, high, min_effect):
                        rows.append(Row(name, key, median(old), median(new), verdict))
    return rows
