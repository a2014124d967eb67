"""One figure for each quantity of a run: a dtype's ceiling and peak, the memory's bandwidth.

All rows are compared with the highest product of their dtype, in whichever order they ran. What
exceeds it is no product: its figures contradict each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from prooflops.suite.page.measurement import BURSTS, NEITHER, Measurement
from prooflops.suite.page.reread import with_facts_of_conditions

SAME_SHARE_OF_READS = 0.05
SHARES_OF_CEILING = ("share_of_ceiling", "model_share_of_ceiling")
# Below this share of its roof a kernel is limited by something else.
LEAST_SHARE_OF_A_ROOF = 0.5
# A third of such a call is the launch: its rate says little of the cache.
FEW_LAUNCHES = 3.0


def reconciled(benchmarks: Iterable[Measurement]) -> tuple[Measurement, ...]:
    """The benchmarks with shares of the highest ceilings and bandwidths of the run."""
    rows = with_facts_of_conditions([*benchmarks])
    ceilings = ceilings_of(rows)
    streams = [each for each in rows if each.level == "memory" and each.rate and not each.is_wide]
    compared = [
        replace(bench, info=_compared(bench, ceilings.get(bench.dtype, 0.0), streams))
        for bench in rows
    ]
    return tuple(_calls_apart(compared))


def at_one_clock(
    benchmarks: Sequence[Measurement], derived: Mapping[str, float]
) -> tuple[tuple[Measurement, ...], Mapping[str, float], float]:
    """The benchmarks with shares of one peak a dtype, these peaks, and their clock in MHz.

    `derived`: a CPU's peaks at the first clock. The highest clock that the run saw counts, since a
    core that was interrupted seems to run at a lower one. Without a clock nothing changes.
    """
    # A stream of a cache uses one core, and has its units.
    clocked = [
        bench
        for bench in benchmarks
        if bench.dtype in derived and bench.has("units_flop_per_s") and not bench.level
    ]
    if not clocked:
        return tuple(benchmarks), derived, 0.0
    of_first = derived[clocked[0].dtype] / clocked[0].number("units_flop_per_s")
    first_mhz = clocked[0].number("clock_mhz") * of_first
    highest_mhz = max([first_mhz, *(bench.number("clock_mhz") for bench in clocked)])
    peaks = {dtype: peak * highest_mhz / first_mhz for dtype, peak in derived.items()}
    rows = [
        replace(bench, info=_of_peak(bench.info, peaks[bench.dtype], highest_mhz))
        if bench in clocked
        else bench
        for bench in benchmarks
    ]
    return tuple(rows), peaks, highest_mhz


def _of_peak(info: Mapping[str, Any], peak: float, clock_mhz: float) -> Mapping[str, Any]:
    """The row's figure as a share of this peak, if its floor is such a share."""
    entry = info.get("delivers") or {}
    if not entry.get("nominal") or entry["floor"]["of"] != "peak":
        return info
    shares = {"share": entry["value"] / peak, "nominal": peak, "clock_mhz": clock_mhz}
    if "most" in entry:
        shares["most_share"] = entry["most"] / peak
    if entry.get("met") and shares["share"] < entry["floor"]["limit"]:
        shares |= {"met": None, "unknown": "the clock was higher later on"}
    return {**info, "delivers": {**entry, **shares}}


def ceilings_of(benchmarks: Sequence[Measurement]) -> dict[str, float]:
    """The one ceiling of each dtype: its fastest product; without one the recorded ceiling."""
    reached: dict[str, float] = {}
    recorded: dict[str, float] = {}
    for bench in benchmarks:
        dtype = bench.dtype
        recorded[dtype] = max(recorded.get(dtype, 0.0), bench.number("ceiling_flop_per_s"))
        if bench.is_product:
            rate = bench.at_its_best().arithmetic_rate or 0.0
            reached[dtype] = max(reached.get(dtype, 0.0), rate)
    return {**recorded, **reached}


def _calls_apart(benchmarks: Sequence[Measurement]) -> Iterable[Measurement]:
    """Marks streams of a cache that take no longer than their calls.

    A farther cache is faster, or the call lasts no longer than a few launches.
    """
    caches = [bench for bench in benchmarks if bench.level.startswith("L") and bench.rate]
    launch_s = max((each.median_s for each in benchmarks if each.family == "launch"), default=0.0)
    for bench in benchmarks:
        farther = [each.number("bytes_per_s") for each in caches if each.level > bench.level]
        is_slower = bench.number("bytes_per_s") < max(farther, default=0.0)
        is_short = bench.median_s < FEW_LAUNCHES * launch_s
        is_of_calls = bench in caches and (is_slower or is_short)
        yield replace(bench, info={**bench.info, "bound": "launch"}) if is_of_calls else bench


def _compared(
    bench: Measurement, ceiling: float, streams: Iterable[Measurement]
) -> Mapping[str, Any]:
    before = bench.number("ceiling_flop_per_s")
    if not before:
        return bench.info
    if bench.info.get("regime") == BURSTS:
        return {**bench.info, "share_of_ceiling": None}
    info = {**bench.info, "ceiling_flop_per_s": ceiling}
    for key in SHARES_OF_CEILING:
        if bench.has(key):
            info[key] = bench.number(key) * before / ceiling
    if bench.has("roof_bytes_per_s", "intensity", "flop_per_s"):
        info |= _under_the_roofs(bench, ceiling, streams)
    return info


def _under_the_roofs(
    bench: Measurement, ceiling: float, streams: Iterable[Measurement]
) -> dict[str, Any]:
    """The kernel's place under the highest roofs, and the one that limits it."""
    reads = bench.number("read_share")
    alike = [
        each.number("bytes_per_s")
        for each in streams
        if abs(each.number("read_share") - reads) <= SAME_SHARE_OF_READS
    ]
    roof = max([bench.number("roof_bytes_per_s"), *alike])
    intensity, ridge = bench.number("intensity"), ceiling / roof
    rate, attainable = bench.number("flop_per_s"), min(ceiling, intensity * roof)
    if attainable < rate <= (1 + bench.spread) * attainable:
        # The kernel is at its roof, which the stream measured slightly too low.
        roof, attainable = roof * rate / attainable, rate
    share = rate / attainable
    bound = bench.info.get("bound")
    if bound != "launch":
        bound = "memory" if intensity < ridge else "compute"
        bound = bound if share >= LEAST_SHARE_OF_A_ROOF else NEITHER
    return {
        "roof_bytes_per_s": roof,
        "attainable_flop_per_s": attainable,
        "ridge": ridge,
        "share_of_attainable": share,
        "bound": bound,
    }
