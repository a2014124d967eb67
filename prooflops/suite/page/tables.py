"""The tables of a run, as rows of text: claims by topic, benchmarks, kernels under the roofs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from prooflops.suite.page.measurement import Measurement
from prooflops.suite.page.run_report import by_topic
from prooflops.suite.peaks import share_of_peak
from prooflops.suite.verdicts import VERDICTS, Verdict
from prooflops_gate.console.tables import engineering, share

PLACED = (
    "flops",
    "bytes",
    "intensity",
    "counted_intensity",
    "attainable_flop_per_s",
    "flop_per_s",
    "ridge",
)
RATES_HEAD = ["dtype", "rate", "of vendor peak", "in", "spread"]
BENCHMARKS_HEAD = [
    "benchmark",
    "median",
    "spread",
    "rate",
    "of vendor peak",
    "of own ceiling",
    "notes",
]
NO_PEAKS: Mapping[str, Mapping[str, float]] = MappingProxyType({})


def topic_table(claims: Sequence[Verdict]) -> list[list[str]]:
    """One row per topic: claims per verdict, and the number of cases."""
    rows = [["topic", "claims", *VERDICTS, "cases"]]
    for topic, group in [*by_topic(claims).items(), ("all", claims)]:
        count = Counter(claim.verdict for claim in group)
        cases = sum(claim.cases for claim in group)
        numbers = [str(count[word] or "·") for word in VERDICTS]
        rows.append([topic, str(len(group)), *numbers, f"{cases:,}"])
    return rows


def benchmark_table(
    benchmarks: Sequence[Measurement], peaks: Mapping[str, Mapping[str, float]] = NO_PEAKS
) -> list[list[str]]:
    """One row per benchmark, with the shares of both ceilings; a stream's peak is the bandwidth.

    Without benchmarks there is no row.
    """
    rows = []
    for bench in benchmarks:
        spread = spread_text(bench).partition(":")[0] + " wide" * bench.is_wide
        time = engineering(bench.median_s, "s")
        rows.append([bench.name, time, spread, *rates_of(bench, peaks), bench.notes])
    return [BENCHMARKS_HEAD, *rows] if rows else []


def rates_of(bench: Measurement, peaks: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Three cells: the rate, and its share of the vendor's peak and of the own ceiling."""
    own = share(bench.info.get("share_of_ceiling"), "-")
    return [bench.rate_text, share_of_peak(bench.info, peaks), own]


def kernels_of(benchmarks: Sequence[Measurement]) -> list[Measurement]:
    """The benchmarks placed under the roofs."""
    return [bench for bench in benchmarks if bench.info.get("roofline") and bench.has(*PLACED)]


def memory_stream(benchmarks: Sequence[Measurement]) -> Measurement | None:
    """The fastest stream from and to memory: the one bandwidth of the memory that a page gives."""
    streams = [bench for bench in benchmarks if bench.level == "memory" and bench.rate]
    return max(streams, key=lambda bench: bench.number("bytes_per_s"), default=None)


def best_products(benchmarks: Sequence[Measurement]) -> dict[str, Measurement]:
    """The fastest matrix product of each dtype, the fastest dtype first.

    Contention only lowers a rate, so that contended products take part, and are marked.
    """
    best: dict[str, Measurement] = {}
    for bench in benchmarks:
        if bench.is_product and bench.dtype:
            known = best.get(bench.dtype)
            if known is None or _rate(bench) > _rate(known):
                best[bench.dtype] = bench
    return dict(sorted(best.items(), key=lambda item: -_rate(item[1])))


def rates_table(
    benchmarks: Sequence[Measurement], peaks: Mapping[str, Mapping[str, float]] = NO_PEAKS
) -> list[list[str]]:
    """The best rate of each dtype; no row without a product."""
    rows = []
    for dtype, bench in best_products(benchmarks).items():
        of_peak = share_of_peak(bench.info, peaks)
        rows.append([dtype, bench.rate_text, of_peak, bench.name, spread_text(bench)])
    return [RATES_HEAD, *rows] if rows else []


def _rate(bench: Measurement) -> float:
    return bench.arithmetic_rate or 0.0


def spread_text(bench: Measurement) -> str:
    """The spread in percent, with the reason if it allows no conclusion."""
    return f"{bench.spread:.1%}" + (f": {bench.unsettled}" if bench.unsettled else "")


def roofline_table(benchmarks: Sequence[Measurement]) -> list[list[str]]:
    """One row per kernel: intensity by formula and as counted, and its place under the roofs."""
    head = ["kernel", "FLOP/B", "counted", "reads", "attainable", "achieved", "share"]
    rows = []
    for bench in kernels_of(benchmarks):
        counted = f"{bench.number('counted_intensity'):.3g}"
        marked = " *" if bench.info.get("counted_otherwise") else ""
        paper = bench.number("paper_ridge")
        bound = bench.bound.removesuffix("-bound")
        label = bench.info.get("roof_label")
        rows.append([
            bench.name,
            f"{bench.number('intensity'):.3g}",
            counted + marked,
            f"{bench.number('read_share'):.0%}",
            engineering(bench.number("attainable_flop_per_s"), "FLOP/s"),
            engineering(bench.number("flop_per_s"), "FLOP/s"),
            share(bench.number("share_of_attainable") or None, "-"),
            f"{bound}, {label}" if label else bound,
            f"{bench.number('ridge'):.3g}",
            f"{paper:.3g}" if paper else "no peak on record",
        ])  # fmt: skip
    return [[*head, "held back by", "ridge", "on paper"], *rows] if rows else []
