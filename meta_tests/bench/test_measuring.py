"""How a benchmark is measured: warm-up, rounds, and the faults that the measurement has to notice."""

from __future__ import annotations

import random
from collections.abc import Callable
from time import perf_counter, sleep
from typing import Any

import pytest
import torch

from accounting import measured
from accounting.roofline import Work, matmul_work
from bench import cache, launch, measuring
from bench.ceilings import Ceilings
from bench.measuring import METHOD, Measure, assert_within_bound
from bench.pace import PACES, Pace
from bench.products import product
from meta_tests.bench.stand_ins import CPU, SHORT, Rounds, SteadyRounds, measure, supported
from prooflops.machine.caches import Caches, caches_of


def scripted(times: list[float]) -> tuple[Callable[[], float], Callable[[], None], list[int]]:
    """A clock that stands still, and a function that moves it by the next of `times`; the last one goes on for ever."""
    now, calls = [0.0], [0]

    def call() -> None:
        now[0] += times[min(calls[0], len(times) - 1)]
        calls[0] += 1

    return lambda: now[0], call, calls


@pytest.fixture
def one_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[float]], tuple[Callable[[], float], Any, list[int]]]:
    """The host's clock is the scripted one as well."""

    def use(times: list[float]) -> tuple[Callable[[], float], Any, list[int]]:
        clock, call, calls = scripted(times)
        monkeypatch.setattr(measuring, "perf_counter", clock)
        return clock, call, calls

    return use


def test_the_warm_up_ends_when_the_rounds_are_flat_and_not_before(one_clock: Any) -> None:
    falling = [0.01 * 0.8**i for i in range(20)]
    clock, call, _ = one_clock([*falling, 0.001])
    run = measure(clock, Pace(0.0, 10.0, 0.1, 1.0, width=0.01))
    assert run.median_s(call) == pytest.approx(0.001), "the falling times of the warm-up are in the median"
    assert run.info["flat"]
    assert run.info["warmup_s"] > sum(falling[10:]), f"warmed up for {run.info['warmup_s']} s only"


def test_a_warm_up_that_never_becomes_flat_ends_with_its_time_and_is_recorded(one_clock: Any) -> None:
    clock, call, _ = one_clock([0.001 * 1.1**i for i in range(60)])
    run = measure(clock, Pace(0.0, 0.05, 0.1, 1.0, width=0.01))
    run.median_s(call)
    assert not run.info["flat"]
    assert 0.05 <= run.info["warmup_s"] < 0.1, f"warmed up for {run.info['warmup_s']} s, but 0.05 s were allowed"


def test_the_pilot_leaves_out_the_first_third_of_the_warm_up(one_clock: Any) -> None:
    clock, call, _ = one_clock([0.5, 0.4, 0.3, 0.001])
    warm = measure(clock, Pace(0.0, 10.0, 0.1, 1.0, width=0.01))._warm_up(call, 1, None)
    assert warm.flat
    assert warm.pilot == pytest.approx([0.001] * 6), f"{warm.pilot}"


@pytest.mark.parametrize(("noise", "reason"), [(0.0, "interval"), (0.9, "time")])
def test_the_record_says_what_ended_the_rounds(one_clock: Any, noise: float, reason: str) -> None:
    generator = random.Random(4)
    clock, call, _ = one_clock([0.001 * (1 + noise * generator.random()) for _ in range(4000)])
    run = measure(clock, Pace(0.01, 0.02, 0.1, 1.0, width=0.01))
    seconds = run.median_s(call)
    info = run.info
    assert info["stopped_by"] == reason, f"{info}"
    assert info["ci_low"] <= seconds <= info["ci_high"], f"{info}"
    assert (info["ci_high"] - info["ci_low"] <= 0.01 * seconds) == (reason == "interval"), f"{info}"
    assert info["rounds"] == len(run._benchmark.kept), f"{info['rounds']} recorded, {len(run._benchmark.kept)} run"


@pytest.mark.parametrize(
    ("times", "held_up"),
    [([0.2], True), ([0.1], False), ([0.9, 0.1], False), ([0.1, 0.2, 0.1], False), ([0.1, 0.2, 0.2, 0.1], True)],
)
def test_what_takes_several_times_as_long_as_it_may_is_left_out(
    one_clock: Any, times: list[float], held_up: bool
) -> None:
    clock, call, _ = one_clock(times)
    said = skipped(lambda: measure(clock, PACES["quick"]).skip_if_held_up(call))
    assert ("s, 0.15 s are allowed: does other work hold it up?" in said) == held_up, f"{said!r}"


