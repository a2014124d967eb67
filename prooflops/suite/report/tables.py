"""The tables of a run, as rows of text: claims by topic, benchmarks, kernels under the roofs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from prooflops.console.tables import engineering, share
from prooflops.suite.peaks import share_of_peak
from prooflops.suite.report.measurement import Measurement
from prooflops.suite.report.run_report import by_topic
from prooflops.suite.verdicts import VERDICTS, Verdict

PLACED = ("flops", "bytes", "intensity", "counted_intensity", "attainable_flop_per_s", "flop_per_s", "ridge")
NO_PEAKS: Mapping[str, Mapping[str, float]] = MappingProxyType({})


def topic_table(claims: Sequence[Verdict]) -> list[list[str]]:
    """One row per topic: claims per verdict, and the number of cases."""
    rows = [["topic", "claims", *VERDICTS, "cases"]]
    for topic, group in [*by_topic(claims).items(), ("all", claims)]:
        count = Counter(claim.verdict for claim in group)
        cases = sum(claim.cases for claim in group)
        rows.append([topic, str(len(group)), *(str(count[word] or "·") for word in VERDICTS), f"{cases:,}"])
    return rows


def benchmark_table(
    benchmarks: Sequence[Measurement], peaks: Mapping[str, Mapping[str, float]] = NO_PEAKS
) -> list[list[str]]:
    """One row per benchmark: name, median, IQR, rate, and share of the two ceilings.

    A last column has the notes, if any. A stream's peak is the vendor's bandwidth.
    """
    rows = [["benchmark", "median", "IQR", "rate", "of vendor peak (MFU)", "of own ceiling", "measured"]]
    for bench in benchmarks:
        spread = "-" if bench.iqr_share is None else f"{bench.iqr_share:.1%}" + " wide" * bench.is_wide
        rows.append([bench.name, engineering(bench.median_s, "s"), spread, *rates_of(bench, peaks), bench.notes])
    return rows if any(bench.notes for bench in benchmarks) else [row[:-1] for row in rows]


def rates_of(bench: Measurement, peaks: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Three cells: the rate, and its share of the vendor's peak and of the own ceiling."""
    return [bench.rate_text, share_of_peak(bench.info, peaks), share(bench.info.get("share_of_ceiling"), "-")]


def kernels_of(benchmarks: Sequence[Measurement]) -> list[Measurement]:
    """The benchmarks placed under the roofs."""
    return [bench for bench in benchmarks if bench.info.get("roofline") and bench.has(*PLACED)]


def roofline_table(benchmarks: Sequence[Measurement]) -> list[list[str]]:
    """One row per roofline kernel: intensity by formula and as counted, and place under the roofs.

    Without kernels, only the head.
    """
    rows = [["kernel", "intensity, FLOP/B", "counted", "reads", "attainable", "achieved", "share", "bound",
             "ridge measured", "on paper"]]  # fmt: skip
    for bench in kernels_of(benchmarks):
        extra = bench.info
        paper = extra.get("paper_ridge")
        rows.append([
            bench.name,
            f"{extra['intensity']:.3g}",
            f"{extra['counted_intensity']:.3g}" + (" *" if extra.get("counted_otherwise") else ""),
            f"{bench.number('read_share'):.0%}",
            engineering(extra["attainable_flop_per_s"], "FLOP/s"),
            engineering(extra["flop_per_s"], "FLOP/s"),
            share(bench.number("share_of_attainable") or None, "-"),
            bench.bound.removesuffix("-bound") + (f", {extra['roof_label']}" if extra.get("roof_label") else ""),
            f"{extra['ridge']:.3g}",
            f"{paper:.3g}" if paper else "no peak on record",
        ])  # fmt: skip
    return rows


def best_rates(
    benchmarks: Sequence[Measurement], peaks: Mapping[str, Mapping[str, float]] = NO_PEAKS
) -> list[tuple[str, Measurement, list[str]]]:
    """The fastest benchmark per multiplied dtype, with the cells of its row: rate, shares, name, spread.

    A contended benchmark, or one with a wide spread, is used only for lack of another, and comes last.
    """
    best: dict[str, Measurement] = {}
    for bench in benchmarks:
        dtype = bench.dtype
        if bench.arithmetic_rate is None or not dtype or not bench.has("ceiling_flop_per_s"):
            continue
        before = best.get(dtype)
        if before is None or _merit(bench) > _merit(before):
            best[dtype] = bench
    rows = []
    for dtype, bench in sorted(best.items(), key=lambda each: _merit(each[1]), reverse=True):
        ceiling = max(each.number("ceiling_flop_per_s") for each in benchmarks
                      if each.dtype == dtype)  # fmt: skip
        own = share((bench.arithmetic_rate or 0.0) / ceiling if ceiling else None, "-")
        cells = [dtype, bench.rate_text, share_of_peak(bench.info, peaks), own, bench.name, spread_text(bench)]
        rows.append((dtype, bench, cells))
    return rows


def _merit(bench: Measurement) -> tuple[bool, float]:
    return not bench.unsettled, bench.arithmetic_rate or 0.0


def spread_text(bench: Measurement) -> str:
    """The spread in percent, with the reason if it allows no conclusion: too wide, or contended."""
    return f"{bench.spread:.1%}" + (f": {bench.unsettled}" if bench.unsettled else "")
