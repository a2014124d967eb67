"""The plots of a run. Each answers one question; a plot without data is omitted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import log10

from prooflops.console.tables import binary, engineering, share
from prooflops.suite.report.drawing import FAINT, INK, SERIES, Drawing, Plot, Table, label, log_axes
from prooflops.suite.report.measurement import Measurement
from prooflops.suite.report.run_report import RunReport
from prooflops.suite.report.tables import kernels_of, spread_text

HOLLOW = "Hollow: contended, or the spread is too wide to conclude."
BOTH_ROOFS = (
    "Both roofs are measured in the same run: the ceiling of the dtype's products (level), and the bandwidth for the "
    f"kernel's own share of reads (the two slopes are those of the most and the fewest). {HOLLOW}"
)
UNSETTLED = "Each of them was contended, or its spread is too wide to say."
PARTS = ("forward", "backward", "optimizer")
NEAR = 0.1  # of a prediction


def plots_of(report: RunReport) -> list[Plot]:
    """The plots for which this run has data."""
    made: list[Callable[[RunReport], Plot | None]] = [
        roofline, rates_by_size, ceiling_shares, bandwidths, step_times, step_memory, predictions,
    ]  # fmt: skip
    return [plot for make in made if (plot := make(report))]


def is_product(bench: Measurement) -> bool:
    """Whether it is a matrix product, but not the search for the ceiling."""
    return bool(bench.family == "matmul" and bench.arithmetic_rate and bench.has("flops"))


# ---- roofline ----------------------------------------------------------------------------------------------------


def roofline(report: RunReport) -> Plot | None:
    """Kernels (without any: products) over their intensity, under the measured roofs.

    Roofs: each dtype's ceiling, and the bandwidths at the largest and smallest share of reads. Streams are not drawn,
    because they are the roofs.
    """
    benchmarks = kernels_of(report.benchmarks) or [each for each in report.benchmarks if is_product(each)]
    points = [each for each in benchmarks if each.has("flops", "bytes") and each.arithmetic_rate and each.dtype]
    if not points:
        return None
    dtypes = list(dict.fromkeys(each.dtype for each in points))
    with Drawing("roofline", f"Roofline measured on {report.machine.get('name')}", height=5.0) as drawing:
        axes = drawing.axes
        spots = [(each.number("flops") / each.number("bytes"), each.arithmetic_rate or 0.0) for each in points]
        ceilings = _ceilings(points)
        _draw_roofs(drawing, points, ceilings, [x for x, _ in spots])
        for number, (each, (x, y)) in enumerate(zip(points, spots, strict=True), start=1):
            dtype = each.dtype
            title = f"{number} {each.name}: {each.rate_text}, {each.bound or 'not placed'}"
            drawing.points([x], [y], [title], dtypes.index(dtype), hollow=bool(each.unsettled))
        for number, (x, y, side) in enumerate(_label_places(spots), start=1):
            axes.annotate(str(number), (x, y), (side, 0), textcoords="offset points", fontsize=8,
                          ha="left" if side > 0 else "right", va="center")  # fmt: skip
        for index, dtype in enumerate(dtypes):
            drawing.legend_entry(dtype, index)
        log_axes(axes, "arithmetic intensity, FLOPs per byte", "rate", y_unit="FLOP/s")
        axes.legend(loc="lower right")
        svg = drawing.svg()
    return Plot("roofline", "Which roof holds each kernel back?", _roofline_answer(points), svg,
                _roofline_rows(points, spots), _roofline_remarks(points))  # fmt: skip


def _ceilings(points: Iterable[Measurement]) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in points:
        if each.has("ceiling_flop_per_s"):
            dtype = each.dtype
            found[dtype] = max(found.get(dtype, 0.0), each.number("ceiling_flop_per_s"))
    return found


def _draw_roofs(
    drawing: Drawing, points: Sequence[Measurement], ceilings: dict[str, float], intensities: Sequence[float]
) -> None:
    """Draws the bandwidths at the largest and smallest share of reads, and each dtype's ceiling."""
    slopes: dict[float, float] = {}
    for each in points:
        if each.has("roof_bytes_per_s"):
            reads = round(each.number("read_share"), 2)
            slopes[reads] = max(slopes.get(reads, 0.0), each.number("roof_bytes_per_s"))
    left, right = min(intensities) / 2, 2 * max(intensities)
    steepest = max(slopes.values(), default=0.0)
    dtypes = list(dict.fromkeys(each.dtype for each in points))
    for dtype, ceiling in ceilings.items():
        start = ceiling / steepest if steepest else left
        drawing.axes.plot([min(start, right), max(2 * start, right)], [ceiling, ceiling],
                          color=SERIES[dtypes.index(dtype) % len(SERIES)], linewidth=1.2)  # fmt: skip
    for reads, style in zip(sorted({max(slopes), min(slopes)}) if slopes else (), ("--", "-"), strict=False):
        bandwidth = slopes[reads]
        end = max(ceilings.values(), default=0.0) / bandwidth or right
        end = max(end, 2 * left)
        label = f"{engineering(bandwidth, 'B/s')}, {reads:.0%} reads"
        drawing.axes.plot([left, end], [left * bandwidth, end * bandwidth], color=FAINT, linewidth=1.2,
                          linestyle=style, label=label)  # fmt: skip


