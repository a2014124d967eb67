"""The rates that follow from a time, and the bounds that they cannot exceed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accounting.roofline import Work, mfu
from bench.ceilings import Ceilings


def rates_of(work: Work, seconds: float, dtype: str | None) -> dict[str, float]:
    """FLOP/s (of int8: operations per second), bytes/s and intensity, for the record."""
    rates = {}
    if work.flops:
        rates["op_per_s" if dtype == "int8" else "flop_per_s"] = work.flops / seconds
    if work.bytes:
        rates |= {"bytes_per_s": work.bytes / seconds, "intensity": work.intensity}
    return rates


def assert_within_bound(rate: float, bound: float | None, what: str, unit: str = "FLOP/s") -> None:
    """Raises AssertionError for a rate that the units cannot reach at their highest clock: a measurement error."""
    __tracebackhide__ = True
    wrong = "FLOPs" if unit == "FLOP/s" else "bytes"
    assert bound is None or rate <= bound, (
        f"{what}: measured {rate:.4g} {unit}, but its units do at most {bound:.4g}: the {wrong} or the clock are wrong"
    )


def shares_of(
    function: Callable[[], object], work: Work, seconds: float, dtype: str, regime: str,
    ceilings: Ceilings, peak: float | None,
) -> dict[str, Any]:  # fmt: skip
    """The share of the vendor's peak and of this machine's ceiling, which a faster function has measured again."""
    rate, ceiling = work.flops / seconds, ceilings.flop_per_s(dtype, regime)
    remeasured = rate > ceiling
    if remeasured:
        ceiling = ceilings.remeasure(dtype, function, work.flops, regime)
    return {
        "peak_flop_per_s": peak,
        "mfu": mfu(work.flops, seconds, peak),
        "ceiling_flop_per_s": ceiling,
        "ceiling_remeasured": remeasured,
        "share_of_ceiling": rate / ceiling,
    }
