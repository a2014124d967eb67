"""The whole report of a run as Markdown: what report.md says, and each claim and benchmark, folded."""

from __future__ import annotations

from collections.abc import Sequence

from prooflops.suite.report.markdown import claim_table, head_lines, plain, table
from prooflops.suite.report.measurement import Measurement
from prooflops.suite.report.run_report import RunReport, by_topic
from prooflops.suite.report.tables import benchmark_table, kernels_of
from prooflops_gate.console.tables import engineering, share


def whole_page(report: RunReport) -> str:
    """The page about a file of evidence."""
    return "\n".join([*head_lines(report), *claim_lines(report), *benchmark_lines(report)])


def claim_lines(report: RunReport) -> list[str]:
    """Each claim, folded by topic."""
    lines = []
    for topic, group in by_topic(report.claims).items():
        lines += folded(f"{topic}: {len(group)} claims", claim_table(group))
    return lines


def folded(title: str, lines: Sequence[str]) -> list[str]:
    return [f"<details><summary>{plain(title)}</summary>", "", *lines, "", "</details>", ""]


def benchmark_lines(report: RunReport) -> list[str]:
    """Benchmarks and roofline kernels, folded, with an explanation."""
    if not report.benchmarks:
        return []
    lines = ["## Benchmarks", ""]
    lines += folded(
        f"{len(report.benchmarks)} benchmarks",
        table(benchmark_table(report.benchmarks, report.peaks)),
    )
    lines += [
        "Of own ceiling: against the best rate of this machine for that dtype in this run.",
        "",
    ]
    if len(rows := roofline_table(report.benchmarks)) > 1:
        lines += folded(f"{len(rows) - 1} kernels under the roofs", table(rows))
        lines += [
            "Attainable: the lower of the products' ceiling and the intensity times the bandwidth measured for the",
            "same share of reads, both of this run. The bound is the place under these roofs: memory below the",
            "ridge, compute above it, launch where dispatching takes half of the time. Where the share is low,",
            "neither roof is what limits the kernel. `*`: counted by another convention, see `counted_otherwise`.",
            "",
        ]
    return lines


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
