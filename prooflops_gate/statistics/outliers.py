"""Which of N machines of one kind is far from the others, at a stated rate of false alarms for all
of them together.

The distance is the modified z: from the median, over 1.4826 times the median absolute deviation,
which one bad machine does not move. Of N healthy machines the largest |z| grows with N, and for
small N it is huge by chance: a fixed limit such as 3.5 names somebody in most healthy fleets of 64
machines and 100 benchmarks. The limit here depends on N, on the number of benchmarks, and on how
heavy the tails are. No estimate of a tail reaches beyond the values it was made from, so a machine
must also stand apart from the next ones: the farthest of healthy machines are close to one another
where the tail is light, and rarely twice as far as the next where it is heavy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

# A tenth of the time of importing scipy.stats.
from scipy.special import stdtrit

# The chance that a healthy fleet has a machine named, in any benchmark.
LEVEL = 0.05
# Smaller distances are of no practical interest.
LEAST_SHARE = 0.03
# Of three, any one can be as far from the two others by chance.
FEWEST = 4
LARGEST_SIMULATED = 64
# The share of all values by which the tail is known.
TAIL = 0.005
# For a tail: five are in it.
FEWEST_VALUES = 1000
# Taken for the tail of fewer values.
UNKNOWN_FREEDOM = 5.0
# Of Student's t, whose tails are tried.
FREEDOMS = (2, 3, 4, 5, 6, 8, 12, 20, 50)
# Times the median absolute deviation is the standard deviation.
NORMAL = 1.4826
# The k farthest are 2^(1/k) times as far as the next; of t(3)'s tail one in eight is by chance.
APART = math.log(2)
# Of all machines, ten at least: the spacings below a gap by which its width is judged.
NEXT = 0.05
# The share of all machines that those may be among.
OUTER = 0.15


@dataclass(frozen=True)
class Deviation:
    """How far one machine is from the median one, as a share of it.

    `least`: the smallest share at which it would be named an outlier; infinite where too few
    machines are compared.
    """

    share: float
    least: float

    @property
    def outlier(self) -> bool:
        return abs(self.share) >= self.least


def deviations_at(
    distances: Sequence[float], scale: float, level: float, freedom: float
) -> list[Deviation]:
    """Each machine against the median of all, by its distance; `level` is that of this one test.

    An outlier is beyond `threshold(N, level, freedom)` by z, beyond 3 %, and apart from the next
    machines.

    >>> times = [1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 1.2]
    >>> found = deviations_at(*distances_and_scale(times), LEVEL, math.inf)
    >>> [each.outlier for each in found].index(True)
    7
    """
    sides = (distances, [-each for each in distances])
    slow, fast = (least_share(scale, side, level, freedom) for side in sides)
    shares = [math.copysign(math.expm1(abs(distance)), distance) for distance in distances]
    return [Deviation(share, fast if share < 0 else slow) for share in shares]


def scores(distances: Sequence[float], scale: float) -> list[float]:
    """The modified z of each distance."""
    if scale:
        return [distance / scale for distance in distances]
    return [math.copysign(math.inf, distance) if distance else 0.0 for distance in distances]


def least_share(
    scale: float, distances: Sequence[float], level: float, freedom: float = math.inf
) -> float:
    """The smallest share at which a machine that is slower would be named, or is."""
    if len(distances) < FEWEST:
        return math.inf
    limit = threshold(len(distances), level, freedom) * scale
    return max(math.expm1(min(least_distance(distances, limit, level), 700.0)), LEAST_SHARE)


def least_distance(distances: Sequence[float], limit: float, level: float) -> float:
    """The distance from which on machines are far above the others, by one of two gaps.

    The k farthest are beyond `limit` and 2^(1/k) times as far as the next. Or, of enough machines,
    the gap below them is wider than the n spacings below it allow: of any tail that falls with a
    power, however steep, the spacings k·ln(x_k / x_(k+1)) of the sorted distances are alike and
    exponential, so their ratio to the mean of n others has the F distribution with 2 and 2n degrees
    of freedom. Lighter tails have smaller ones further out. `level` is divided among all k, as 1/k.
    """
    x = np.sort(np.maximum(distances, 1e-300))[::-1]
    spacings = np.arange(1, len(x)) * np.log(x[:-1] / x[1:])
    apart = (x[:-1] >= limit) & (spacings >= APART)
    allowed = np.empty(0)
    n = max(int(NEXT * len(x)), 10)
    if (most := int(OUTER * len(x)) - n) > 0:
        k = np.arange(1, most + 1)
        sums = np.convolve(spacings[1 : most + n], np.ones(n), "valid")
        allowed = sums * ((k * np.sum(1 / k) / level) ** (1 / n) - 1)
        apart[:most] |= spacings[:most] > allowed
    count = int(np.flatnonzero(apart)[-1]) + 1 if apart.any() else 0
    least = max(limit, x[count] * math.exp(APART / (count + 1)))
    if count < most:
        least = min(least, x[count] * math.exp(allowed[count] / (count + 1)))
    return float(min(least, x[count - 1]) if count else least)


def distances_and_scale(times: Sequence[float]) -> tuple[list[float], float]:
    """The distances of the logarithms from their median, and 1.4826 times the median of their
    sizes.
    """
    logs = np.log(np.asarray(times, dtype=float))
    distances = logs - np.median(logs)
    return distances.tolist(), distance_scale(distances)


def distance_scale(distances: Any) -> float:
    return NORMAL * float(np.median(np.abs(distances)))


def tail_freedom(z: Sequence[float]) -> float:
    """How heavy the tail of many z is.

    The degrees of freedom of Student's t with as much in it; inf for a normal.

    Read off the fast side, in which bad machines are not: by the value that 0.5 % lie below, over
    the scale. Of less than 1,000 values it is taken for that of 5 degrees, as nothing is known.
    """
    values = np.asarray(z, dtype=float)
    values = values[np.isfinite(values)]
    if len(values) < FEWEST_VALUES:
        return UNKNOWN_FREEDOM
    far = -float(np.quantile(values, TAIL))
    for freedom in FREEDOMS:
        if far >= student_z(TAIL, freedom):
            return float(freedom)
    return math.inf


def student_z(chance: float, freedom: float) -> float:
    """The modified z that Student's t exceeds with this chance; of infinite freedom a normal's."""
    far, quarter = -stdtrit(min(freedom, 1e10), (chance, 0.25))
    return float(far / (NORMAL * quarter))


@cache
def threshold(machines: int, level: float, freedom: float = math.inf) -> float:
    """The |z| that the farthest of `machines` healthy machines exceeds with the chance `level`.

    Simulated for up to 64 values of Student's t with `freedom`; above, the chances of all machines
    are added, and a twentieth of the limit for the uncertainty of the scale.

    >>> threshold(8, 0.05) < threshold(4, 0.05), threshold(64, 0.05) < threshold(64, 0.0005)
    (True, True)
    """
    if machines > LARGEST_SIMULATED:
        return student_z(level / (2 * machines), freedom) * (1 + 0.6 / math.sqrt(machines))
    random = np.random.default_rng(machines)
    farthest = []
    for _ in range(math.ceil(min(25 / level, 200_000) / 10_000)):
        fleets = random.standard_normal((10_000, machines), dtype=np.float32)
        if freedom < math.inf:
            fleets /= np.sqrt(random.chisquare(freedom, fleets.shape) / freedom).astype(np.float32)
        distances = np.abs(fleets - np.median(fleets, axis=1, keepdims=True))
        farthest.append(distances.max(axis=1) / (NORMAL * np.median(distances, axis=1)))
    return float(np.quantile(np.concatenate(farthest), 1 - level))
