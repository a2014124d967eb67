"""Our clock beside the clocks people use: torch.utils.benchmark.Timer, and triton.testing.do_bench on CUDA.

Same kernels, same number of threads (Timer's default is one), in turn in the same run: drift touches both alike.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from itertools import islice
from statistics import median
from typing import Any

import pytest
import torch
from torch.utils.benchmark import Timer

from accounting import measured
from accounting.measured import alternating, median_interval
from bench.cache import Caches, flush_of

KERNELS = ("matmul", "add", "softmax", "gelu")
ROUNDS = {"quick": 96, "default": 256, "thorough": 1024}  # of each clock
TOLERANCE = 0.02
# A launch and a wait cost a host some 20 µs, which Timer sees and events do not: a part in 250 of this.
SHORTEST_DEVICE_CALL_S = 0.005
DEVICE_SHARE = 0.25  # of the rounds: an accelerator's times are steadier than a host's, and all four kernels take 8 s


def verdict(ratios: Sequence[float]) -> str:
    """Whether two clocks that took turns agree within 2 %, from at least 16 ratios: "within", "contradicted", "noise".

    Within: the whole 99 % interval of the median ratio is. Contradicted: the intervals of both halves of the pairs are
    beyond it, on the same side, for a busy machine can distort one. Otherwise the noise is too large to tell.
    """
    half = len(ratios) // 2
    intervals = [median_interval(part, 0.99) for part in (ratios, ratios[:half], ratios[half:])]
    (low, high), *halves = (interval for interval in intervals if interval is not None)
    if low >= 1 - TOLERANCE and high <= 1 + TOLERANCE:
        return "within"
    beyond = min(low for low, _ in halves) > 1 + TOLERANCE or max(high for _, high in halves) < 1 - TOLERANCE
    return "contradicted" if beyond else "noise"


@pytest.mark.parametrize(
    ("ratio", "noise", "expected"),
    [(1.0, 0.01, "within"), (1.05, 0.01, "contradicted"), (0.95, 0.01, "contradicted"), (1.0, 0.3, "noise")],
)
def test_two_clocks_agree_differ_or_are_drowned_in_noise(ratio: float, noise: float, expected: str) -> None:
    generator = random.Random(5)
    assert verdict([ratio * generator.lognormvariate(0, noise) for _ in range(96)]) == expected
    assert verdict([1.0] * 48 + [1.3] * 48) == "noise", "one distorted half shows nothing"


def kernels(device: torch.device) -> dict[str, Callable[[], object]]:
    """Four kinds of work of 100 µs to some ms on one core, far more than an operator costs to dispatch.

    Two of them write where they are told to, two allocate their results.
    """
    side = 384 if device.type == "cpu" else 4096
    a, b, c = (torch.randn(side, side, device=device) for _ in range(3))
    x = torch.randn(2**20 if device.type == "cpu" else 2**26, device=device)
    long, rows = x.repeat(2), x.view(-1, 1024)
    out = torch.empty_like(long)
    return {
        "matmul": lambda: torch.mm(a, b, out=c),
        "add": lambda: torch.add(long, long, out=out),
        "softmax": lambda: torch.softmax(rows, dim=1),
        "gelu": lambda: torch.nn.functional.gelu(x),
    }


def repeated(function: Callable[[], object], times: int = 1) -> Callable[[], None]:
    """Calls the function `times` times and drops each result, as Timer does."""

    def run() -> None:
        for _ in range(times):
            function()

    return run


def our_seconds(function: Callable[[], object], lead: Callable[[], object], timer: Callable[[], Any]) -> float:
    """Seconds of one call by our clock, after an untimed call of `lead`."""
    lead()
    start = timer()
    function()
    return float(timer() - start)


@pytest.fixture
def compare(device: torch.device, pace: str, record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Times a function by both clocks in turn, which must agree; the ratio goes to the test's properties."""

    def compared(ours: Callable[[], object], theirs: Callable[[], float], lead: Callable[[], object]) -> None:
        timer = measured.clock(device)
        for function in (ours, theirs, ours, theirs):
            function()
        rounds = ROUNDS[pace] * (1 if device.type == "cpu" else DEVICE_SHARE)
        pairs = islice(alternating(lambda: our_seconds(ours, lead, timer), theirs), max(int(rounds), 32))
        ratios = [own / other for own, other in pairs]
        found = f"ours over theirs: {median(ratios):.3f}, 99 % interval {median_interval(ratios, 0.99)}"
        record_property("ours_over_theirs", found)
        if verdict(ratios) == "noise":
            pytest.skip(f"this machine's noise exceeds {TOLERANCE:.0%}: {found}")
        assert verdict(ratios) == "within", f"{found}, but should be 1 within {TOLERANCE:.0%}"

    return compared


@pytest.mark.prove(sample=1)
@pytest.mark.parametrize("kernel", KERNELS)
def test_timer(kernel: str, device: torch.device, compare: Callable[..., None]) -> None:
    with measured.one_thread():
        function, times = kernels(device)[kernel], 1
        if device.type != "cpu":
            times = math.ceil(SHORTEST_DEVICE_CALL_S / measured.time(function, device, warmup=3, rounds=5).median_s)
        ours = repeated(function, times)
        timer = Timer("ours()", globals={"ours": ours}, num_threads=1)
        # Timer makes two untimed calls before each figure, so we do. On CUDA they keep the device busy meanwhile.
        compare(ours, lambda: timer.timeit(1).mean, repeated(ours, 2))


@pytest.mark.needs("cuda", "triton")
@pytest.mark.parametrize("kernel", KERNELS)
def test_do_bench(kernel: str, device: torch.device, caches: Caches, compare: Callable[..., None]) -> None:
    """Unrun. Both flush the last-level cache before each call; do_bench's figure is a median of some 20 ms of calls."""
    from triton.testing import do_bench

    function = repeated(kernels(device)[kernel])
    theirs = lambda: float(do_bench(function, warmup=5, rep=20, return_mode="median")) / 1e3  # noqa: E731
    compare(function, theirs, flush_of(device, caches))
