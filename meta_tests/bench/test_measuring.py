"""How a benchmark is timed, skipped and checked, by a clock that is scripted or this machine's own."""

from __future__ import annotations

import random
from collections.abc import Callable
from time import sleep
from typing import Any

import pytest
import torch

from accounting import measured
from accounting.measured import median_interval
from accounting.roofline import Work, matmul_work
from bench import cache, launch, measuring, timing
from bench.brief import Asked, BriefSchedule
from bench.ceilings import Ceilings
from bench.measuring import METHOD, Measure
from bench.rounds import FEWEST_ROUNDS, PACES, Pace, is_flat, rounds_for
from bench.timing import Schedule
from meta_tests.bench.stand_ins import CPU, SHORT, Rounds, measure, steady, supported
from meta_tests.simulated_card.api import simulated
from meta_tests.simulated_card.card import KERNEL_S, Card
from prooflops.machine.caches import Caches, caches_of


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[float]], tuple[Callable[[], float], Any, list[int]]]:
    """A clock, the host's as well, and a function that moves it by the next of `times`; the last one lasts for ever."""

    def use(times: list[float]) -> tuple[Callable[[], float], Any, list[int]]:
        now, calls = [0.0], [0]

        def call() -> None:
            now[0] += times[min(calls[0], len(times) - 1)]
            calls[0] += 1

        for module in (measuring, timing):
            monkeypatch.setattr(module, "perf_counter", lambda: now[0])
        return lambda: now[0], call, calls

    return use


def skipped(look: Callable[[], object]) -> str:
    """Why it skips; empty where it does not."""
    try:
        look()
    except pytest.skip.Exception as reason:
        return str(reason)
    return ""


# ---- rounds ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [0.01, 0.05, 0.2])
def test_the_rounds_that_a_pilot_asks_for_make_the_interval_narrow(spread: float) -> None:
    """In three of four cases at least: a pilot of 30 rounds knows the spread to a fifth."""
    generator, narrow, width = random.Random(1), 0, 0.05
    for _ in range(200):
        pilot = [generator.lognormvariate(0, spread) for _ in range(30)]
        rounds = rounds_for(width, pilot, most=10_000)
        low, high = median_interval([generator.lognormvariate(0, spread) for _ in range(rounds)]) or (0.0, 9.0)
        narrow += high - low <= width
    assert narrow >= 150, f"{narrow} of 200 intervals were narrower than {width}, but at least 150 should be"


def test_a_drift_is_not_flat_and_noise_about_a_level_is() -> None:
    generator = random.Random(3)
    assert not is_flat([1 / (1 + i / 50) for i in range(30)]), "a clock that still rises was taken for a flat one"
    assert is_flat([generator.lognormvariate(0, 0.01) for _ in range(90)]), "noise of 1 % was taken for a drift"
    assert all(pace.warmup_s <= pace.longest_warmup_s for pace in PACES.values())
    assert all(pace.most_rounds >= FEWEST_ROUNDS for pace in PACES.values())


def test_the_warm_up_ends_when_the_rounds_are_flat_and_not_before(scripted: Any) -> None:
    falling = [0.01 * 0.8**i for i in range(20)]
    clock, call, _ = scripted([*falling, 0.001])
    run = measure(clock, Pace(0.0, 10.0, 0.1, 1.0, width=0.01))
    assert run.median_s(call) == pytest.approx(0.001), "the falling times of the warm-up are in the median"
    assert run.info["flat"]
    assert run.info["warmup_s"] > sum(falling[10:]), f"warmed up for {run.info['warmup_s']} s only"


def test_a_warm_up_that_never_becomes_flat_ends_with_its_time_and_is_recorded(scripted: Any) -> None:
    clock, call, _ = scripted([0.001 * 1.1**i for i in range(60)])
    run = measure(clock, Pace(0.0, 0.05, 0.1, 1.0, width=0.01))
    run.median_s(call)
    assert not run.info["flat"]
    assert 0.05 <= run.info["warmup_s"] < 0.1, f"warmed up for {run.info['warmup_s']} s, but 0.05 s were allowed"


