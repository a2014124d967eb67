"""The loop of a comparison: takes replicates until every benchmark is decided or the time budget is spent."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from prooflops_gate import decide
from prooflops_gate.console.progress import minutes
from prooflops_gate.console.tables import many
from prooflops_gate.history.comparison import exact_rows, memory_rows
from prooflops_gate.history.records import Timed
from prooflops_gate.history.rows import TIME, Row, interval, one_sided, with_skips
from prooflops_gate.pace import FIRST, PacePlan
from prooflops_gate.process import OutOfTime, Paces
from prooflops_gate.session import Session
from prooflops_gate.single_run import skip_reasons

STOPPED = "the run was stopped before it was decided"

Pair = tuple[Timed | None, Timed]  # before (None where that side is stored) and after
Take = Callable[
    [Sequence[str], Paces], Mapping[str, Pair]
]  # runs these benchmarks once more, at this pace


class Schedule:
    """The replicates of one comparison.

    `take` runs benchmarks once more. `plan` sets the pace of each replicate, and puts off benchmarks that take too long
    until the others are decided. Without a plan, all run at `paces`.
    """

    def __init__(
        self,
        session: Session,
        rule: decide.ReplicateRule,
        take: Take,
        plan: PacePlan | None = None,
        paces: Paces = FIRST,
    ) -> None:
        self.session, self.rule, self.take, self.plan, self.paces = session, rule, take, plan, paces
        self.kind = "pair" if rule.paired else "process"
        self.deadline = session.ends
        self.given_up = (
            plan.given_up() if plan else {}
        )  # by benchmark: why it is not taken with the others
        self._alone: list[str] | None = (
            None  # those of them that get their own pairs, once the others are decided
        )
        self.sides: dict[str, tuple[list[Timed], list[Timed]]] = {}
        self.taken, self.took_s = 0, 0.0  # number of replicates; seconds of the last one
        self.left_open: list[str] = []  # benchmarks that are undecided at the deadline
        self._seen_quiet = False
        self._tries = Counter[str]()
        self._repeats = Counter[str]()
        self._set_aside: dict[str, list[Pair]] = {}  # contended pairs that no row uses so far

    def compare(
        self, first: Mapping[str, Pair], stored: Mapping[str, Sequence[Timed]], took_s: float
    ) -> list[Row]:
        """Returns the rows of all benchmarks. `stored`: the before side's earlier times (none where it runs again)."""
        try:
            found = self.run(first, stored, took_s)
        except (
            KeyboardInterrupt
        ):  # what is written of an interrupted run has the verdicts reached so far
            rows, _ = decide.look_at(self.sides, self.rule)
            self.session.rows = [
                row if row.verdict != "INCONCLUSIVE" else replace(row, note=STOPPED) for row in rows
            ]
            raise
        left = {name for name in self.given_up if name not in (self._alone or ())}
        rows = [
            replace(row, note=self.given_up[row.name]) if row.name in left else row for row in found
        ]
        gone = [
            one_sided(name, TIME, group[-1].time_s, None)
            for name, group in stored.items()
            if name not in first
        ]
        new = [
            one_sided(name, TIME, None, timed.time_s)
            for name, (_, timed) in first.items()
            if name not in stored
        ]
        exact = [row for row in exact_rows(self.sides) if row.verdict != "SAME"]
        exact += memory_rows(self.sides, self.session.settings.min_memory_effect)
        self._summarise(rows)
        return [*with_skips(gone, skip_reasons(self.session.reports)), *new, *exact, *rows]

    def _summarise(self, rows: Sequence[Row]) -> None:
        settings, lines, details = self.session.settings, self.session.lines, self.session.details
        if self.left_open:
            budget = f"the budget of {settings.budget_s / 60:g} min (--gate-budget) is spent"
            lines.append(f"{budget}: {many(len(self.left_open), 'benchmark')} left open by time")
        if self.rule.paired and (mean := decide.overall(self.sides)):
            details.append(
                f"all benchmarks together: {mean.ratio:.3f} ({interval(mean)}), geometric mean"
            )
            lines.append(decide.found_from(rows, self.rule.plan, settings.min_effect))
        if self._repeats:
            repeated = many(self._repeats.total(), "measurement")
            details.append(f"{repeated} repeated because other work competed")
        self.session.effort = (
            f"{many(self.taken, self.kind)} in {minutes(time.monotonic() - self.session.begun)}"
        )

    def run(
        self, first: Mapping[str, Pair], stored: Mapping[str, Sequence[Timed]], took_s: float
    ) -> list[Row]:
        """The loop: returns a row for the time of each benchmark that both sides have."""
        self.sides = {name: (list(group), []) for name, group in stored.items() if name in first}
        self.took_s = took_s
        self._record(first, first)
        while (wanted := self._wanted()) and self.taken != self.rule.most:
            began = time.monotonic()
            if began + self.took_s > self.deadline or (taken := self._take(wanted)) is None:
                self.left_open = list(wanted)
                break
            self._record(taken, wanted)
            self.took_s = time.monotonic() - began
        for name in self._set_aside:
            if not self.sides[name][1]:  # all its pairs were contended, and its row says so
                self._keep(name, self._take_most_equal(name))
        rows = decide.look_at(self.sides, replace(self.rule, ended=bool(self.left_open)))[0]
        self.left_open = [
            row.name for row in rows if row.name in self.left_open and row.verdict == "INCONCLUSIVE"
        ]
        return rows

    def _take(self, wanted: Mapping[str, int]) -> Mapping[str, Pair] | None:
        """The next replicate; None where the budget ends it, whose upper time is a promise."""
        self._print_progress(wanted)
        try:
            with self.session.replicates.until(self.deadline):
                return self.take(list(wanted), self.paces)
        except OutOfTime:
            return None

    def _wanted(self) -> dict[str, int]:
        """Returns the replicates that each undecided benchmark needs in all; sets the pace of the next one."""
        fitting = (self.deadline - time.monotonic()) / self.took_s if self.took_s else math.inf
        rows, wanted = decide.look_at(self.sides, self.rule, fitting)
        wanted = {
            name: count
            for name, count in wanted.items()
            # Tries may give no time, where the benchmark is skipped, say.
            if self._tries[name] < 4 * max(count, 8)
        }
        wanted = self._next(wanted)
        if wanted and self.plan:
            effects = {row.name: row.effect for row in rows if row.effect and row.name in wanted}
            to_go = max(
                self.rule.plan.confirming_pairs,
                *(n - len(self.sides[name][1]) for name, n in wanted.items()),
            )
            self.paces = self.plan.paces(effects, to_go, self.deadline - time.monotonic())
        return wanted

    def _next(self, wanted: Mapping[str, int]) -> dict[str, int]:
        """Those whose turn it is: what the plan takes; then what is too long, if it fits; then the exclusions."""
        others = {name: count for name, count in wanted.items() if name not in self.given_up}
        if planned := {
            name: count for name, count in others.items() if count not in decide.EXCLUDING
        }:
            return planned
        if self._alone is None:
            self._alone = (
                self.plan.fitting_alone(self.deadline - time.monotonic()) if self.plan else []
            )
        return {name: count for name, count in wanted.items() if name in self._alone} or others

    def _print_progress(self, wanted: Mapping[str, int]) -> None:
        least, most = min(wanted.values()), max(wanted.values())
        until = f"{least}" if least == most else f"{least} to {most}"
        kept = min(len(self.sides[name][1]) for name in wanted)
        again = f", of which {kept} count" if self._repeats else ""
        self.session.say(
            f"{many(self.taken, self.kind)}{again}: {len(wanted)} open, next decision at {until}",
            kept,
            most,
        )

    def _record(self, pairs: Mapping[str, Pair], asked: Iterable[str]) -> None:
        self.taken += 1
        self._tries.update(list(asked))
        for name, pair in pairs.items():
            if name not in self.sides:
                continue
            if not any(side.contended for side in pair if side):
                self._seen_quiet = True
                self._keep(name, pair)
                continue
            self._set_aside.setdefault(name, []).append(pair)
            if self._may_repeat(name):
                self._repeats[name] += 1
            else:
                self._keep(name, self._take_most_equal(name))

    def _may_repeat(self, name: str) -> bool:
        """Whether to repeat a contended pair: twice a benchmark, or, once any pair was quiet, a fourth as often as it
        has kept pairs: a repeat costs as much as the pair that it replaces. Never if the repeat leaves too little time
        for the pairs of the next look, or if --gate-replicates bounds their number."""
        kept = len(self.sides[name][1])
        to_go = max(self.rule.plan.looks[0], kept + 1) - kept
        if self.rule.most or time.monotonic() + to_go * self.took_s > self.deadline:
            return False
        return self._repeats[name] < (max(2, kept // 4) if self._seen_quiet else 2)

    def _take_most_equal(self, name: str) -> Pair:
        """Removes and returns the contended pair with the most equal core speeds: the choice treats sides alike."""
        pairs = self._set_aside[name]
        chosen = min(reversed(pairs), key=inequality)
        pairs.remove(chosen)
        return chosen

    def _keep(self, name: str, pair: Pair) -> None:
        for side, timed in zip(self.sides[name], pair, strict=True):
            if timed is not None:
                side.append(timed)


def inequality(pair: Pair) -> float:
    """The core speed of the faster side over that of the slower; with one side measured, its slowness.

    >>> slow, slower = (Timed(1.0, {}, {}, contended="slow", slowness=each) for each in (1.5, 1.8))
    >>> round(inequality((slow, slower)), 2), inequality((None, slow))
    (1.2, 1.5)
    """
    slow = [side.slowness if side else 1.0 for side in pair]
    return max(slow) / min(slow) if math.isfinite(max(slow)) else math.inf
