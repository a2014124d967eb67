"""The plots of a run. Each answers one question; a plot without data is omitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import log10

from prooflops.suite.report.drawing import (
    FAINT,
    INK,
    SERIES,
    SETTINGS,
    Drawing,
    Plot,
    Table,
    label,
    log_axes,
)
from prooflops.suite.report.measurement import Measurement
from prooflops.suite.report.run_report import RunReport
from prooflops.suite.report.tables import kernels_of, memory_stream, spread_text
from prooflops_gate.console.tables import binary, engineering, share

HOLLOW = "Hollow: contended, above its roof, or the spread is too wide to conclude."
BOTH_ROOFS = (
    "Both roofs are measured in the same run: the ceiling of the dtype's products (level), and the bandwidth of the "
    f"memory (slope). The share is of the bandwidth for the kernel's own mix of reads and writes. {HOLLOW}"
)
UNSETTLED = "Not known: each of them was contended, or spread too widely."
PARTS = ("forward", "backward", "optimizer")
NEAR = 0.1  # of a prediction


def plots_of(report: RunReport) -> list[Plot]:
    """The plots for which this run has data."""
    from matplotlib import rc_context

    made = (
        roofline,
        rates_by_size,
        ceiling_shares,
        bandwidths,
        step_times,
        step_memory,
        predictions,
    )
    with rc_context(SETTINGS):
        return [plot for make in made if (plot := make(report))]


def is_matmul(bench: Measurement) -> bool:
    """Whether it is a matrix product, but not the search for the ceiling."""
    return bool(bench.family == "matmul" and bench.arithmetic_rate and bench.has("flops"))


def dtypes_of(benchmarks: Iterable[Measurement]) -> list[str]:
    return list(dict.fromkeys(each.dtype for each in benchmarks))


# ---- roofline ----------------------------------------------------------------------------------------------------


def roofline(report: RunReport) -> Plot | None:
    """Kernels (without any: products) over their intensity, under the measured roofs. Streams are the roofs."""
    benchmarks = kernels_of(report.benchmarks) or [
        each for each in report.benchmarks if is_matmul(each)
    ]
    points = [
        each
        for each in benchmarks
        if each.has("flops", "bytes") and each.arithmetic_rate and each.dtype
    ]
    if not points:
        return None
    drawing = Drawing("roofline", f"Roofline measured on {report.machine.get('name')}", height=5.0)
    dtypes = dtypes_of(points)
    spots = [
        (each.number("flops") / each.number("bytes"), each.arithmetic_rate or 0.0)
        for each in points
    ]
    _draw_roofs(drawing, points, [x for x, _ in spots], memory_stream(report.benchmarks))
    rows = []
    for number, (each, (x, y)) in enumerate(zip(points, spots, strict=True), start=1):
        title = f"{number} {each.name}: {each.rate_text}, {each.bound or 'not placed'}"
        drawing.point(x, y, title, dtypes.index(each.dtype), hollow=bool(each.unsettled))
        left = any(_is_right_of(x, y, other) for other in spots if other != (x, y))
        drawing.axes.annotate(str(number), (x, y), (-6 if left else 6, 0), textcoords="offset points", fontsize=8,
                              ha="right" if left else "left", va="center")  # fmt: skip
        of_roof = share(each.number("share_of_attainable") or None, "-")
        rows.append(
            [
                str(number),
                each.name,
                f"{x:.3g}",
                each.rate_text,
                of_roof,
                f"{each.spread:.1%}",
                each.bound,
            ]
        )
    drawing.legend(dtypes)
    log_axes(drawing.axes, "arithmetic intensity, FLOPs per byte", "rate", y_unit="FLOP/s")
    drawing.axes.legend(loc="lower right")
    head = ["point", "kernel", "FLOP/B", "rate", "of its roof", "spread", "held back by"]
    return drawing.plot(
        "Which roof holds each kernel back?",
        _roofline_answer(points),
        Table(head, rows),
        BOTH_ROOFS,
    )


def _is_right_of(x: float, y: float, other: tuple[float, float]) -> bool:
    """Whether another point lies where the label would stand."""
    return (
        bool(y and other[1]) and 0 <= log10(other[0] / x) < 0.18 and abs(log10(other[1] / y)) < 0.06
    )


def _draw_roofs(
    drawing: Drawing,
    points: Sequence[Measurement],
    intensities: Sequence[float],
    stream: Measurement | None,
) -> None:
    """Draws the memory's bandwidth, that of `stream` if there is one, and each dtype's ceiling."""
    bandwidth = (
        stream.number("bytes_per_s")
        if stream
        else max(each.number("roof_bytes_per_s") for each in points)
    )
    left, right, highest = min(intensities) / 2, 2 * max(intensities), 0.0
    for series, dtype in enumerate(dtypes_of(points)):
        if ceiling := max(
            each.number("ceiling_flop_per_s") for each in points if each.dtype == dtype
        ):
            highest = max(highest, ceiling)
            start = ceiling / bandwidth if bandwidth else left
            roof = drawing.line(
                [(min(start, right), ceiling), (max(2 * start, right), ceiling)], series
            )
            drawing.title_of(roof, f"ceiling of {dtype}: {engineering(ceiling, 'FLOP/s')}")
    if bandwidth:
        end = max(highest / bandwidth or right, 2 * left)
        kernel = f" ({stream.case.rpartition('-')[2]})" if stream else ""
        name = f"memory, {engineering(bandwidth, 'B/s')}{kernel}"
        (roof,) = drawing.axes.plot([left, end], [left * bandwidth, end * bandwidth], color=FAINT, linewidth=1.2,
                                    label=name)  # fmt: skip
        drawing.title_of(roof, name)


def _roofline_answer(points: Sequence[Measurement]) -> str:
    if all(each.unsettled for each in points):
        return UNSETTLED
    found = Counter(
        each.bound or f"not known: {each.unsettled}"
        for each in points
        if each.bound or each.unsettled
    )
    listed = ", ".join(f"{number} {bound}" for bound, number in found.most_common())
    return (
        f"Of {len(points)} kernels {listed}."
        if listed
        else f"{len(points)} products under the roofs."
    )


# ---- products ----------------------------------------------------------------------------------------------------


def rates_by_size(report: RunReport) -> Plot | None:
    """Each product's rate over its FLOPs, one series per dtype."""
    products = [each for each in report.benchmarks if is_matmul(each)]
    if not products:
        return None
    drawing = Drawing("rates-by-size", "Rate of products by dtype and size")
    for index, dtype in enumerate(dtypes_of(products)):
        own = sorted(
            (each for each in products if each.dtype == dtype),
            key=lambda each: each.number("flops"),
        )
        spots = [(each.number("flops"), each.arithmetic_rate or 0.0) for each in own]
        squares = [spot for each, spot in zip(own, spots, strict=True) if "square" in each.case]
        drawing.line(squares or spots, index)
        for each, spot in zip(own, spots, strict=True):
            title = f"{each.name}: {each.rate_text}, spread {spread_text(each)}"
            drawing.point(*spot, title, index, hollow=bool(each.unsettled))
    log_axes(drawing.axes, "work of the product", "rate", x_unit="FLOP", y_unit="FLOP/s")
    drawing.legend(dtypes_of(products))
    rows = [[each.name, engineering(each.number("flops"), "FLOP"), each.rate_text, spread_text(each), each.method]
            for each in products]  # fmt: skip
    fastest = max(products, key=lambda each: each.arithmetic_rate or 0)
    answer = f"The fastest is {fastest.name}: {fastest.rate_text}."
    table = Table(["product", "operations", "rate", "spread", "measured"], rows)
    return drawing.plot("How fast is each dtype multiplied, and from which size on?", answer, table,
                        f"Lines join the square products. {HOLLOW}")  # fmt: skip


