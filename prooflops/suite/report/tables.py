"""The tables of a run, as rows of text: claims by topic, benchmarks, kernels under the roofs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from prooflops.suite.peaks import share_of_peak
from prooflops.suite.report.measurement import Measurement
from prooflops.suite.report.run_report import by_topic
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
NO_PEAKS: Mapping[str, Mapping[str, float]] = MappingProxyType({})


def topic_table(claims: Sequence[Verdict]) -> list[list[str]]:
    """One row per topic: claims per verdict, and the number of cases."""
    rows = [["topic", "claims", *VERDICTS, "cases"]]
    for topic, group in [*by_topic(claims).items(), ("all", claims)]:
        count = Counter(claim.verdict for claim in group)
        cases = sum(claim.cases for claim in group)
        rows.append(
            [topic, str(len(group)), *(str(count[word] or "·") for word in VERDICTS), f"{cases:,}"]
        )
    return rows


def benchmark_table(
    benchmarks: Sequence[Measurement], peaks: Mapping[str, Mapping[str, float]] = NO_PEAKS
) -> list[list[str]]:
    """One row per benchmark: name, median, IQR, rate, and share of the two ceilings.

    A last column has the notes, if any. A stream's peak is the vendor's bandwidth.
    """
    rows = [
        ["benchmark", "median", "IQR", "rate", "of vendor peak (MFU)", "of own ceiling", "measured"]
    ]
    for bench in benchmarks:
        spread = (
            "-" if bench.iqr_share is None else f"{bench.iqr_share:.1%}" + " wide" * bench.is_wide
        )
        rows.append(
            [
                bench.name,
                engineering(bench.median_s, "s"),
                spread,
                *rates_of(bench, peaks),
                bench.notes,
            ]
        )
    return rows if any(bench.notes for bench in benchmarks) else [row[:-1] for row in rows]


def rates_of(bench: Measurement, peaks: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Three cells: the rate, and its share of the vendor's peak and of the own ceiling."""
    return [
        bench.rate_text,
        share_of_peak(bench.info, peaks),
        share(bench.info.get("share_of_ceiling"), "-"),
    ]


def kernels_of(benchmarks: Sequence[Measurement]) -> list[Measurement]:
    """The benchmarks placed under the roofs."""
    return [bench for bench in benchmarks if bench.info.get("roofline") and bench.has(*PLACED)]


def memory_stream(benchmarks: Sequence[Measurement]) -> Measurement | None:
    """The fastest stream from and to memory: the one bandwidth of the memory that a page gives."""
    streams = [bench for bench in benchmarks if bench.level == "memory" and bench.rate]
    return max(streams, key=lambda bench: bench.number("bytes_per_s"), default=None)


def best_rates(
    benchmarks: Sequence[Measurement], peaks: Mapping[str, Mapping[str, float]] = NO_PEAKS
) -> list[tuple[str, Measurement, list[str]]]:
    """The fastest matrix product per dtype, with the cells of its row: dtype, rate, share of peak, name, spread.

    Contention only lowers a rate, so that contended products take part, and are marked.
    """
    best: dict[str, Measurement] = {}
    for bench in benchmarks:
        if (
            bench.is_product
            and bench.dtype
            and _rate(bench) > (_rate(best[bench.dtype]) if bench.dtype in best else 0)
        ):
            best[bench.dtype] = bench
    return [
        (
            dtype,
            bench,
            [
                dtype,
                bench.rate_text,
                share_of_peak(bench.info, peaks),
                bench.name,
                spread_text(bench),
            ],
        )
        for dtype, bench in sorted(best.items(), key=lambda each: _rate(each[1]), reverse=True)
    ]


def _rate(bench: Measurement) -> float:
    return bench.arithmetic_rate or 0.0


def spread_text(bench: Measurement) -> str:
    """The spread in percent, with the reason if it allows no conclusion."""
    return f"{bench.spread:.1%}" + (f": {bench.unsettled}" if bench.unsettled else "")
