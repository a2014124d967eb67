"""Tests whether one function is faster than another here: yes, no, or too noisy to tell.

Timings on shared machines are noisy, so a claim about speed has three answers. The two functions
are timed in interleaved pairs, which cancels drift. The ratio of each pair is one observation. The
verdict rests on the exact order-statistics confidence interval of the median ratio, which assumes
nothing of the noise's distribution.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import pytest
import torch

from prooflops.timing import alternating, median_interval, one_thread, synchronise
from prooflops_gate.machine.contention import SHORTEST_S, Watch

CONFIDENCE = 0.992
FEWEST_PAIRS = 9  # the interval needs 8
# If all of these pairs agree, they decide at once; by chance they agree once in 500.
DECISIVE_PAIRS = 10
BLOCK_S = 3e-4  # a thousand times the timer's resolution
BUDGET_S = 2.0
SAME_TIME = 1.05  # an interval that ends below shows no relevant difference
FAR = 10  # other work has changed ratios by 2.5


@dataclass(frozen=True)
class Ratio:
    """The ratio of the times of `slow` and `fast`: median of pairs, and its interval."""

    value: float
    low: float
    high: float
    pairs: int

    @property
    def noise_percent(self) -> float:
        """Half the width of the interval, in percent of the ratio.

        >>> Ratio(2.0, 1.5, 2.5, pairs=9).noise_percent
        25.0
        """
        return 100 * (self.high - self.low) / 2 / self.value

    def __str__(self) -> str:
        interval = f"{self.low:.2f} to {self.high:.2f} at {CONFIDENCE:.0%}"
        return f"{self.value:.2f}x ({interval}, {self.pairs} pairs)"


class Speed:
    """The fixture `speed`: compares the times of two functions, on one thread of the host.

    Threads that wait for one another, and interruptions, cause most of a busy machine's noise.
    Blocks are short because most short blocks fit between two interruptions.
    """

    def __init__(self, device: torch.device, record: Callable[[str], None]) -> None:
        self._device = device
        self._record = record

    def seconds(self, function: Callable[[], Any], calls: int = 1) -> float:
        """Wall time of `calls` calls, from an idle device to an idle device, per call."""
        synchronise(self._device)
        start = time.perf_counter()
        for _ in range(calls):
            function()
        synchronise(self._device)
        return (time.perf_counter() - start) / calls

    def ratio(
        self,
        slow: Callable[[], Any],
        fast: Callable[[], Any],
        *,
        pairs: int = 61,
        all_threads: bool = False,
        decided: Callable[[float, float], bool] = lambda low, high: False,
    ) -> Ratio:
        """The ratio of times of `slow` to `fast`, both warmed up, in interleaved pairs of blocks.

        A block repeats its function until it lasts about BLOCK_S. Pairs are limited to `pairs`, to
        BUDGET_S after the first 9, and to the first 10 where these are `decided`, from the lowest
        to the highest. The host uses one thread, or `all_threads` if the claim is about them.
        """
        with contextlib.nullcontext() if all_threads else one_thread():
            calls = []
            for function in (slow, fast):
                self.seconds(function)
                calls.append(max(1, math.ceil(BLOCK_S / max(self.seconds(function), 1e-7))))
            ratios: list[float] = []
            start = time.perf_counter()
            blocks = alternating(
                lambda: self.seconds(slow, calls[0]), lambda: self.seconds(fast, calls[1])
            )
            while len(ratios) < pairs and (
                len(ratios) < FEWEST_PAIRS or time.perf_counter() - start < BUDGET_S
            ):
                slow_s, fast_s = next(blocks)
                ratios.append(slow_s / fast_s)
                if len(ratios) == DECISIVE_PAIRS and decided(min(ratios), max(ratios)):
                    break
        low, high = median_interval(ratios, CONFIDENCE) or (0.0, math.inf)
        return Ratio(median(ratios), low, high, len(ratios))

    def assert_slower(
        self,
        slow: Callable[[], Any],
        fast: Callable[[], Any],
        claim: str,
        *,
        at_least: float = 1.0,
        at_most: float = math.inf,
        usual: tuple[float, float] = (0, math.inf),
        **options: Any,
    ) -> Ratio:
        """Asserts and records that `slow` is `at_least` to `at_most` times slower than `fast`.

        Holds if the whole interval lies within the bounds and within `usual`, the ratios that
        healthy machines showed. Fails if it lies beyond a bound twice in a row. Beside other work,
        which preempts long blocks more often than short ones, it must lie FAR beyond. With
        `at_least` 1 it also fails if it ends below 1.05, where the times are equal. Else the claim
        is not checked.
        """
        __tracebackhide__ = True
        absent_below, (low, high) = SAME_TIME if at_least == 1 else at_least, usual

        def is_within(lowest: float, highest: float) -> bool:
            return max(at_least, low) < lowest and highest < min(at_most, high)

        def is_beyond(lowest: float, highest: float, times: float = 1) -> bool:
            return times * highest < absent_below or lowest > times * at_most

        watch = Watch()
        start = time.perf_counter()
        for _ in range(2):
            ratio = self.ratio(
                slow, fast, decided=lambda *of: is_within(*of) or is_beyond(*of), **options
            )
            if holds := is_within(ratio.low, ratio.high):
                break
        self._record(f"{claim}: {ratio}")
        if holds:
            return ratio
        if is_beyond(ratio.low, ratio.high):
            bounds = f"above {at_least:g}" + (
                f" and below {at_most:g}" if at_most < math.inf else ""
            )
            while time.perf_counter() - start < SHORTEST_S:
                slow()
            why = watch.stop()["why"]
            if why and not is_beyond(ratio.low, ratio.high, FAR):
                pytest.skip(
                    f"not known: contended, so the ratio may be noise ({why}): {claim}: the ratio "
                    f"of times is {ratio}, but should be {bounds}"
                )
            pytest.fail(
                f"{claim}: the ratio of times is {ratio}, but should be {bounds}", pytrace=False
            )
        if ratio.high < low or ratio.low > high:
            pytest.skip(f"healthy machines show a ratio of {low:g} to {high:g}: {claim}: {ratio}")
        bound = next(
            bound for bound in (at_least, at_most, low, high) if ratio.low <= bound <= ratio.high
        )
        noise = f"this machine's noise ({ratio.noise_percent:.0f} %)"
        side = f"whether the ratio of times is above or below {bound:g}"
        pytest.skip(f"{noise} is too large to tell {side}: {claim}: {ratio}")
