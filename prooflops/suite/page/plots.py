"""The plot of a run: kernels under the measured roofs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from prooflops.suite.page.measurement import Measurement
from prooflops.suite.page.run_report import RunReport
from prooflops.suite.page.tables import kernels_of, memory_stream, roofline_table
from prooflops_gate.console.tables import engineering
from prooflops_gate.page.plot import Axis, Line, Plot, Point
from prooflops_gate.page.section import ABSENT, Section

HOLLOW = "A hollow point is inconclusive: contended, above its roof, or too widely spread."
ROOFS = (
    "Both roofs were measured in this run: the fastest product of the dtype (horizontal) and the "
    "memory bandwidth (sloped), for the kernel's share of reads. The lower roof is the attainable "
    "rate. *: the counter uses another convention (`counted_otherwise`)."
)


def roofline(report: RunReport) -> Section:
    """Kernels over their intensity, under the measured roofs."""
    section = Section("Which roof limits each kernel?", anchor="roofline", absent=ABSENT)
    kernels = kernels_of(report.benchmarks)
    if not kernels:
        return section
    dtypes = _dtypes_of(kernels)
    points = []
    for number, each in enumerate(kernels, start=1):
        point = Point(
            x=each.number("intensity"),
            y=each.number("flop_per_s"),
            title=f"{number} {each.name}: {each.rate_text}, {each.bound or 'not placed'}",
            series=dtypes.index(each.dtype),
            is_hollow=bool(each.unsettled),
            label=str(number),
        )
        points.append(point)
    plot = Plot(
        title=f"Roofline measured on {report.machine.get('name')}",
        x=Axis("arithmetic intensity, FLOPs per byte", is_log=True),
        y=Axis("rate", "FLOP/s", is_log=True),
        points=points,
        lines=_roofs(kernels, memory_stream(report.benchmarks)),
        legend=dtypes,
        height=460,
    )
    return replace(section, rows=roofline_table(kernels), remarks=[ROOFS, HOLLOW], plot=plot)


def _dtypes_of(kernels: Sequence[Measurement]) -> list[str]:
    return list(dict.fromkeys(each.dtype for each in kernels))


def _roofs(kernels: Sequence[Measurement], stream: Measurement | None) -> list[Line]:
    """The memory's bandwidth, and each dtype's ceiling."""
    intensities = [each.number("intensity") for each in kernels]
    left = min(intensities) / 2
    right = 2 * max(intensities)
    recorded = max(each.number("roof_bytes_per_s") for each in kernels)
    bandwidth = stream.number("bytes_per_s") if stream else recorded
    lines = []
    highest = 0.0
    for series, dtype in enumerate(_dtypes_of(kernels)):
        ceiling = max(x.number("ceiling_flop_per_s") for x in kernels if x.dtype == dtype)
        highest = max(highest, ceiling)
        start = ceiling / bandwidth
        spots = [(min(start, right), ceiling), (max(2 * start, right), ceiling)]
        title = f"ceiling of {dtype}: {engineering(ceiling, 'FLOP/s')}"
        lines.append(Line(spots, series, title))
    end = max(highest / bandwidth, 2 * left)
    title = f"memory, {engineering(bandwidth, 'B/s')}"
    slope = [(left, left * bandwidth), (end, end * bandwidth)]
    return [*lines, Line(slope, None, title)]
