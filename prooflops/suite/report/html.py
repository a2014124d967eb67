"""report.html: the page of one run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prooflops.suite.report import delivery, highlights, page
from prooflops.suite.report.drawing import Table
from prooflops.suite.report.measurement import WIDEST_SPREAD
from prooflops.suite.report.plots import plots_of
from prooflops.suite.report.run_report import RunReport, by_topic, unchecked
from prooflops.suite.report.tables import RATES_HEAD, best_rates, rates_of, spread_text
from prooflops_gate.console.tables import binary, engineering
from prooflops_gate.history.page import article


@dataclass(frozen=True)
class Tile:
    """A figure on top of the page."""

    value: str
    label: str
    more: str
    kind: str = ""
    shape: str = ""


def html(report: RunReport) -> str:
    """The page of a run. Equal reports give equal bytes."""
    delivered = delivery.lines(report.benchmarks)
    best = [cells for *_, cells in best_rates(report.benchmarks, report.peaks)]
    sections = {  # by id: the title among the contents, and what there is of it
        "delivers": ("Does it deliver?", delivered),
        "limits": ("Limits", highlights.limits(report)),
        "unusual": ("Unusual", highlights.unusual(report)),
        "rates": ("Rates", best and Table(RATES_HEAD, best)),
        "plots": ("Measured", plots_of(report)),
        "history": ("History", report.trends),
        "claims": ("Claims", report.claims),
        "benchmarks": ("Benchmarks", report.benchmarks and benchmark_table(report)),
        "run": ("Machine and run", machine_facts(report)),
    }
    return page.render(
        "run.html.j2",
        report=report,
        **{name: found for name, (_, found) in sections.items()},
        lead=delivery.summary(delivered) if delivered else highlights.sentence(report),
        sentence=highlights.sentence(report),
        tiles=tiles(report),
        contents=[(name, title) for name, (title, there) in sections.items() if there],
        changed=[article(each, "") for each in report.trends if each.changes],
        level=[article(each, "") for each in report.trends if not each.changes],
        records=max((len(each.records) for each in report.trends), default=0),
        widest=WIDEST_SPREAD,
        topics=by_topic(report.claims),
        unchecked=unchecked(report.claims),
        functions=lambda tests: Counter(test.partition("[")[0] for test in tests),
    )


def tiles(report: RunReport) -> list[Tile]:
    """The four figures: claims that hold, are corrected, fail or are unchecked."""
    counts = report.counts
    hold, red = counts["holds"] + counts["holds if"], counts["FAILS"] + counts["error"]
    crashed = (
        f"{counts['error']} of them crashed" if counts["error"] else "contradicted by this machine"
    )
    return [
        Tile(str(hold), "hold", f"{counts['holds if']} under a condition", "holds", "✓"),
        Tile(str(counts["corrected"]), "corrected", "wrong as they circulate", "corrected", "≠"),
        Tile(str(red), "fail" if red != 1 else "fails", crashed if red else "nothing contradicted",
             "fails" if red else "", "✕"),
        Tile(str(counts["not checked"]), "not checked", f"and {counts['on record']} only on record", "unchecked", "–"),
    ]  # fmt: skip


def benchmark_table(report: RunReport) -> Table:
    rows = []
    for bench in report.benchmarks:
        remarks = ", ".join(
            part for part in bench.notes.split(", ") if part and part != bench.cache
        )
        spread, rates = spread_text(bench).partition(":")[0], rates_of(bench, report.peaks)
        rows.append(
            [bench.name, engineering(bench.median_s, "s"), spread, *rates, bench.method, remarks]
        )
    head = [
        "benchmark",
        "median",
        "spread",
        "rate",
        "of vendor peak",
        "of own ceiling",
        "measured",
        "notes",
    ]
    return Table(head, rows)


def machine_facts(report: RunReport) -> list[tuple[str, str]]:
    """The machine's fingerprint and the run, as pairs."""
    stated = {f"peaks {whose}": {dtype: engineering(peak, "FLOP/s") for dtype, peak in peaks.items()}
              for whose, peaks in report.peaks.items()}  # fmt: skip
    facts: dict[str, Any] = {
        **report.machine,
        "memory_bytes": binary(memory) if (memory := report.machine.get("memory_bytes")) else "",
        "caches": {level: binary(size) for level, size in report.caches.items()},
        **stated,
        "date": report.date[:19].replace("T", " "),
        "duration": page.duration(report.duration_s) if report.duration_s else "",
        **{key: getattr(report, key) for key in ("command", "revision", "pace")},
        "methods of measuring": report.methods,
        "extent": f"part of a run: {report.partial}" if report.partial else "whole run",
    }
    return [
        (name.removesuffix("_bytes"), text)
        for name, value in facts.items()
        if (text := listed(value))
    ]


def listed(value: Any) -> str:
    """A fact as text: "avx2, fma3", "L1 64.0 KiB, L2 2.0 MiB"."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {each}" for key, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value or "")
