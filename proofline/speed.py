"""Is one thing faster than another on this machine: yes, no, or drowned in noise. For claims about speed.

Timings on shared machines are noisy, so a claim about speed has three answers. The two functions are timed in
interleaved pairs, which cancels drift; the ratio of each pair is one observation; the verdict rests on the exact
order-statistics confidence interval of the median ratio, which assumes nothing of the noise's distribution.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import pytest
import torch
from scipy.stats import binom

CONFIDENCE = 0.99


@dataclass(frozen=True)
class Ratio:
    """Time of `slow` over time of `fast`: the median of paired ratios and its confidence interval."""

    value: float
    low: float
    high: float
    pairs: int

    @property
    def noise_percent(self) -> float:
        """Half the width of the interval, in percent of the ratio."""
        return 100 * (self.high - self.low) / 2 / self.value

    def __str__(self) -> str:
        return f"{self.value:.2f}x ({self.low:.2f} to {self.high:.2f} at {CONFIDENCE:.0%}, {self.pairs} pairs)"


def median_interval(values: list[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The order-statistics confidence interval of the median (Conover, Practical Nonparametric Statistics, 3.2).

    >>> median_interval([float(i) for i in range(1, 12)])
    (1.0, 11.0)
    """
    ordered = sorted(values)
    outside = int(binom.ppf((1 - confidence) / 2, len(ordered), 0.5))
    # The interval from the outside-th smallest to the outside-th largest covers with at least `confidence`.
    rank = max(outside - 1, 0)
    return ordered[rank], ordered[len(ordered) - 1 - rank]


class Speed:
    """The fixture `speed`: judged comparisons of two functions on the device under test."""

    def __init__(self, device: torch.device, record: Callable[[str], None]) -> None:
        self._device = device
        self._record = record

    def _synchronise(self) -> None:
        if self._device.type != "cpu":
            getattr(torch, self._device.type).synchronize()

    def seconds(self, function: Callable[[], Any], calls: int = 1) -> float:
        """Wall time of `calls` calls, from an idle device to an idle device, per call."""
        self._synchronise()
        start = time.perf_counter()
        for _ in range(calls):
            function()
        self._synchronise()
        return (time.perf_counter() - start) / calls

    def ratio(
        self,
        slow: Callable[[], Any],
        fast: Callable[[], Any],
        *,
        pairs: int = 15,
        block_s: float = 2e-3,
        budget_s: float = 2.0,
    ) -> Ratio:
        """How many times longer `slow` takes than `fast`, both warmed up, in interleaved pairs of blocks.

        A block repeats its function until it lasts about `block_s`, well above the timer's resolution; pairs are taken
        up to `pairs`, fewer (but at least 9) where they would exceed `budget_s`.
        """
        calls = []
        for function in (slow, fast):
            self.seconds(function)
            calls.append(max(1, math.ceil(block_s / max(self.seconds(function), 1e-7))))
        ratios: list[float] = []
        start = time.perf_counter()
        while len(ratios) < pairs and (len(ratios) < 9 or time.perf_counter() - start < budget_s):
            if len(ratios) % 2:  # ABBA: neither side always comes first
                fast_s, slow_s = self.seconds(fast, calls[1]), self.seconds(slow, calls[0])
            else:
                slow_s, fast_s = self.seconds(slow, calls[0]), self.seconds(fast, calls[1])
            ratios.append(slow_s / fast_s)
        low, high = median_interval(ratios)
        return Ratio(median(ratios), low, high, len(ratios))

    def assert_slower(
        self, slow: Callable[[], Any], fast: Callable[[], Any], claim: str, *, at_least: float = 1.0, **options: Any
    ) -> Ratio:
        """Judges that `slow` takes more than `at_least` times as long as `fast`, and records the ratio.

        Holds where the whole interval lies above `at_least`; fails where it lies below, twice in a row (a busy machine
        can distort one comparison); otherwise the claim is not checked, because the noise exceeds the effect.
        """
        __tracebackhide__ = True
        ratio = self.ratio(slow, fast, **options)
        if ratio.low <= at_least:
            ratio = self.ratio(slow, fast, **options)
        self._record(f"{claim}: {ratio}")
        if ratio.low > at_least:
            return ratio
        if ratio.high < at_least:
            pytest.fail(f"{claim}: the ratio of times is {ratio}, but should be above {at_least:g}", pytrace=False)
        pytest.skip(f"this machine's noise ({ratio.noise_percent:.0f} %) exceeds the effect: {claim}: {ratio}")
