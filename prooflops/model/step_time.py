"""The time of a training step, beside the rates of the machine and its vendor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from accounting.roofline import hfu, mfu
from prooflops import timing
from prooflops.model.breakdown import Breakdown
from prooflops.model.flop_difference import ExplainedFlops
from prooflops.suite.page.measurement import CONTENDED, WIDEST_SPREAD
from prooflops_gate.console.tables import engineering

OVERHEAD = "overhead"
OPERATORS_TIMED_TOGETHER = 50


@dataclass(frozen=True)
class MeasuredStep:
    """One training step by the device's clock, with the least times that bound it.

    The least times are those of its FLOPs, its bytes and its operators. Rates are those of this
    machine, measured in this run and at its dense peak, per dtype of the products. `spread` is
    the middle half of the rounds, as a share of the median. `overhead_s` is the time of one
    operator on a handful of elements, autograd included. `labels` name disturbances, see
    `prooflops.machine.conditions`.
    """

    flops: ExplainedFlops
    seconds: float
    spread: float
    rounds: int
    peak_flop_per_s: Mapping[str, float | None]
    ceiling_flop_per_s: Mapping[str, float | None]
    bytes_per_s: float
    overhead_s: float
    labels: tuple[str, ...] = ()

    @property
    def per_s(self) -> float | None:
        """Tokens or examples per second; None where their number is not known."""
        number = self.flops.batch.number
        return None if number is None else number / self.seconds

    @property
    def mfu(self) -> float | None:
        """The share of the dense peak that the needed FLOPs reach; None if none is known."""
        return mfu(self.flops.model, self.seconds, self._rate(self.peak_flop_per_s))

    @property
    def hfu(self) -> float | None:
        """All FLOPs that were executed, against the dense peak."""
        return hfu(
            self.flops.model, self.flops.recomputed, self.seconds, self._rate(self.peak_flop_per_s)
        )

    @property
    def mfu_of_ceiling(self) -> float | None:
        """The FLOPs that the mathematics needs, against this machine's own best measured rate."""
        return mfu(self.flops.model, self.seconds, self._ceiling)

    @property
    def hfu_of_ceiling(self) -> float | None:
        """All FLOPs that were executed, against this machine's own best measured rate."""
        return hfu(self.flops.model, self.flops.recomputed, self.seconds, self._ceiling)

    @property
    def _ceiling(self) -> float | None:
        return self._rate(self.ceiling_flop_per_s)

    def _rate(self, per_dtype: Mapping[str, float | None]) -> float | None:
        """The rate of products of several dtypes one after the other: the FLOPs over the sum of
        their times.
        """
        seconds = 0.0
        for dtype, flops in self.flops.by_dtype.items():
            rate = per_dtype.get(dtype)
            if rate is None:
                return None
            seconds += flops / rate
        return self.flops.executed / seconds if seconds else None

    @property
    def least_times_s(self) -> dict[str, float]:
        """The times of arithmetic, memory traffic and launching, each alone."""
        times = {"compute": self.flops.executed / self._ceiling} if self._ceiling else {}
        times["memory"] = self.flops.moved_bytes / self.bytes_per_s
        times["launch"] = self.flops.operators * self.overhead_s
        return times

    def why_unknown(self, breakdown: Breakdown) -> str:
        """The reason why its figures allow no conclusion; empty if they do.

        The figures may be disturbed, spread widely, or contradict one another or the breakdown.
        """
        return next(self._contradictions(breakdown), "")

    def _contradictions(self, breakdown: Breakdown) -> Iterator[str]:
        ceiling = max(filter(None, self.ceiling_flop_per_s.values()), default=math.inf)
        for each in breakdown.operators:
            if each.seconds and each.flops / each.seconds > ceiling:
                rate = engineering(each.flops / each.seconds, "FLOP/s")
                limit = engineering(ceiling, "FLOP/s")
                yield f"{each.name} runs at {rate}, above this machine's best measured {limit}"
        for label in self.labels:
            if label.startswith(CONTENDED):
                yield label.removeprefix(f"{CONTENDED}: ")
        if self.spread > WIDEST_SPREAD:
            yield f"its times spread by {self.spread:.0%}"
        least_times = self.least_times_s
        shares = {
            "the dense peak": self.hfu,
            "this machine's best measured rate": self.hfu_of_ceiling,
            "the bandwidth of copies": least_times["memory"] / self.seconds,
            "the time of its launches": least_times["launch"] / self.seconds,
        }
        for what, share in shares.items():
            if share and share > 1:
                yield f"it would be at {share:.0%} of {what}"

    @property
    def bound(self) -> str:
        """The longest of the three least times.

        OVERHEAD if it explains less than half of the step.
        """
        name, longest = max(self.least_times_s.items(), key=lambda item: item[1])
        return name if longest >= self.seconds / 2 else OVERHEAD


def overhead_s(device: torch.device) -> float:
    """Time of one operator on a few elements, forward or backward: the cost of launching it."""
    x = torch.randn(8, device=device, requires_grad=True)

    def chain() -> None:
        y = x
        for _ in range(OPERATORS_TIMED_TOGETHER):
            y = y * 1.5
        y.sum().backward()  # type: ignore[no-untyped-call]

    return timing.time(chain, device, warmup=5, rounds=21).median_s / (2 * OPERATORS_TIMED_TOGETHER)
