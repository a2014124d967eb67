"""Two lists of records, before and after, become rows: what changed, by how much, how surely. No I/O.

Exact quantities are compared by equality: one record a side is enough. Times are compared by `prooflops.statistics`,
where a record (a fresh process) is one replicate. Between machines only ratios within a machine are compared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from prooflops.console.tables import engineering
from prooflops.history.records import PORTABLE, Summary, Timed
from prooflops.statistics.decision_rule import verdict
from prooflops.statistics.effects import Effect, unpaired
from prooflops.statistics.noise import common_shift
from prooflops.statistics.plan import MIN_EFFECT, Plan, pairs_needed

TIME = "time"
VERDICT = "verdict"
NOT_CHECKED = "not checked"  # of a claim: its tests were skipped, or the noise hid the answer
MOST = 100  # records a side whose times are compared, the newest: the ranks of more take seconds and say little more
DTYPES = "fp64 fp32 tf32 bf16 fp16 fp8_e4m3 fp8_e5m2 int8".split()
VERDICTS = ("SLOWER", "CHANGED", "MISSING", "INCONCLUSIVE", "FASTER", "NEW", "SAME")  # the worst first
HEAD = ["benchmark", "quantity", "before", "after", "ratio", "interval", "verdict"]
_DTYPE = re.compile(rf"(?<![A-Za-z0-9])({'|'.join(DTYPES)})(?![A-Za-z0-9])")


class NotComparable(ValueError):
    """The two sides were not measured on the same machine and software: the message says what differs."""


@dataclass(frozen=True)
class Row:
    """One quantity of one benchmark, before and after."""

    name: str
    quantity: str  # "time", "verdict" (of a claim), or the key of an exact or portable figure
    before: Any
    after: Any
    verdict: str
    effect: Effect | None = None  # of a time or a portable ratio; a ratio above 1 is for the worse
    note: str = ""

    @property
    def exact(self) -> bool:
        """Whether it was compared by equality."""
        return self.effect is None and self.quantity != TIME


@dataclass(frozen=True)
class _Rule:
    plan: Plan
    min_effect: float
    floors: Mapping[str, float]

    def smallest(self, after: Sequence[Timed]) -> float:
        """The smallest change that counts: that of the benchmark's marker `gate`, else the run's."""
        given = [(timed.settings or {}).get("min_effect") for timed in after]
        return float(next((each for each in given if each), self.min_effect))

    def floor(self, name: str) -> float | None:
        """A benchmark's floor; None where no finite one is stored."""
        stored = self.floors.get(name, math.inf)
        return stored if math.isfinite(stored) else None


def compare(
    before: Sequence[Summary],
    after: Sequence[Summary],
    *,
    min_effect: float = MIN_EFFECT,
    floors: Mapping[str, float] | None = None,
    portable: bool = False,
) -> list[Row]:
    """Every quantity of either side: the benchmarks in the order of `after`, then those missing there, then claims.

    `floors` is the drift between sittings by benchmark (`statistics.noise_floor`), `statistics.UNKNOWN_FLOOR` without
    an entry. With `portable` no times, but ratios that mean the same on another machine: shares of a ceiling, and
    speed-ups of a dtype over fp32.

    Raises NotComparable for sides of different fingerprints without `portable`, and ValueError for an empty side.
    """
    rule = _Rule(_plan(before, after), min_effect, floors or {})
    names = _ordered([*_names(after), *_names(before)])
    if portable:
        return [*_portable_rows(before, after, rule), *exact_rows(before, after, names)]
    kinds = {each.fingerprint_id: each for each in (*before, *after)}
    if len(kinds) > 1:
        told = " -> ".join(f"{each.name}, torch {each.torch} ({kind})" for kind, each in kinds.items())
        raise NotComparable(
            f"times of different fingerprints are not compared: {told}; --gate-portable compares ratios"
        )
    return [*_time_rows(before, after, names, rule), *exact_rows(before, after, names), *_claim_rows(before, after)]


def _plan(before: Sequence[Summary], after: Sequence[Summary]) -> Plan:
    if not before or not after:
        raise ValueError(f"before and after should hold records, but hold {len(before)} and {len(after)}")
    shared = set(_names(before)) & set(_names(after))
    # One look, at the records there are; a baseline is shared by all runs that are compared with it.
    looks = (min(len(before), len(after), MOST),)
    return Plan(max(1, len(shared)), looks=looks, directions=2, shared_baseline=True)


def _timed(side: Iterable[Summary], name: str) -> list[Timed]:
    return [each.benchmarks[name] for each in side if name in each.benchmarks]


def _names(side: Iterable[Summary]) -> list[str]:
    return [name for each in side for name in each.benchmarks]