def _label_places(spots: Sequence[tuple[float, float]]) -> list[tuple[float, float, int]]:
    """Places each label on its point's right, or on the left if another point is close."""

    def close(x: float, y: float, other: tuple[float, float]) -> bool:
        return 0 <= log10(other[0] / x) < 0.18 and abs(log10(other[1] / y)) < 0.06 if y and other[1] else False

    return [(x, y, -6 if any(close(x, y, each) for each in spots if each != (x, y)) else 6) for x, y in spots]


def _roofline_rows(points: Sequence[Measurement], spots: Sequence[tuple[float, float]]) -> Table:
    rows = []
    for number, (each, (x, _)) in enumerate(zip(points, spots, strict=True), start=1):
        of_roof = share(each.number("share_of_attainable") or None, "-")
        bound = "spread too wide" if each.is_wide else each.bound or "-"
        rows.append([str(number), each.short_name, f"{x:.3g}", each.rate_text, of_roof, f"{each.spread:.1%}", bound])
    head = ["point", "kernel", "FLOP/B", "rate", "of its roof", "spread", "held back by"]
    return Table(head, rows, text=0, words=frozenset({1, 6}))


def _roofline_answer(points: Sequence[Measurement]) -> str:
    found: dict[str, int] = {}
    for each in points:
        if each.bound and not each.unsettled:
            found[each.bound] = found.get(each.bound, 0) + 1
    listed = ", ".join(f"{number} {bound}" for bound, number in sorted(found.items(), key=lambda row: -row[1]))
    number = sum(bool(each.unsettled) for each in points)
    if number == len(points):
        return UNSETTLED
    left = f"; {number} were contended, or their spread is too wide to say" if number else ""
    return (
        f"Of {len(points)} kernels {listed}" if listed else f"{len(points)} products under this machine's roofs"
    ) + f"{left}."


def _roofline_remarks(points: Sequence[Measurement]) -> list[str]:
    remarks = [BOTH_ROOFS]
    if any(each.bound == "above the memory roof" for each in points):
        remarks.append("What lies above the memory roof is not held back by it: its operands come from a cache.")
    return remarks


# ---- products ----------------------------------------------------------------------------------------------------


