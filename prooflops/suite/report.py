"""What a run prints and writes: the tables of verdicts and benchmarks, verdicts.json, report.md, the record."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from prooflops.console.tables import aligned, engineering, markdown_table, share
from prooflops.history import record
from prooflops.history import records as history
from prooflops.machine import device as machine
from prooflops.suite import plots
from prooflops.suite.peaks import share_of_peak
from prooflops.suite.registry import Registry
from prooflops.suite.run import Run
from prooflops.suite.verdicts import RED, VERDICTS, Verdict

COLOURS = {"FAILS": "red", "error": "red", "not checked": "yellow", "corrected": "cyan"}


@dataclass(frozen=True)
class FinishedRun:
    """What one run found, and where it was written, or why not."""

    fingerprint: dict[str, Any]
    headline: list[str]
    verdicts: list[Verdict]
    benchmarks: list[dict[str, Any]]
    folder: Path | None
    record: Path | None
    unwritten: str = ""
    peaks: dict[str, dict[str, float]] = field(default_factory=dict)  # those that are not the vendor's, see Peaks


FINISHED = pytest.StashKey[FinishedRun]()
ROOFLINE = "roofline.svg"


def finish(config: pytest.Config, run: Run, *, folder: Path | None, records: Path) -> FinishedRun:
    """Writes the record of a run that had a claim or a benchmark, and with a folder verdicts.json and report.md."""
    verdicts = run.verdicts()
    content = record.record_of(
        config, pace=run.pace, peaks=run.peaks.as_dict(), verdicts=[verdict.as_dict() for verdict in verdicts]
    )
    fingerprint = content["prooflops"]["fingerprint"]
    headline = [*machine.headline(run.device, fingerprint), *run.peaks.headline(), *run.notes]
    if run.partial:
        headline.append(f"part of a run: {run.partial}")
    if not verdicts and not content["benchmarks"]:
        return FinishedRun(fingerprint, headline, [], [], None, None)
    path = record.save(config, content, records)
    finished = FinishedRun(
        fingerprint, headline, verdicts, content["benchmarks"], folder, path, peaks=run.peaks.as_dict()
    )
    if folder is None:
        return finished
    try:
        write_pages(config, run, finished, folder, records)
    except OSError as error:  # what was found is printed all the same
        return replace(finished, folder=None, unwritten=f"the report could not be written to {folder}: {error}")
    return finished


def write_pages(config: pytest.Config, run: Run, finished: FinishedRun, folder: Path, records: Path) -> None:
    """Writes verdicts.json, report.md and the plot. Raises OSError."""
    rows = [verdict.as_dict() for verdict in finished.verdicts]
    history.write_atomically(folder / "verdicts.json", json.dumps(rows, indent=1) + "\n")
    page = [markdown(finished, run.registry), *trend_lines(config, records, finished)]
    history.write_atomically(folder / "report.md", "\n".join(page))
    if drawing := plots.roofline_svg(finished.benchmarks, f"Roofline measured on {finished.fingerprint['name']}"):
        history.write_atomically(folder / ROOFLINE, drawing)


# ---- tables ------------------------------------------------------------------------------------------------------


def verdict_line(verdict: Verdict) -> str:
    """The verdict as printed: a holds-if claim always with its condition, the others with their reason."""
    known = " (known)" if verdict.known else ""
    if verdict.verdict == "holds if":
        return f"holds if {verdict.reason}"
    return f"{verdict.verdict}{known}" + (f": {verdict.reason}" if verdict.reason else "")


def by_topic(verdicts: Iterable[Verdict]) -> dict[str, list[Verdict]]:
    """The verdicts of each topic, in the order of the registry."""
    topics: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        topics.setdefault(verdict.topic, []).append(verdict)
    return topics


def topic_table(verdicts: Sequence[Verdict]) -> list[list[str]]:
    """One row per topic: its claims by verdict, and how many cases were tried."""
    rows = [["topic", "claims", *VERDICTS, "cases"]]
    for topic, group in [*by_topic(verdicts).items(), ("all", verdicts)]:
        count = Counter(verdict.verdict for verdict in group)
        cases = sum(verdict.cases for verdict in group)
        rows.append([topic, str(len(group)), *(str(count[word] or "·") for word in VERDICTS), f"{cases:,}"])
    return rows


def benchmark_table(
    benchmarks: Sequence[dict[str, Any]], peaks: Mapping[str, Mapping[str, float]] = MappingProxyType({})
) -> list[list[str]]:
    """One row per benchmark: what it is, its time and spread, its rate, and its share of the two ceilings.

    A last column has the notes, if there are any. For a stream through the memory the vendor's peak is the bandwidth.
    """
    rows = [["benchmark", "median", "IQR", "rate", "of vendor peak (MFU)", "of own ceiling"]]
    remarks = [notes(bench.get("extra_info", {})) for bench in benchmarks]
    for bench in benchmarks:
        stats, extra = bench["stats"], bench.get("extra_info", {})
        spread = f"{stats['iqr'] / stats['median']:.1%}" if stats["median"] else "-"
        rows.append([
            bench["name"].removeprefix("test_"),
            engineering(stats["median"], "s"),
            spread,
            rate(extra),
            share_of_peak(extra, peaks),
            share(extra.get("share_of_ceiling"), "-"),
        ])  # fmt: skip
    if any(remarks):
        rows = [[*row, note] for row, note in zip(rows, ["measured", *remarks], strict=True)]
    return rows


def notes(extra: dict[str, Any]) -> str:
    """How a benchmark was measured: hot or cold, what bounds it, the first word of each of its labels.

    >>> notes({"cache": "cold", "bound": "memory", "conditions": {"labels": ["contended: load 4"]}})
    'cold, memory-bound, contended'
    """
    found = [extra["cache"]] if extra.get("cache", "as-is") != "as-is" else []
    if extra.get("bound"):
        found.append(f"{extra['bound']}-bound")
    if extra.get("label"):
        found.append(extra["label"])
    conditions = extra.get("conditions")
    labels = conditions.get("labels", ()) if isinstance(conditions, dict) else ()
    return ", ".join([*found, *(label.partition(":")[0] for label in labels)])


def roofline_table(benchmarks: Sequence[dict[str, Any]]) -> list[list[str]]:
    """One row per kernel of the roofline: its intensity by formula and as counted, and its place under the roofs.

    Only the head where no such kernel ran.
    """
    rows = [["kernel", "intensity, FLOP/B", "counted", "reads", "attainable", "achieved", "share", "bound",
             "ridge measured", "on paper"]]  # fmt: skip
    for bench in benchmarks:
        extra = bench.get("extra_info", {})
        if not extra.get("roofline"):
            continue
        paper = extra.get("paper_ridge")
        rows.append([
            bench["name"].removeprefix("test_"),
            f"{extra['intensity']:.3g}",
            f"{extra['counted_intensity']:.3g}" + (" *" if extra.get("counted_otherwise") else ""),
            f"{extra['read_share']:.0%}",
            engineering(extra["attainable_flop_per_s"], "FLOP/s"),
            engineering(extra["flop_per_s"], "FLOP/s"),
            share(extra["share_of_attainable"], "-"),
            extra["bound"] + (f", {extra['roof_label']}" if extra.get("roof_label") else ""),
            f"{extra['ridge']:.3g}",
            f"{paper:.3g}" if paper else "no peak on record",
        ])  # fmt: skip
    return rows


def rate(extra: dict[str, Any]) -> str:
    """The rate a benchmark declared: FLOP/s or bytes/s, in engineering units; of a stream always bytes/s."""
    if extra.get("memory_level") and extra.get("bytes_per_s"):
        return engineering(extra["bytes_per_s"], "B/s")
    for key, unit in (("flop_per_s", "FLOP/s"), ("op_per_s", "OP/s"), ("bytes_per_s", "B/s")):
        if extra.get(key):
            return engineering(extra[key], unit)
    return "-"


# ---- documents ---------------------------------------------------------------------------------------------------


def markdown(finished: FinishedRun, registry: Registry) -> str:
    """The run as one page: the machine, the verdicts by topic and one by one, the benchmarks."""
    lines = ["# What is true on this machine", "", *(f"- {line}" for line in finished.headline), ""]
    if finished.verdicts:
        lines += ["## Verdicts", "", *markdown_table(topic_table(finished.verdicts)), ""]
        for topic, group in by_topic(finished.verdicts).items():
            rows = [["claim", "statement", "verdict", "cases", "measured"]]
            for verdict in group:
                statement, figures = registry.claims[verdict.id].statement, "; ".join(verdict.figures)
                rows.append([f"`{verdict.id}`", statement, verdict_line(verdict), f"{verdict.cases:,}", figures])
            lines += [f"### {topic}", "", *markdown_table(rows), ""]
    if finished.benchmarks:
        lines += ["## Benchmarks", "", *markdown_table(benchmark_table(finished.benchmarks, finished.peaks)), ""]
        lines += [
            "Of own ceiling: against the best rate of this machine for that dtype in this run. `!` marks a share",
            "above 1, where the ceiling was measured too low.",
            "",
        ]
        if len(rows := roofline_table(finished.benchmarks)) > 1:
            lines += ["## Roofline", "", *markdown_table(rows), ""]
            lines += [
                "Attainable: the lower of the products' ceiling and the intensity times the bandwidth measured for the",
                "same share of reads, both of this run. The bound is the place under these roofs: memory below the",
                "ridge, compute above it, launch where dispatching takes half of the time. Where the share is low,",
                "neither roof is what limits the kernel. `*`: counted by another convention, see `counted_otherwise`.",
                "",
            ]
        if any("ceiling_flop_per_s" in bench.get("extra_info", {}) for bench in finished.benchmarks):
            lines += [f"![Kernels over their arithmetic intensity]({ROOFLINE})", ""]
    return "\n".join(lines)


def trend_lines(config: pytest.Config, records: Path, finished: FinishedRun) -> list[str]:
    """How this run's benchmarks changed over the records of this fingerprint, in Markdown; nothing from few records."""
    from prooflops.gate.settings import settings
    from prooflops.history import trend

    own = history.fingerprint_id(finished.fingerprint)
    listed = history.summaries(records, settings(config).exact, only=own, newest=trend.LONGEST)
    names = {bench["fullname"] for bench in finished.benchmarks}
    return trend.markdown([each for each in listed if isinstance(each, history.Summary)], names) if names else []