def _ordered(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


# ---- times -------------------------------------------------------------------------------------------------------


def _time_rows(before: Sequence[Summary], after: Sequence[Summary], names: Sequence[str], rule: _Rule) -> list[Row]:
    sides = {name: (_timed(before, name)[-MOST:], _timed(after, name)[-MOST:]) for name in names}
    times = {name: tuple([timed.time_s for timed in side] for side in both) for name, both in sides.items()}
    shared = [both for both in times.values() if all(both)]
    common = common_shift([both[0] for both in shared], [both[1] for both in shared])
    rows, level = [], rule.plan.level(0)
    for name, (first, second) in times.items():
        if not first or not second:
            rows.append(_one_sided(name, TIME, median(first) if first else None, median(second) if second else None))
            continue
        effect = unpaired(first, second, level=level, floor=rule.floor(name), common=common)
        note, smallest = _other_method(*sides[name]), rule.smallest(sides[name][1])
        answer = None if note else verdict(effect, rule.plan, 0, smallest)
        if not note and answer in (None, "INCONCLUSIVE"):
            note = advice(effect, rule.plan, smallest)
        label = next((f"contended: {timed.contended}" for timed in sides[name][1] if timed.contended), "")
        told = "; ".join(filter(None, [note, label]))
        rows.append(Row(name, TIME, median(first), median(second), answer or "INCONCLUSIVE", effect, told))
    return rows


def _other_method(before: Sequence[Timed], after: Sequence[Timed]) -> str:
    old, new = (sorted({str(timed.method) for timed in side}) for side in (before, after))
    return "" if old == new else f"the method of measuring changed ({', '.join(old)} -> {', '.join(new)})"


def advice(effect: Effect, plan: Plan, min_effect: float = MIN_EFFECT) -> str:
    """What would decide an open comparison, in words."""
    needed = processes_needed(effect, plan, min_effect)
    if needed is None:
        return f"within the {effect.floor:.1%} that a change of sitting may do here: --gate-versus decides it"
    return f"about {needed} processes a side would decide (--gate-replicates)"


def processes_needed(effect: Effect, plan: Plan, min_effect: float = MIN_EFFECT) -> int | None:
    """How many processes a side would decide an open comparison of two groups; None where the floor forbids it.

    At least as many as can reach the plan's level at all: of C(2n, n) orders of two groups one is the most extreme.
    """
    if abs(math.log(effect.ratio)) > math.log1p(min_effect) and abs(math.log(effect.ratio)) <= math.log1p(effect.floor):
        return None
    fewest = 1
    while 1 / math.comb(2 * fewest, fewest) > plan.level(0):
        fewest += 1
    needed = pairs_needed(effect, plan, min_effect) if math.isfinite(effect.noise) else 0
    return max(fewest, needed)


def _one_sided(name: str, quantity: str, before: Any, after: Any) -> Row:
    missing = after is None
    note = "in the baseline, but not in this run: removed, renamed, or not selected" if missing else ""
    return Row(name, quantity, before, after, "MISSING" if missing else "NEW", note=note)


def with_skips(rows: Iterable[Row], reasons: Mapping[str, str]) -> list[Row]:
    """The rows, with a benchmark of the baseline whose test is still there and was skipped as INCONCLUSIVE.

    Not MISSING, for which a gate stops: tests skip themselves for what changes from run to run as well, such as a call
    that takes a little longer than is allowed. `reasons`: of each skipped test.
    """
    return [
        replace(row, verdict="INCONCLUSIVE", note=f"skipped this time: {reasons[row.name]}")
        if row.verdict == "MISSING" and row.name in reasons
        else row
        for row in rows
    ]


# ---- exact quantities --------------------------------------------------------------------------------------------


def exact_rows(before: Sequence[Summary], after: Sequence[Summary], names: Sequence[str]) -> list[Row]:
    """The exact quantities of these benchmarks; none of one that only a side has: it is NEW or MISSING as a whole."""
    rows = []
    for name in names:
        sides = [_timed(side, name) for side in (before, after)]
        if not all(sides):
            continue
        for key in _ordered(key for timed in (*sides[1], *sides[0]) for key in timed.exact):
            values = [_values(timed.exact[key] for timed in side if key in timed.exact) for side in sides]
            rows.append(_exact_row(name, key, *values))
    return rows


def _claim_rows(before: Sequence[Summary], after: Sequence[Summary]) -> list[Row]:
    if not any(each.verdicts for each in after):
        return []  # a run of benchmarks alone says nothing about the claims
    sides = (before, after)
    ids = _ordered(claim for side in reversed(sides) for each in side for claim in each.verdicts)
    rows = []
    for claim in ids:
        values = [_values(each.verdicts[claim] for each in side if claim in each.verdicts) for side in sides]
        rows.append(_claim_row(claim, *values))
    return rows


def _claim_row(claim: str, before: list[Any], after: list[Any]) -> Row:
    """A verdict before and after. Where one of them was not reached, nothing is known to have changed."""
    settled = [[verdict for verdict in side if verdict != NOT_CHECKED] for side in (before, after)]
    if before and after and settled[0] and not settled[1]:
        note = "not checked this time: the run's report says why"
        return Row(claim, VERDICT, settled[0][0], NOT_CHECKED, "INCONCLUSIVE", note=note)
    if before and after and settled[1] and not settled[0]:
        return Row(claim, VERDICT, NOT_CHECKED, settled[1][0], "NEW")
    return _exact_row(claim, VERDICT, settled[0] or before, settled[1] or after)


def _values(given: Iterable[Any]) -> list[Any]:
    """The different values, in order; 1 and 1.0 are one, True and 1 are not, NaN is like any other NaN."""
    found: list[Any] = []
    for value in given:
        if not any(_same(value, known) for known in found):
            found.append(value)
    return found


def _same(value: Any, known: Any) -> bool:
    if isinstance(value, float) and isinstance(known, float) and math.isnan(value) and math.isnan(known):
        return True
    return bool(value == known) and isinstance(value, bool) == isinstance(known, bool)


def _exact_row(name: str, key: str, before: list[Any], after: list[Any]) -> Row:
    first, second = (side[0] if len(side) == 1 else tuple(side) or None for side in (before, after))
    if not before or not after:
        return _one_sided(name, key, first, second)
    if len(before) > 1 or len(after) > 1:
        # A figure that differs between runs of one side is no exact one: nothing can be said of its change.
        new = [value for value in after if value not in before]
        note = "differs from process to process: not an exact quantity"
        return Row(name, key, first, second, "CHANGED" if new else "SAME", note=note)
    same = len(_values([first, second])) == 1
    return Row(name, key, first, second, "SAME" if same else "CHANGED")


# ---- other machines ----------------------------------------------------------------------------------------------


def _portable_rows(before: Sequence[Summary], after: Sequence[Summary], rule: _Rule) -> list[Row]:
    first, second = _portable(before), _portable(after)
    rows = []
    for name, key in _ordered_pairs([*second, *first]):
        old, new = first.get((name, key)), second.get((name, key))
        if not old or not new:
            rows.append(_one_sided(name, key, median(old) if old else None, median(new) if new else None))
            continue
        # More is better for all of them: their reciprocals behave as times do, and a ratio above 1 is for the worse.
        level, smallest = rule.plan.level(0), rule.smallest(_timed(after, name))
        effect = unpaired([1 / value for value in old], [1 / value for value in new], level=level)
        answer = verdict(effect, rule.plan, 0, smallest) or "INCONCLUSIVE"
        note = advice(effect, rule.plan, smallest) if answer == "INCONCLUSIVE" else ""
        rows.append(Row(name, key, median(old), median(new), answer, effect, note))
    return rows


def _ordered_pairs(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return list(dict.fromkeys(pairs))


def _portable(side: Sequence[Summary]) -> dict[tuple[str, str], list[float]]:
    found: dict[tuple[str, str], list[float]] = {}
    for each in side:
        for name, timed in each.benchmarks.items():
            for key in PORTABLE:
                if timed.portable.get(key, 0) > 0:
                    found.setdefault((name, key), []).append(timed.portable[key])
            for other, speed_up in _speed_ups(name, timed, each.benchmarks):
                found.setdefault((name, f"times as fast as {other}"), []).append(speed_up)
    return found


def _speed_ups(name: str, timed: Timed, benchmarks: Mapping[str, Timed]) -> list[tuple[str, float]]:
    """How many times as fast as its fp32 twin a benchmark is whose name differs in the dtype alone."""
    dtypes = _DTYPE.findall(name)
    if len(dtypes) != 1 or dtypes[0] == "fp32":
        return []
    twin = benchmarks.get(_DTYPE.sub("fp32", name))
    return [("fp32", twin.time_s / timed.time_s)] if twin else []


# ---- telling it --------------------------------------------------------------------------------------------------


def table(rows: Sequence[Row], *, every: bool = False) -> list[list[str]]:
    """The rows as text below HEAD: all times, and of the exact quantities those that changed (`every`: all)."""
    shown = [row for row in rows if every or not row.exact or row.verdict != "SAME"]
    return [HEAD, *(_cells(row) for row in shown)]


def _cells(row: Row) -> list[str]:
    effect = row.effect
    ratio = f"{effect.ratio:.3f}" if effect else ""
    verdict = row.verdict + (f": {row.note}" if row.note else "")
    return [row.name, row.quantity, _figure(row, row.before), _figure(row, row.after), ratio, interval(effect), verdict]


def interval(effect: Effect | None) -> str:
    """The bounds of an effect: "0.98 to 1.04"."""
    if effect is None:
        return ""
    if math.isinf(effect.high):
        return "unknown"  # too few processes to bound it at the level in force
    return f"{effect.low:.3f} to {effect.high:.3f}"


def _figure(row: Row, value: Any) -> str:
    if value is None:
        return "-"
    if row.quantity == TIME:
        return engineering(float(value), "s")
    if row.quantity in PORTABLE:
        return f"{value:.1%}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def counts(rows: Iterable[Row]) -> dict[str, int]:
    """How many rows have which verdict, the worst first; those that no row has are left out."""
    found = [row.verdict for row in rows]
    return {verdict: found.count(verdict) for verdict in VERDICTS if verdict in found}