@pytest.mark.parametrize(("noise", "reason"), [(0.0, "interval"), (0.9, "time")])
def test_the_record_says_what_ended_the_rounds(scripted: Any, noise: float, reason: str) -> None:
    generator = random.Random(4)
    clock, call, _ = scripted([0.001 * (1 + noise * generator.random()) for _ in range(4000)])
    run = measure(clock, Pace(0.01, 0.02, 0.1, 1.0, width=0.01))
    seconds, info = run.median_s(call), run.info
    assert (info["stopped_by"], info["method"]) == (reason, METHOD)
    assert info["ci_low"] <= seconds <= info["ci_high"], f"{info}"
    assert (info["ci_high"] - info["ci_low"] <= 0.01 * seconds) == (reason == "interval"), f"{info}"


@pytest.mark.parametrize(("seconds", "calls_per_round"), [(1e-6, 100), (1e-3, 1)])
def test_short_calls_share_a_round_and_long_ones_do_not(scripted: Any, seconds: float, calls_per_round: int) -> None:
    clock, call, _ = scripted([seconds])
    run = measure(clock)
    assert run.median_s(call) == pytest.approx(seconds)
    assert run.info["calls_per_round"] == calls_per_round


def test_a_set_up_runs_before_each_round_and_is_not_in_its_time(scripted: Any) -> None:
    clock, call, _ = scripted([1e-6])
    runs: list[int] = []
    run = measure(clock)
    assert run.median_s(call, setup=lambda: runs.append(1)) == pytest.approx(1e-6)
    assert len(runs) > run.info["rounds"], f"{len(runs)} set-ups for {run.info['rounds']} rounds and the warm-up"


# ---- skipping ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "held_up"),
    [([0.2], True), ([0.1], False), ([0.9, 0.1], False), ([0.1, 0.2, 0.1], False), ([0.1, 0.2, 0.2, 0.1], True)],
)
def test_calls_of_several_times_the_allowed_length_are_skipped(
    scripted: Any, times: list[float], held_up: bool
) -> None:
    clock, call, _ = scripted(times)
    said = skipped(lambda: measure(clock, PACES["quick"]).skip_if_held_up(call))
    assert ("s, 0.15 s are allowed: does other work hold it up?" in said) == held_up, f"{said!r}"


@pytest.mark.parametrize(
    ("times", "made", "skips"),
    [([0.04, 0.06], 1, 0), ([0.07, 0.07, 0.04], 3, 0), ([0.07, 0.06, 0.08, 0.04], 3, 1), ([0.2, 0.04], 1, 1)],
)
def test_a_slow_moment_skips_nothing(scripted: Any, times: list[float], made: int, skips: bool) -> None:
    clock, call, calls = scripted(times)
    said = skipped(lambda: measure(clock, PACES["quick"]).skip_if_slow(call))
    assert (f"one call takes about {min(times[:made]):.2g} s, 0.05 s are allowed" in said) == skips, f"{said!r}"
    assert calls[0] == made


# ---- checks ------------------------------------------------------------------------------------------------------

WORK = matmul_work(48, 96, 64, "fp32")


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(48, 96), torch.randn(96, 64)


def test_a_right_benchmark_passes_all_checks_and_records_its_rates() -> None:
    a, b = operands()
    run = measure()
    seconds = run.work(lambda: a @ b, WORK, dtype="fp32", check=lambda got: torch.testing.assert_close(got, a @ b))
    assert run.info["flop_per_s"] == WORK.flops / seconds
    assert run.info["bytes_per_s"] == WORK.bytes / seconds
    assert run.info["counted_flops"] == WORK.flops == run.info["flops"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"work": Work(WORK.flops // 2, WORK.bytes)}, "FLOPs are declared, but should be the"),
        ({"flop_bound": 1.0}, "FLOP/s, but its units do at most 1: the FLOPs or the clock are wrong"),
        ({"bytes_bound": 1.0}, "B/s, but its units do at most 1: the bytes or the clock are wrong"),
        ({"inputs": (torch.full((64, 64), torch.nan),)}, "100% of an input .* are nan, but inputs should be random"),
        ({"check": lambda got: torch.testing.assert_close(got, 2 * got)}, "Tensor-likes are not close"),
    ],
)
def test_a_wrong_declaration_a_constant_input_and_an_impossible_rate_are_noticed(
    wrong: dict[str, Any], message: str
) -> None:
    a, b = operands()
    with pytest.raises(AssertionError, match=message):
        measure().work(lambda: a @ b, **{"work": WORK, "dtype": "fp32", **wrong})


