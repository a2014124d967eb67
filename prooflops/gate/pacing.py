"""Takes replicates until every benchmark is decided, or the time for them is over."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from prooflops.gate.decisions import ReplicateRule, look_at
from prooflops.gate.process_plan import Look
from prooflops.history.records import Timed
from prooflops.history.rows import Row

Pair = tuple[Timed | None, Timed]  # before (None where that side is stored) and after
Take = Callable[[list[str]], Mapping[str, Pair]]  # runs these benchmarks once more


class Pacing:
    """The replicates of one comparison.

    `stored`: what there is of the before side to begin with; in pairs it grows with the other. `take` runs benchmarks
    once more, until `deadline` (of `time.monotonic`). `say` is called with a text, the replicates kept, and the most
    that are wanted. `given_up`: benchmarks that are not taken again. `look` may choose another pace for what is open.
    """

    def __init__(
        self,
        stored: Mapping[str, Sequence[Timed]],
        rule: ReplicateRule,
        take: Take,
        deadline: float,
        say: Callable[[str, int, int], None],
        *,
        given_up: Collection[str] = (),
        look: Look = lambda effects, to_go: None,
    ) -> None:
        self.sides = {name: (list(group), list[Timed]()) for name, group in stored.items()}
        self.rule, self.deadline = rule, deadline
        self.taken = 0
        self.left_open: list[str] = []  # when the time was over
        self._take, self._say, self._given_up, self._look = take, say, frozenset(given_up), look
        self._seen_quiet = False
        self._tries = Counter[str]()
        self._repeats = Counter[str]()
        self._set_aside: dict[str, list[Pair]] = {}  # contended ones that are not kept

    @property
    def repeated(self) -> int:
        """How many pairs were taken again because other work competed."""
        return self._repeats.total()

    def run(self, first: Mapping[str, Pair], took_s: float) -> list[Row]:
        """Takes replicates after the first one, which took `took_s`, and returns a row for each benchmark."""
        self._took_s = took_s
        self._add(first, first)
        while wanted := self._wanted():
            if time.monotonic() + self._took_s > self.deadline:
                self.left_open = list(wanted)
                break
            least, most = min(wanted.values()), max(wanted.values())
            until = f"{least}" if least == most else f"{least} to {most}"
            kind = "pair" if self.rule.paired else "replicate"
            again = f", {self.repeated} measurements repeated" if self.repeated else ""
            kept = min(len(self.sides[name][1]) for name in wanted)
            self._say(f"{kind} {self.taken + 1}: {len(wanted)} open, next look at {until}{again}", kept, most)
            began = time.monotonic()
            self._add(self._take(list(wanted)), wanted)
            self._took_s = time.monotonic() - began
        for name in self._set_aside:
            if not self.sides[name][1]:  # the machine was never quiet: the row says so
                self._keep(name, self._most_equal(name))
        return look_at(self.sides, self.rule)[0]

    def _wanted(self) -> dict[str, int]:
        """How many replicates each open benchmark wants; one that mostly yields none (is skipped, say) is given up."""
        rows, wanted = look_at(self.sides, self.rule)
        wanted = {
            name: count
            for name, count in wanted.items()
            if name not in self._given_up and self._tries[name] < 4 * max(count, 8)
        }
        if wanted:
            effects = {row.name: row.effect for row in rows if row.effect and row.name in wanted}
            self._look(effects, max(count - len(self.sides[name][1]) for name, count in wanted.items()))
        return wanted

    def _add(self, pairs: Mapping[str, Pair], asked: Iterable[str]) -> None:
        self.taken += 1
        self._tries.update(list(asked))
        for name, (before, after) in pairs.items():
            if name not in self.sides:
                continue
            contended = bool(after.contended or (before and before.contended))
            self._seen_quiet |= not contended
            if not contended:
                self._keep(name, (before, after))
                continue
            self._set_aside.setdefault(name, []).append((before, after))
            if self._may_repeat(name):
                self._repeats[name] += 1
            else:
                self._keep(name, self._most_equal(name))

    def _most_equal(self, name: str) -> Pair:
        """Takes from the contended pairs the one whose sides ran at the most equal speed of their cores, and the newest
        of several. Without a change the sides of any pair may be exchanged: choosing so favours none."""
        pairs = self._set_aside[name]
        chosen = min(reversed(pairs), key=inequality)
        pairs.remove(chosen)
        return chosen

    def _may_repeat(self, name: str) -> bool:
        """Whether a contended pair is set aside: two in any case, as many as are kept on a machine that is quiet at
        times, and none that would cost one of the pairs which the next look needs."""
        kept = len(self.sides[name][1])
        to_go = max(self.rule.plan.looks[0], kept + 1) - kept
        if time.monotonic() + to_go * self._took_s > self.deadline:
            return False
        return self._repeats[name] < (max(2, kept) if self._seen_quiet else 2)

    def _keep(self, name: str, pair: Pair) -> None:
        for side, timed in zip(self.sides[name], pair, strict=True):
            if timed is not None:
                side.append(timed)


def inequality(pair: Pair) -> float:
    """How many times faster the core of one side ran; where only one is measured now, how many times slower than ever.

    >>> slow, slower = (Timed(1.0, {}, {}, contended="slow", slowness=each) for each in (1.5, 1.8))
    >>> round(inequality((slow, slower)), 2), inequality((None, slow))
    (1.2, 1.5)
    """
    slow = [side.slowness if side else 1.0 for side in pair]
    return max(slow) / min(slow) if math.isfinite(max(slow)) else math.inf
