"""How a benchmark is measured in one of the gate's many processes, of each of which the fastest round counts.

No warm-up, for its rounds would not be the fastest; no search for a ceiling; no launch, no rate held against a peak:
the gate compares times. What an earlier process has examined is not examined again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from bench.cache import Flush
from bench.ceilings import Ceilings
from bench.freed_memory import new_pages
from bench.measuring import Looked, Measure

# Where small blocks end up beside a large one, glibc finds no room for the next of its size, a few times: three rounds
# of a layer norm with new pages each made 29 % of noise. A call of LONG_S has many blocks, and is not made once more.
MOST_FIRST_CALLS, FEW_PAGES, LONG_S = 6, 16, 0.25
PROBED_SHARE = 0.3  # of the ceiling, that the product reaches at least by which a dtype's rate is probed


@dataclass(frozen=True)
class Asked:
    """What the gate asks of one benchmark, see the fixture `gate_replicate`."""

    seconds: float  # of rounds
    least_rounds: int
    examined: bool = False  # by an earlier process
    leave_out: Callable[[float], None] = lambda seconds: None  # is told what examining took


class BriefMeasure(Measure):
    """The fixture `measure` of such a process."""

    brief = True

    def __init__(self, asked: Asked, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._asked = asked

    def once(self, look: Callable[[], Looked]) -> Looked | None:
        __tracebackhide__ = True
        if self._asked.examined:
            return None
        began = perf_counter()
        found = look()
        self._asked.leave_out(perf_counter() - began)
        return found

    def skip_if_longer(self, flops: float, dtype: str, ceilings: Ceilings) -> None:
        """Skips where so many FLOPs take too long whatever the ceiling is; what this lets pass, its test times."""
        if not self._asked.examined:
            self._pace.skip_if_longer(PROBED_SHARE * flops / ceilings.probed(dtype))

    def skip_if_held_up(self, function: Callable[[], object]) -> None:
        """Nothing: the gate's plan leaves out what is too long."""

    def _flush(self) -> Flush:
        __tracebackhide__ = True
        assert self._make_flush is not None, "a cold benchmark needs a flush"
        return self.once(super()._flush) or self._make_flush()

    def _first_calls(
        self, function: Callable[[], object], setup: Callable[[], object] | None
    ) -> tuple[float, float | None]:
        if not self._asked.examined:
            return super()._first_calls(function, setup)
        once = math.inf
        for call in range(MOST_FIRST_CALLS):
            before = new_pages()
            took = self._call_s(function, setup)[0]
            once = min(once, took)
            settled = new_pages() - before < FEW_PAGES and (call > 0 or took >= self._asked.seconds / 10)
            if settled or took > LONG_S:
                break
        return once, None

    def _rounds(
        self, function: Callable[[], object], once: float, calls: int, before_round: Callable[[], object] | None
    ) -> tuple[float, int, int]:
        fitting = int(self._asked.seconds / (calls * once + self._preparing_s(before_round)))
        rounds = max(self._asked.least_rounds, min(fitting, self._pace.most_rounds))
        return once, rounds, rounds

    def _record_launch(self, *_: object, **__: object) -> None:
        pass