def test_a_product_above_its_ceiling_has_that_measured_again_and_a_burst_leaves_the_steady_one() -> None:
    case, ceilings = supported("fp32"), Ceilings(CPU, PACES["quick"])
    ceilings._flop_per_s |= {("fp32", "sustainable"): 1e6, ("fp32", "achievable"): 1e15}
    burst = steady(1e-3)
    burst.product(case.multiply, "fp32", case.work, ceilings, check=case.check, regime="achievable")
    assert (burst.info["ceiling_flop_per_s"], burst.info["ceiling_remeasured"]) == (1e15, False)
    assert ceilings.flop_per_s("fp32") == 1e6, "a burst became the denominator of steady work"
    run = steady(0.1, lambda dtype: 1e15)
    run.product(case.multiply, "fp32", case.work, ceilings, check=case.check)
    assert run.info["ceiling_remeasured"]
    assert run.info["ceiling_flop_per_s"] > 1e6
    assert run.info["mfu"] == pytest.approx(case.work.flops / 0.1 / 1e15)


# ---- cold rounds -------------------------------------------------------------------------------------------------


def test_a_cold_round_starts_after_a_flush_and_the_record_says_so() -> None:
    flush, x = cache.flush_of(CPU, caches_of(CPU)), torch.randn(4096)
    run = measure(flush=lambda: flush)
    run.median_s(lambda: x.sum(), cache="cold")
    assert (run.info["cache"], run.info["calls_per_round"]) == ("cold", 1)
    assert run.info["flush_bytes"] == flush.bytes
    pedantic = run._benchmark.pedantic
    run._benchmark.pedantic = lambda *args, setup, **options: pedantic(*args, setup=None, **options)
    with pytest.raises(AssertionError, match=r"the caches were flushed 0 times, but should before each of \d+ cold"):
        run.median_s(lambda: sleep(1e-4), cache="cold")


def test_a_flush_is_twice_the_last_level_or_says_that_it_is_not() -> None:
    for level, memory, expected in (
        (32 * 2**20, 64 * 2**30, (64 * 2**20, False)),
        (480 * 2**20, 64 * 2**30, (960 * 2**20, False)),  # a container that sees its host's caches
        (480 * 2**20, 4 * 2**30, (256 * 2**20, True)),
        (1152 * 2**20, 512 * 2**30, (2**30, True)),
        (None, 64 * 2**30, (128 * 2**20, False)),
    ):
        known = Caches({"L3": level} if level else {}, memory_bytes=memory)
        assert cache.flush_bytes(CPU, known) == expected, f"of a last level of {level} bytes and {memory} of memory"
    for level, size in ((50 * 2**20, 256 * 2**20), (200 * 2**20, 400 * 2**20)):
        assert cache.flush_bytes(torch.device("cuda"), Caches({"L2": level})) == (size, False)


@pytest.mark.parametrize("mode", ["cold", "hot"])
def test_on_a_card_neither_the_launch_nor_the_flush_is_in_the_time(mode: str) -> None:
    with simulated(Card(memory_bytes=2**30)) as kernels:
        device = kernels.card.device
        flush = cache.flush_of(device, caches_of(device))
        run = Measure(Rounds(measured.clock(device)), device, Schedule(SHORT), flush=lambda: flush)
        seconds = run.median_s(lambda: torch.cuda._sleep(3_400_000), cache=mode)
    assert seconds == pytest.approx(2e-3 + KERNEL_S, abs=1e-6)


