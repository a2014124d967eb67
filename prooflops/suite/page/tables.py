"""The tables of a run, as rows of text: benchmarks, rates, kernels under the roofs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from prooflops.suite.page.measurement import CONTENDED, NOT_KNOWN, Measurement
from prooflops.suite.peaks import published_mfu_text, share_of_peak
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
BENCHMARKS_HEAD = [
    "benchmark",
    "median",
    "spread",
    "rate",
    "of dense peak",
    "of best rate",
    "notes",
]
ROOFLINE_HEAD = [
    "point",
    "kernel",
    "FLOP/B",
    "achieved",
    "share",
    "limited by",
    "spread",
    "attainable",
    "counted",
    "reads",
    "ridge",
    "on paper",
]
# Families of whole training steps, and the parts of a step.
TRAINING_STEPS = ("step", "mfu")
PARTS = ("forward", "backward", "optimizer")
STEPS_HEAD = ["step", "time", *PARTS, "of best rate", "MFU", "tokens/s", "J/token", "spread"]


def benchmark_table(
    benchmarks: Sequence[Measurement], peaks: Mapping[str, Mapping[str, float]]
) -> list[list[str]]:
    """One row per benchmark, with the shares of both ceilings; a stream's peak is the bandwidth."""
    rows = []
    for bench in benchmarks:
        spread = spread_text(bench).partition(":")[0] + " wide" * bench.is_wide
        time = engineering(bench.median_s, "s")
        of_peak = share_of_peak(bench.info, peaks)
        own = share(bench.info.get("share_of_ceiling"), "-")
        rows.append([bench.name, time, spread, bench.rate_text, of_peak, own, bench.notes])
    return [BENCHMARKS_HEAD, *rows]


def unmeasured_table(unmeasured: Mapping[str, str], most: int | None = None) -> list[list[str]]:
    """One row per reason: the benchmarks that have no figure, `most` of them by name.

    Reasons that differ by their numbers are one.

    >>> slow = {f"test_a.py::test_a[{n}]": f"one call takes {n} s" for n in (1, 2, 3)}
    >>> unmeasured_table(slow, most=2)[1:]
    [['one call takes 1 s', '3', 'a[1], a[2], ...']]
    """
    groups: dict[str, list[str]] = {}
    for test, reason in unmeasured.items():
        name = test.rpartition("::")[2].removeprefix("test_")
        groups.setdefault(re.sub(r"[\d.e+]+ s", "# s", reason), [reason]).append(name)
    rows = []
    for first, *names in groups.values():
        shown = names[:most] + ["..."] * (most is not None and len(names) > most)
        rows.append([first, str(len(names)), ", ".join(shown)])
    return [["reason (of the first)", "number", "benchmarks"], *rows]


def kernels_of(benchmarks: Sequence[Measurement]) -> list[Measurement]:
    """The benchmarks placed under the roofs."""
    return [bench for bench in benchmarks if bench.has(*PLACED)]


def memory_stream(benchmarks: Sequence[Measurement]) -> Measurement | None:
    """The fastest stream from and to memory: the bandwidth of the memory on every page."""
    rows = [bench for bench in benchmarks if bench.level == "memory" and bench.rate]
    streams = [bench.at_its_best() for bench in rows]
    return max(streams, key=lambda bench: bench.number("bytes_per_s"), default=None)


def best_products(benchmarks: Sequence[Measurement]) -> dict[str, Measurement]:
    """The fastest matrix product of each dtype, the fastest dtype first.

    Contention only lowers a rate, so contended products are compared too, and marked.
    """
    best: dict[str, Measurement] = {}
    rows = [bench.at_its_best() for bench in benchmarks]
    for bench in sorted(rows, key=_rate, reverse=True):
        if bench.is_product and bench.dtype:
            best.setdefault(bench.dtype, bench)
    return best


def _rate(bench: Measurement) -> float:
    return bench.arithmetic_rate or 0.0


def spread_text(bench: Measurement) -> str:
    """The spread in percent, with the reason if it allows no conclusion."""
    return f"{bench.spread:.1%}" + (f": {bench.unsettled}" if bench.unsettled else "")


def roofline_table(kernels: Sequence[Measurement]) -> list[list[str]]:
    """One row per kernel: intensity by formula and as counted, and its place under the roofs."""
    rows = [ROOFLINE_HEAD]
    for number, bench in enumerate(kernels, start=1):
        marked = " *" if bench.info.get("counted_otherwise") else ""
        paper = bench.number("paper_ridge")
        label = bench.info.get("roof_label")
        rows.append([
            str(number),
            bench.name,
            f"{bench.number('intensity'):.3g}",
            bench.rate_text,
            share(bench.number("share_of_attainable") or None, "-"),
            f"{bench.bound}, {label}" if label else bench.bound,
            f"{bench.spread:.1%}",
            engineering(bench.number("attainable_flop_per_s"), "FLOP/s"),
            f"{bench.number('counted_intensity'):.3g}{marked}",
            f"{bench.number('read_share'):.0%}",
            f"{bench.number('ridge'):.3g}",
            f"{paper:.3g}" if paper else "no peak on record",
        ])  # fmt: skip
    return rows


def steps_of(benchmarks: Sequence[Measurement]) -> list[Measurement]:
    return [each for each in benchmarks if each.family in TRAINING_STEPS]


def steps_table(benchmarks: Sequence[Measurement]) -> list[list[str]]:
    """One row per training step: its time, its parts, and what it reaches."""
    return [STEPS_HEAD, *map(_step_row, steps_of(benchmarks))]


def _step_row(step: Measurement) -> list[str]:
    """A step's times and rates; a contended one has its longest time alone."""
    time = engineering(step.median_s, "s")
    if step.unsettled:
        time = f"at most {time}" if step.unsettled == CONTENDED else NOT_KNOWN
        blank = ["-"] * (len(STEPS_HEAD) - 3)
        return [step.case, time, *blank, spread_text(step)]
    parts = [_quantity(step, f"{part}_s", "s") for part in PARTS]
    of_best, mfu = (share(step.number(key) or None, "-") for key in ("share_of_ceiling", "mfu"))
    rate = f"{step.number('tokens_per_s'):,.0f}" if step.has("tokens_per_s") else "-"
    energy = _quantity(step, "joules_per_token", "J")
    return [step.case, time, *parts, of_best, mfu, rate, energy, spread_text(step)]


def _quantity(bench: Measurement, key: str, unit: str) -> str:
    return engineering(bench.number(key), unit) if bench.has(key) else "-"


def step_remarks(benchmarks: Sequence[Measurement]) -> Iterator[str]:
    """The published MFU, beside any step that has one."""
    if any(step.has("mfu") for step in steps_of(benchmarks)):
        yield f"Published MFU: {published_mfu_text()}."
