"""The time limits of one benchmark, when its warm-up is over, and how many rounds it needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median, quantiles
from typing import NoReturn

import pytest

from prooflops.reasons import TOO_SLOW

# Five have no interval of 95 %.
FEWEST_ROUNDS = 6
# The largest change of the median at which a warm-up is over.
FLAT = 0.02
FEWEST_WARM_ROUNDS = 9
# The least and the longest warm-up of an accelerator, once a dtype, until work that the power limit
# may slow has a steady rate. Power is averaged over a good part of a second.
SETTLED_S = (1.0, 3.0)
# The least and the longest warm-up of each later row. The device rests for a tenth of a second
# between two rows.
RESETTLED_S = (0.25, 1.0)
# Rounds of such a row last at least as long, so that its clock is sampled several times.
SAMPLED_S = 0.05
# The share of the ceiling from which on a power limit may slow work.
NEAR_CEILING = 0.5


# Says what is measured now, and for how many seconds.
Progress = Callable[..., None]


def no_progress(text: str, ahead_s: float = 0.0) -> None:
    """Reports nothing."""


def skip_as_too_slow(why: str) -> NoReturn:
    """Skips a benchmark whose calls take longer than its time."""
    pytest.skip(f"{TOO_SLOW}: {why}")


@dataclass(frozen=True)
class Pace:
    """The limits of one benchmark in seconds, and the width of its interval.

    `warmup_s` is the least warm-up, and `measure_s` the most of all rounds. `width` is that of the
    median's interval, as a share of the median.
    """

    warmup_s: float
    longest_warmup_s: float
    measure_s: float
    longest_call_s: float
    width: float
    most_rounds: int = 1000

    def settled(self, kind: str) -> Pace:
        """This pace with the warm-up of a sustainable rate; a CPU is warm after a few calls."""
        return self._warmed(kind, SETTLED_S)

    def resettled(self, kind: str) -> Pace:
        """This pace for a device that was settled before and has rested shortly."""
        return self._warmed(kind, RESETTLED_S)

    def _warmed(self, kind: str, seconds: tuple[float, float]) -> Pace:
        least, most = (0.0, self.warmup_s) if kind == "cpu" else seconds
        return replace(self, warmup_s=least, longest_warmup_s=most)

    def skip_if_longer(self, seconds: float, usual: float = 1.0) -> None:
        """Skips a benchmark if one call takes longer than `usual` times the longest."""
        limit_s = usual * self.longest_call_s
        if seconds > limit_s:
            skip_as_too_slow(f"one call takes about {seconds:.2g} s, the limit is {limit_s:.2g} s")


PACES = {
    "quick": Pace(0.02, 0.05, 0.08, 0.05, width=0.04),
    "default": Pace(0.1, 0.2, 0.25, 0.2, width=0.02),
    "thorough": Pace(0.5, 5.0, 3.0, 5.0, width=0.01),
}


def is_flat(rounds_s: Sequence[float]) -> bool:
    """True if the medians of the last two thirds of the rounds differ by at most 2 %.

    >>> is_flat([9, 8, 7, 6, 5, 4, 3, 2, 1]), is_flat([9, 8, 7, 1, 1, 1, 1, 1, 1]), is_flat([1] * 8)
    (False, True, False)
    """
    if len(rounds_s) < FEWEST_WARM_ROUNDS:
        return False
    third = len(rounds_s) // 3
    before, last = median(rounds_s[-2 * third : -third]), median(rounds_s[-third:])
    return abs(last - before) <= FLAT * before


def rounds_for(width: float, pilot: Sequence[float], most: int) -> int:
    """The rounds that make the median's interval as narrow as `width`, by the pilot.

    They are at most `most`.

    With n rounds the interval spans the quantiles 1/2 ± 0.98/√n. Their distance follows from the
    pilot's quartiles, in proportion. The result is doubled, because the pilot is small.

    >>> spread = [0.98, 0.99, 1.0, 1.01, 1.02]
    >>> [rounds_for(0.02, pilot, most=1000) for pilot in ([1.0] * 9, spread, [0.8, *spread, 1.2])]
    [6, 31, 70]
    """
    lower, middle, upper = (
        quantiles(pilot, n=4, method="inclusive") if len(pilot) > 1 else [pilot[0]] * 3
    )
    needed = math.ceil(2 * (2 * 0.98 * (upper - lower) / 0.5 / (width * middle)) ** 2)
    return max(FEWEST_ROUNDS, min(needed, most))
