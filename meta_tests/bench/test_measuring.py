"""The benchmarks' clock: rounds and intervals, caches, launches, and the faults that it has to notice."""

import random
from collections.abc import Callable
from statistics import median
from time import perf_counter, sleep
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from accounting import measured
from accounting.measured import median_interval
from accounting.roofline import Work, matmul_work
from bench import cache, call_inspection, launch, measuring
from bench.call_inspection import assert_random, examine
from bench.measuring import Measure
from bench.pace import PACES, Pace
from bench.products import DTYPES, Product, Unsupported, product
from bench.rounds import FEWEST_ROUNDS, is_flat, rounds_for
from bench.work import LAUNCH_SHARE
from prooflops.machine.caches import Caches, caches_of

CPU = torch.device("cpu")
SHORT = Pace(0.001, 0.003, 0.005, 1.0, width=0.05)


class Rounds:
    """Stands for pytest-benchmark's fixture: runs the rounds as its `pedantic` does, and keeps them."""

    def __init__(self, timer: Callable[[], Any] = perf_counter) -> None:
        self.extra_info: dict[str, Any] = {}
        self.stats: Any = None
        self.kept: list[float] = []
        self._timer = timer

    def pedantic(
        self, function: Callable[[], object], setup: Callable[[], object] | None, rounds: int, iterations: int, **_: int
    ) -> None:
        assert setup is None or iterations == 1, "pytest-benchmark refuses a set-up with several iterations"
        for _ in range(rounds):
            if setup is not None:
                assert setup() is None, "what a set-up returns is taken for arguments"
            start = self._timer()
            for _ in range(iterations):
                function()
            self.kept.append((self._timer() - start) / iterations)

        class Stats(dict[str, float]):
            stats = SimpleNamespace(data=self.kept)

        self.stats = Stats(median=median(self.kept))


def measure(timer: Callable[[], Any] = perf_counter, pace: Pace = SHORT, **options: Any) -> Measure:
    return Measure(Rounds(timer), CPU, pace, timer=timer, **options)


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


def test_a_quieter_machine_needs_fewer_rounds_and_time_limits_a_noisy_one() -> None:
    generator = random.Random(2)
    needed = [rounds_for(0.02, [generator.lognormvariate(0, s) for _ in range(60)], most=300) for s in (0.001, 0.02, 1)]
    assert needed[0] < needed[1] < needed[2] == 300, f"{needed} rounds for growing noise"


def test_a_drift_is_not_flat_and_noise_about_a_level_is() -> None:
    generator = random.Random(3)
    assert not is_flat([1 / (1 + i / 50) for i in range(30)]), "a clock that still rises was taken for a flat one"
    assert is_flat([generator.lognormvariate(0, 0.01) for _ in range(90)]), "noise of 1 % was taken for a drift"


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


# ---- planted faults: what is measured is not what is claimed -----------------------------------------------------


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


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_operands_of_a_product_count_as_random_and_its_flops_as_declared(dtype: str) -> None:
    for _ in range(5):
        try:
            case: Product = product(dtype, 64, 128, 96, CPU)
        except Unsupported as reason:
            pytest.skip(str(reason))
        seen = examine(case.multiply)
        assert_random(seen.inputs)
        found = {tensor.data_ptr() for tensor in seen.inputs}
        assert {case.a.data_ptr(), case.b.data_ptr()} <= found, "an operand was not seen"
        assert seen.flops == case.work.flops, f"{seen.flops} FLOPs seen, {case.work.flops} declared"


def test_what_a_function_writes_is_no_input_of_it() -> None:
    x, out = torch.randn(256), torch.zeros(256)
    assert [t.data_ptr() for t in examine(lambda: torch.relu(torch.add(x, x, out=out))).inputs] == [x.data_ptr()]
    assert [t.data_ptr() for t in examine(lambda: out.copy_(x)).inputs] == [x.data_ptr()]
    assert [t.data_ptr() for t in examine(lambda: x.view(16, 16).t() + torch.zeros(16, 16)).inputs] == [x.data_ptr()]
    assert examine(lambda: (x + x).relu()).operators == 2, "operators miscounted"
    assert examine(lambda: x.view(16, 16).t() + 1).operators == 1, "a view launches nothing"


@pytest.mark.parametrize("share", [0.2, 0.4])
def test_many_zeros_among_random_numbers_are_noticed(share: float) -> None:
    data = torch.randn(100_000).where(torch.rand(100_000) > share, torch.zeros(()))
    if share < 0.25:
        assert_random([data])
    else:
        with pytest.raises(AssertionError, match=r"\d\d% of an input .* are 0, but inputs should be random"):
            assert_random([data])


# ---- caches ------------------------------------------------------------------------------------------------------


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


