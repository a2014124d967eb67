"""The fixture `measure`: times one benchmark by pytest-benchmark, checks it, and records its rates.

`bench.timing` chooses the rounds, `bench.checks` examines a call, and `bench.rates` has the rates
and their bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import pytest
import torch

from accounting.roofline import Work, mfu
from bench import launch, timing
from bench.brief import BriefSchedule
from bench.cache import Flush
from bench.ceilings import Ceilings
from bench.checks import Examined, assert_declared, assert_random, examine, overwrite
from bench.products import Product
from bench.rates import judged, share_of_units, shares_of_product
from bench.rounds import NEAR_CEILING, Progress, no_progress
from bench.timing import CallTimer, NotWaitedFor, Rounds, Schedule, TimedCall
from prooflops.precision import Float32Products
from prooflops.timing import METHOD, median_interval

CACHES = ("as-is", "hot", "cold")
TRIALS_OF_A_CALL = 3
LONGEST_TRIALS = 10.0


class NotRead(dict[str, Any]):
    """Stands for `prooflops.machine.conditions.Conditions` where nothing is read."""

    rival = ""

    def start_rounds(self) -> None:
        pass

    def before_round(self) -> None:
        pass


@dataclass
class Measure:
    """Runs one benchmark and puts its figures into `extra_info`."""

    benchmark: Any
    device: torch.device
    schedule: Schedule | BriefSchedule
    timer: CallTimer
    peak_flop_per_s: Callable[[str], float | None] = lambda dtype: None
    bound_flop_per_s: Callable[[str], float | None] = lambda dtype: None
    flush: Callable[[], Flush] | None = None
    conditions: Callable[[], AbstractContextManager[Any]] = lambda: nullcontext(NotRead())
    at_clock: Callable[[str, float], float | None] = lambda dtype, clock_hz: None
    progress: Progress = no_progress

    def __post_init__(self) -> None:
        self.brief = self.schedule.brief
        self.once = self.schedule.once
        self.skip_if_longer = self.schedule.skip_if_longer
        self.info: dict[str, Any] = self.benchmark.extra_info

    def declare(self, **figures: object) -> None:
        """Puts further figures into the benchmark's record."""
        self.info.update(figures)

    def skip_if_slow(self, function: Callable[[], object], usual: float = 1.0) -> None:
        """Skips if each of three calls takes too long: a single one may have met other work.

        A call may take `usual` times as long as another. It makes fewer calls if they take
        `LONGEST_TRIALS` times as long as one may. Threads that wait for one another after each
        operator take 20 to 40 times as long beside busy processes, which no ceiling shows.
        """
        seconds, limit_s = math.inf, usual * self.schedule.pace.longest_call_s
        began = perf_counter()
        for _ in range(TRIALS_OF_A_CALL):
            seconds = min(seconds, self.timer.call_s(TimedCall(function))[0])
            if seconds <= limit_s or perf_counter() - began > LONGEST_TRIALS * limit_s:
                break
        self.schedule.pace.skip_if_longer(seconds, usual)

    def median_s(
        self,
        function: Callable[[], object],
        *,
        cache: str = "as-is",
        setup: Callable[[], object] | None = None,
        operators: int | None = None,
        sustained_below_s: float = 0.0,
        **declared: object,
    ) -> float:
        """Median time of `function` in seconds: warmed up, in rounds that the clock resolves.

        With `cache` "hot", the operands are where the call before left them, and small enough for a
        cache. With "cold", all caches are flushed before each round, outside of the timed region
        and without waiting in between. With "as-is", nothing is done and nothing claimed. `setup`
        is called before each round (before the flush), outside of the timed region. With it, and in
        cold rounds, a round is one call, because pytest-benchmark allows no other. `operators` is
        the number that the function dispatches. It is None if unknown, or if the function itself
        waits for the device; then the launch cost is not measured. A call shorter than
        `sustained_below_s` is warmed up until an accelerator's clock has settled under it.
        `declared` goes to the record (see docs/explanation/measuring.md).

        Raises AssertionError for a time that is not positive, or much shorter than the device was
        busy, because then nobody waited for it. Raises ValueError for an unknown cache mode.
        """
        __tracebackhide__ = True
        if cache not in CACHES:
            raise ValueError(f"cache must be one of {', '.join(CACHES)}, got {cache!r}")
        flush = self._checked_flush() if cache == "cold" else None
        call = TimedCall(function, setup, flush)
        # The state is read before the warm-up: a device that waits for it works at another clock.
        with self.conditions() as seen:
            try:
                call_s, waited_share = self.schedule.first_calls(self.timer, call)
            except NotWaitedFor:
                if seen.rival:
                    pytest.skip(seen.rival)
                raise
            shortest_s = (
                timing.SHORTEST_ROUND_S
                if self.device.type == "cpu"
                else timing.SHORTEST_DEVICE_ROUND_S
            )
            calls = 1 if call.is_prepared else max(1, math.ceil(shortest_s / call_s))
            self.info.update(
                declared,
                method=METHOD,
                cache=cache,
                calls_per_round=calls,
                waited_share=waited_share,
            )
            sustained = call_s < sustained_below_s
            rounds = self.schedule.rounds(self.timer, call, calls, call_s, sustained)
            self.info.update(rounds.figures)
            rounds_s = rounds.number * calls * rounds.call_s
            self.progress(f"{rounds.number} rounds of {calls * rounds.call_s:.2g} s", rounds_s)
            seen.start_rounds()
            # A process of the gate measures the core's speed itself.
            with nullcontext() if self.brief else looking(self.benchmark, seen.before_round):
                made = run_rounds(self.benchmark, call, calls, rounds, self.timer, flush)
        self.info["conditions"] = {**seen, "calls": made}
        if self.benchmark.stats is None:
            pytest.skip("pytest-benchmark is switched off in this run")
        seconds = float(self.benchmark.stats["median"])
        assert seconds > 0, (
            f"the median time is {seconds} s, but should be positive: does the benchmark wait for "
            "the device?"
        )
        low, high = median_interval(self.benchmark.stats.stats.data) or (None, None)
        self.info.update(rounds=rounds.number, ci_low=low, ci_high=high)
        if operators is not None and setup is None and not self.brief:
            self.info.update(launch.figures(function, seconds, operators, self.device))
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
        ceiling: float | None = None,
        bytes_bound: float | None = None,
        cache: str = "as-is",
        setup: Callable[[], object] | None = None,
        launch: bool = True,
        **declared: object,
    ) -> float:
        """Median time of a function that does `work`, with its rates and all possible checks.

        One call is examined outside of the timed region. The FLOPs declared must be those of the
        products that it dispatches. `counted=False` does not compare them, None only if it
        dispatches any. The tensors it reads must be random; `inputs` names others to examine, `()`
        none. After the rounds the results of that call are overwritten, and `check` gets those of
        one more. So a function that has stopped working does not pass. `launch=False`: the function
        waits for an accelerator itself, see `operators` of `median_s`. `ceiling`: this machine's
        sustainable rate; a call near it is warmed up as long, see `bench.ceilings`. `bytes_bound`
        is a rate that cannot be exceeded; the bound of FLOPs is the device's for `dtype`.
        """
        __tracebackhide__ = True
        launches_alone = launch or self.device.type == "cpu"
        with Float32Products(dtype or "fp32"):
            seen = self.once(partial(self._examined, function, work, setup, counted, inputs))
            seconds = self.median_s(
                function,
                cache=cache,
                setup=setup,
                operators=seen.operators if seen and launches_alone else None,
                sustained_below_s=work.flops / (NEAR_CEILING * ceiling) if ceiling else 0.0,
                dtype=dtype,
                flops=work.flops,
                bytes=work.bytes,
                **declared,
            )
            if check is not None and seen is not None:
                self.once(partial(check_another_call, function, setup, seen, check))
        self._record_rates(work, seconds, dtype, bytes_bound)
        return seconds

    def product(
        self,
        case: Product,
        ceilings: Ceilings,
        *,
        own_kind: bool = False,
        **options: Any,
    ) -> None:
        """Measures a product, see `work`, and records its share of the vendor's peak.

        Its share of this machine's ceiling is recorded too, except for a product of its `own_kind`.
        One with a `setup` does not run at the clock of steady work.

        A process of the gate compares times alone.
        """
        __tracebackhide__ = True
        dtype, work = case.dtype, case.work
        is_steady = not (self.brief or options.get("setup"))
        ceiling = ceilings.flop_per_s(dtype) if is_steady else None
        seconds = self.work(
            case.multiply,
            work,
            dtype=dtype,
            check=case.check,
            counted=True,
            ceiling=ceiling,
            **options,
        )
        if self.brief:
            return
        peak = self.peak_flop_per_s(dtype)
        if own_kind:
            self.info.update(peak_flop_per_s=peak, mfu=mfu(work.flops, seconds, peak))
        else:
            self.info.update(shares_of_product(case, seconds, ceilings, peak))

    def _examined(
        self,
        function: Callable[[], object],
        work: Work,
        setup: Callable[[], object] | None,
        counted: bool | None,
        inputs: Sequence[torch.Tensor] | None,
    ) -> Examined:
        """One call, whose FLOPs are those declared and whose inputs are random."""
        __tracebackhide__ = True
        if setup is not None:
            setup()
        seen = examine(function)
        if counted or (counted is None and seen.flops):
            assert_declared(work.flops, seen)
            self.info["counted_flops"] = seen.flops
        assert_random(seen.inputs if inputs is None else inputs)
        return seen

    def _record_rates(
        self, work: Work, seconds: float, dtype: str | None, bytes_bound: float | None
    ) -> None:
        """Records the rates, each below its bound, and the share of the units at their clock."""
        __tracebackhide__ = True
        flop_dtype = dtype if work.flops else None
        flop_bound = self.bound_flop_per_s(flop_dtype) if flop_dtype else None
        what = f"{dtype or 'work'} on {self.device}"
        self.info.update(
            judged(work, seconds, dtype, what, flop_bound=flop_bound, bytes_bound=bytes_bound)
        )
        clock_mhz = self.info["conditions"].get("during", {}).get("clock_mhz")
        if clock_mhz and flop_dtype:
            units = self.at_clock(flop_dtype, clock_mhz * 1e6)
            self.info.update(share_of_units(work.flops / seconds, clock_mhz, units))

    def _checked_flush(self) -> Flush:
        """The flush of the device, tried out once."""
        __tracebackhide__ = True
        assert self.flush is not None, "a cold benchmark needs a flush"
        flush = self.flush()
        self.once(flush.assert_works)
        return flush