@pytest.mark.parametrize(
    ("times", "made", "skips"),
    [
        ([0.04, 0.06], 1, False),
        ([0.07, 0.07, 0.04], 3, False),
        ([0.07, 0.06, 0.08, 0.04], 3, True),
        ([0.2, 0.04], 1, True),
    ],
)
def test_a_slow_moment_leaves_nothing_out(one_clock: Any, times: list[float], made: int, skips: bool) -> None:
    clock, call, calls = one_clock(times)
    said = skipped(lambda: measure(clock, PACES["quick"]).skip_if_slow(call))
    assert (f"one call takes about {min(times[:made]):.2g} s, 0.05 s are allowed" in said) == skips, f"{said!r}"
    assert calls[0] == made


def test_what_is_held_up_later_is_left_out_then(one_clock: Any) -> None:
    clock, call, calls = one_clock([0.1, 0.1, 0.1, 0.5])
    run = measure(clock, PACES["quick"])
    run.skip_if_late()
    run.skip_if_held_up(call)
    said = ""
    while not said:
        call()
        said = skipped(run.skip_if_late)
    assert said == "it took 4.8 s so far, 4.5 s are allowed: does other work hold it up?"
    assert calls[0] == 3 + 9


def skipped(look: Callable[[], None]) -> str:
    """Why it skips; empty where it does not."""
    try:
        look()
    except pytest.skip.Exception as reason:
        return str(reason)
    return ""


def test_short_calls_share_a_round_and_long_ones_do_not(one_clock: Any) -> None:
    calls_per_round = {}
    for seconds in (1e-6, 1e-3):
        clock, call, _ = one_clock([seconds])
        run = measure(clock)
        assert run.median_s(call) == pytest.approx(seconds)
        calls_per_round[seconds] = run.info["calls_per_round"]
    assert calls_per_round == {1e-6: 100, 1e-3: 1}


def test_a_set_up_runs_before_each_round_and_is_not_in_its_time(one_clock: Any) -> None:
    clock, call, _ = one_clock([1e-6])
    runs = [0]

    def setup() -> str:
        runs[0] += 1
        return "not an argument"

    run = measure(clock)
    assert run.median_s(call, setup=setup) == pytest.approx(1e-6)
    assert run.info["calls_per_round"] == 1
    assert runs[0] > run.info["rounds"], f"{runs[0]} set-ups for {run.info['rounds']} rounds and the warm-up"


def test_an_unknown_cache_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="cache must be one of as-is, hot, cold, got 'warm'"):
        measure().median_s(lambda: None, cache="warm")


KERNEL_S = 2e-4


class Accelerator:
    """A device that works behind the host's back: a kernel takes 0.2 ms, its launch nothing."""

    def __init__(self) -> None:
        self._busy_until = 0.0

    def kernel(self) -> None:
        self._busy_until = max(self._busy_until, perf_counter()) + KERNEL_S

    def wait(self, *_: object) -> None:
        sleep(max(self._busy_until - perf_counter(), 0))

    def clock(self) -> float:
        self.wait()
        return perf_counter()


def test_a_clock_that_does_not_wait_for_the_device_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Accelerator()
    monkeypatch.setattr(measured, "synchronise", device.wait)
    with pytest.raises(AssertionError, match=r"the clock saw \d% of the time .* was the device waited for\?"):
        measure(perf_counter).median_s(device.kernel)


def test_a_clock_that_waits_for_the_device_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Accelerator()
    monkeypatch.setattr(measured, "synchronise", device.wait)
    run = measure(device.clock)
    assert run.median_s(device.kernel) >= KERNEL_S
    assert run.info["waited_share"] > 0.5