@pytest.mark.skipif(not caches_of(CPU).levels, reason="this system names no caches")
def test_a_hot_cache_sold_as_cold_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three tries: a very busy machine can hide that the caches are warm, but not make a right flush look like none."""
    monkeypatch.setattr(cache.Flush, "__call__", lambda self: None)
    for _ in range(3):
        flush = cache.flush_of(CPU, caches_of(CPU))
        try:
            measure(flush=lambda flush=flush: flush).median_s(lambda: None, cache="cold")
        except AssertionError as error:
            if "the caches are still hot" in str(error):
                return
    pytest.fail("a flush that does nothing was accepted three times")


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


def test_what_a_call_reads_is_not_overwritten() -> None:
    x, kept = torch.randn(64), torch.arange(64)
    seen = call_inspection.examine(lambda: (x.add_(1), kept, kept + 1, torch.ones(1).expand(8)))
    call_inspection.overwrite(seen)
    assert x.isfinite().all()
    assert kept.tolist() == list(range(64))
    assert (seen.result[2] == torch.iinfo(torch.int64).min).all()


def test_rounds_without_their_flush_are_noticed(flush: cache.Flush) -> None:
    run = measure(flush=lambda: flush)
    pedantic = run._benchmark.pedantic
    run._benchmark.pedantic = lambda *args, setup, **options: pedantic(*args, setup=None, **options)
    with pytest.raises(AssertionError, match=r"the caches were flushed 0 times, but should before each of \d+ cold"):
        run.median_s(lambda: sleep(1e-4), cache="cold")


class Moment:
    """A reading of a clock that logs when it is taken, and when somebody waits for it."""

    def __init__(self, log: list[str]) -> None:
        self._log, self._at = log, perf_counter()
        log.append("event")

    def __sub__(self, earlier: "Moment") -> float:
        self._log.append("wait")
        return self._at - earlier._at


@pytest.mark.parametrize("mode", ["cold", "hot"])
def test_on_cuda_nothing_waits_between_what_keeps_the_device_busy_and_the_timed_call(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    log: list[str] = []

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
        sleep(1e-3)

    run = Measure(
        Rounds(lambda: Moment(log)), torch.device("cuda"), SHORT, timer=lambda: Moment(log), flush=lambda: flush
    )
    pedantic = run._benchmark.pedantic
    run._benchmark.pedantic = lambda *arguments, **options: (log.clear(), pedantic(*arguments, **options))
    run.median_s(kernel, cache=mode)
    before = ["flush"] if mode == "cold" else ["kernel"]
    assert log == [*before, "event", "kernel", "event", "wait"] * run.info["rounds"], f"{log[:10]}"


def test_a_flush_changes_every_line_of_its_buffer() -> None:
    flush = cache.Flush(torch.zeros(4096, dtype=torch.int32), False, Caches())
    flush()
    assert bool((flush.buffer == 1).all())
    assert (flush.calls, flush.bytes) == (1, 16384)


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


# ---- launches ----------------------------------------------------------------------------------------------------


def test_an_operator_on_one_element_is_launch_bound_and_a_large_product_is_not() -> None:
    """Three tries: what launching costs and what the operator takes are two measurements, and a machine may be busy."""
    tiny, (a, b) = torch.randn(64), (torch.randn(512, 512), torch.randn(512, 512))
    shares = []
    for _ in range(3):
        run = measure()
        run.work(lambda: tiny + tiny, Work(64, 3 * 256))
        shares.append(run.info["launch_share"])
        if run.info.get("bound") == "launch":
            break
    assert run.info.get("bound") == "launch", f"{shares} of the time is launching"
    run = measure()
    run.work(lambda: a @ b, matmul_work(512, 512, 512, "fp32"), dtype="fp32")
    assert run.info["launch_share"] < 0.1, f"{run.info['launch_share']:.2f} of a large product is launching"
    assert "bound" not in run.info


@pytest.mark.parametrize(("device_s", "replayed"), [(1e-9, True), (1.0, False)])
def test_on_cuda_a_graph_is_replayed_where_launching_takes_all_of_the_time(
    monkeypatch: pytest.MonkeyPatch, device_s: float, replayed: bool
) -> None:
    monkeypatch.setattr(measured, "synchronise", lambda device: None)
    monkeypatch.setattr(launch, "replay", lambda function, device: {"graph_s": 1e-6})
    found = launch.figures(lambda: sleep(1e-5), device_s, None, torch.device("cuda"))
    assert ("graph_s" in found) == replayed, f"{found}"
    assert found["enqueue_s"] >= 1e-5
    assert (found["launch_share"] >= LAUNCH_SHARE) == replayed


@pytest.mark.parametrize("operators", [None, 3])
def test_only_of_functions_that_do_not_wait_for_the_device_is_the_launch_asked(
    monkeypatch: pytest.MonkeyPatch, operators: int | None
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(launch, "figures", lambda *_: asked.append(1) or {})
    measure().median_s(lambda: sleep(1e-5), operators=operators)
    assert len(asked) == (operators is not None)


def test_a_function_that_no_graph_can_capture_is_recorded_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def stream(device: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    left: list[str] = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "the stream before")
    monkeypatch.setattr(torch.cuda, "set_stream", left.append)
    monkeypatch.setattr(torch.cuda, "Stream", stream)
    found = launch.replay(lambda: None, torch.device("cuda"))
    assert left == ["the stream before"], "a failed capture leaves its own stream the current one"
    assert found == {"graph_s": None, "graph_failed": "operation not permitted when stream is capturing"}


def test_on_cuda_a_call_in_vain_keeps_the_device_busy_while_the_timed_one_is_launched() -> None:
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


def test_every_pace_has_time_for_an_interval() -> None:
    for name, pace in PACES.items():
        assert pace.warmup_s <= pace.longest_warmup_s, f"{name}: {pace}"
        assert pace.most_rounds >= FEWEST_ROUNDS, f"{name}: {pace}"