def ceiling_shares(report: RunReport) -> Plot | None:
    """The share of the ceiling that each product, step and recomputation reaches."""
    found = [
        each
        for each in report.benchmarks
        if each.has("share_of_ceiling") and each.family != "ceiling"
    ]
    if not found:
        return None
    dtypes, groups = (
        dtypes_of(found),
        list(dict.fromkeys(f"{each.family} {each.dtype}" for each in found)),
    )
    drawing = Drawing("ceiling-shares", "Share of the own ceiling", height=1.1 + 0.24 * len(groups))
    for each in found:
        reached = each.number("share_of_ceiling")
        title = f"{each.name}: {share(reached, '-')}, spread {spread_text(each)}"
        row = groups.index(f"{each.family} {each.dtype}")
        drawing.point(
            reached * 100, row, title, dtypes.index(each.dtype), hollow=bool(each.unsettled)
        )
    drawing.axes.axvline(100, color=INK, linewidth=1)
    drawing.rows(groups)
    drawing.axes.set(xlim=(0, None), xlabel="share of this machine's best rate for the dtype, %")
    rows = [[each.name, each.rate_text, engineering(each.number("ceiling_flop_per_s"), "FLOP/s"),
             share(each.number("share_of_ceiling"), "-"), spread_text(each)] for each in found]  # fmt: skip
    settled = sorted(
        (each.number("share_of_ceiling"), each.name) for each in found if not each.unsettled
    )
    ends = (
        [f"{share(reached, '-')} ({name})" for reached, name in (settled[0], settled[-1])]
        if settled
        else []
    )
    answer = f"From {' to '.join(ends)}." if ends else UNSETTLED
    return drawing.plot("How much of what this machine can do is reached?", answer,
                        Table(["benchmark", "rate", "own ceiling", "share", "spread"], rows))  # fmt: skip


