"""Our clock beside the clocks people use: torch.utils.benchmark.Timer, and triton.testing.do_bench on CUDA.

Same kernels, same number of threads (Timer's default is one), in turn in the same run: drift touches both alike.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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


# ---- do two clocks agree? ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Agreement:
    """The ratio of two clocks: the median of their paired ratios, its 99 % interval, and what follows from it."""

    ratio: float
    low: float
    high: float
    verdict: str  # within, contradicted, noise

    @property
    def noise(self) -> float:
        """Half the width of the interval, as a share of the ratio."""
        return (self.high - self.low) / 2 / self.ratio

    def __str__(self) -> str:
        return f"{self.ratio:.3f} ({self.low:.3f} to {self.high:.3f})"


def agreement(ratios: Sequence[float], tolerance: float = TOLERANCE) -> Agreement:
    """Whether two clocks that took turns agree within `tolerance`.

    Within: the whole interval of the median ratio is. Contradicted: the intervals of both halves of the pairs are
    beyond it, on the same side, for a busy machine can distort one. Otherwise the noise is too large to tell.

    Raises ValueError for fewer than 16 ratios: a half then has no interval of 99 %.
    """
    half = len(ratios) // 2
    low, high = _interval(ratios)
    (low_1, high_1), (low_2, high_2) = _interval(ratios[:half]), _interval(ratios[half:])
    verdict = "noise"
    if 1 - tolerance <= low and high <= 1 + tolerance:
        verdict = "within"
    elif min(low_1, low_2) > 1 + tolerance or max(high_1, high_2) < 1 - tolerance:
        verdict = "contradicted"
    return Agreement(median(ratios), low, high, verdict)


def _interval(ratios: Sequence[float]) -> tuple[float, float]:
    interval = median_interval(ratios, 0.99)
    if interval is None:
        raise ValueError(f"there must be at least 16 ratios, got {len(ratios)} in a half: no interval of 99 %")
    return interval


@pytest.mark.parametrize(
    ("ratio", "noise", "verdict"),
    [
        (1.0, 0.0, "within"),
        (1.1, 0.0, "contradicted"),
        (1.0, 0.01, "within"),
        (1.05, 0.01, "contradicted"),
        (0.95, 0.01, "contradicted"),
        (1.0, 0.3, "noise"),
        (1.0, 0.07, "noise"),
    ],
)
def test_two_clocks_agree_differ_or_are_drowned_in_noise(ratio: float, noise: float, verdict: str) -> None:
    generator = random.Random(5)
    found = agreement([ratio * generator.lognormvariate(0, noise) for _ in range(96)])
    assert found.verdict == verdict, f"{found}"


def test_one_distorted_half_does_not_make_two_clocks_differ() -> None:
    found = agreement([1.0] * 48 + [1.3] * 48)
    assert found.verdict == "noise", f"{found} was called {found.verdict}"


def test_too_few_ratios_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 16 ratios, got 7 in a half"):
        agreement([1.0] * 15)


# ---- ours and theirs ---------------------------------------------------------------------------------------------


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


def our_seconds(function: Callable[[], object], lead: Callable[[], object], timer: Callable[[], Any]) -> float:
    """Seconds of one call by our clock, as pytest-benchmark takes them: the result lives until the clock was read.

    `lead` is called right before, and not timed.
    """
    lead()
    start = timer()
    _result = function()
    return float(timer() - start)


@pytest.fixture
def compare(
    device: torch.device, pace: str, record_property: Callable[[str, object], None]
) -> Callable[..., Agreement]:
    """Times a function by both clocks in turn, and says whether they agree; the ratio goes to the test's properties."""

    def compared(
        ours: Callable[[], object], theirs: Callable[[], float], lead: Callable[[], object], share: float = 1
    ) -> Agreement:
        timer = measured.clock(device)
        for function in (ours, theirs, ours, theirs):
            function()
        pairs = alternating(lambda: our_seconds(ours, lead, timer), theirs)
        rounds = share * ROUNDS[pace] * (1 if device.type == "cpu" else DEVICE_SHARE)
        found = agreement([own / other for own, other in islice(pairs, max(int(rounds), 32))])
        record_property("ours_over_theirs", str(found))
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


@pytest.mark.prove(sample=1)
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kernel", KERNELS)
def test_timer(kernel: str, device: torch.device, compare: Callable[..., Agreement]) -> None:
    function, times = kernels(device)[kernel], 1
    if device.type != "cpu":
        times = math.ceil(SHORTEST_DEVICE_CALL_S / measured.time(function, device, warmup=3, rounds=5).median_s)
    ours = repeated(function, times)
    timer = Timer("ours()", globals={"ours": ours}, num_threads=torch.get_num_threads())
    # Timer makes two untimed calls before each figure, so we do. On CUDA that keeps the device busy during the launch.
    found = compare(ours, lambda: timer.timeit(1).mean, repeated(ours, 2))
    assert_within(found, "Timer", "Timer adds a loop, a launch and a wait.")


DIFFERENCES = {
    "result-kept": "pytest-benchmark frees a call's result outside of the timed region, Timer within it",
    "no-untimed-calls": "Timer makes two untimed calls before each figure, so its caches are warmer",
    "tiny": "the clocks' own work: two readings and a call, against a loop around a compiled statement",
}


@pytest.mark.prove(sample=1)
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("difference", DIFFERENCES)
def test_timer_explained(
    difference: str,
    device: torch.device,
    compare: Callable[..., Agreement],
    record_property: Callable[[str, object], None],
) -> None:
    """Where the two clocks differ, and why: each difference is made on purpose and recorded, and has no limit."""
    if device.type != "cpu":
        pytest.skip("on an accelerator Timer's launch and wait drown these differences")
    function = kernels(device)["tiny" if difference == "tiny" else "gelu"]
    ours = function if difference == "result-kept" else repeated(function)
    timer = Timer("ours()", globals={"ours": function}, num_threads=torch.get_num_threads())
    lead = repeated(function, 0 if difference == "no-untimed-calls" else 2)
    compare(ours, lambda: timer.timeit(1).mean, lead, share=0.5)
    record_property("explained_by", DIFFERENCES[difference])


def test_timer_at_its_default(
    device: torch.device, compare: Callable[..., Agreement], record_property: Callable[[str, object], None]
) -> None:
    """Timer sets one thread where it is not told otherwise; ours leaves torch's threads as they are."""
    if device.type != "cpu":
        pytest.skip("threads of the host do not matter to an accelerator")
    function = repeated(kernels(device)["matmul"])
    timer = Timer("ours()", globals={"ours": function})
    compare(function, lambda: timer.timeit(1).mean, repeated(function, 2), share=0.35)
    record_property("explained_by", f"{torch.get_num_threads()} threads against one")


@pytest.mark.needs("cuda", "triton")
@pytest.mark.parametrize("kernel", KERNELS)
def test_do_bench(kernel: str, device: torch.device, caches: Caches, compare: Callable[..., Agreement]) -> None:
    """Unrun. Both flush the last-level cache before each call; do_bench's figure is a median of some 20 ms of calls."""
    from triton.testing import do_bench

    function = repeated(kernels(device)[kernel])

    def theirs() -> float:
        return float(do_bench(function, warmup=5, rep=20, return_mode="median")) / 1e3

    found = compare(function, theirs, flush_of(device, caches))
    assert_within(found, "do_bench", "do_bench zeroes 256 MB before each call, ours adds to as many.")
