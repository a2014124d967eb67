"""How a benchmark is timed and checked, by a clock that is scripted or this machine's own."""

import random
from contextlib import nullcontext
from functools import partial
from itertools import chain, repeat
from types import SimpleNamespace

import pytest
import torch

from accounting.roofline import Work, matmul_work
from bench import cache, launch, measuring, timing
from bench.brief import Asked, BriefSchedule
from bench.ceilings import PROBE, Ceilings
from bench.products import product
from bench.rates import shares_of
from bench.rounds import FEWEST_ROUNDS, PACES, SAMPLED_S, Pace, rounds_for
from bench.search import Found
from meta_tests.bench.stand_ins import CPU, SHORT, measure, skips, supported
from meta_tests.card.api import simulated
from meta_tests.card.card import SHORTEST_KERNEL_S, Card
from prooflops.machine.caches import caches_of
from prooflops.machine.conditions import conditions
from prooflops.machine.device import flop_per_s_at_clock
from prooflops.timing import METHOD, clock, median_interval


@pytest.fixture
def scripted(monkeypatch):
    """A clock, the host's as well, and a function that moves it by the next of `times`; the last
    one lasts for ever.
    """

    def use(times):
        now = 64.0
        steps = chain(times, repeat(times[-1]))

        def call():
            nonlocal now
            now += next(steps)

        def clock():
            return now

        for module in (measuring, timing):
            monkeypatch.setattr(module, "perf_counter", clock)
        return clock, call

    return use


@pytest.mark.parametrize("spread", [0.01, 0.05, 0.2])
def test_the_rounds_that_a_pilot_asks_for_make_the_interval_narrow(spread):
    """In three of four cases at least: a pilot of 30 rounds knows the spread to a fifth."""
    generator = random.Random(1)

    def times(rounds):
        return [generator.lognormvariate(0, spread) for _ in range(rounds)]

    intervals = [
        median_interval(times(rounds_for(0.05, times(30), most=10_000))) for _ in range(200)
    ]
    narrow = sum(high - low <= 0.05 for low, high in intervals)
    assert narrow >= 150


def test_the_warm_up_ends_when_the_rounds_are_flat_and_not_before(scripted):
    falling = [0.01 * 0.8**i for i in range(20)]
    clock, call = scripted([*falling, 0.001])
    run = measure(clock, Pace(0.0, 10.0, 0.1, 1.0, width=0.01))
    assert run.median_s(call, sustained_below_s=1.0) == pytest.approx(0.001)
    assert run.info["flat"]
    assert run.info["warmup_s"] > sum(falling[10:])


@pytest.mark.parametrize("noise", [0.0, 0.9])
def test_rounds_narrow_the_interval_or_fill_the_time(scripted, noise):
    generator = random.Random(4)
    clock, call = scripted([0.001 * (1 + noise * generator.random()) for _ in range(4000)])
    run = measure(clock, Pace(0.01, 0.02, 0.1, 1.0, width=0.01))
    seconds, info = run.median_s(call), run.info
    assert info["method"] == METHOD
    assert info["ci_low"] <= seconds <= info["ci_high"]
    is_narrow = info["ci_high"] - info["ci_low"] <= 0.01 * seconds
    assert is_narrow or info["rounds"] * seconds == pytest.approx(0.1, rel=0.1)
    assert is_narrow == (info["rounds"] == FEWEST_ROUNDS) == (not noise)


@pytest.mark.parametrize("rival", ["", "another process"])
def test_a_clock_must_see_half_of_the_time_of_the_host(scripted, rival):
    clock, call = scripted([0.01])
    seen = measuring.NotRead()
    seen.rival = rival

    def run(share):
        return measure(lambda: share * clock(), conditions=lambda: nullcontext(seen))

    waits = run(0.6)
    waits.median_s(call)
    assert waits.info["waited_share"] == pytest.approx(0.6)
    refused = pytest.skip.Exception if rival else AssertionError
    with pytest.raises(refused, match=rival or "the timer saw only 40% of the time"):
        run(0.4).median_s(call)
    with pytest.raises(AssertionError, match="should be positive"):
        measure(clock, seconds=0.0).median_s(call)


