"""How a benchmark is measured: warm-up, rounds, cache, the rates, their share of the ceilings, and the bounds.

pytest-benchmark runs the rounds and keeps them. Its `pedantic` form is the one that allows a set-up outside of the
timed region, and it wants the number of rounds beforehand. So there are two stages (after Stein, "A two-sample test for
a linear hypothesis whose power is independent of the variance", 1945): the rounds of the warm-up, once flat, are the
pilot that says how many rounds make the interval of the median as narrow as asked; those are then run, as far as time
allows. The interval is computed from the second stage alone. Looking at it after every round and stopping where it
happens to be narrow would make it cover the median less often than it says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from typing import Any, TypeVar

import pytest
import torch

from accounting import measured
from accounting.measured import median_interval
from accounting.roofline import Work, mfu
from bench import launch
from bench.cache import Flush
from bench.call_inspection import Examined, as_tensors, assert_declared, assert_random, examine, overwrite
from bench.ceilings import Ceilings
from bench.pace import Pace
from bench.rounds import FEWEST_ROUNDS, is_flat, rounds_for
from bench.work import LAUNCH_SHARE

# Raised whenever the way of measuring changes: figures of different methods are not compared.
METHOD = 3

CACHES = ("as-is", "hot", "cold")
SHORTEST_ROUND_S = 1e-4  # a thousand times the resolution of the host's clock
SHORTEST_DEVICE_ROUND_S = 1e-3  # of an accelerator: two hundred times the 5 µs for which it waits for the first launch
LONGEST_LEAD_S = 0.01  # beyond it the launch is less than a thousandth of the time
LEAST_WAITED_SHARE = 0.5
HELD_UP = 3.0  # times the longest call: undisturbed, a step of small operators takes up to 3 times as at the ceiling
TRIALS_OF_A_CALL = 3
TRIALS_OF_WAITING = 5

Looked = TypeVar("Looked")


# ---- rounds ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Warm:
    """The warm-up: how long it took, whether the rolling median became flat, and the rounds that serve as the pilot."""

    seconds: float
    flat: bool
    pilot: tuple[float, ...]  # seconds per call


# ---- the fixture -------------------------------------------------------------------------------------------------


class Measure:
    """The fixture `measure`: runs one benchmark by pytest-benchmark and puts its figures into `extra_info`."""

    brief = False  # in a process of the gate, see `bench.brief`

    def __init__(
        self,
        benchmark: Any,
        device: torch.device,
        pace: Pace,
        peak_flop_per_s: Callable[[str], float | None] = lambda dtype: None,
        bound_flop_per_s: Callable[[str], float | None] = lambda dtype: None,
        *,
        timer: Callable[[], Any] | None = None,
        flush: Callable[[], Flush] | None = None,
        conditions: Callable[[], AbstractContextManager[dict[str, Any]]] | None = None,
        progress: Callable[..., None] = lambda text, ahead_s=0.0: None,
    ) -> None:
        self._benchmark = benchmark
        self._device = device
        self._pace = pace
        self._peak_flop_per_s = peak_flop_per_s
        self._bound_flop_per_s = bound_flop_per_s
        self._make_flush = flush
        self._timer = timer or measured.clock(device)
        self._conditions = conditions or (lambda: nullcontext({}))
        self._began = math.inf
        self.progress = progress
        self.info: dict[str, Any] = benchmark.extra_info

    def declare(self, **figures: object) -> None:
        """Puts further figures into the benchmark's record."""
        self.info.update(figures)

    def once(self, look: Callable[[], Looked]) -> Looked | None:
        """What `look` returns; None, and nothing is done, where an earlier process of a gate run has looked already."""
        __tracebackhide__ = True
        return look()

    def skip_if_longer(self, flops: float, dtype: str, ceilings: Ceilings) -> None:
        """Skips where so many FLOPs take too long at the ceiling. Raises Unsupported."""
        self._pace.skip_if_longer(flops / ceilings.flop_per_s(dtype))

    def skip_if_slow(self, function: Callable[[], object]) -> None:
        """Skips where a call takes too long, three times: the machine may have been slow during one."""
        seconds, limit_s = math.inf, self._pace.longest_call_s
        for _ in range(TRIALS_OF_A_CALL):
            seconds = min(seconds, self._call_s(function, None)[0])
            if seconds <= limit_s or seconds > HELD_UP * limit_s:
                break
        self._pace.skip_if_longer(seconds)

    def skip_if_held_up(self, function: Callable[[], object]) -> None:
        """Skips where a call takes `HELD_UP` times as long as it may: what follows calls it 30 times and more.

        Threads that wait for one another after each operator take 20 to 40 times as long beside as many busy
        processes. The ceiling does not tell: beside them it was found a hundred times too low.
        """
        self._began = perf_counter()
        limit_s = HELD_UP * self._pace.longest_call_s
        # The median: a first call imports and allocates, and a single one that has luck says little of the next.
        seconds = median(self._call_s(function, None)[0] for _ in range(TRIALS_OF_A_CALL))
        if seconds > limit_s:
            pytest.skip(f"one call took {seconds:.2g} s, {limit_s:.2g} s are allowed: does other work hold it up?")

    def skip_if_late(self) -> None:
        """Skips where what `skip_if_held_up` let pass has since taken longer than a benchmark may."""
        seconds, limit_s = perf_counter() - self._began, self._pace.longest_s
        if seconds > limit_s:
            pytest.skip(f"it took {seconds:.2g} s so far, {limit_s:.2g} s are allowed: does other work hold it up?")

    def median_s(
        self,
        function: Callable[[], object],
        *,
        cache: str = "as-is",
        setup: Callable[[], object] | None = None,
        operators: int | None = None,
        **declared: object,
    ) -> float:
        """Median time of `function` in seconds: warmed up, in rounds that the clock resolves.

        `cache`: "hot", the operands are where the call before left them, and small enough to be in a cache; "cold", all
        caches are flushed before each round, outside of the timed region and without waiting in between; "as-is",
        nothing is done and nothing claimed.
        `setup` is called before each round (before the flush), outside of the timed region. With it, and in cold
        rounds, a round is one call, because pytest-benchmark allows no other.
        `operators`: how many the function dispatches; None, if that is not known, or if it waits for the device itself:
        then it is not asked whether launching is what takes the time.
        `declared` goes to the record beside what the measurement itself puts there (see docs/measuring.md).

        Raises AssertionError for a time that is not positive, or much shorter than the device was busy: then it was not
        waited for; ValueError for an unknown cache mode.
        """
        __tracebackhide__ = True
        if cache not in CACHES:
            raise ValueError(f"cache must be one of {', '.join(CACHES)}, got {cache!r}")
        flush = self._flush() if cache == "cold" else None
        before_round = _in_turn(setup, flush)
        once, waited_share = self._first_calls(function, setup)
        single = before_round is not None
        calls = 1 if single else max(1, math.ceil(self._shortest_round_s() / once))
        self.info.update(declared, method=METHOD, cache=cache, calls_per_round=calls, waited_share=waited_share)
        once, rounds, affordable = self._rounds(function, once, calls, before_round)
        lead = self._lead(function, calls, once) if before_round is None else None
        self.progress(f"{rounds} rounds of {calls * once:.2g} s", rounds * calls * once)
        with self._conditions() as conditions:
            self._run(function, rounds, calls, before_round or lead, flush)
        self.info["conditions"] = conditions
        if self._benchmark.stats is None:
            pytest.skip("pytest-benchmark is switched off in this run")
        seconds = float(self._benchmark.stats["median"])
        assert seconds > 0, f"the median time is {seconds} s, but should be positive: was the device waited for?"
        self._record_rounds(seconds, rounds, affordable)
        self._record_launch(function, seconds, operators, idempotent=setup is None)
        return seconds

    def work(
        self,
        function: Callable[[], object],
        work: Work,
        *,
        dtype: str | None = None,
        check: Callable[[Any], None] | None = None,
        inputs: Sequence[torch.Tensor] | None = None,
        counted: bool | None = None,
        flop_bound: float | None = None,
        bytes_bound: float | None = None,
        cache: str = "as-is",
        setup: Callable[[], object] | None = None,
        launch: bool = True,
        **declared: object,
    ) -> float:
        """Median time of a function that does `work`, with its rates; everything about it is checked that can be.

        Outside of the timed region one call is looked at: the FLOPs declared must be those of the products that it
        dispatches (`counted=False`: not compared; None: where it dispatches any), the tensors it reads must be random
        (`inputs`: look at these instead; `()`: at none). After the rounds the results of that call are overwritten, and
        `check` is given those of one more: a function that has stopped working does not pass.
        `launch=False`: the function waits for an accelerator itself, see `operators` of `median_s`.
        `flop_bound` (default: that of the device for `dtype`) and `bytes_bound` are rates that cannot be exceeded.
        """
        __tracebackhide__ = True
        seen = self.once(lambda: self._examined(function, setup, work, inputs, counted))
        seconds = self.median_s(
            function, cache=cache, setup=setup,
            operators=seen.operators if seen and (launch or self._device.type == "cpu") else None,
            dtype=dtype, flops=work.flops, bytes=work.bytes, **declared,
        )  # fmt: skip
        if check is not None and seen is not None:
            self.once(lambda: self._check_again(function, setup, seen, check))
        bound = flop_bound
        if bound is None and dtype is not None and work.flops:
            bound = self._bound_flop_per_s(dtype)
        self._record_rates(work, seconds, dtype)
        assert_within_bound(work.flops / seconds, bound, f"{dtype or 'work'} on {self._device}")
        assert_within_bound(work.bytes / seconds, bytes_bound, f"{dtype or 'work'} on {self._device}", "B/s")
        return seconds

    def product(
        self,
        function: Callable[[], object],
        dtype: str,
        work: Work,
        ceilings: Ceilings,
        check: Callable[[Any], None],
        regime: str = "sustainable",
        **options: Any,
    ) -> None:
        """Measures a product, see `work`, and holds its rate against the vendor's peak and this machine's ceiling in
        the same regime; not in a process of the gate, which compares times."""
        __tracebackhide__ = True
        seconds = self.work(function, work, dtype=dtype, check=check, counted=True, **options)
        if self.brief:
            return
        rate, peak, ceiling = work.flops / seconds, self._peak_flop_per_s(dtype), ceilings.flop_per_s(dtype, regime)
        remeasured = rate > ceiling
        if remeasured:
            ceiling = ceilings.remeasure(dtype, function, work.flops, regime)
        self.info.update(
            peak_flop_per_s=peak,
            mfu=mfu(work.flops, seconds, peak),
            ceiling_flop_per_s=ceiling,
            ceiling_remeasured=remeasured,
            share_of_ceiling=rate / ceiling,
        )

    # ---- examining ----

    def _examined(
        self,
        function: Callable[[], object],
        setup: Callable[[], object] | None,
        work: Work,
        inputs: Sequence[torch.Tensor] | None,
        counted: bool | None,
    ) -> Examined:
        """One call, whose FLOPs must be those declared, and whose inputs random."""
        __tracebackhide__ = True
        if setup is not None:
            setup()
        seen = examine(function)
        if counted or (counted is None and seen.flops):
            assert_declared(work.flops, seen)
            self.info["counted_flops"] = seen.flops
        assert_random(as_tensors(inputs, seen))
        return seen

    def _check_again(
        self,
        function: Callable[[], object],
        setup: Callable[[], object] | None,
        seen: Examined,
        check: Callable[[Any], None],
    ) -> None:
        """Checks the result of one more call, the examined one's overwritten."""
        __tracebackhide__ = True
        if setup is not None:
            setup()
        overwrite(seen)
        check(function())

    # ---- stages ----

    def _flush(self) -> Flush:
        """The flush of the device, tried out. Raises AssertionError where a read takes no longer after it."""
        __tracebackhide__ = True
        assert self._make_flush is not None, "a cold benchmark needs a flush"
        flush = self._make_flush()
        seen = flush.check
        self.info.update(
            flush_bytes=flush.bytes,
            flush_capped=flush.capped,
            last_level_cache_bytes=flush.caches.last_level_bytes,
            flush_check=asdict(seen) if seen else None,
        )
        assert seen is None or not seen.still_hot, (
            f"a cold benchmark flushes {flush.bytes} bytes, but after that a read takes {seen} as long as from a warm "
            "cache, and should take longer: the caches are still hot"
        )
        return flush

    def _shortest_round_s(self) -> float:
        return SHORTEST_ROUND_S if self._device.type == "cpu" else SHORTEST_DEVICE_ROUND_S

    def _first_calls(
        self, function: Callable[[], object], setup: Callable[[], object] | None
    ) -> tuple[float, float | None]:
        """How long a call takes after one untimed call, and the share of the host's time that the clock saw of it.

        The same calls are timed twice: by the benchmark's clock, and by the host's from an idle device to an idle
        device. A clock that does not wait, or work that hides from it in another stream or thread, shows as a small
        share, however noisy the machine is.
        """
        __tracebackhide__ = True
        self._call_s(function, setup)  # imports, compiles, allocates
        best, fastest = 0.0, math.inf
        for _ in range(TRIALS_OF_WAITING):
            seconds, share = self._call_s(function, setup)
            best, fastest = max(best, share), min(fastest, seconds)
            if best >= LEAST_WAITED_SHARE:
                break
        assert best >= LEAST_WAITED_SHARE, (
            f"the clock saw {best:.0%} of the time from an idle device to an idle device, but should see most of it: "
            "was the device waited for?"
        )
        return max(fastest, 1e-9), best

    def _call_s(self, function: Callable[[], object], setup: Callable[[], object] | None) -> tuple[float, float]:
        """The time of a call by the benchmark's clock, the mean of several short ones; and its share of the host's."""
        if setup is not None:
            setup()
        measured.synchronise(self._device)
        calls, began = 0, perf_counter()
        start = self._timer()
        while not calls or (setup is None and perf_counter() - began < 2 * SHORTEST_ROUND_S):
            function()
            calls += 1
        seconds = self._timer() - start
        measured.synchronise(self._device)
        return max(seconds / calls, 1e-9), seconds / max(perf_counter() - began, 1e-9)

    def _warm_up(self, function: Callable[[], object], calls: int, before_round: Callable[[], object] | None) -> Warm:
        """Rounds until their rolling median is flat, or the time for it is up."""
        rounds: list[float] = []
        began, elapsed, flat, looked_at = perf_counter(), 0.0, False, 0
        while not rounds or elapsed < self._pace.warmup_s or not (flat or elapsed >= self._pace.longest_warmup_s):
            if before_round is not None:
                before_round()
            start = self._timer()
            for _ in range(calls):
                function()
            rounds.append(max((self._timer() - start) / calls, 1e-9))
            elapsed = perf_counter() - began
            if len(rounds) > 1.1 * looked_at:  # a look sorts them all
                flat, looked_at = is_flat(rounds), len(rounds)
        return Warm(elapsed, flat, tuple(rounds[len(rounds) // 3 :]))

    def _rounds(
        self, function: Callable[[], object], once: float, calls: int, before_round: Callable[[], object] | None
    ) -> tuple[float, int, int]:
        """After the warm-up: the seconds of a call, how many rounds to run, and how many the time would allow, the
        set-up of each round included."""
        self.progress("warming up", self._pace.longest_warmup_s)
        warm = self._warm_up(function, calls, before_round)
        self.info.update(warmup_s=warm.seconds, flat=warm.flat)
        once = median(warm.pilot)
        round_s = calls * once + self._preparing_s(before_round)
        affordable = min(max(int(self._pace.measure_s / round_s), FEWEST_ROUNDS), self._pace.most_rounds)
        return once, rounds_for(self._pace.width, warm.pilot, affordable), affordable

    def _preparing_s(self, before_round: Callable[[], object] | None) -> float:
        """What is done before a round takes as long as this."""
        if before_round is None:
            return 0.0
        began = perf_counter()
        before_round()
        measured.synchronise(self._device)
        return perf_counter() - began

    def _lead(self, function: Callable[[], object], calls: int, once: float) -> Callable[[], object] | None:
        """On CUDA, what keeps the device busy while the host launches the timed call: one call more, not timed.

        After each round pytest-benchmark subtracts two readings, which waits for the device. An idle device would run
        the start event at once and then wait for the launch, some 5 µs that are not the function's.
        """
        if self._device.type != "cuda" or calls > 1 or once > LONGEST_LEAD_S:
            return None

        def lead() -> None:  # pytest-benchmark would take what it returns for arguments
            function()

        return lead

    def _run(
        self,
        function: Callable[[], object],
        rounds: int,
        calls: int,
        before_round: Callable[[], object] | None,
        flush: Flush | None,
    ) -> None:
        __tracebackhide__ = True

        def prepare() -> None:  # what a set-up returns would be taken for arguments
            if before_round is not None:
                before_round()

        def call() -> None:  # pedantic would keep the result, and free it outside of the timed region
            function()

        flushed = flush.calls if flush else 0
        self._benchmark.pedantic(
            call if calls == 1 else function,
            setup=prepare if before_round else None,
            rounds=rounds,
            iterations=calls,
            warmup_rounds=0,
        )
        if flush is not None and self._benchmark.stats is not None:
            assert flush.calls - flushed >= rounds, (
                f"the caches were flushed {flush.calls - flushed} times, but should before each of {rounds} cold rounds"
            )

    def _record_rounds(self, seconds: float, rounds: int, affordable: int) -> None:
        times = list(getattr(getattr(self._benchmark.stats, "stats", None), "data", ()))
        interval = median_interval(times)
        narrow = interval is not None and interval[1] - interval[0] <= self._pace.width * seconds
        self.info.update(
            rounds=rounds,
            ci_low=interval and interval[0],
            ci_high=interval and interval[1],
            stopped_by="interval" if narrow else "time" if rounds >= affordable else "pilot",
        )

    def _record_launch(
        self, function: Callable[[], object], seconds: float, operators: int | None, *, idempotent: bool
    ) -> None:
        if operators is None or not idempotent:
            return
        figures = launch.figures(function, seconds, operators, self._device)
        self.info.update(figures)
        if figures.get("launch_share", 0) >= LAUNCH_SHARE:
            self.info["bound"] = "launch"

    def _record_rates(self, work: Work, seconds: float, dtype: str | None) -> None:
        if work.flops:
            self.info["op_per_s" if dtype == "int8" else "flop_per_s"] = work.flops / seconds
        if work.bytes:
            self.info.update(bytes_per_s=work.bytes / seconds, intensity=work.intensity)


def _in_turn(*steps: Callable[[], object] | None) -> Callable[[], None] | None:
    """The steps that there are, one after the other; None where there is none."""
    there = [step for step in steps if step is not None]
    if not there:
        return None

    def run() -> None:
        for step in there:
            step()

    return run


def assert_within_bound(rate: float, bound: float | None, what: str, unit: str = "FLOP/s") -> None:
    """A rate above what the units can do at their highest clock is an error of measurement, never a record."""
    __tracebackhide__ = True
    wrong = "FLOPs" if unit == "FLOP/s" else "bytes"
    assert bound is None or rate <= bound, (
        f"{what}: measured {rate:.4g} {unit}, but its units do at most {bound:.4g}: the {wrong} or the clock are wrong"
    )
