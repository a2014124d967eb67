"""Our clock beside the clocks people use: torch.utils.benchmark.Timer, and triton.testing.do_bench on CUDA.

Same kernels, same number of threads (Timer's default is one), interleaved in the same run: pytest-benchmark's rounds
are ours, and Timer's are taken in the set-up between them, in the order A BB A, so that drift touches both alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest
import torch
from torch.utils.benchmark import Timer

from accounting import measured
from bench.cache import flush_of
from bench.measuring import METHOD
from bench.rounds import agreement

ROUNDS = {"quick": 96, "default": 256, "thorough": 1024}  # of each clock; even
TOLERANCE = 0.02
# A launch and a wait cost a host some 20 µs, which Timer sees and events do not: a thousandth of this.
SHORTEST_DEVICE_CALL_S = 0.02


def kernels(device: torch.device) -> dict[str, Callable[[], object]]:
    """Four kinds of work of a few hundred µs to some ms on one core, far more than an operator costs to dispatch."""
    side = 384 if device.type == "cpu" else 4096
    a, b, c = (torch.randn(side, side, device=device) for _ in range(3))
    x = torch.randn(2**20 if device.type == "cpu" else 2**26, device=device)
    y = torch.empty_like(x)
    rows = x.view(-1, 1024)
    return {
        "matmul": lambda: torch.mm(a, b, out=c),
        "add": lambda: torch.add(x, x, out=y),
        "softmax": lambda: torch.softmax(rows, dim=1),
        "gelu": lambda: torch.nn.functional.gelu(x),
    }


def repeated(function: Callable[[], object], times: int = 1) -> Callable[[], None]:
    """So many calls, each of which drops its result, as Timer does: one kept alive has the next allocated elsewhere."""

    def run() -> None:
        for _ in range(times):
            function()

    return run


def interleaved(
    benchmark: Any, ours: Callable[[], object], theirs: Callable[[], float], pairs: int, lead: Callable[[], object]
) -> tuple[list[float], list[float]]:
    """Seconds of `pairs` rounds of pytest-benchmark, and of as many by the other clock: A BB A A BB A ..."""
    other: list[float] = []
    turn = 0

    def others() -> None:
        nonlocal turn
        if turn % 2:
            other.extend((theirs(), theirs()))
        lead()
        turn += 1

    for function in (ours, theirs, ours, theirs):
        function()
    benchmark.pedantic(ours, setup=others, rounds=pairs, iterations=1)
    if benchmark.stats is None:
        pytest.skip("pytest-benchmark is switched off in this run")
    return list(benchmark.stats.stats.data), other


def judge(
    benchmark: Any, conditions: dict[str, Any], own: list[float], other: list[float], name: str, why: str
) -> None:
    """Records the ratio of the two clocks, and asserts that it is 1 within 2 %, if the noise lets that be told."""
    __tracebackhide__ = True
    found = agreement(own, other, TOLERANCE)
    benchmark.extra_info.update(
        method=METHOD, rounds=len(own), other_clock=name, other_median_s=median(other), conditions=conditions,
        ratio=found.ratio, ratio_low=found.low, ratio_high=found.high, agreement=found.verdict,
    )  # fmt: skip
    if found.verdict == "noise":
        pytest.skip(f"this machine's noise ({found.noise:.0%}) exceeds {TOLERANCE:.0%}: ours over {name}: {found}")
    assert found.verdict == "within", f"our clock over {name}: {found}, but should be 1 within {TOLERANCE:.0%}. {why}"


@pytest.mark.parametrize("kernel", ["matmul", "add", "softmax", "gelu"])
def test_timer(kernel: str, device: torch.device, pace: str, benchmark: Any, conditions: Callable[..., Any]) -> None:
    function = kernels(device)[kernel]
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that wait for one another are most of a busy machine's noise
    try:
        times = 1
        if device.type != "cpu":
            once = measured.time(function, device, warmup=3, rounds=5).median_s
            times = math.ceil(SHORTEST_DEVICE_CALL_S / once)
        ours = repeated(function, times)
        timer = Timer("ours()", globals={"ours": ours}, num_threads=torch.get_num_threads())
        # Timer calls twice in vain before each figure. On CUDA that also keeps the device busy during the launch.
        lead = repeated(ours, 2)
        with conditions() as record:
            own, other = interleaved(benchmark, ours, lambda: timer.timeit(1).mean, ROUNDS[pace], lead)
    finally:
        torch.set_num_threads(before)
    benchmark.extra_info.update(calls_per_round=times, threads=1)
    judge(benchmark, record, own, other, "torch.utils.benchmark.Timer", "Timer adds a loop, a launch and a wait.")


@pytest.mark.needs("cuda", "triton")
@pytest.mark.parametrize("kernel", ["matmul", "add", "softmax", "gelu"])
def test_do_bench(kernel: str, device: torch.device, pace: str, benchmark: Any, conditions: Callable[..., Any]) -> None:
    """Unrun. Both flush the last-level cache before each call; do_bench's figure is a median of some 20 ms of calls."""
    from triton.testing import do_bench

    function = repeated(kernels(device)[kernel])
    theirs = lambda: float(do_bench(function, warmup=5, rep=20, return_mode="median")) / 1e3  # noqa: E731
    with conditions() as record:
        own, other = interleaved(benchmark, function, theirs, ROUNDS[pace], flush_of(device))
    judge(
        benchmark, record, own, other, "triton.testing.do_bench", "do_bench zeroes 256 MB between calls; we add to it."
    )