def rates_by_size(report: RunReport) -> Plot | None:
    """Each product's rate over its FLOPs, one series per dtype."""
    products = [each for each in report.benchmarks if is_product(each)]
    dtypes = list(dict.fromkeys(each.dtype for each in products))
    if not products:
        return None
    with Drawing("rates-by-size", "Rate of products by dtype and size") as drawing:
        for index, dtype in enumerate(dtypes):
            own = sorted((each for each in products if each.dtype == dtype), key=lambda each: each.number("flops"))
            squares = [each for each in own if "square" in each.case] or own
            drawing.line([(each.number("flops"), each.arithmetic_rate or 0.0) for each in squares], index)
            for each in own:
                title = f"{each.name}: {each.rate_text}, spread {spread_text(each)}"
                drawing.points(
                    [each.number("flops")], [each.arithmetic_rate or 0], [title], index, hollow=bool(each.unsettled)
                )
            drawing.legend_entry(dtype, index)
        log_axes(drawing.axes, "work of the product", "rate", x_unit="FLOP", y_unit="FLOP/s")
        drawing.axes.legend(ncols=min(3, len(dtypes)), loc="lower center", bbox_to_anchor=(0.5, 1.0))
        svg = drawing.svg()
    rows = [[each.name, engineering(each.number("flops"), "FLOP"), each.rate_text, spread_text(each), each.method]
            for each in products]  # fmt: skip
    settled = [each for each in products if not each.unsettled]
    fastest = max(settled, key=lambda each: each.arithmetic_rate or 0, default=None)
    return Plot("rates-by-size", "How fast is each dtype multiplied, and from which size on?",
                f"The fastest is {fastest.name}: {fastest.rate_text}." if fastest else UNSETTLED, svg,
                Table(["product", "operations", "rate", "spread", "measured"], rows, words=frozenset({4})),
                (f"Lines join the square products. {HOLLOW}",))  # fmt: skip


def ceiling_shares(report: RunReport) -> Plot | None:
    """The share of the ceiling that each product, step and recomputation reaches."""
    found = [each for each in report.benchmarks if each.has("share_of_ceiling") and each.family != "ceiling"]
    if not found:
        return None
    dtypes = list(dict.fromkeys(each.dtype for each in found))
    groups = list(dict.fromkeys((each.family, each.dtype) for each in found))
    height = 1.1 + 0.24 * len(groups)
    with Drawing("ceiling-shares", "Share of the own ceiling", height=height) as drawing:
        for row, group in enumerate(groups):
            own = [each for each in found if (each.family, each.dtype) == group]
            for each in own:
                reached = each.number("share_of_ceiling")
                title = f"{each.name}: {share(reached, '-')}, spread {spread_text(each)}"
                drawing.points([reached * 100], [row], [title], dtypes.index(group[1]), hollow=bool(each.unsettled))
        drawing.axes.axvline(100, color=INK, linewidth=1)
        drawing.axes.set_yticks(range(len(groups)), [label(f"{family} {dtype}") for family, dtype in groups])
        drawing.axes.set(xlim=(0, None), ylim=(len(groups) - 0.4, -0.6))
        drawing.axes.set_xlabel("share of this machine's best rate for the dtype, %")
        svg = drawing.svg()
    rows = [[each.name, each.rate_text, engineering(each.number("ceiling_flop_per_s"), "FLOP/s"),
             share(each.number("share_of_ceiling"), "-"), spread_text(each)] for each in found]  # fmt: skip
    settled = sorted((each.number("share_of_ceiling"), each.name) for each in found if not each.unsettled)
    ends = [f"{share(reached, '-')} ({name})" for reached, name in (settled[0], settled[-1])] if settled else []
    answer = f"From {' to '.join(ends)}." if ends else UNSETTLED
    return Plot("ceiling-shares", "How much of what this machine can do is reached?", answer, svg,
                Table(["benchmark", "rate", "own ceiling", "share", "spread"], rows))  # fmt: skip


# ---- memory ------------------------------------------------------------------------------------------------------


