"""The plots of a run, each a section that answers one question; one without data is absent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prooflops.suite.page.measurement import Measurement
from prooflops.suite.page.run_report import RunReport
from prooflops.suite.page.tables import kernels_of, memory_stream, roofline_table, spread_text
from prooflops_gate.console.tables import engineering
from prooflops_gate.page.plot import Axis, Line, Plot, Point
from prooflops_gate.page.section import Section

HOLLOW = "A hollow point is inconclusive: contended, above its roof, or too widely spread."
ROOFS = (
    "Both roofs were measured in this run: the fastest product of the dtype (horizontal) and the "
    "memory bandwidth (sloped), for the kernel's share of reads. The lower roof is the attainable "
    "rate. *: the counter uses another convention (`counted_otherwise`)."
)


def plots_of(report: RunReport) -> list[Section]:
    """The plots for which this run has data."""
    found = [make(report) for make in (roofline, rates_by_size)]
    return [section for section in found if section]


def dtypes_of(benchmarks: Iterable[Measurement]) -> list[str]:
    return list(dict.fromkeys(each.dtype for each in benchmarks))


def roofline(report: RunReport) -> Section | None:
    """Kernels over their intensity, under the measured roofs."""
    kernels = kernels_of(report.benchmarks)
    if not kernels:
        return None
    dtypes = dtypes_of(kernels)
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
    return Section(
        "Which roof limits each kernel?",
        roofline_table(kernels),
        [ROOFS, HOLLOW],
        plot,
    )


def _roofs(kernels: Sequence[Measurement], stream: Measurement | None) -> list[Line]:
    """The memory's bandwidth, and each dtype's ceiling."""
    intensities = [each.number("intensity") for each in kernels]
    left = min(intensities) / 2
    right = 2 * max(intensities)
    recorded = max(each.number("roof_bytes_per_s") for each in kernels)
    bandwidth = stream.number("bytes_per_s") if stream else recorded
    lines = []
    highest = 0.0
    for series, dtype in enumerate(dtypes_of(kernels)):
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


def rates_by_size(report: RunReport) -> Section | None:
    """Each product's rate over its FLOPs, one series per dtype."""
    products = [
        each
        for each in report.benchmarks
        if each.family == "matmul" and each.arithmetic_rate and each.has("flops")
    ]
    if not products:
        return None
    dtypes = dtypes_of(products)
    points = []
    lines = []
    for series, dtype in enumerate(dtypes):
        own = [each for each in products if each.dtype == dtype]
        own.sort(key=lambda each: each.number("flops"))
        for each in own:
            title = f"{each.name}: {each.rate_text}, spread {spread_text(each)}"
            points.append(Point(*_spot(each), title, series, bool(each.unsettled)))
        squares = [each for each in own if "square" in each.case]
        lines.append(Line([_spot(each) for each in squares or own], series))
    plot = Plot(
        title="Rate of products by dtype and size",
        x=Axis("work of the product", "FLOP", is_log=True),
        y=Axis("rate", "FLOP/s", is_log=True),
        points=points,
        lines=lines,
        legend=dtypes,
    )
    fastest = max(products, key=lambda each: each.arithmetic_rate or 0)
    return Section(
        "How fast are products, by dtype and size?",
        remarks=[f"Lines join the square products. {HOLLOW}"],
        plot=plot,
        answer=f"The fastest of these products is {fastest.name}: {fastest.rate_text}.",
    )


def _spot(product: Measurement) -> tuple[float, float]:
    return product.number("flops"), product.arithmetic_rate or 0.0
