"""Times: which benchmarks the next pair measures, at which pace, until each is decided.

Pairs beside which other work competed are measured again while time allows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace

from prooflops_gate.console.progress import minutes
from prooflops_gate.console.tables import many
from prooflops_gate.history.records import Timed
from prooflops_gate.instruments import Decided, Measured
from prooflops_gate.instruments.pace import FIRST, PacePlan
from prooflops_gate.instruments.time_rule import TimeRule, found_from, look_at
from prooflops_gate.rows import Row
from prooflops_gate.statistics.decision_rule import FEWEST_PLAIN
from prooflops_gate.task import Task

# A benchmark before and after.
TimedPair = tuple[Timed, Timed]
# A pair may measure no time of a skipped benchmark: the number of tries for each pair wanted.
MOST_TRIES = 4
# At least this many contended pairs of a benchmark are measured again, or a fourth of its pairs.
LEAST_REPEATS = 2
CHANGES = ("SLOWER", "FASTER")
UNSYNCHRONISED = (
    "the GPU is still busy when a round ends, so only launches are timed "
    "(call torch.cuda.synchronize())"
)

ANY_TASK = Task()


class Times:
    """The times of benchmarks until `ends`, on the monotonic clock.

    `plan` sets the pace of each pair, and leaves out benchmarks that are too long; without it all
    run at the first pace. `template` has the rest of each task. `say` takes a line for each
    slowdown once a pair confirms it.
    """

    def __init__(
        self,
        names: Iterable[str],
        rule: TimeRule,
        ends: float,
        plan: PacePlan | None = None,
        template: Task = ANY_TASK,
        say: Callable[[str], None] = print,
    ) -> None:
        self.rule, self.ends, self.plan, self.template = rule, ends, plan, template
        self.say = say
        self.sides: dict[str, tuple[list[Timed], list[Timed]]] = {name: ([], []) for name in names}
        # Why benchmarks are left out, as they are too long.
        self.given_up = plan.given_up if plan else {}
        # The benchmarks of the next pair, which stay open if it is never measured.
        self.open: Mapping[str, int] = {}
        self.taken, self.took_s = 0, 0.0
        # True if enough benchmarks are slower to end the run, as the user wants.
        self.has_failed = False
        # When these times wait for another instrument, after how many looks, and who is measured.
        self._until, self._looks = math.inf, len(rule.plan.looks)
        self._only: Container[str] = self.sides
        self._tests: dict[str, str] = {}
        self._left_s = math.inf
        # The benchmarks that got slower, by the latest pair.
        self.slower: list[str] = []
        # True if the next pair measures plain slowdowns alone, and how many others wait for them.
        self._are_plain, self._waiting = False, 0
        # True if a pair has shown how long the next ones take, and that over the plan's duration.
        self._is_timed, self._slowness = False, 1.0
        self._seen_quiet = False
        self._tries = Counter[str]()
        self._repeats = Counter[str]()
        # Contended pairs that no row uses so far.
        self._set_aside: dict[str, list[TimedPair]] = {}

    def next_task(self, now: float) -> Task | None:
        self._left_s = self.ends - now
        rows, wanted = look_at(self.sides, self.rule)
        wanted = {
            name: count
            for name, count in wanted.items()
            if self._tries[name] < MOST_TRIES * max(count, self.rule.plan.looks[0])
        }
        plain = {row.name for row in rows if self.rule.is_plain(row)}
        due = self._due(wanted, plain)
        slower = [row.name for row in rows if row.verdict == "SLOWER"]
        for name in slower:
            if name not in self.slower:
                self.say(f"SLOWER: {name}")
        self.slower = slower
        self.has_failed = self.rule.has_failed(rows)
        # A plain slowdown is confirmed soonest where the next pairs measure nothing else.
        plain_due = {name: due[name] for name in due if name in plain}
        self.open, self._are_plain = plain_due or due, bool(plain_due)
        self._waiting = len(due) - len(self.open)
        needs_s = self.pair_s(self.open)
        is_over = self.has_failed or self.taken == self.rule.most
        if is_over or not self.open or now + needs_s > self._until:
            self.open = {}
            return None
        tests = tuple(dict.fromkeys(self._tests.get(name, name) for name in self.open))
        paces = self._paces(rows) if self.plan else FIRST
        return replace(
            self.template,
            tests=tests,
            paces=paces,
            # A change this large shows at any speed of the core.
            patient=not self._are_plain,
            ends=self.ends,
            needs_s=needs_s,
        )

    def pair_s(self, names: Iterable[str]) -> float:
        """Seconds that a pair of these benchmarks takes; without a plan, those of the latest."""
        planned_s = self._planned_s(names)
        return self._slowness * planned_s if planned_s else self.took_s

    def _planned_s(self, names: Iterable[str]) -> float:
        return self.plan.process_s(list(names), self.plan.each_s) if self.plan else 0.0

    def wait_at(self, until: float, looks: int, only: Container[str]) -> None:
        """Measures these alone, begins no pair that would end after `until`, nor after the looks.

        Suspicions and plain slowdowns are still confirmed.
        """
        self._until, self._looks, self._only = until, looks, only
        self._is_timed = False

    def go_on(
        self, settled: Container[str], plan: PacePlan, look: int, until: float = math.inf
    ) -> None:
        """Goes on until then with what is not settled by another instrument.

        What is settled has `look` pairs of times, too.
        """
        self._until, self._looks = until, len(self.rule.plan.looks)
        self.rule, self.plan = replace(self.rule, settled=settled, look=look), plan

    def rows(self) -> dict[str, Row]:
        """The row of each benchmark by the pairs so far, by name."""
        rows, _ = look_at(self.sides, self.rule)
        return {row.name: row for row in rows}

    def _paces(self, rows: Iterable[Row]) -> Mapping[str, Mapping[str, float]]:
        assert self.plan
        effects = {row.name: row.effect for row in rows if row.effect and row.name in self.open}
        missing = [count - self._kept(name) for name, count in self.open.items()]
        to_go = max(self.rule.plan.confirming_pairs, *missing)
        return self.plan.paces(effects, to_go, self._left_s)

    def _due(self, wanted: Mapping[str, int], plain: Container[str]) -> dict[str, int]:
        """The benchmarks of the next pair, with the pairs that each needs for its next look."""
        late_looks = self.rule.plan.looks[self._looks :]
        return {
            name: count
            for name, count in wanted.items()
            if name in self._only
            and name not in self.given_up
            and (count not in late_looks or name in plain or self._kept(name) < FEWEST_PLAIN)
        }

    @property
    def stage(self) -> object:
        """A value that changes when a look decides; None before a pair has shown its duration."""
        return (*self.open.values(), *self.slower) if self._is_timed else None

    def progress(self) -> str:
        left = max(count - self._kept(name) for name, count in self.open.items())
        expected_s = min(left * self.pair_s(self.open), self._left_s)
        pairs = f"{many(left, 'more pair')}, about {minutes(expected_s)}"
        plainly = " that is plainly slower" if len(self.open) == 1 else " that are plainly slower"
        which = many(len(self.open), "benchmark") + plainly * bool(self._waiting)
        return f"times of {which}: {pairs}"

    def measure(self, measured: Measured, took_s: float) -> None:
        asked = self.open or measured.pairs
        # The first pair, whose duration says little of the next, was asked for by nobody.
        self._is_timed = bool(self.open)
        self.taken, self.took_s = self.taken + 1, took_s
        if planned_s := self._planned_s(asked):
            self._slowness = took_s / planned_s
        self._left_s -= took_s
        self._tries.update(list(asked))
        for name, pair in measured.pairs.items():
            if name not in self.sides:
                continue
            self._tests[name] = pair[1].test or name
            if not any(side.contended for side in pair):
                self._seen_quiet = True
                self._keep(name, pair)
                continue
            self._set_aside.setdefault(name, []).append(pair)
            if self._may_repeat(name):
                self._repeats[name] += 1
            else:
                self._keep(name, self._take_most_equal(name))

    def _may_repeat(self, name: str) -> bool:
        """Whether to repeat a contended pair.

        LEAST_REPEATS, or, once any pair was quiet, a fourth as often as it has kept pairs: a
        repeat costs as much as the pair that it replaces. Never if the repeat leaves too little
        time for the pairs of the next look, if --gate-replicates bounds their number, or where the
        slowdown is plain.
        """
        if self._are_plain:
            return False
        kept = self._kept(name)
        to_go = max(self.rule.plan.looks[0], kept + 1) - kept
        if self.rule.most or to_go * self.pair_s(self.open) > self._left_s:
            return False
        allowed = max(LEAST_REPEATS, kept // 4) if self._seen_quiet else LEAST_REPEATS
        return self._repeats[name] < allowed

    def _take_most_equal(self, name: str) -> TimedPair:
        """Removes and returns the contended pair with the most equal core speeds.

        The choice treats sides alike.
        """
        pairs = self._set_aside[name]
        chosen = min(reversed(pairs), key=inequality)
        pairs.remove(chosen)
        return chosen

    def _kept(self, name: str) -> int:
        return len(self.sides[name][1])

    def _keep(self, name: str, pair: TimedPair) -> None:
        for side, timed in zip(self.sides[name], pair, strict=True):
            side.append(timed)

    def decide(self) -> Decided:
        """The times of all benchmarks, and what they show together."""
        for name in self._set_aside:
            # All its pairs were contended, and its row says so.
            if not self._kept(name):
                self._keep(name, self._take_most_equal(name))
        notes, details = self._launches(), []
        found, _ = look_at(self.sides, self.rule)
        rows, ended = [], 0
        for row in found:
            rows.append(replace(row, note=self.given_up.get(row.name, row.note)))
            ended += row.name in self.open and row.verdict == "INCONCLUSIVE"
        if ended:
            open_ = many(ended, "benchmark")
            notes.append(f"the budget (--gate-budget) is spent: time leaves {open_} undecided")
        unchanged = [row.effect for row in rows if row.effect and row.verdict not in CHANGES]
        if unchanged:
            notes.append(found_from(unchanged, self.rule.plan, self.rule.min_effect))
        if self._repeats:
            repeated = many(self._repeats.total(), "measurement")
            details.append(f"{repeated} repeated because other work competed")
        return Decided(tuple(rows), tuple(notes), tuple(details))

    def _launches(self) -> list[str]:
        early = [
            name
            for name, (_, after) in self.sides.items()
            if any(timed.is_launch for timed in after)
        ]
        return [f"{', '.join(early)}: {UNSYNCHRONISED}"] if early else []


def inequality(pair: TimedPair) -> float:
    """The faster side's core speed over the slower side's.

    >>> slow, slower = (Timed(1.0, {}, contended="slow", slowness=each) for each in (1.5, 1.8))
    >>> round(inequality((slow, slower)), 2)
    1.2
    """
    slow = [side.slowness for side in pair]
    return max(slow) / min(slow) if math.isfinite(max(slow)) else math.inf