def bandwidths(report: RunReport) -> Plot | None:
    """Each STREAM kernel's bandwidth over its bytes, with the caches marked."""
    streams = [each for each in report.benchmarks if each.level and each.has("bytes", "bytes_per_s")]
    if not streams:
        return None
    kernels = list(dict.fromkeys(each.case.rpartition("-")[2] for each in streams))
    with Drawing("bandwidths", "Bandwidth by working set") as drawing:
        for index, kernel in enumerate(kernels):
            own = sorted((each for each in streams if each.case.rpartition("-")[2] == kernel),
                         key=lambda each: each.number("bytes"))  # fmt: skip
            caches = [each for each in own if each.level != "memory"]  # on one core, unlike the memory
            drawing.line([(each.number("bytes"), each.number("bytes_per_s")) for each in caches], index)
            for each in own:
                title = f"{each.case}: {each.rate_text}, spread {spread_text(each)}"
                spot = [each.number("bytes")], [each.number("bytes_per_s")]
                drawing.points(*spot, [title], index, hollow=bool(each.unsettled))
            drawing.legend_entry(kernel, index)
        log_axes(drawing.axes, "bytes that one pass reads and writes", "bandwidth", x_unit="B", y_unit="B/s")
        _mark_levels(drawing, streams, report)
        drawing.axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.06))
        svg = drawing.svg()
    rows = [[each.case, binary(each.number("bytes")), each.rate_text, f"{each.number('read_share'):.0%}",
             spread_text(each), ", ".join(filter(None, [each.method, each.info.get("label")]))]
            for each in streams]  # fmt: skip
    return Plot("bandwidths", "How fast is memory, and each cache?", _bandwidth_answer(streams), svg,
                Table(["stream", "working set", "bandwidth", "reads", "spread", "measured"], rows,
                      words=frozenset({5})),
                (f"The rows of a cache run on one core, those of the memory on all. {HOLLOW}",))  # fmt: skip


def _mark_levels(drawing: Drawing, streams: Sequence[Measurement], report: RunReport) -> None:
    """Draws a line at each known cache size, and each level's name above its points."""
    for size in report.caches.values():
        drawing.axes.axvline(size, color=FAINT, linewidth=1, linestyle=":")
    for level in dict.fromkeys(each.level for each in streams):
        sizes = [each.number("bytes") for each in streams if each.level == level]
        named = f" {binary(report.caches[level])}" if level in report.caches else ""
        drawing.axes.text((min(sizes) * max(sizes)) ** 0.5, 1.01, label(level + named), ha="center", fontsize=9,
                          transform=drawing.axes.get_xaxis_transform())  # fmt: skip


def _bandwidth_answer(streams: Sequence[Measurement]) -> str:
    parts = []
    for level in dict.fromkeys(each.level for each in streams):
        own = [each for each in streams if each.level == level and not each.unsettled]
        if own:
            best = max(own, key=lambda each: each.number("bytes_per_s"))
            parts.append(f"{level} {best.rate_text}")
    return f"At most: {', '.join(parts)}." if parts else UNSETTLED


# ---- training ----------------------------------------------------------------------------------------------------


def step_times(report: RunReport) -> Plot | None:
    """The parts of each training step."""
    steps = [each for each in report.benchmarks if all(each.has(f"{part}_s") for part in PARTS)]
    if not steps:
        return None
    with Drawing("step-times", "Time of a training step by parts", height=1.2 + 0.42 * len(steps)) as drawing:
        for index, part in enumerate(PARTS):
            for place, each in enumerate(steps):
                left = sum(each.number(f"{before}_s") for before in PARTS[:index]) * 1e3
                width = each.number(f"{part}_s") * 1e3
                (bar,) = drawing.axes.barh([place], [width], 0.6, [left], color=SERIES[index],
                                           label=None if place else part)  # fmt: skip
                drawing.title_of(bar, f"{each.case}, {part}: {engineering(width / 1e3, 's')}")
        drawing.axes.set_yticks(range(len(steps)), [label(each.case) for each in steps])
        drawing.axes.set(ylim=(len(steps) - 0.4, -0.6), xlabel="ms")
        drawing.axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
        svg = drawing.svg()
    rows = [[each.case, *(engineering(each.number(f"{part}_s"), "s") for part in PARTS),
             engineering(each.median_s, "s"), f"{each.number('parts_over_step'):.2f}", spread_text(each)]
            for each in steps]  # fmt: skip
    return Plot("step-times", "Where does the time of a training step go?", _step_answer(steps), svg,
                Table(["step", *PARTS, "whole step", "parts over step", "spread"], rows),
                ("Parts and whole are measured apart; their quotient is near 1 on a quiet machine.",))  # fmt: skip


