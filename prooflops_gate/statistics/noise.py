"""How far processes lie apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# scipy.stats would take half a second to import.
from scipy.special import ndtri


def spread(times_s: Sequence[float]) -> float:
    """The relative standard deviation of a normal distribution with the same median distance from
    the median (MAD).

    A few outliers have no influence.

    >>> round(spread([1.00, 1.01, 0.99, 1.02, 5.00]), 4)
    0.0148
    """
    logs = np.log(times_s)
    return float(np.median(np.abs(logs - np.median(logs))) / ndtri(0.75))