def test_a_process_of_the_gate_compares_times_alone():
    case, seen = supported("fp32"), measuring.NotRead(during={})
    # It looks at nothing before a round.
    seen.before_round = None
    schedule = BriefSchedule(Asked(0.0, 5, False, lambda _: None), SHORT)
    run = measure(schedule=schedule, conditions=lambda: nullcontext(seen))
    run.product(case, Ceilings(CPU, SHORT))
    assert (run.info["counted_flops"], run.info["rounds"]) == (case.work.flops, 5)
    assert not run.info.keys() & {"launch_share", "mfu", "share_of_ceiling"}


def test_a_set_up_as_long_as_its_call_leaves_time_for_half_of_the_rounds(scripted):
    clock, call = scripted([0.01, 0.011, 0.012] * 4000)
    rounds = []
    for setup in (None, call):
        run = measure(clock, Pace(0.1, 0.2, 4.0, 1.0, width=0.001))
        run.median_s(call, setup=setup)
        rounds.append(run.info["rounds"])
    assert rounds[1] == pytest.approx(rounds[0] / 2, rel=0.15)


@pytest.mark.parametrize("call_s", [3e-6, 7e-5, 0.01])
def test_a_round_has_the_fewest_calls_that_the_clock_resolves(scripted, call_s):
    clock, call = scripted([call_s])
    run = measure(clock)
    run.median_s(call)
    calls = run.info["calls_per_round"]
    assert calls * call_s >= timing.SHORTEST_ROUND_S
    assert calls == 1 or (calls - 1) * call_s < timing.SHORTEST_ROUND_S


def test_what_looks_before_a_round_takes_no_part_of_it(scripted):
    clock, call = scripted([0.1, 0.1, 0.1, 0.1, 0.03, 0.1])
    looked = []

    class Seen(measuring.NotRead):
        def before_round(self):
            call()
            looked.append(clock())

    seen = Seen()
    run = measure(clock, Pace(0.0, 0.0, 0.6, 1.0, width=0.01), conditions=lambda: nullcontext(seen))
    assert run.median_s(call) == pytest.approx(0.1)
    assert len(looked) == run.info["rounds"]


WORK = matmul_work(48, 96, 64, "fp32")


def test_a_right_benchmark_passes_all_checks_and_records_its_rates():
    a, b = torch.randn(48, 96), torch.randn(96, 64)
    run = measure()
    seconds = run.work(
        lambda: a @ b, WORK, dtype="fp32", check=lambda got: torch.testing.assert_close(got, a @ b)
    )
    assert run.info["flop_per_s"] == WORK.flops / seconds
    assert run.info["bytes_per_s"] == WORK.bytes / seconds
    assert run.info["counted_flops"] == WORK.flops == run.info["flops"]
    with pytest.raises(AssertionError, match="FLOPs are declared"):
        measure().work(lambda: a @ b, Work(1, 0), check=lambda _: None)
    with pytest.raises(AssertionError, match="should be random"):
        measure().work(torch.ones(64).neg, Work(0, 512))


def test_launches_take_a_share_in_proportion_to_the_operators():
    def figures(seconds, operators):
        return launch.figures(int, seconds, operators, torch.device("cpu"))

    assert figures(1.0, 2000)["launch_share"] == 2 * figures(1.0, 1000)["launch_share"] < 0.5
    assert figures(1e-9, 1000).items() >= {"launch_share": 1.0, "bound": "launch"}.items()
    assert "bound" not in figures(1.0, 1000)


def call_after_a_set_up(run, call):
    prepared = set()

    def function():
        prepared.remove("once")
        call()

    run.work(
        function,
        Work(0, 8),
        setup=lambda: prepared.add("once"),
        check=lambda result: None,
    )