# ---- memory ------------------------------------------------------------------------------------------------------


def bandwidths(report: RunReport) -> Plot | None:
    """Each STREAM kernel's bandwidth over its bytes, with the caches marked."""
    streams = [each for each in report.benchmarks if each.level and each.has("bytes") and each.rate]
    if not streams:
        return None
    kernels = list(dict.fromkeys(each.case.rpartition("-")[2] for each in streams))
    drawing = Drawing("bandwidths", "Bandwidth by working set")
    for index, kernel in enumerate(kernels):
        own = sorted((each for each in streams if each.case.rpartition("-")[2] == kernel),
                     key=lambda each: each.number("bytes"))  # fmt: skip
        caches = [each for each in own if each.level != "memory"]  # on one core, unlike the memory
        drawing.line([(each.number("bytes"), each.number("bytes_per_s")) for each in caches], index)
        for each in own:
            title = f"{each.case}: {each.rate_text}, spread {spread_text(each)}"
            spot = each.number("bytes"), each.number("bytes_per_s")
            drawing.point(*spot, title, index, hollow=bool(each.unsettled))
    log_axes(
        drawing.axes, "bytes that one pass reads and writes", "bandwidth", x_unit="B", y_unit="B/s"
    )
    best = _mark_levels(drawing, streams, report)
    drawing.legend(kernels, above=1.06)
    rows = [[each.case, binary(each.number("bytes")), each.rate_text, f"{each.number('read_share'):.0%}",
             spread_text(each), ", ".join(filter(None, [each.method, each.info.get("label")]))]
            for each in streams]  # fmt: skip
    table = Table(["stream", "working set", "bandwidth", "reads", "spread", "measured"], rows)
    remark = f"The rows of a cache run on one core, those of the memory on all. Without launch-bound ones. {HOLLOW}"
    return drawing.plot(
        "How fast is memory, and each cache?", f"At most: {', '.join(best)}.", table, remark
    )


def _mark_levels(drawing: Drawing, streams: Sequence[Measurement], report: RunReport) -> list[str]:
    """Draws each known cache size, and each level's name above its points. Returns each level's best bandwidth."""
    for size in report.caches.values():
        drawing.axes.axvline(size, color=FAINT, linewidth=1, linestyle=":")
    best = []
    for level in dict.fromkeys(each.level for each in streams):
        own = [each for each in streams if each.level == level]
        sizes = [each.number("bytes") for each in own]
        named = f" {binary(report.caches[level])}" if level in report.caches else ""
        drawing.axes.text((min(sizes) * max(sizes)) ** 0.5, 1.01, label(level + named), ha="center", fontsize=9,
                          transform=drawing.axes.get_xaxis_transform())  # fmt: skip
        fastest = max(own, key=lambda each: each.number("bytes_per_s"))
        best.append(f"{level} {fastest.rate_text} ({fastest.case.rpartition('-')[2]})")
    return best


# ---- training ----------------------------------------------------------------------------------------------------


def step_times(report: RunReport) -> Plot | None:
    """The parts of each training step."""
    steps = [each for each in report.benchmarks if all(each.has(f"{part}_s") for part in PARTS)]
    if not steps:
        return None
    drawing = Drawing(
        "step-times", "Time of a training step by parts", height=1.2 + 0.42 * len(steps)
    )
    shares = []
    for place, each in enumerate(steps):
        times, left = {part: each.number(f"{part}_s") for part in PARTS}, 0.0
        for index, (part, time_s) in enumerate(times.items()):
            (bar,) = drawing.axes.barh([place], [time_s * 1e3], 0.6, [left], color=SERIES[index],
                                       label=None if place else part)  # fmt: skip
            drawing.title_of(bar, f"{each.case}, {part}: {engineering(time_s, 's')}")
            left += time_s * 1e3
        listed = ", ".join(
            f"{part} {time_s / sum(times.values()):.0%}" for part, time_s in times.items()
        )
        shares.append(
            f"{each.case}: {f'not known: {each.unsettled}' if each.unsettled else listed}"
        )
    drawing.rows([each.case for each in steps])
    drawing.axes.set_xlabel("ms")
    drawing.legend()
    rows = [[each.case, *(engineering(each.number(f"{part}_s"), "s") for part in PARTS),
             engineering(each.median_s, "s"), f"{each.number('parts_over_step'):.2f}", spread_text(each)]
            for each in steps]  # fmt: skip
    return drawing.plot("Where does the time of a training step go?", "; ".join(shares[:3]) + ".",
                        Table(["step", *PARTS, "whole step", "parts over step", "spread"], rows),
                        "Parts and whole are measured apart; their quotient is near 1 on a quiet machine.")  # fmt: skip