def check_another_call(
    function: Callable[[], object],
    setup: Callable[[], object] | None,
    seen: Examined,
    check: Callable[[Any], None],
) -> None:
    """Overwrites the results of the call that was `seen`, and checks those of one more."""
    __tracebackhide__ = True
    if setup is not None:
        setup()
    overwrite(seen)
    check(function())


@contextmanager
def looking(benchmark: Any, look: Callable[[], None]) -> Iterator[None]:
    """Calls `look` before each round, outside of the timed region.

    No public hook of pytest-benchmark runs between two rounds of several calls.
    """
    make_runner = benchmark._make_runner

    def looked(*arguments: Any) -> Any:
        look()
        return make_runner(*arguments)

    benchmark._make_runner = looked
    try:
        yield
    finally:
        del benchmark._make_runner


def run_rounds(
    benchmark: Any,
    call: TimedCall,
    calls: int,
    rounds: Rounds,
    timer: CallTimer,
    flush: Flush | None,
) -> int:
    """Runs the rounds by pytest-benchmark's `pedantic`, whose set-up is not timed.

    Returns the number of calls, untimed ones included. Raises AssertionError if the caches were not
    flushed before each cold round.
    """
    __tracebackhide__ = True

    # Pedantic would keep the result, and free it outside of the timed region.
    def one() -> None:
        call.function()

    flushed = flush.calls if flush else 0
    before_round = timer.before_round(call, calls, rounds.call_s)
    benchmark.pedantic(
        one if calls == 1 else call.function,
        setup=before_round,
        rounds=rounds.number,
        iterations=calls,
        warmup_rounds=0,
    )
    if flush is not None and benchmark.stats is not None:
        assert flush.calls - flushed >= rounds.number, (
            f"the caches were flushed {flush.calls - flushed} times, but there were "
            f"{rounds.number} cold rounds"
        )
    is_led = before_round is not None and not call.is_prepared
    return rounds.number * (calls + is_led)
