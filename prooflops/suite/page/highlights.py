"""What is unusual about the machine and the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from prooflops.suite.page.measurement import Measurement
from prooflops.suite.page.run_report import RunReport
from prooflops_gate.console.tables import many

# Arrays of fewer last-level caches are partly served by the caches.
FEWEST_CACHES = 4.0
USUAL_FLAGS = {
    "float32_matmul_precision": "highest",
    "deterministic": False,
    "default_dtype": "float32",
}


def unusual(report: RunReport) -> list[str]:
    """Warnings about this machine and run that affect the figures; empty if all is normal."""
    return [
        *_disturbed(report.benchmarks),
        *_bandwidth(report.benchmarks),
        *_settings(report),
    ]


def _disturbed(benchmarks: Sequence[Measurement]) -> Iterable[str]:
    causes: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    for bench in benchmarks:
        found = {cause: reason for cause, _, reason in (x.partition(": ") for x in bench.labels)}
        causes.update(found.keys())
        reasons = found | reasons
    for cause, number in causes.most_common():
        listed = f"{number} of {many(len(benchmarks), 'benchmark')}"
        example = f" (for example {reasons[cause]})" if reasons[cause] else ""
        yield f"{listed}: {cause}{example}"
    wide = [bench for bench in benchmarks if bench.is_wide]
    if wide:
        listed = f"{len(wide)} of {many(len(benchmarks), 'benchmark')}"
        yield f"{listed} have too wide a spread for a conclusion"


def _bandwidth(benchmarks: Sequence[Measurement]) -> Iterable[str]:
    multiples = [
        bench.number("cache_multiple")
        for bench in benchmarks
        if bench.level == "memory" and bench.has("cache_multiple")
    ]
    if multiples and min(multiples) < FEWEST_CACHES:
        yield (
            f"memory bandwidth may be overstated: the arrays are only {min(multiples):.1f} times "
            "the last-level cache, which can serve part of them"
        )


def _settings(report: RunReport) -> Iterable[str]:
    flags = report.machine.get("flags") or {}
    for key, usual in USUAL_FLAGS.items():
        if key in flags and flags[key] != usual:
            yield f"{key} is {flags[key]}; the default is {usual}"
    lacks_peak = any(bench.info.get("mfu", 0) is None for bench in report.benchmarks)
    if lacks_peak and not report.clock_mhz:
        name = report.machine.get("name")
        yield f"{name} has no dense peak on record: shares refer to the `best rate`"