def step_memory(report: RunReport) -> Plot | None:
    """Memory held at the end of each phase of a step, and the peak."""
    steps = [each for each in report.benchmarks if each.info.get("step_memory")]
    if not steps:
        return None
    each = max(
        steps, key=lambda step: max(row["peak_bytes"] for row in step.info["step_memory"].values())
    )
    phases = each.info["step_memory"]
    kinds = list(dict.fromkeys(kind for row in phases.values() for kind in row["held"]))
    drawing = Drawing("step-memory", f"Memory of a training step: {each.case}", height=3.2)
    for place, (phase, row) in enumerate(phases.items()):
        below, peak = 0.0, row["peak_bytes"] / 2**20
        for index, kind in enumerate(kinds):
            height = row["held"].get(kind, 0) / 2**20
            (bar,) = drawing.axes.bar([place], [height], 0.55, [below], color=SERIES[index % len(SERIES)],
                                      label=None if place else kind)  # fmt: skip
            drawing.title_of(bar, f"{kind} after {phase}: {binary(height * 2**20)}")
            below += height
        drawing.axes.plot([place - 0.36, place + 0.36], [peak, peak], color=INK, linewidth=1.6,
                          label=None if place else "peak")  # fmt: skip
    drawing.axes.set_xticks(range(len(phases)), [label(f"after {phase}") for phase in phases])
    drawing.axes.set_ylabel("MiB")
    drawing.legend()
    rows = [[f"after {phase}", *(binary(row["held"].get(kind, 0)) for kind in kinds), binary(row["peak_bytes"])]
            for phase, row in phases.items()]  # fmt: skip
    most = max(phases, key=lambda phase: phases[phase]["peak_bytes"])
    return drawing.plot("What fills the memory over a training step?",
                        f"{each.case} holds {binary(phases[most]['peak_bytes'])} at most, in its {most}.",
                        Table(["phase", *kinds, "peak in it"], rows))  # fmt: skip


# ---- predictions -------------------------------------------------------------------------------------------------

# Predicted quantity, keys of prediction and measurement, format of a figure.
PAIRS: tuple[tuple[str, str, str, Callable[[float], str]], ...] = (
    ("bytes saved by checkpointing", "predicted_saved_bytes", "saved_bytes", binary),
    ("time as FLOPs say", "flop_ratio", "time_ratio", lambda ratio: f"{ratio:.3f}x"),
    ("intensity", "intensity", "counted_intensity", lambda value: f"{value:.3g} FLOP/B"),
    ("FLOPs", "flops", "counted_flops", lambda value: engineering(value, "FLOP")),
)
NOT_PREDICTED = (
    "Time as FLOPs say ignores that a step is not compute-bound; intensities differ where an operator is counted by "
    "another convention."
)


def predictions(report: RunReport) -> Plot | None:
    """Measured (or counted) over predicted values, for each quantity that has both."""
    found = [(pair, each) for pair in PAIRS for each in report.benchmarks if each.has(*pair[1:3])]
    if not found:
        return None
    kinds = list(dict.fromkeys(what for (what, *_), _ in found))
    drawing = Drawing("predictions", "Measured over predicted", height=1.3 + 0.34 * len(kinds))
    rows, near = [], 0
    for (what, first, second, text), each in found:
        predicted, measured, row = (
            text(each.number(first)),
            text(each.number(second)),
            kinds.index(what),
        )
        ratio = each.number(second) / each.number(first)
        near += abs(ratio - 1) <= NEAR
        title = f"{what}, {each.name}: {predicted} predicted, {measured} measured"
        drawing.point(ratio, row, title, row, hollow=bool(each.unsettled))
        rows.append([what, each.name, predicted, measured, f"{ratio:.3f}"])
    drawing.axes.axvline(1, color=INK, linewidth=1)
    drawing.rows(kinds)
    drawing.axes.set_xlabel("measured (or counted) over predicted")
    answer = (
        f"{near} of {len(rows)} predictions are within {NEAR:.0%} of what was measured or counted."
    )
    return drawing.plot("Do the formulas predict what is measured?", answer,
                        Table(["what", "benchmark", "predicted", "measured", "ratio"], rows),
                        NOT_PREDICTED)  # fmt: skip
