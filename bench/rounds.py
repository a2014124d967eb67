"""How many rounds: when a warm-up is over, and how well the median is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median, quantiles

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
