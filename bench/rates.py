"""A benchmark's rates, checked against their bounds, and its shares of a peak and a ceiling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accounting.roofline import Work, mfu
from bench.ceilings import Ceilings
from bench.products import Product


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

    Raises AssertionError for a rate that the units cannot reach at their highest clock: a
    measurement error.

    >>> judged(Work(90, 30), 3.0, "bf16", "a product", flop_bound=30.0, bytes_bound=10.0)
    {'intensity': 3.0, 'flop_per_s': 30.0, 'bytes_per_s': 10.0}
    >>> judged(Work(90, 0), 3.0, "int8", "a product"), judged(Work(0, 30), 3.0, None, "a copy")
    ({'op_per_s': 30.0}, {'intensity': 0.0, 'bytes_per_s': 10.0})
    >>> judged(Work(0, 30), 3.0, None, "a copy", bytes_bound=9.0)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    AssertionError: a copy: measured 10 B/s, but the units do at most 9: the declared bytes or ...
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
            f"{what}: measured {rate:.4g} {unit}, but the units do at most {bound:.4g}: the "
            f"declared {wrong} or the timer are wrong"
        )
        rates |= {figure: rate} if amount else {}
    return rates


def share_of_units(rate: float, clock_mhz: float, units: float | None) -> dict[str, float]:
    """The clock that ran, the FLOP/s of all units at it, and the share of it that is `rate`.

    It tells a slow kernel from a slow clock, and hardly moves with power or heat.

    >>> share_of_units(706e12, 1550.0, 838e12)["share_at_clock"]
    0.8424821002386634
    """
    if units is None:
        return {"clock_mhz": clock_mhz}
    return {"clock_mhz": clock_mhz, "units_flop_per_s": units, "share_at_clock": rate / units}


def shares_of_product(
    case: Product, seconds: float, ceilings: Ceilings, peak: float | None
) -> dict[str, Any]:
    """The shares of a product; its rate raises the ceiling if it is higher."""
    found = shares_of(case.multiply, case.work, seconds, case.dtype, ceilings, peak)
    rate = case.work.flops / seconds
    ceiling = ceilings.keep(case.dtype, case.shape, rate)
    return found | {"ceiling_flop_per_s": ceiling, "share_of_ceiling": rate / ceiling}


def shares_of(
    function: Callable[[], object],
    work: Work,
    seconds: float,
    dtype: str,
    ceilings: Ceilings,
    peak: float | None,
) -> dict[str, Any]:
    """The share of the vendor's peak and of this machine's ceiling.

    The ceiling is measured again by a function that exceeds it.
    """
    rate, ceiling = work.flops / seconds, ceilings.flop_per_s(dtype)
    if rate > ceiling:
        ceiling = ceilings.remeasure(dtype, function, work.flops)
    return {
        "peak_flop_per_s": peak,
        "mfu": mfu(work.flops, seconds, peak),
        "ceiling_flop_per_s": ceiling,
        "share_of_ceiling": rate / ceiling,
    }
