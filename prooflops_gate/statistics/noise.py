"""How far processes lie apart, and the drift between sessions of unchanged code."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtri, stdtrit  # scipy.stats would take half a second to import

FEWEST_FOR_COMMON = 5  # benchmarks: a change in one or two leaves their median where it is


def spread(times_s: Sequence[float]) -> float:
    """The relative standard deviation of a normal distribution with the same median distance from the median (MAD).

    A few outliers have no influence.

    >>> round(spread([1.00, 1.01, 0.99, 1.02, 5.00]), 4)
    0.0148
    """
    logs = np.log(times_s)
    return float(np.median(np.abs(logs - np.median(logs))) / ndtri(0.75))


def noise_floor(sessions_s: Sequence[float]) -> float:
    """The prediction bound (95 %) of the next session of unchanged code, as a fraction: its drift.

    From the log times of K sessions: t(K - 1, 0.05) x their standard deviation x sqrt(1 + 1/K). With few sessions it is
    large, as it should be. math.inf for fewer than two.

    >>> round(noise_floor([1.01, 1.03, 1.0, 1.02]), 3)
    0.034
    """
    logs = np.log(sessions_s)
    if len(logs) < 2:
        return math.inf
    spread = float(logs.std(ddof=1)) * math.sqrt(1 + 1 / len(logs))
    return math.expm1(-float(stdtrit(len(logs) - 1, 0.05)) * spread)


def common_shift(before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]) -> float:
    """The shift of all benchmarks between two sessions: the median over benchmarks of the ratio of their medians.

    A machine at another clock moves all benchmarks, a change of the code some; one that moves most of them is only seen
    side by side. 1.0 for fewer than FEWEST_FOR_COMMON benchmarks: their median would be the change itself.

    >>> round(common_shift([[1.0, 1.1], [2.0], [3.0], [4.0], [5.0]], [[1.1, 1.2], [2.1], [3.15], [4.2], [9.0]]), 3)
    1.05
    """
    if len(before) < FEWEST_FOR_COMMON:
        return 1.0
    medians = [[np.median(times) for times in side] for side in (before, after)]
    return float(np.exp(np.median(np.log(np.divide(medians[1], medians[0])))))
