"""One figure for each quantity of a run: a dtype's ceiling, and the memory's bandwidth for a mix of reads and writes.

A later product may exceed the ceiling that an earlier row was compared with, and a stream the roof of a kernel. All
rows are compared with the highest. What still exceeds it is no product or stream: its figures contradict each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from prooflops.suite.report.measurement import Measurement

SAME_MIX = 0.05  # of the share of reads
SHARES_OF_CEILING = ("share_of_ceiling", "model_share_of_ceiling")


def reconciled(benchmarks: Iterable[Measurement]) -> tuple[Measurement, ...]:
    """The benchmarks with the shares that follow from the highest ceilings and bandwidths of the run."""
    rows = [*benchmarks]
    ceilings: dict[tuple[str, str], float] = {}
    for bench in rows:
        reached = bench.arithmetic_rate if bench.is_product and not bench.is_wide else None
        ceiling = max(bench.number("ceiling_flop_per_s"), reached or 0.0)
        ceilings[_regime(bench)] = max(ceilings.get(_regime(bench), 0.0), ceiling)
    streams = [
        bench for bench in rows if bench.level == "memory" and bench.rate and not bench.is_wide
    ]
    compared = [
        replace(bench, info=_compared(bench, ceilings[_regime(bench)], streams)) for bench in rows
    ]
    return tuple(_calls_apart(compared))


def _calls_apart(benchmarks: Sequence[Measurement]) -> Iterable[Measurement]:
    """Marks streams of a cache that are slower than those of a farther one: it is their calls that take the time."""
    caches = [bench for bench in benchmarks if bench.level.startswith("L") and bench.rate]
    for bench in benchmarks:
        farther = max(
            (each.number("bytes_per_s") for each in caches if each.level > bench.level), default=0.0
        )
        is_slower = bench in caches and bench.number("bytes_per_s") < farther
        yield replace(bench, info={**bench.info, "bound": "launch"}) if is_slower else bench


def _regime(bench: Measurement) -> tuple[str, str]:
    return bench.dtype, str(bench.info.get("regime") or "sustainable")


def _compared(
    bench: Measurement, ceiling: float, streams: Iterable[Measurement]
) -> Mapping[str, Any]:
    before = bench.number("ceiling_flop_per_s")
    if not before:
        return bench.info
    info = {**bench.info, "ceiling_flop_per_s": ceiling}
    info |= {
        key: bench.number(key) * before / ceiling for key in SHARES_OF_CEILING if bench.has(key)
    }
    if bench.has("roof_bytes_per_s", "intensity", "flop_per_s"):
        reads = bench.number("read_share")
        alike = [
            each.number("bytes_per_s")
            for each in streams
            if abs(each.number("read_share") - reads) <= SAME_MIX
        ]
        roof = max([bench.number("roof_bytes_per_s"), *alike])
        attainable, ridge = min(ceiling, bench.number("intensity") * roof), ceiling / roof
        info |= {"roof_bytes_per_s": roof, "attainable_flop_per_s": attainable, "ridge": ridge}
        info["share_of_attainable"] = bench.number("flop_per_s") / attainable
        if info.get("bound") in ("memory", "compute"):
            info["bound"] = "memory" if bench.number("intensity") < ridge else "compute"
    return info
