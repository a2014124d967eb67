"""Finds what a run concludes against its own figures, on values, before anything is drawn."""

import re

from prooflops.suite.page.highlights import unusual
from prooflops.suite.page.reconciled import FEW_LAUNCHES, LEAST_SHARE_OF_A_ROOF
from prooflops.suite.page.tables import best_products, steps_table
from prooflops.suite.peaks import DERIVED

ROUNDING = 1e-6
# A figure and the rate of its row are computed apart.
SAME_FIGURE = 0.006


def contradictions(report):
    """What the report of a run concludes against its own figures."""
    checks = (_shares, _figures, _best_rates, _ceilings, _roofs, _caches)
    return [said for check in checks for said in check(report)]


def _shares(report):
    rows = [" ".join(row[:-1]) for row in steps_table(report.benchmarks)]
    for text in [*unusual(report), *rows]:
        if any(float(share) > 100 for share in re.findall(r"([\d.]+) ?%", text)):
            yield f"a share over 100 %: {text}"


def _figures(report):
    """A figure is one row's, and is compared with one floor; a dtype has one dense peak."""
    for figure in report.figures:
        entry, row = figure.entry, figure.row.at_its_best()
        value = entry["value"]
        if figure.met and not figure.floor.is_met(entry["share"], entry.get("at_clock")):
            yield f"{figure.name} is at {entry['share']:.0%}, below its floor, but delivers"
        of_row = row.number("mfu") or row.number("mbu")
        is_of_peak = figure.floor and figure.floor.of in ("peak", "bandwidth")
        if of_row and is_of_peak and abs(entry["share"] - of_row) > SAME_FIGURE:
            yield f"{figure.name} is at {entry['share']:.1%} of its peak, its row {of_row:.1%}"
        peak = is_of_peak and report.peaks.get(DERIVED, {}).get(row.dtype)
        if peak and "nominal" in entry and abs(entry["nominal"] / peak - 1) > ROUNDING:
            yield f"{figure.name} has a peak of {entry['nominal']:.3g}, the run {peak:.3g}"
        rate = row.rate
        if rate and rate[1] == entry["unit"] and abs(rate[0] / value - 1) > SAME_FIGURE:
            yield f"{figure.name} is {value:.3g}, but its row {row.name} has {rate[0]:.3g}"
        for bench in report.benchmarks:
            is_rival = bench.is_product and bench.dtype == figure.figure and figure.met is not False
            if is_rival and bench.arithmetic_rate > (1 + ROUNDING) * value:
                yield f"{figure.name} is {value:.3g}, but {bench.name} is faster"


def _best_rates(report):
    for dtype, best in best_products(report.benchmarks).items():
        for bench in report.benchmarks:
            is_rival = bench.is_product and bench.dtype == dtype
            if is_rival and bench.arithmetic_rate > best.arithmetic_rate:
                yield f"the best rate of {dtype} is that of {best.name}, but {bench.name} is faster"


def _ceilings(report):
    """The share of the best rate has one denominator a dtype, which no product exceeds."""
    ceilings = {}
    for bench in report.benchmarks:
        share = bench.number("share_of_ceiling")
        if bench.is_product and share:
            if share > 1 + ROUNDING:
                yield f"{bench.name} is at {share:.1%} of the best rate, which is not the best then"
            ceilings.setdefault(bench.dtype, []).append(bench.arithmetic_rate / share)
    for dtype, found in ceilings.items():
        if max(found) > (1 + SAME_FIGURE) * min(found):
            yield f"the best rate of {dtype} has several values, {min(found)} to {max(found)}"


def _roofs(report):
    """A kernel is limited by a roof of which it reaches half."""
    for bench in report.benchmarks:
        share = bench.number("share_of_attainable")
        is_held = bench.bound in ("memory-bound", "compute-bound")
        if is_held and share and share < LEAST_SHARE_OF_A_ROOF:
            yield f"{bench.name} is {bench.bound} at {share:.1%} of its roof"


def _caches(report):
    """A cache's rate is no lower than a farther cache's, and no launch is part of it."""
    launches = [bench.median_s for bench in report.benchmarks if bench.family == "launch"]
    caches = [bench for bench in report.benchmarks if bench.level.startswith("L") and bench.rate]
    for bench in caches:
        if any(far.level > bench.level and far.rate > bench.rate for far in caches):
            yield f"{bench.name} is slower than a farther cache"
        if bench.median_s < FEW_LAUNCHES * max(launches, default=0.0):
            yield f"{bench.name} takes few launches, but has {bench.rate_text}"
