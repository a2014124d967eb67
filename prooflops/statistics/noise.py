"""The one time of a process's rounds, how far processes lie apart, and drift between sessions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtri, stdtrit  # scipy.stats would take half a second to import

from prooflops.statistics.rank_tests import positive_times

FEWEST_FOR_COMMON = 5  # benchmarks, of which a change in one or two leaves the median where it is


def location(rounds_s: Sequence[float]) -> float:
    """The figure that a process contributes: the minimum of its rounds (pytest-benchmark's `min`).

    Interruptions only ever lengthen rounds, so low quantiles repeat from process to process where the mean wanders, and
    the minimum repeats best: docs/gate.md sets it beside the 10th and 25th percentile, the median and the mean on the
    study's data. Chen and Revels (Robust benchmarking in noisy environments, 2016) argue for it on the same grounds.
    What it cannot see is a change that leaves the fastest rounds alone.

    Raises ValueError without rounds, or for one that isn't a positive, finite time.

    >>> location([2.0, 1.0, 3.0, 4.0, 90.0])
    1.0
    """
    return float(positive_times(rounds_s, "rounds_s").min())


def spread(times_s: Sequence[float]) -> float:
    """How far times lie apart: the normal distribution's relative standard deviation that has their median distance
    from their median (MAD), on which a few outliers have no influence.

    Raises ValueError for none, or a time that isn't positive.

    >>> round(spread([1.00, 1.01, 0.99, 1.02, 5.00]), 4)
    0.0148
    """
    logs = np.log(positive_times(times_s, "times_s"))
    return float(np.median(np.abs(logs - np.median(logs))) / ndtri(0.75))


def noise_floor(sessions: Sequence[Sequence[float]], *, level: float = 0.05) -> float:
    """What drift alone may do to unchanged code: the prediction bound of the next session, as a fraction.

    From the log medians of K sessions' processes: t(K - 1, level) x their standard deviation x sqrt(1 + 1/K).
    With few sessions it is large, as it should be. math.inf for fewer than two.

    Raises ValueError for a time that isn't positive.

    >>> round(noise_floor([[1.00, 1.01, 1.02], [1.03, 1.02, 1.05], [0.99, 1.0, 1.0], [1.02, 1.02, 1.02]]), 3)
    0.034
    """
    medians = np.array([np.median(np.log(positive_times(times, "sessions"))) for times in sessions])
    if len(medians) < 2:
        return math.inf
    spread = float(medians.std(ddof=1)) * math.sqrt(1 + 1 / len(medians))
    return math.expm1(-float(stdtrit(len(medians) - 1, level)) * spread)


def common_shift(before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]) -> float:
    """What all benchmarks did together between two sessions: the median over benchmarks of the ratio of their medians.

    A machine that runs at another clock, or has a neighbour today, moves all benchmarks; a change of the code moves
    those that it touches. Where it touches most of them the two cannot be told apart from history, only side by side.
    1.0 for fewer than FEWEST_FOR_COMMON benchmarks, of which the median would be the change itself.

    Raises ValueError for lists of unequal length, or a time that isn't positive.

    >>> round(common_shift([[1.0, 1.1], [2.0], [3.0], [4.0], [5.0]], [[1.1, 1.2], [2.1], [3.15], [4.2], [9.0]]), 3)
    1.05
    """
    if len(before) != len(after):
        raise ValueError(f"before and after should be the same benchmarks, but are {len(before)} and {len(after)}")
    if len(before) < FEWEST_FOR_COMMON:
        return 1.0
    ratios = [
        np.median(positive_times(a, "after")) / np.median(positive_times(b, "before"))
        for b, a in zip(before, after, strict=True)
    ]
    return float(np.exp(np.median(np.log(ratios))))