def test_each_call_follows_a_set_up(scripted):
    clock, call = scripted([1e-5])
    call_after_a_set_up(measure(clock), call)


@pytest.mark.parametrize("mode", ["cold", "hot"])
def test_on_a_card_neither_the_launch_nor_the_flush_is_in_the_time(mode):
    with simulated(Card(memory_bytes=2**30)) as kernels:
        device = kernels.card.device
        flush = cache.flush_of(device, caches_of(device))
        run = measure(clock(device), device=device, flush=lambda: flush)
        seconds = run.median_s(lambda: torch.cuda._sleep(3_400_000), cache=mode)
    assert seconds == pytest.approx(2e-3 + SHORTEST_KERNEL_S, abs=1e-6)
    assert (flush.calls > 0) == (mode == "cold")


# ---- on a card ----

# A second in the cycles of `_sleep`.
SECOND = 1_700_000_000


@pytest.fixture
def card(monkeypatch):
    with simulated(Card(memory_bytes=2**30)) as kernels:
        monkeypatch.setattr(timing, "perf_counter", kernels.card.now)
        yield kernels.card


def test_a_product_near_the_ceiling_runs_at_the_clock_of_the_ceiling(card):
    """A card that its power limit slows again after a tenth of a second of rest."""
    began, work, slowed_s = card.now(), Work(10**12, 0), 0.006

    def multiply():
        torch.cuda._sleep(int(SECOND * (0.004 if card.now() < began + 0.2 else slowed_s)))

    run = measure(clock(card.device), PACES["quick"], device=card.device)
    ceiling = 1.001 * work.flops / slowed_s
    seconds = run.work(multiply, work, counted=False, ceiling=ceiling)
    assert work.flops / seconds <= ceiling, "the row ran at a burst's clock"
    extra_s = run.info["rounds"] * seconds - SAMPLED_S
    assert 0 <= extra_s < seconds, "its clock is sampled several times, and no longer"


def test_the_clock_that_ran_stands_beside_the_rate_of_a_product(card):
    """An H100 at nine tenths of 1830 MHz: 132 SMs, each 4096 FLOPs a clock in bf16."""
    card.rates.clock = 0.9
    case = product("bf16", 64, 64, 64, card.device)
    run = measure(
        clock(card.device),
        device=card.device,
        conditions=partial(conditions, card.device),
        at_clock=partial(flop_per_s_at_clock, card.device),
    )
    seconds = run.work(case.multiply, case.work, dtype="bf16", launch=False)
    info = run.info
    assert "launch_share" not in info
    assert info["clock_mhz"] == 1647
    assert info["units_flop_per_s"] == pytest.approx(132 * 4096 * 1647e6, rel=1e-3)
    assert info["share_at_clock"] == case.work.flops / seconds / info["units_flop_per_s"]