def test_an_operator_on_one_element_is_launch_bound_and_a_large_product_is_not() -> None:
    """Three tries: what launching costs and what the operator takes are two measurements, and a machine may be busy."""
    tiny, (a, b) = torch.randn(64), (torch.randn(512, 512), torch.randn(512, 512))
    out = torch.empty_like(tiny)  # allocating a result takes as long again, and is no launching
    for _ in range(3):
        launch._empty_operator_s.cache_clear()  # of the same moment as what is compared with it
        run = measure()
        run.work(lambda: torch.add(tiny, tiny, out=out), Work(64, 3 * 256))
        if run.info.get("bound") == "launch":
            break
    assert run.info.get("bound") == "launch", f"{run.info['launch_share']} of the time is launching"
    run = measure()
    run.work(lambda: a @ b, matmul_work(512, 512, 512, "fp32"), dtype="fp32")
    assert run.info["launch_share"] < 0.1, f"{run.info['launch_share']:.2f} of a large product is launching"


# ---- in a process of the gate ------------------------------------------------------------------------------------


def brief(examined: bool = True, clock: Any = None, **asked: Any) -> Measure:
    schedule = BriefSchedule(Asked(0.0201, 3, examined, **asked), PACES["quick"])
    return Measure(Rounds(*[clock] if clock else []), CPU, schedule, clock=clock)


@pytest.mark.parametrize(("call_s", "rounds"), [(1e-3, 20), (0.02, 3)])
def test_rounds_of_the_gate_are_as_many_as_fit_and_never_fewer_than_asked(
    scripted: Any, call_s: float, rounds: int
) -> None:
    clock, call, calls = scripted([call_s])
    run = brief(clock=clock)
    assert run.median_s(call) == pytest.approx(call_s)
    assert run.info["rounds"] == rounds
    assert calls[0] <= rounds + 2, f"{calls[0]} calls for {rounds} rounds"


@pytest.mark.parametrize(("call_s", "pages", "calls"), [(0.1, [9, 99, 0], 1), (0.1, [99, 99, 9, 0], 3), (0.3, [99], 1)])
def test_calls_go_before_the_rounds_until_one_gets_no_new_pages(
    monkeypatch: pytest.MonkeyPatch, scripted: Any, call_s: float, pages: list[int], calls: int
) -> None:
    clock, call, done = scripted([call_s])
    monkeypatch.setattr("bench.brief.new_pages", lambda: sum(pages[: done[0]]))
    monkeypatch.setattr(measuring, "run_rounds", lambda *_: pytest.skip("the rounds"))
    assert skipped(lambda: brief(clock=clock).median_s(call)) == "the rounds"
    assert done[0] == calls


def test_the_first_process_of_the_gate_examines_and_says_how_long_that_took(monkeypatch: pytest.MonkeyPatch) -> None:
    case, left_out, looks = supported("fp32"), list[float](), list[int]()
    right = measuring.examine
    monkeypatch.setattr(measuring, "examine", lambda function: (looks.append(1), right(function))[1])
    for examined in (False, True):
        run = brief(examined, leave_out=left_out.append)
        run.product(case.multiply, "fp32", case.work, Ceilings(CPU, PACES["quick"]), check=case.check)
        assert len(looks) == 1
        assert run.info["flops"] == case.work.flops, "what is compared exactly is in every process"
    assert len(left_out) == 2, "the look before the rounds, and that at the result after them"
    assert min(left_out) > 0
    with pytest.raises(AssertionError, match="a product of fp32 differs from fp64"):
        brief(False).work(lambda: case.a @ case.b / 2, case.work, dtype="fp32", check=case.check)


@pytest.mark.parametrize("examined", [False, True])
def test_the_gate_searches_nothing_and_skips_nothing_that_ran_before(
    monkeypatch: pytest.MonkeyPatch, examined: bool
) -> None:
    monkeypatch.setattr(Ceilings, "found", lambda *_: pytest.fail("a ceiling was searched"))
    ceilings = Ceilings(CPU, PACES["quick"])
    brief(examined).skip_if_longer(1e3, "fp32", ceilings)
    brief(examined).skip_if_held_up(lambda: pytest.fail("a call, for nothing"))
    said = skipped(lambda: brief(examined).skip_if_longer(1e18, "fp32", ceilings))
    assert ("0.05 s are allowed" in said) is not examined
