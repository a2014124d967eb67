"""How long one benchmark may take, and how narrow the interval of its median should be."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Pace:
    """The limits of one benchmark in seconds, and the width of its interval."""

    warmup_s: float  # at least
    longest_warmup_s: float
    measure_s: float  # at most, in rounds
    longest_call_s: float
    width: float  # of the interval of the median, as a share of it
    most_rounds: int = 1000
    longest_s: float = math.inf  # of a benchmark that calls a step many times, all together

    def skip_if_longer(self, seconds: float) -> None:
        """Skips a benchmark one call of which takes about so many seconds, where that is too long."""
        if seconds > self.longest_call_s:
            pytest.skip(f"one call takes about {seconds:.2g} s, {self.longest_call_s} s are allowed")


PACES = {
    "quick": Pace(0.02, 0.05, 0.08, 0.05, width=0.04, longest_s=4.5),
    "default": Pace(0.1, 0.2, 0.25, 0.2, width=0.02, longest_s=30.0),
    "thorough": Pace(0.5, 5.0, 3.0, 5.0, width=0.01, longest_s=1500.0),
}