def operands(m: int = 48, k: int = 96, n: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(m, k), torch.randn(k, n)


WORK = matmul_work(48, 96, 64, "fp32")


def test_a_right_benchmark_passes_all_checks() -> None:
    a, b = operands()
    run = measure()
    seconds = run.work(lambda: a @ b, WORK, dtype="fp32", check=lambda got: torch.testing.assert_close(got, a @ b))
    info = run.info
    assert info["flop_per_s"] == WORK.flops / seconds
    assert info["bytes_per_s"] == WORK.bytes / seconds
    assert info["intensity"] == WORK.intensity
    assert info["counted_flops"] == WORK.flops == info["flops"]


def test_a_halved_flop_count_is_noticed() -> None:
    a, b = operands()
    with pytest.raises(AssertionError, match=rf"{WORK.flops // 2} FLOPs are declared, but should be the {WORK.flops} "):
        measure().work(lambda: a @ b, Work(WORK.flops // 2, WORK.bytes), dtype="fp32")


@pytest.mark.parametrize("value", [0.0, 1.0, float("nan")])
def test_zeros_and_other_constants_for_inputs_are_noticed(value: float) -> None:
    a, b = operands()
    with pytest.raises(AssertionError, match=r"100% of an input of \(96, 64\) torch.float32 are .* should be random"):
        measure().work(lambda: a @ torch.nn.functional.relu(b.fill_(value)), WORK, dtype="fp32", counted=False)
    with pytest.raises(AssertionError, match="inputs should be random"):
        measure().work(lambda: a @ b, WORK, dtype="fp32")


def test_a_wrong_result_is_noticed() -> None:
    case = product("fp32", 48, 96, 64, CPU)
    with pytest.raises(AssertionError, match="a product of fp32 differs from fp64"):
        measure().work(lambda: case.a @ case.b / 2, case.work, dtype="fp32", check=case.check)


def test_a_rate_above_a_bound_is_noticed() -> None:
    a, b = operands()
    with pytest.raises(AssertionError, match=r"FLOP/s, but its units do at most 1: the FLOPs or the clock are wrong"):
        measure().work(lambda: a @ b, WORK, dtype="fp32", flop_bound=1.0)
    with pytest.raises(AssertionError, match=r"B/s, but its units do at most 1: the bytes or the clock are wrong"):
        measure().work(lambda: a @ b, WORK, dtype="fp32", bytes_bound=1.0)


@pytest.fixture
def flush() -> cache.Flush:
    """The flush of this machine, for this test alone."""
    return cache.flush_of(CPU, caches_of(CPU))


def test_a_cold_round_starts_after_a_flush_and_the_record_says_so(flush: cache.Flush) -> None:
    x = torch.randn(4096)
    run = measure(flush=lambda: flush)
    run.median_s(lambda: x.sum(), cache="cold")
    info = run.info
    assert (info["cache"], info["calls_per_round"]) == ("cold", 1)
    assert info["flush_bytes"] == flush.bytes
    assert info["flush_capped"] or info["flush_bytes"] >= 2 * (flush.caches.last_level_bytes or 0)


def test_a_function_that_stops_working_after_its_first_call_is_noticed() -> None:
    a, b, out, calls = torch.randn(64, 64), torch.randn(64, 64), torch.empty(64, 64), [0]
    exact = a @ b

    def once() -> torch.Tensor:
        calls[0] += 1
        return torch.mm(a, b, out=out) if calls[0] == 1 else out

    def check(got: torch.Tensor) -> None:
        torch.testing.assert_close(got, exact)

    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        measure().work(once, matmul_work(64, 64, 64, "fp32"), check=check)


def test_rounds_without_their_flush_are_noticed(flush: cache.Flush) -> None:
    run = measure(flush=lambda: flush)
    pedantic = run._benchmark.pedantic
    run._benchmark.pedantic = lambda *args, setup, **options: pedantic(*args, setup=None, **options)
    with pytest.raises(AssertionError, match=r"the caches were flushed 0 times, but should before each of \d+ cold"):
        run.median_s(lambda: sleep(1e-4), cache="cold")


class Moment:
    """A reading of a clock that logs when it is taken, and when somebody waits for it."""

    def __init__(self, log: list[str], now: float) -> None:
        self._log, self._at = log, now
        log.append("event")

    def __sub__(self, earlier: Moment) -> float:
        self._log.append("wait")
        return self._at - earlier._at


@pytest.mark.parametrize("mode", ["cold", "hot"])
def test_on_cuda_nothing_waits_between_what_keeps_the_device_busy_and_the_timed_call(
    monkeypatch: pytest.MonkeyPatch, one_clock: Any, mode: str
) -> None:
    log: list[str] = []
    now, pass_time, _ = one_clock([2e-3])

    class Flush(cache.Flush):
        check = None

        def __call__(self) -> None:
            log.append("flush")
            self.calls += 1

    monkeypatch.setattr(measured, "synchronise", lambda device: log.append("wait"))
    monkeypatch.setattr(launch, "figures", lambda *_: {})

    flush = Flush(torch.zeros(1), False, Caches())

    def kernel() -> None:
        log.append("kernel")
        pass_time()

    def timer() -> Moment:
        return Moment(log, now())

    run = Measure(Rounds(timer), torch.device("cuda"), SHORT, timer=timer, flush=lambda: flush)
    pedantic = run._benchmark.pedantic
    run._benchmark.pedantic = lambda *arguments, **options: (log.clear(), pedantic(*arguments, **options))
    run.median_s(kernel, cache=mode)
    before = ["flush"] if mode == "cold" else ["kernel"]
    assert log == [*before, "event", "kernel", "event", "wait"] * run.info["rounds"], f"{log[:10]}"


@pytest.mark.parametrize("operators", [None, 3])
def test_only_of_functions_that_do_not_wait_for_the_device_is_the_launch_asked(
    monkeypatch: pytest.MonkeyPatch, operators: int | None
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(launch, "figures", lambda *_: asked.append(1) or {})
    measure().median_s(lambda: sleep(1e-5), operators=operators)
    assert len(asked) == (operators is not None)


def test_on_cuda_an_untimed_call_keeps_the_device_busy_while_the_timed_one_is_launched() -> None:
    run = Measure(Rounds(), torch.device("cuda"), SHORT, timer=perf_counter)
    calls: list[int] = []

    def call() -> torch.Tensor:
        calls.append(1)
        return torch.ones(3)

    lead = run._lead(call, 1, 1e-3)
    assert lead is not None
    assert lead() is None, "pytest-benchmark takes what a set-up returns for arguments"
    assert calls == [1]
    assert run._lead(lambda: None, 1, 1.0) is None, "a call of a second needs no lead"
    assert run._lead(lambda: None, 8, 1e-4) is None, "pytest-benchmark allows no set-up with several calls"
    assert measure()._lead(lambda: None, 1, 1e-3) is None, "the CPU's clock needs no lead"


def test_a_rate_above_the_physical_bound_fails_and_an_unknown_bound_does_not() -> None:
    assert_within_bound(1e12, 1e12, "a product")
    assert_within_bound(1e30, None, "a product")
    with pytest.raises(AssertionError, match=r"measured 1.1e\+12 FLOP/s, but its units do at most 1e\+12"):
        assert_within_bound(1.1e12, 1e12, "a product")


def run_measure(seconds: float, bound: float | None) -> dict[str, Any]:
    benchmark = SteadyRounds(seconds)
    ceilings = Ceilings(CPU, PACES["quick"])
    ceilings._flop_per_s["fp32", "sustainable"] = 1e6
    case = supported("fp32")
    measure = Measure(benchmark, CPU, PACES["quick"], lambda dtype: 1e15, lambda dtype: bound)
    measure.product(case.multiply, "fp32", case.work, ceilings, check=case.check)
    return benchmark.extra_info


def test_a_benchmark_records_what_it_declared_and_what_follows() -> None:
    work = supported("fp32").work
    info = run_measure(seconds=1.0, bound=None)
    assert info["method"] == METHOD
    assert (info["flops"], info["bytes"]) == (2 * 48 * 96 * 64, 4 * (48 * 96 + 96 * 64 + 48 * 64))
    assert info["flop_per_s"] == work.flops
    assert info["mfu"] == work.flops / 1e15
    assert info["share_of_ceiling"] == work.flops / 1e6
    assert not info["ceiling_remeasured"]


def test_a_share_above_one_has_the_ceiling_measured_again() -> None:
    info = run_measure(seconds=0.1, bound=None)
    assert info["ceiling_remeasured"]
    assert info["ceiling_flop_per_s"] > 1e6


def test_a_benchmark_faster_than_its_units_fails() -> None:
    with pytest.raises(AssertionError, match="the FLOPs or the clock are wrong"):
        run_measure(seconds=1e-9, bound=1e12)


def test_a_time_of_zero_is_refused() -> None:
    with pytest.raises(AssertionError, match="was the device waited for"):
        run_measure(seconds=0.0, bound=None)
