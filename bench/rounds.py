"""How many rounds: when a warm-up is over, and how well the median is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

import numpy as np
from scipy.special import bdtr  # scipy.stats would take a second to import

CONFIDENCE = 0.95
FEWEST_ROUNDS = 6  # with 5 there is no interval of 95 %
# The warm-up is over when the medians of the second and the last third of its rounds differ by less than this.
FLAT = 0.02
FEWEST_WARM_ROUNDS = 9


def is_flat(rounds_s: Sequence[float]) -> bool:
    """Whether the median of the last third of the rounds is within 2 % of the one of the third before.

    >>> is_flat([9, 8, 7, 6, 5, 4, 3, 2, 1]), is_flat([9, 8, 7, 1, 1, 1, 1, 1, 1]), is_flat([1] * 8)
    (False, True, False)
    """
    if len(rounds_s) < FEWEST_WARM_ROUNDS:
        return False
    third = len(rounds_s) // 3
    before, last = median(rounds_s[-2 * third : -third]), median(rounds_s[-third:])
    return abs(last - before) <= FLAT * before


def median_interval(rounds_s: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """The confidence interval of the median between two order statistics; None for fewer than 6 rounds at 95 %.

    Of n rounds, how many are below the true median is a binomial number of n and 1/2, whatever the distribution of the
    noise (Conover, Practical Nonparametric Statistics, 3.2), as long as the rounds are independent of one another.

    >>> median_interval(range(1, 12)), median_interval([1, 2, 3, 4, 5])
    ((2, 10), None)
    """
    ordered = sorted(rounds_s)
    at_most = bdtr(np.arange(len(ordered)), len(ordered), 0.5)  # the chance that so many are below the median
    beyond = int(np.searchsorted(at_most, (1 - confidence) / 2))  # order statistics left out at each end
    if beyond < 1:
        return None
    return ordered[beyond - 1], ordered[len(ordered) - beyond]


def rounds_for(width: float, pilot: Sequence[float], most: int) -> int:
    """How many rounds will make the interval of the median as narrow as `width`, judging by the pilot; at most `most`.

    With n rounds the interval spans the quantiles 1/2 ± 0.98/√n. How far apart those are is read off the pilot's
    quartiles, in proportion. As many again are added, because the pilot is small.

    >>> rounds_for(0.02, [1.0] * 9, most=1000), rounds_for(0.02, [0.8, 0.9, 1.0, 1.1, 1.2], most=1000)
    (6, 1000)
    >>> rounds_for(0.02, [0.98, 0.99, 1.0, 1.01, 1.02], most=1000)
    31
    """
    lower, middle, upper = quantiles(pilot, n=4, method="inclusive") if len(pilot) > 1 else [pilot[0]] * 3
    needed = math.ceil(2 * (2 * 0.98 * (upper - lower) / 0.5 / (width * middle)) ** 2)
    return max(FEWEST_ROUNDS, min(needed, most))


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


def agreement(own: Sequence[float], other: Sequence[float], tolerance: float) -> Agreement:
    """Whether two clocks that took turns agree within `tolerance`.

    Within: the whole interval of the median ratio is. Contradicted: the intervals of both halves of the pairs are
    beyond it, on the same side, for a busy machine can distort one. Otherwise the noise is too large to tell.

    >>> agreement([1.001] * 20, [1.0] * 20, 0.02).verdict, agreement([1.1] * 20, [1.0] * 20, 0.02).verdict
    ('within', 'contradicted')
    """
    ratios = [a / b for a, b in zip(own, other, strict=True)]
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
        raise ValueError(f"own must have at least 16 rounds, got {len(ratios)} in a half: no interval of 99 %")
    return interval
