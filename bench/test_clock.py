"""Our clock beside the clocks people use: torch.utils.benchmark.Timer, and triton.testing.do_bench on CUDA.

Same kernels, same number of threads (Timer's default is one), interleaved in the same run: pytest-benchmark's rounds
are ours, and Timer's are taken in the set-up between them, in the order A BB A, so that drift touches both alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from statistics import median
from typing import Any

import pytest
import torch
from torch.utils.benchmark import Timer

from accounting import measured
from bench.cache import flush_of
from bench.measuring import METHOD
from bench.rounds import Agreement, agreement

KERNELS = ("matmul", "add", "softmax", "gelu")
ROUNDS = {"quick": 96, "default": 256, "thorough": 1024}  # of each clock; even
TOLERANCE = 0.02
# A launch and a wait cost a host some 20 µs, which Timer sees and events do not: a thousandth of this.
SHORTEST_DEVICE_CALL_S = 0.02


def kernels(device: torch.device) -> dict[str, Callable[[], object]]:
    """Four kinds of work of 100 µs to some ms on one core, far more than an operator costs to dispatch; and a tiny one.

    Two of them write where they are told to, two allocate their results.
    """
    side = 384 if device.type == "cpu" else 4096
    a, b, c = (torch.randn(side, side, device=device) for _ in range(3))
    x = torch.randn(2**20 if device.type == "cpu" else 2**26, device=device)
    long, tiny = x.repeat(2), x[:64].clone()
    sum_of_long, sum_of_tiny = torch.empty_like(long), torch.empty_like(tiny)
    rows = x.view(-1, 1024)
    return {
        "matmul": lambda: torch.mm(a, b, out=c),
        "add": lambda: torch.add(long, long, out=sum_of_long),
        "softmax": lambda: torch.softmax(rows, dim=1),
        "gelu": lambda: torch.nn.functional.gelu(x),
        "tiny": lambda: torch.add(tiny, tiny, out=sum_of_tiny),
    }


def repeated(function: Callable[[], object], times: int = 1) -> Callable[[], None]:
    """So many calls, each of which drops its result, as Timer does."""

    def run() -> None:
        for _ in range(times):
            function()

    return run


def interleaved(
    benchmark: Any,
    ours: Callable[[], object],
    theirs: Callable[[], float],
    rounds: int,
    lead: Callable[[], object],
    progress: Callable[..., None],
) -> tuple[list[float], list[float]]:
    """Seconds of pytest-benchmark's rounds of `ours`, and of as many by the other clock: A BB A A BB A ...

    `lead` is called right before each of our rounds, and not timed.
    """
    other: list[float] = []
    turn = 0

    def between() -> None:
        nonlocal turn
        if turn % 2:
            other.extend((theirs(), theirs()))
        progress(f"round {turn + 1} of {rounds} by each clock")
        lead()
        turn += 1

    for function in (ours, theirs, ours, theirs):
        function()
    benchmark.pedantic(ours, setup=between, rounds=rounds, iterations=1)
    if benchmark.stats is None:
        pytest.skip("pytest-benchmark is switched off in this run")
    return list(benchmark.stats.stats.data), other


@pytest.fixture
def compare(
    benchmark: Any, conditions: Callable[..., Any], pace: str, progress: Callable[..., None]
) -> Callable[..., Agreement]:
    """Times a function by both clocks, puts their ratio into the record, and says whether they agree."""

    def compared(
        name: str, ours: Callable[[], object], theirs: Callable[[], float], lead: Callable[[], object], share: float = 1
    ) -> Agreement:
        with conditions() as record:
            own, other = interleaved(benchmark, ours, theirs, int(share * ROUNDS[pace]) // 2 * 2, lead, progress)
        found = agreement(own, other, TOLERANCE)
        benchmark.extra_info.update(
            asdict(found), method=METHOD, rounds=len(own), other_clock=name, other_median_s=median(other)
        )
        benchmark.extra_info["conditions"] = record
        return found

    return compared


@pytest.fixture
def one_thread() -> Iterator[None]:
    with measured.one_thread():
        yield


def assert_within(found: Agreement, name: str, why: str) -> None:
    """Asserts that the ratio of our clock over the other is 1 within 2 %, if the noise lets that be told."""
    __tracebackhide__ = True
    if found.verdict == "noise":
        pytest.skip(f"this machine's noise ({found.noise:.1%}) exceeds {TOLERANCE:.0%}: ours over {name}: {found}")
    assert found.verdict == "within", f"our clock over {name}: {found}, but should be 1 within {TOLERANCE:.0%}. {why}"


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kernel", KERNELS)
def test_timer(kernel: str, device: torch.device, compare: Callable[..., Agreement]) -> None:
    function, times = kernels(device)[kernel], 1
    if device.type != "cpu":
        times = math.ceil(SHORTEST_DEVICE_CALL_S / measured.time(function, device, warmup=3, rounds=5).median_s)
    ours = repeated(function, times)
    timer = Timer("ours()", globals={"ours": ours}, num_threads=torch.get_num_threads())
    # Timer calls twice in vain before each figure, so we do. On CUDA that also keeps the device busy during the launch.
    found = compare("torch.utils.benchmark.Timer", ours, lambda: timer.timeit(1).mean, repeated(ours, 2))
    assert_within(found, "Timer", "Timer adds a loop, a launch and a wait.")


DIFFERENCES = {
    "result-kept": "pytest-benchmark frees a call's result outside of the timed region, Timer within it",
    "no-calls-in-vain": "Timer calls twice in vain before each figure, so its caches are warmer",
    "tiny": "the clocks' own work: two readings and a call, against a loop around a compiled statement",
}


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("difference", DIFFERENCES)
def test_timer_explained(
    difference: str, device: torch.device, benchmark: Any, compare: Callable[..., Agreement]
) -> None:
    """Where the two clocks differ, and why: each difference is made on purpose and recorded, and has no limit."""
    if device.type != "cpu":
        pytest.skip("on an accelerator Timer's launch and wait drown these differences")
    function = kernels(device)["tiny" if difference == "tiny" else "gelu"]
    ours = function if difference == "result-kept" else repeated(function)
    timer = Timer("ours()", globals={"ours": function}, num_threads=torch.get_num_threads())
    lead = repeated(function, 0 if difference == "no-calls-in-vain" else 2)
    compare("torch.utils.benchmark.Timer", ours, lambda: timer.timeit(1).mean, lead, share=0.5)
    benchmark.extra_info["explained_by"] = DIFFERENCES[difference]


def test_timer_at_its_default(device: torch.device, benchmark: Any, compare: Callable[..., Agreement]) -> None:
    """Timer sets one thread where it is not told otherwise; ours leaves torch's threads as they are."""
    if device.type != "cpu":
        pytest.skip("threads of the host do not matter to an accelerator")
    function = repeated(kernels(device)["matmul"])
    timer = Timer("ours()", globals={"ours": function})
    compare("torch.utils.benchmark.Timer", function, lambda: timer.timeit(1).mean, repeated(function, 2), share=0.35)
    benchmark.extra_info["explained_by"] = f"{torch.get_num_threads()} threads against one"


@pytest.mark.needs("cuda", "triton")
@pytest.mark.parametrize("kernel", KERNELS)
def test_do_bench(kernel: str, device: torch.device, compare: Callable[..., Agreement]) -> None:
    """Unrun. Both flush the last-level cache before each call; do_bench's figure is a median of some 20 ms of calls."""
    from triton.testing import do_bench

    function = repeated(kernels(device)[kernel])

    def theirs() -> float:
        return float(do_bench(function, warmup=5, rep=20, return_mode="median")) / 1e3

    found = compare("triton.testing.do_bench", function, theirs, flush_of(device))
    assert_within(found, "do_bench", "do_bench zeroes 256 MB before each call, ours adds to as many.")
