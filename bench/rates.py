"""A row's rates, judged by bounds from above, and its shares of a peak and a ceiling; floors: `bench.delivery`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accounting.roofline import Work, mfu
from bench.ceilings import Ceilings


def judged(
    work: Work,
    seconds: float,
    dtype: str | None,
    what: str,
    *,
    flop_bound: float | None = None,
    bytes_bound: float | None = None,
) -> dict[str, float]:
    """FLOP/s (of int8: operations per second), bytes/s and intensity, for the record.

    Raises AssertionError for a rate that the units cannot reach at their highest clock: a measurement error.
    """
    __tracebackhide__ = True
    rates = {"intensity": work.intensity} if work.bytes else {}
    for figure, amount, bound, unit, wrong in (
        (
            "op_per_s" if dtype == "int8" else "flop_per_s",
            work.flops,
            flop_bound,
            "FLOP/s",
            "FLOPs",
        ),
        ("bytes_per_s", work.bytes, bytes_bound, "B/s", "bytes"),
    ):
        rate = amount / seconds
        assert bound is None or rate <= bound, (
            f"{what}: measured {rate:.4g} {unit}, but its units do at most {bound:.4g}: the {wrong} or the clock are "
            "wrong"
        )
        rates |= {figure: rate} if amount else {}
    return rates


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