def test_on_a_card_each_call_follows_a_set_up(card):
    run = measure(clock(card.device), device=card.device)
    call_after_a_set_up(run, partial(torch.cuda._sleep, SECOND // 100))


@pytest.mark.parametrize(
    ("call_s", "setup", "of_a_round"),
    # A single short call follows an untimed one, which hides its launch.
    [(1e-4, None, 10), (0.005, None, 2), (0.02, None, 1), (0.005, int, 1)],
)
def test_the_calls_of_all_rounds_are_on_record(card, call_s, setup, of_a_round):
    run = measure(clock(card.device), device=card.device)
    run.median_s(partial(torch.cuda._sleep, int(SECOND * call_s)), setup=setup)
    assert run.info["conditions"]["calls"] == run.info["rounds"] * of_a_round


@pytest.mark.parametrize(
    ("times", "settled_s"),
    [
        # Its power limit slows a card after a while.
        ([0.004] * 50 + [0.006], 0.006),
        # It boosts, and falls for half a second.
        ([0.004 + i * 1e-4 for i in range(60)], 0.0099),
        # It never settles, and is watched for a second at most.
        ([0.004 * 1.01**i for i in range(400)], 0.0138),
    ],
)
def test_a_ceiling_is_measured_when_the_rate_has_settled(scripted, monkeypatch, times, settled_s):
    clock, call = scripted(times)
    monkeypatch.setattr("bench.ceilings.perf_counter", clock)
    ceilings = Ceilings(torch.device("cuda"), SHORT, _best={"fp32": Found((1, 1, 1), 1e-3)})
    ceilings.timer = clock
    assert ceilings.remeasure("fp32", call, 1) == pytest.approx(1 / settled_s, rel=0.02)


def test_the_ceiling_is_at_least_every_product_of_its_run():
    case, ceilings = supported("fp32"), Ceilings(CPU, SHORT)
    measure(seconds=10.0).product(case, ceilings)
    searched = ceilings.flop_per_s("fp32")
    fast = measure(seconds=1e-9)
    fast.product(case, ceilings)
    assert fast.info["share_of_ceiling"] == 1.0
    assert ceilings.flop_per_s("fp32") == case.work.flops / 1e-9 > searched
    assert ceilings.best("fp32").shape == case.shape


@pytest.mark.parametrize(
    ("times", "usual", "is_skipped"),
    [
        ([0.05], 1, False),
        # A neighbour slowed the first, or the first two.
        ([0.5, 0.05], 1, False),
        ([0.4, 0.3, 0.05], 1, False),
        ([0.3, 0.25, 0.2, 0.05], 1, True),
        # So slow that another trial costs too much.
        ([2.0, 0.05], 1, True),
        ([0.29], 3, False),
        ([0.31], 3, True),
    ],
)
def test_a_quiet_moment_decides_whether_calls_are_too_slow(scripted, times, usual, is_skipped):
    clock, call = scripted(times)
    run = measure(clock, Pace(0.0, 0.0, 0.0, 0.1, width=0.01))
    assert skips(partial(run.skip_if_slow, call, usual)) == is_skipped


@pytest.mark.parametrize(("flops", "is_skipped"), [(1e6, False), (1e18, True)])
def test_a_search_beside_other_work_alone_skips_no_benchmark(flops, is_skipped):
    supported("fp32")
    ceilings = Ceilings(CPU, SHORT, _best={"fp32": Found((1, 1, 1), 1e3)})
    assert skips(partial(measure().skip_if_longer, flops, "fp32", ceilings)) == is_skipped


def test_a_quiet_moment_is_as_fast_as_its_fastest_round_and_a_burst_as_its_fastest_five(
    monkeypatch,
):
    rounds = SimpleNamespace(times_s=[0.8, 0.5, 0.4, 0.2, 0.3, 0.1], median_s=0.35)
    monkeypatch.setattr("bench.ceilings.timing.time", lambda *_, **__: rounds)
    slowed = Ceilings(CPU, SHORT, _best={"fp32": Found((1, 1, 1), 1e-3)})
    assert slowed.quietly("fp32") == pytest.approx(2 * PROBE["cpu"] ** 3 / 0.1)
    assert slowed.burst_s("fp32", lambda: None) == 0.3
    faster = shares_of(lambda: None, Work(30, 0), 1.0, "fp32", slowed, None)
    assert faster["share_of_ceiling"] == 30 / slowed.flop_per_s("fp32") < 1


@pytest.mark.parametrize("dtype", ["fp32", "tf32"])
def test_fp32_is_rounded_in_rows_of_tf32_alone(card, dtype):
    """An image may allow tf32."""
    case = product(dtype, 64, 64, 64, card.device)
    run = measure(clock(card.device), device=card.device)
    allowed = []

    def multiply():
        allowed.append(torch.backends.cuda.matmul.allow_tf32)
        return case.multiply()

    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        run.work(multiply, case.work, dtype=dtype, launch=False)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert {*allowed} == {dtype == "tf32"}