def _step_answer(steps: Sequence[Measurement]) -> str:
    parts = []
    for each in steps:
        whole = sum(each.number(f"{part}_s") for part in PARTS)
        listed = ", ".join(f"{part} {each.number(f'{part}_s') / whole:.0%}" for part in PARTS)
        parts.append(f"{each.case}: {listed}")
    return "; ".join(parts[:3]) + "."


def step_memory(report: RunReport) -> Plot | None:
    """Memory held at the end of each phase of a step, and the peak."""
    steps = [each for each in report.benchmarks if each.info.get("step_memory")]
    if not steps:
        return None
    each = max(steps, key=lambda step: max(row["peak_bytes"] for row in step.info["step_memory"].values()))
    phases = each.info["step_memory"]
    kinds = list(dict.fromkeys(kind for row in phases.values() for kind in row["held"]))
    with Drawing("step-memory", f"Memory of a training step: {each.case}", height=3.2) as drawing:
        below = [0.0] * len(phases)
        for index, kind in enumerate(kinds):
            heights = [row["held"].get(kind, 0) / 2**20 for row in phases.values()]
            bars = drawing.axes.bar(range(len(phases)), heights, 0.55, below, color=SERIES[index], label=kind)
            for bar, phase, height in zip(bars, phases, heights, strict=True):
                drawing.title_of(bar, f"{kind} after {phase}: {binary(height * 2**20)}")
            below = [low + height for low, height in zip(below, heights, strict=True)]
        for place, row in enumerate(phases.values()):
            peak = row["peak_bytes"] / 2**20
            drawing.axes.plot([place - 0.36, place + 0.36], [peak, peak], color=INK, linewidth=1.6,
                              label=None if place else "peak")  # fmt: skip
        drawing.axes.set_xticks(range(len(phases)), [label(f"after {phase}") for phase in phases])
        drawing.axes.set_ylabel("MiB")
        drawing.axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
        svg = drawing.svg()
    rows = [[f"after {phase}", *(binary(row["held"].get(kind, 0)) for kind in kinds), binary(row["peak_bytes"])]
            for phase, row in phases.items()]  # fmt: skip
    peak = max(phases, key=lambda phase: phases[phase]["peak_bytes"])
    return Plot("step-memory", "What fills the memory over a training step?",
                f"{each.case} holds {binary(phases[peak]['peak_bytes'])} at most, in its {peak}.", svg,
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
    rows = [
        (what, each, each.number(first), each.number(second), text)
        for what, first, second, text in PAIRS
        for each in report.benchmarks
        if each.has(first, second)
    ]
    if not rows:
        return None
    kinds = list(dict.fromkeys(what for what, *_ in rows))
    with Drawing("predictions", "Measured over predicted", height=1.3 + 0.34 * len(kinds)) as drawing:
        for what, each, predicted, measured, text in rows:
            title = f"{what}, {each.name}: {text(predicted)} predicted, {text(measured)} measured"
            row = kinds.index(what)
            drawing.points([measured / predicted], [row], [title], row, hollow=bool(each.unsettled))
        drawing.axes.axvline(1, color=INK, linewidth=1)
        drawing.axes.set_yticks(range(len(kinds)), kinds)
        drawing.axes.set(ylim=(len(kinds) - 0.4, -0.6), xlabel="measured (or counted) over predicted")
        svg = drawing.svg()
    near = sum(abs(measured / predicted - 1) <= NEAR for *_, predicted, measured, _ in rows)
    table = [[what, each.name, text(predicted), text(measured), f"{measured / predicted:.3f}"]
             for what, each, predicted, measured, text in rows]  # fmt: skip
    return Plot("predictions", "Do the formulas predict what is measured?",
                f"{near} of {len(rows)} predictions are within {NEAR:.0%} of what was measured or counted.", svg,
                Table(["what", "benchmark", "predicted", "measured", "ratio"], table, text=2),
                (NOT_PREDICTED,))  # fmt: skip