def print_summary(terminal: pytest.TerminalReporter, finished: FinishedRun, run: Run) -> None:
    """The tables at the end of a run on the terminal: per topic, and in full with -v."""
    verdicts = finished.verdicts
    if finished.benchmarks:
        terminal.section("benchmarks")
        for line in aligned(benchmark_table(finished.benchmarks, finished.peaks)):
            terminal.write_line(line)
    if verdicts:
        terminal.section("verdicts")
        for line in aligned(topic_table(verdicts)):
            terminal.write_line(line)
        verbose = terminal.config.get_verbosity() > 0
        shown = [verdict for verdict in verdicts if verbose or verdict.verdict in RED]
        width = max((len(verdict.id) for verdict in shown), default=0)
        for verdict in shown:
            colour = COLOURS.get(verdict.verdict, "green")
            terminal.write_line(f"{verdict.id:<{width}}  {verdict_line(verdict)}", **{colour: True})
        if not verbose:
            _print_unchecked(terminal, verdicts)
        settled = {verdict.id for verdict in verdicts if verdict.verdict not in (*RED, "not checked")}
        for claim in sorted(run.known & settled):
            terminal.write_line(f"{claim} is listed in --known-failures but now holds: remove it there", yellow=True)
    if run.partial:
        terminal.write_line(f"part of a run: {run.partial}; no baseline, and the last whole report stays", red=True)
    if finished.unwritten:
        terminal.write_line(finished.unwritten, red=True)
    if finished.folder:
        terminal.write_line(f"report: {finished.folder}/report.md  verdicts: {finished.folder}/verdicts.json")
    if finished.record:
        terminal.write_line(f"record: {finished.record}")


def _print_unchecked(terminal: pytest.TerminalReporter, verdicts: Sequence[Verdict]) -> None:
    reasons: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.verdict == "not checked":
            reasons.setdefault(verdict.reason, []).append(verdict.id)
    for reason, ids in reasons.items():
        terminal.write_line(f"not checked, {reason}: {', '.join(ids)}", yellow=True)
