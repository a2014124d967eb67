"""Measures what a user's step is compared with, again where the figures contradict each other."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from bench.ceilings import Ceilings
from bench.products import DTYPES, Unsupported, product
from bench.streams import Bandwidths
from prooflops import timing

TIMES_AGAIN = 2
# Rounds of a step, at least and at most, and the seconds for them where the fewest take no longer.
ROUNDS, SECONDS = (5, 15), 2.0


@dataclass(frozen=True)
class StepRates:
    """Ceilings, bandwidths and peaks of this machine, measured when first asked for."""

    user_model: Any
    device: torch.device
    ceilings: Ceilings
    bandwidths: Bandwidths
    peak_flop_per_s: Callable[[str], float | None]
    conditions: Callable[[], AbstractContextManager[dict[str, Any]]]

    def record(self, seconds: float, spread: float, rounds: int, labels: Sequence[str]) -> Any:
        """Keeps the time of a step in `user_model`, beside the rates of its dtypes."""
        formats = [dtype for dtype in self.user_model.flops.by_dtype if dtype in DTYPES]
        return self.user_model.record_step(
            seconds=seconds,
            spread=spread,
            rounds=rounds,
            labels=tuple(labels),
            peak_flop_per_s={dtype: self.peak_flop_per_s(dtype) for dtype in formats},
            ceiling_flop_per_s={dtype: self._ceiling(dtype) for dtype in formats},
            # Half of the bytes are reads, as in a copy.
            bytes_per_s=self.bandwidths.bytes_per_s(0.5),
        )

    def measure_until_known(self, step: Callable[[], object]) -> None:
        """Measures the ceilings' products and the step again, at most twice.

        Of the products of a ceiling the faster counts.
        """
        for _ in range(TIMES_AGAIN):
            if not self.user_model.unknown:
                return
            known = self.user_model.step
            for dtype in (dtype for dtype, ceiling in known.ceiling_flop_per_s.items() if ceiling):
                case = product(dtype, *self.ceilings.found(dtype).shape, self.device)
                self.ceilings.remeasure(dtype, case.multiply, case.work.flops)
            rounds = min(max(int(SECONDS / known.seconds), ROUNDS[0]), ROUNDS[1])
            with self.conditions() as seen:
                times = timing.time(step, self.device, warmup=2, rounds=rounds)
            self.record(times.median_s, times.spread, rounds, seen["labels"])

    def _ceiling(self, dtype: str) -> float | None:
        try:
            return self.ceilings.flop_per_s(dtype)
        except Unsupported:
            return None
